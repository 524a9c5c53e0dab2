"""Loads the certificates and keys that `ssl.truststore.*` and `ssl.keystore.*` name, from files or inline.

They are returned as DER and PEM bytes; `security.tls` loads them into an SSL context. Files are read at each
call, so a rotated file is used from the next connection's context on. `store_files` reads files, `pem` reads
PEM text.
"""

from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_kafka.security.pem import ClientKey, blocks_of, certificates_in, client_key_of, keys_in
from mirrorflow_kafka.security.store_files import StoreFile


def trusted_certificates(properties: Mapping[str, str]) -> tuple[bytes, ...] | None:
    """Return the DER of every configured trust anchor; None if none is configured. Raises SettingError."""
    inline = properties.get("ssl.truststore.certificates", "")
    store = StoreFile.of(properties, "ssl.truststore")
    if inline and store is not None:
        raise InvalidSettingError(
            key="ssl.truststore.certificates", problem="ssl.truststore.location is set as well"
        )
    if inline:
        _only_pem(properties, "ssl.truststore", "ssl.truststore.certificates")
        found = certificates_in(blocks_of(inline.encode(), "ssl.truststore.certificates"))
    elif store is not None:
        found = store.trusted()
    else:
        return None
    if not found:
        key = "ssl.truststore.certificates" if inline else "ssl.truststore.location"
        raise InvalidSettingError(key=key, problem="it holds no certificate")
    return found


def client_key(properties: Mapping[str, str]) -> ClientKey | None:
    """Return the client's configured key and chain; None if none is configured. Raises SettingError."""
    key, chain = properties.get("ssl.keystore.key", ""), properties.get("ssl.keystore.certificate.chain", "")
    store = StoreFile.of(properties, "ssl.keystore")
    if (key or chain) and store is not None:
        raise InvalidSettingError(key="ssl.keystore.key", problem="ssl.keystore.location is set as well")
    if store is not None:
        return store.key(properties.get("ssl.key.password"))
    if not key and not chain:
        return None
    if not key or not chain:
        missing, present = ("key", "certificate.chain") if chain else ("certificate.chain", "key")
        raise InvalidSettingError(
            key=f"ssl.keystore.{missing}", problem=f"it is missing beside ssl.keystore.{present}"
        )
    _only_pem(properties, "ssl.keystore", "ssl.keystore.key")
    keys = keys_in(blocks_of(key.encode(), "ssl.keystore.key"))
    certificates = certificates_in(blocks_of(chain.encode(), "ssl.keystore.certificate.chain"))
    return client_key_of(keys, certificates, properties.get("ssl.key.password"), "ssl.keystore.key")


def _only_pem(properties: Mapping[str, str], side: str, key: str) -> None:
    declared = properties.get(f"{side}.type", "").upper()
    if declared not in {"", "PEM"}:
        raise InvalidSettingError(key=key, problem=f"it is for PEM only, but {side}.type is {declared}")

"""Reads trust anchors or the client's key from a JKS, PKCS12 or PEM file.

It is more lenient than Java, without trusting more than the store holds: PEM is detected without a type, and
certificates in a PKCS12 store need no Java attribute. `jks`, `pkcs12` and `pem` read the formats;
`store_bytes` detects them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_kafka.security.jks import JksEntry, JksError, open_key, read_jks
from mirrorflow_kafka.security.pem import (
    ClientKey,
    armoured,
    blocks_of,
    certificates_in,
    client_key_of,
    keys_in,
)
from mirrorflow_kafka.security.pkcs12 import Pkcs12Error, read_pkcs12
from mirrorflow_kafka.security.store_bytes import ADVICE, read_store, store_format

_TYPES = frozenset({"JKS", "PKCS12", "PEM"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFile:
    """The content and format of one store file; `side` is ssl.truststore or ssl.keystore."""

    side: str
    format: str
    data: bytes = field(repr=False)
    password: str | None = field(repr=False)

    @classmethod
    def of(cls, properties: Mapping[str, str], side: str) -> "StoreFile | None":
        """Read the store configured for *side*; return None if none is configured. Raises SettingError."""
        location = properties.get(f"{side}.location", "")
        declared = properties.get(f"{side}.type", "").upper()
        if declared and declared not in _TYPES:
            why = ADVICE.get(declared, "only JKS, PKCS12 and PEM stores are read")
            raise RefusedSettingError(key=f"{side}.type", why=why)
        if not location:
            return None
        data = read_store(location, f"{side}.location")
        found = store_format(data, f"{side}.location")
        if declared and (declared == "PEM") != (found == "PEM"):
            raise InvalidSettingError(
                key=f"{side}.type",
                problem=f"it says {declared}, but the file is {found}",
                action=f"set it to {found}",
            )
        password = properties.get(f"{side}.password")
        if found == "PEM" and password and declared == "PEM":
            raise InvalidSettingError(
                key=f"{side}.password",
                problem="a PEM store has no password",
                action="use ssl.key.password for its key",
            )
        return cls(side=side, format=found, data=data, password=password)

    def trusted(self) -> tuple[bytes, ...]:
        """Return the DER of the trust anchors. Raises InvalidSettingError."""
        if self.format == "PEM":
            return certificates_in(blocks_of(self.data, f"{self.side}.location"))
        if self.format == "JKS":
            # A key entry's own certificate is an anchor as well, as in Java's TrustStoreUtil.
            return tuple(entry.chain[0] for entry in self._jks() if entry.chain)
        return self._pkcs12()[1]

    def key(self, key_password: str | None) -> ClientKey:
        """Return the private key and chain.

        Raises InvalidSettingError, which names the password that is wrong.
        """
        location = f"{self.side}.location"
        if self.format == "PEM":
            blocks = blocks_of(self.data, location)
            return client_key_of(keys_in(blocks), certificates_in(blocks), key_password, location)
        if self.format == "JKS":
            entry = next((entry for entry in self._jks() if entry.protected_key), None)
            if entry is None:
                raise InvalidSettingError(key=location, problem="the store holds no private key")
            # Java opens a JKS key with the store's password when ssl.key.password is not set.
            password = self.password if key_password is None else key_password
            try:
                key = open_key(entry.protected_key, password or "")
            except JksError as error:
                setting = f"{self.side}.password" if key_password is None else "ssl.key.password"
                raise InvalidSettingError(key=setting, problem=str(error)) from None
            chain = entry.chain
        else:
            key, chain = self._pkcs12()
            if not key:
                raise InvalidSettingError(key=location, problem="the store holds no private key")
        return ClientKey(
            key_pem=armoured("PRIVATE KEY", key),
            chain_pem=b"".join(armoured("CERTIFICATE", der) for der in chain),
            password="",
            source=location,
        )

    def _jks(self) -> tuple[JksEntry, ...]:
        try:
            return read_jks(self.data, self.password or None)
        except JksError as error:
            raise self._unreadable(str(error)) from None

    def _pkcs12(self) -> tuple[bytes, tuple[bytes, ...]]:
        try:
            return read_pkcs12(self.data, self.password or None)
        except Pkcs12Error as error:
            raise self._unreadable(str(error)) from None

    def _unreadable(self, problem: str) -> InvalidSettingError:
        missing = "" if self.password else f"; {self.side}.password is not set"
        return InvalidSettingError(
            key=f"{self.side}.location", problem=f"the {self.format} store cannot be read: {problem}{missing}"
        )

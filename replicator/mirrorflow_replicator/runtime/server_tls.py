"""The TLS of our own HTTP listeners, from Java's `ssl.*` as Connect's REST server reads them (RestServer, SSLUtils).

The server's key and chain come from `ssl.keystore.*`, whom it trusts from `ssl.truststore.*`, both in every form that
clients may use; `ssl.client.auth` asks for a certificate of who calls. Read once, when the process starts.
"""

import ssl
from collections.abc import Mapping

from mirrorflow_replicator.errors import InvalidSettingError
from mirrorflow_replicator.kafka.keystores import client_key, trusted_certificates
from mirrorflow_replicator.kafka.tls import load_key, trust
from mirrorflow_replicator.kafka.tls_versions import choose_ciphers, choose_versions

_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def server_context(properties: Mapping[str, str]) -> tuple[ssl.SSLContext, tuple[str, ...]]:
    """A server's context and what must be warned of. Raises SettingError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    warnings = [*choose_versions(context, properties), *choose_ciphers(context, properties)]
    own = client_key(properties)
    if own is None:
        raise InvalidSettingError(
            key="ssl.keystore.location",
            problem="it is missing, and a listener is https",
            action="name the server's keystore, or write http:// listeners only",
        )
    load_key(context, own)
    written = properties.get("ssl.client.auth", "none").strip().lower()
    if written not in _CLIENT_AUTH:
        raise InvalidSettingError(
            key="ssl.client.auth",
            problem=f"{written!r} is not known",
            action="write " + " or ".join(_CLIENT_AUTH),
        )
    if _CLIENT_AUTH[written] is not ssl.CERT_NONE:
        _ask_for_certificates(context, properties, _CLIENT_AUTH[written])
    return context, tuple(warnings)


def _ask_for_certificates(
    context: ssl.SSLContext, properties: Mapping[str, str], mode: ssl.VerifyMode
) -> None:
    """Without a trust store the public authorities would count, and anyone can have a certificate of theirs."""
    anchors = trusted_certificates(properties)
    if anchors is None:
        raise InvalidSettingError(
            key="ssl.truststore.location",
            problem="it is missing, and ssl.client.auth asks for certificates",
            action="name the store of the authorities that are trusted",
        )
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trust(context, anchors)
    context.verify_mode = mode

"""Builds an SSL context from Java's `ssl.*` properties.

The peer's certificate is always verified, as in Java; only the host name check can be disabled. Private keys
reach OpenSSL through an anonymous memory file where the system has memfd_create. `tls_versions` chooses
versions and ciphers, `keystores` loads certificates, and `tls_problems` describes failed handshakes.
"""

import os
import ssl
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_kafka.security.keystores import client_key, trusted_certificates
from mirrorflow_kafka.security.pem import ClientKey
from mirrorflow_kafka.security.tls_versions import choose_ciphers, choose_versions


def build_context(properties: Mapping[str, str]) -> tuple[ssl.SSLContext, tuple[str, ...]]:
    """Return a client's SSL context and warnings. Raises SettingError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = wants_host_check(properties)
    context.verify_mode = ssl.CERT_REQUIRED
    # In Java every certificate of a trust store is an anchor, including intermediates and self-signed leaves.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    # As in Java, the subject's common name counts if a certificate has no DNS name.
    context.hostname_checks_common_name = True
    warnings = [*choose_versions(context, properties), *choose_ciphers(context, properties)]
    trust(context, trusted_certificates(properties))
    own = client_key(properties)
    if own is not None:
        load_key(context, own)
    return context, tuple(warnings)


def certificate_name(host: str | None) -> str | None:
    """Return the name that the certificate of *host* must have, and that is sent as SNI.

    The last dot of a fully qualified name is part of neither (RFC 6066, as in Java and librdkafka).
    """
    return host.removesuffix(".") if host else None


def wants_host_check(properties: Mapping[str, str]) -> bool:
    """Return whether the peer's host name is checked (`ssl.endpoint.identification.algorithm`).

    Raises RefusedSettingError for algorithms other than https or empty.
    """
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in {"", "https"}:
        raise RefusedSettingError(
            key="ssl.endpoint.identification.algorithm", why="only https, or empty for no check, is offered"
        )
    return algorithm == "https"


def trust(context: ssl.SSLContext, anchors: tuple[bytes, ...] | None) -> None:
    """Trust *anchors* (DER); None means the system's CAs. Raises InvalidSettingError."""
    if anchors is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    for der in dict.fromkeys(anchors):
        try:
            context.load_verify_locations(cadata=der)
        except (ssl.SSLError, ValueError):
            raise InvalidSettingError(
                key="ssl.truststore", problem="a certificate in it cannot be read"
            ) from None


def load_key(context: ssl.SSLContext, own: ClientKey) -> None:
    """Load the client's key and chain into *context*. Raises InvalidSettingError.

    OpenSSL reads them only from a file. It is an anonymous one where possible, so that a crash leaves no key
    on disk.
    """
    content = own.key_pem + own.chain_pem
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("client-key", os.MFD_CLOEXEC)
        path = f"/proc/self/fd/{file}"
    else:
        file, path = tempfile.mkstemp()  # mode 0600
    try:
        with os.fdopen(file, "wb", closefd=False) as stream:
            stream.write(content)
        # Without a password function OpenSSL would prompt at the terminal.
        context.load_cert_chain(path, password=lambda: own.password)
    except (ssl.SSLError, ValueError) as error:
        raise _unusable(own, error) from None
    finally:
        os.close(file)
        if not path.startswith("/proc/"):
            with suppress(FileNotFoundError):
                Path(path).unlink()


def _unusable(own: ClientKey, error: Exception) -> InvalidSettingError:
    if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
        return InvalidSettingError(
            key=own.source, problem="the private key does not belong to the first certificate"
        )
    if own.password:
        return InvalidSettingError(key="ssl.key.password", problem="it does not open the private key")
    return InvalidSettingError(key=own.source, problem="the private key or its certificate cannot be used")

"""Builds an SSL context from Java's `ssl.*` properties, and describes failed handshakes.

The peer's certificate is always verified, as in Java; only the host name check can be disabled. Private keys
reach OpenSSL through an anonymous memory file where the system has memfd_create. Names of versions and ciphers are
Java's, translated to OpenSSL's. `keystores` loads certificates.
"""

import os
import re
import ssl
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.properties import read_list
from mirrorflow_kafka.security.keystores import ClientKey, client_key, trusted_certificates

# OpenSSL's X509_V_ERR_* codes.
_VERIFY_PROBLEMS = {
    9: "the broker's certificate is not valid yet; check the clock",
    10: "the broker's certificate has expired",
    18: "the broker's certificate is self-signed and not in the trust store (ssl.truststore.*)",
    19: "the broker's certificate chain ends in an unknown CA; put that CA into the trust store (ssl.truststore.*)",
    20: "the broker's certificate is signed by an unknown CA; put that CA into the trust store (ssl.truststore.*)",
    21: "the broker's certificate is signed by an unknown CA; put that CA into the trust store (ssl.truststore.*)",
    23: "the broker's certificate has been revoked",
    62: "the broker's certificate is for another host name; use the name it was made for",
    64: "the broker's certificate is not for this IP address; use the name it was made for",
}
_OLD = frozenset({"TLSv1.1", "TLSv1", "SSLv3", "SSLv2Hello"})
_TLS13 = frozenset(
    {
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
        "TLS_AES_128_CCM_SHA256",
        "TLS_AES_128_CCM_8_SHA256",
    }
)
_KEY_EXCHANGE = {
    "RSA": "",
    "ECDHE_RSA": "ECDHE-RSA-",
    "ECDHE_ECDSA": "ECDHE-ECDSA-",
    "DHE_RSA": "DHE-RSA-",
    "DHE_DSS": "DHE-DSS-",
}
# Signalling values that are not ciphers; OpenSSL always sends that of RFC 5746.
_SIGNALS = frozenset({"TLS_EMPTY_RENEGOTIATION_INFO_SCSV"})


def tls_problem(error: Exception) -> str:
    """Returns what went wrong in the TLS handshake, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        known = _VERIFY_PROBLEMS.get(error.verify_code)
        return known or f"the broker's certificate is not accepted ({error.verify_message})"
    reason = (getattr(error, "reason", None) or "").upper() if isinstance(error, ssl.SSLError) else ""
    if reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"}:
        return "the listener does not speak TLS; it may be a plaintext one"
    if "CERTIFICATE_REQUIRED" in reason:
        return "the broker wants a client certificate; set ssl.keystore.*"
    if "UNKNOWN_CA" in reason or "CERTIFICATE" in reason:
        return f"the broker does not accept our client certificate ({reason}); check ssl.keystore.*"
    if "PROTOCOL_VERSION" in reason or "NO_SHARED" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"no common TLS version or cipher, or a client certificate is wanted ({reason}); check ssl.* settings"
    if isinstance(error, ssl.SSLEOFError | ConnectionError) or not reason:
        return "the connection was closed during the TLS handshake; the listener may be a plaintext one"
    return f"TLS failed ({reason})"


def choose_versions(context: ssl.SSLContext, properties: Mapping[str, str]) -> list[str]:
    """Applies `ssl.enabled.protocols`; returns warnings. Raises SettingError."""
    key = "ssl.enabled.protocols"
    offered = {"TLSv1.2", "TLSv1.3"}
    names = set(read_list(properties.get(key, ""))) or offered
    unknown = names - _OLD - offered
    if unknown:
        raise InvalidSettingError(
            key=key, problem="it names an unknown protocol", action="use TLSv1.2 and TLSv1.3"
        )
    if not names - _OLD:
        raise RefusedSettingError(
            key=key, why="TLSv1.1 and older are broken and not offered; add TLSv1.2 or TLSv1.3"
        )
    context.minimum_version = ssl.TLSVersion.TLSv1_2 if "TLSv1.2" in names else ssl.TLSVersion.TLSv1_3
    context.maximum_version = ssl.TLSVersion.TLSv1_3 if "TLSv1.3" in names else ssl.TLSVersion.TLSv1_2
    left_out = ", ".join(sorted(names & _OLD))
    return [f"{key}: {left_out} is left out; TLSv1.2 and TLSv1.3 are offered"] if left_out else []


def choose_ciphers(context: ssl.SSLContext, properties: Mapping[str, str]) -> list[str]:
    """Applies `ssl.cipher.suites`, after `choose_versions`; returns warnings. Raises SettingError."""
    key = "ssl.cipher.suites"
    names = read_list(properties.get(key, ""))
    names = [name for name in names if name not in _SIGNALS]
    if not names:
        return []
    modern = [name for name in names if name in _TLS13]
    unknown: list[str] = []
    older: list[str] = []
    for name in names:
        if name not in _TLS13:
            openssl = openssl_name(name)
            (older if openssl and _offered(openssl) else unknown).append(openssl or name)
    if not modern and not older:
        raise InvalidSettingError(key=key, problem="OpenSSL offers none of the suites that it names")
    warnings = (
        [f"{key}: {len(unknown)} of its suites are not offered by OpenSSL and left out"] if unknown else []
    )
    if older:
        context.set_ciphers(":".join(older))
    elif context.maximum_version != ssl.TLSVersion.TLSv1_2:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if not modern and context.minimum_version != ssl.TLSVersion.TLSv1_3:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    elif not modern or (not older and context.maximum_version == ssl.TLSVersion.TLSv1_2):
        raise InvalidSettingError(
            key=key, problem="none of its suites belongs to a version in ssl.enabled.protocols"
        )
    elif context.maximum_version == ssl.TLSVersion.TLSv1_3:
        warnings.append(f"{key}: every suite of TLSv1.3 is offered, as they can only be chosen together")
    return warnings


def openssl_name(iana: str) -> str | None:
    """Returns OpenSSL's name of the TLS 1.2 suite that Java calls *iana*; None if the rule does not cover it."""
    match = re.fullmatch(r"(?:TLS|SSL)_([A-Z_]+?)_WITH_([A-Z0-9_]+)", iana)
    prefix = _KEY_EXCHANGE.get(match.group(1)) if match else None
    if match is None or prefix is None:
        return None
    cipher = match.group(2)
    if cipher == "CHACHA20_POLY1305_SHA256":
        return prefix + "CHACHA20-POLY1305"
    parts = re.fullmatch(r"(AES|CAMELLIA|ARIA)_(128|256)_(CBC|GCM|CCM|CCM_8)(?:_(SHA\d*))?", cipher)
    if parts is None:
        return None
    name, bits, mode, digest = parts.groups()
    body = f"{name}{bits}" + {"CBC": "", "GCM": "-GCM", "CCM": "-CCM", "CCM_8": "-CCM8"}[mode]
    return prefix + body + (f"-{digest}" if digest else "")


def _offered(openssl: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(openssl)
    except ssl.SSLError:
        return False
    return True


def build_context(properties: Mapping[str, str]) -> tuple[ssl.SSLContext, tuple[str, ...]]:
    """Returns a client's SSL context and warnings. Raises SettingError."""
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
    """Returns the name that the certificate of *host* must have, and that is sent as SNI.

    The last dot of a fully qualified name is part of neither (RFC 6066, as in Java and librdkafka).
    """
    return host.removesuffix(".") if host else None


def wants_host_check(properties: Mapping[str, str]) -> bool:
    """Returns whether the peer's host name is checked (`ssl.endpoint.identification.algorithm`).

    Raises RefusedSettingError for algorithms other than https or empty.
    """
    algorithm = properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    if algorithm not in {"", "https"}:
        raise RefusedSettingError(
            key="ssl.endpoint.identification.algorithm", why="only https, or empty for no check, is offered"
        )
    return algorithm == "https"


def trust(context: ssl.SSLContext, anchors: tuple[bytes, ...] | None) -> None:
    """Trusts *anchors* (DER); None means the system's CAs. Raises InvalidSettingError."""
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
    """Loads the client's key and chain into *context*. Raises InvalidSettingError.

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

"""Applies `ssl.enabled.protocols` and `ssl.cipher.suites`, translating Java's names to OpenSSL's."""

import re
import ssl
from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.property_reader import read_list

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


def choose_versions(context: ssl.SSLContext, properties: Mapping[str, str]) -> list[str]:
    """Apply `ssl.enabled.protocols`; return warnings. Raises SettingError."""
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
    """Apply `ssl.cipher.suites`, after `choose_versions`; return warnings. Raises SettingError."""
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


def openssl_name(iana: str) -> str:
    """Return OpenSSL's name of the TLS 1.2 suite that Java calls *iana*; "" if the rule does not cover it."""
    match = re.fullmatch(r"(?:TLS|SSL)_([A-Z_]+?)_WITH_([A-Z0-9_]+)", iana)
    prefix = _KEY_EXCHANGE.get(match.group(1)) if match else None
    if match is None or prefix is None:
        return ""
    cipher = match.group(2)
    if cipher == "CHACHA20_POLY1305_SHA256":
        return prefix + "CHACHA20-POLY1305"
    parts = re.fullmatch(r"(AES|CAMELLIA|ARIA)_(128|256)_(CBC|GCM|CCM|CCM_8)(?:_(SHA\d*))?", cipher)
    if parts is None:
        return ""
    name, bits, mode, digest = parts.groups()
    body = f"{name}{bits}" + {"CBC": "", "GCM": "-GCM", "CCM": "-CCM", "CCM_8": "-CCM8"}[mode]
    return prefix + body + (f"-{digest}" if digest else "")


def _offered(openssl: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).set_ciphers(openssl)
    except ssl.SSLError:
        return False
    return True

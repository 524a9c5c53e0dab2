"""Builds a client's TLS and SASL setup from Java's `security.protocol`, `ssl.*` and `sasl.*` settings.

`build_security` reads every file and refuses invalid settings up front; afterwards only tokens are fetched.
Secrets rotate by building it again from newly resolved properties. `java.security_keys` defines how each key
is treated. Nothing is logged here: the caller logs `ClientSecurity.warnings` once.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.security_keys import verdict
from mirrorflow_kafka.security.oauth import TokenCache
from mirrorflow_kafka.security.oauth_settings import refresh_window, sasl_extensions, token_source
from mirrorflow_kafka.security.sasl import (
    BrokerAddress,
    Login,
    OAuthBearerClient,
    PlainClient,
    SaslClient,
    ScramClient,
    chosen_mechanism,
    login_module,
    password_login,
)
from mirrorflow_kafka.security.tls import build_context, wants_host_check

PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """What a connection needs: `ssl_context` is None without TLS, `mechanism` None without SASL."""

    cluster: str
    protocol: str
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    check_hostname: bool = True
    mechanism: str | None = None
    warnings: tuple[str, ...] = ()
    login: Login | None = field(default=None, repr=False)
    tokens: TokenCache | None = field(default=None, repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)

    def sasl_client(self, host: str = "") -> SaslClient | None:
        """Return a new SASL exchange with the broker at *host* (used only in errors); None without SASL."""
        if self.mechanism is None:
            return None
        place = BrokerAddress(
            cluster=self.cluster, address=host or "one of its brokers", mechanism=self.mechanism
        )
        if self.tokens is not None:
            return OAuthBearerClient(self.tokens, self.extensions, place)
        assert self.login is not None
        return PlainClient(self.login, place) if self.mechanism == "PLAIN" else ScramClient(self.login, place)


def build_security(properties: Mapping[str, str], *, cluster: str) -> ClientSecurity:
    """Return the security of a client of *cluster* from resolved *properties* with unprefixed names.

    Raises InvalidSettingError and RefusedSettingError, which name the key.
    """
    protocol, warnings = check_protocol(properties)
    encrypted, sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    context = None
    if encrypted:
        context, said = build_context(properties)
        warnings += said
    channel = ClientSecurity(
        cluster=cluster,
        protocol=protocol,
        ssl_context=context,
        check_hostname=encrypted and wants_host_check(properties),
        warnings=warnings,
    )
    if not sasl:
        return channel
    mechanism = chosen_mechanism(properties)
    module = login_module(properties, mechanism)
    login = tokens = None
    extensions: Mapping[str, str] = {}
    if mechanism == "OAUTHBEARER":
        source, said = token_source(properties, module.options)
        warnings += said
        tokens = TokenCache(source.fetch, cluster=cluster, window=refresh_window(properties))
        extensions = sasl_extensions(module.options, source)
    else:
        login = password_login(module, mechanism)
        if protocol == "SASL_PLAINTEXT" and mechanism == "PLAIN":
            warnings += ("security.protocol: SASL_PLAINTEXT sends the password readable over the network",)
    return replace(
        channel,
        mechanism=mechanism,
        warnings=warnings,
        login=login,
        tokens=tokens,
        extensions=extensions,
    )


def check_protocol(properties: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return `security.protocol`, and a warning for each ignored key that this protocol reads.

    Raises InvalidSettingError for an unknown protocol and RefusedSettingError for a refused key.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise InvalidSettingError(
            key="security.protocol",
            problem="it is unknown",
            action="use one of " + ", ".join(sorted(PROTOCOLS)),
        )
    prefixes = (("ssl.",) if protocol.endswith("SSL") else ()) + (
        ("sasl.",) if protocol.startswith("SASL") else ()
    )
    return protocol, _judge(properties, prefixes)


def _judge(properties: Mapping[str, str], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Return warnings for ignored keys that this protocol reads.

    Raises RefusedSettingError for refused ones.
    """
    warnings = []
    for key in sorted(properties):
        if not properties[key] or not key.startswith(prefixes) or not prefixes:
            continue
        word, why = verdict(key)
        if word == "refused":
            raise RefusedSettingError(key=key, why=why)
        if word == "ignored":
            warnings.append(f"{key} is ignored: {why}")
    return tuple(warnings)

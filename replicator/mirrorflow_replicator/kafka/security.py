"""How a client of one cluster encrypts and who it says it is, from Java's `security.protocol`, `ssl.*`, `sasl.*`.

`build_security` reads every file and refuses every wrong setting at once; afterwards only tokens are fetched. Secrets
rotate by building it again from properties resolved anew. What is done with each key is `connect.security_keys`'.
Nothing here logs: `Security.warnings` is for the caller to say once.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mirrorflow_replicator.connect.security_keys import verdict
from mirrorflow_replicator.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_replicator.kafka.login import chosen_mechanism, login_module, password_login
from mirrorflow_replicator.kafka.login_times import refresh_window
from mirrorflow_replicator.kafka.oauth import TokenCache
from mirrorflow_replicator.kafka.oauth_options import sasl_extensions
from mirrorflow_replicator.kafka.oauth_settings import token_source
from mirrorflow_replicator.kafka.sasl import (
    Login,
    OAuthBearerClient,
    Place,
    PlainClient,
    SaslClient,
    ScramClient,
)
from mirrorflow_replicator.kafka.tls import build_context, wants_host_check

PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
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
        """A new conversation with the broker at *host* (only named in errors); None without SASL."""
        if self.mechanism is None:
            return None
        place = Place(cluster=self.cluster, address=host or "one of its brokers", mechanism=self.mechanism)
        if self.tokens is not None:
            return OAuthBearerClient(self.tokens, self.extensions, place)
        assert self.login is not None
        return PlainClient(self.login, place) if self.mechanism == "PLAIN" else ScramClient(self.login, place)


def build_security(properties: Mapping[str, str], *, cluster: str) -> Security:
    """The security of a client of *cluster*; *properties* are resolved, in Java's names without prefixes.

    Raises InvalidSettingError and RefusedSettingError, which name the key.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise InvalidSettingError(
            key="security.protocol",
            problem="it is unknown",
            action="use one of " + ", ".join(sorted(PROTOCOLS)),
        )
    encrypted, sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    prefixes = (("ssl.",) if encrypted else ()) + (("sasl.",) if sasl else ())
    warnings = _judge(properties, prefixes)
    context = None
    if encrypted:
        context, said = build_context(properties)
        warnings += said
    channel = Security(
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


def _judge(properties: Mapping[str, str], prefixes: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse what is refused, warn of what is ignored, among the keys that this protocol reads."""
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

"""Checks a client's connection settings, and builds its TLS and SASL setup, from Java's property names.

`check_client` rejects, before anything starts, what no broker, file or secret can make valid. Errors that may be transient are
left to the connection: unresolvable host names, missing files and secrets. Addresses are those of Java's ClientUtils: host:port
or [IPv6]:port, also after protocol://.

`build_security` reads every file and refuses invalid settings up front; afterwards only tokens are fetched. Secrets rotate by
building it again from newly resolved properties. `java.security_keys` defines how each key is treated. Nothing is logged here:
the caller logs `ClientSecurity.warnings` once.
"""

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import field, fields, is_dataclass
from typing import TYPE_CHECKING

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError, SettingError
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_core.java.jaas import LoginModule, resolve_jaas
from mirrorflow_core.java.properties import has_reference, read_list, reference_at
from mirrorflow_core.java.security_keys import verdict
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.settings import ClientSettings
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
from mirrorflow_kafka.security.tls import build_context

if TYPE_CHECKING:
    from mirrorflow_kafka.security.oauth import TokenCache

PROTOCOLS = frozenset({"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"})
_ADDRESS = re.compile(r"^(?:[a-zA-Z][a-zA-Z\d_+.-]*://)?\[?([0-9a-zA-Z\-%._:]+)\]?:(\d{1,5})$")
PORT_MAX = 65535
_UNKNOWN = "unknown"  # stands for what a reference resolves to


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordSecurity:
    """A mechanism with a user name and password: PLAIN or SCRAM."""

    mechanism: str
    login: Login = field(repr=False)

    def client(self, place: BrokerAddress) -> SaslClient:
        """Returns a new exchange with the broker at *place*."""
        return PlainClient(self.login, place) if self.mechanism == "PLAIN" else ScramClient(self.login, place)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSecurity:
    """A mechanism with tokens: OAUTHBEARER."""

    mechanism: str
    tokens: "TokenCache" = field(repr=False)
    extensions: Mapping[str, str] = field(repr=False)
    refusal_hint: str | None = None

    def client(self, place: BrokerAddress) -> SaslClient:
        """Returns a new exchange with the broker at *place*."""
        return OAuthBearerClient(self.tokens, self.extensions, place, refusal_hint=self.refusal_hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSecurity:
    """What a connection needs: `ssl_context` is None without TLS, `sasl` None without SASL."""

    cluster: str
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    sasl: PasswordSecurity | TokenSecurity | None = None
    warnings: tuple[str, ...] = ()

    async def prepare(self, address: str) -> None:
        """Obtains the token for a connection to *address*, if it needs one. Raises AuthenticationFailedError."""
        if isinstance(self.sasl, TokenSecurity):
            await self.sasl.tokens.token(address=address)

    def sasl_client(self, address: str) -> SaslClient | None:
        """Returns a new SASL exchange with the broker at *address*, which errors show; None without SASL."""
        if self.sasl is None:
            return None
        return self.sasl.client(
            BrokerAddress(cluster=self.cluster, address=address, mechanism=self.sasl.mechanism)
        )


def build_security(properties: Mapping[str, str], *, cluster: str) -> ClientSecurity:
    """Returns the security of a client of *cluster* from resolved *properties* with unprefixed names.

    Raises InvalidSettingError and RefusedSettingError, which name the key.
    """
    protocol, warnings = check_protocol(properties)
    context = None
    sasl: PasswordSecurity | TokenSecurity | None = None
    if protocol.endswith("SSL"):
        context, more = build_context(properties)
        warnings += more
    if protocol.startswith("SASL"):
        mechanism = chosen_mechanism(properties)
        module = login_module(properties, mechanism)
        if mechanism == "OAUTHBEARER":
            sasl, more = _token_security(cluster, properties, module)
            warnings += more
        else:
            sasl = PasswordSecurity(mechanism=mechanism, login=password_login(module, mechanism))
            if protocol == "SASL_PLAINTEXT" and mechanism == "PLAIN":
                warnings += (
                    "security.protocol: SASL_PLAINTEXT sends the password readable over the network",
                )
    return ClientSecurity(cluster=cluster, ssl_context=context, sasl=sasl, warnings=warnings)


def _token_security(
    cluster: str, properties: Mapping[str, str], module: LoginModule
) -> tuple[TokenSecurity, tuple[str, ...]]:
    """Returns OAUTHBEARER of *properties*, and its warnings."""
    # A start without tokens needs none of it.
    from mirrorflow_kafka.security.oauth import TokenCache  # noqa: PLC0415
    from mirrorflow_kafka.security.oauth_settings import (  # noqa: PLC0415
        refresh_window,
        sasl_extensions,
        token_settings,
    )

    chosen = token_settings(properties, module.options, os.environ)
    security = TokenSecurity(
        mechanism="OAUTHBEARER",
        tokens=TokenCache(chosen.source.fetch, cluster=cluster, window=refresh_window(properties)),
        extensions=sasl_extensions(module.options, chosen.source),
        refusal_hint=chosen.refusal_hint,
    )
    return security, chosen.warnings


def check_protocol(properties: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Returns `security.protocol`, and a warning for each ignored key that this protocol reads.

    Raises InvalidSettingError for an unknown protocol and RefusedSettingError for a refused key.
    """
    protocol = properties.get("security.protocol", "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise InvalidSettingError(
            key="security.protocol",
            problem="it is unknown",
            action="use one of " + ", ".join(sorted(PROTOCOLS)),
        )
    encrypted, sasl = protocol.endswith("SSL"), protocol.startswith("SASL")
    warnings = []
    for key in sorted(key for key, value in properties.items() if value):
        if (encrypted and key.startswith("ssl.")) or (sasl and key.startswith("sasl.")):
            word, why = verdict(key)
            if word == "refused":
                raise RefusedSettingError(key=key, why=why)
            if word == "ignored":
                warnings.append(f"{key} is ignored: {why}")
    return protocol, tuple(warnings)


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Returns (host, port) of each address. Raises InvalidSettingError that names the invalid one."""
    addresses = []
    for entry in read_list(text):
        match = _ADDRESS.match(entry)
        if match is None or not 0 < int(match[2]) <= PORT_MAX:
            raise InvalidSettingError(
                key="bootstrap.servers",
                problem=f"{entry!r} is not host:port",
                action="write host:port,host:port",
            )
        addresses.append((match[1], int(match[2])))
    if not addresses:
        raise InvalidSettingError(
            key="bootstrap.servers", problem="no address is given", action="write host:port,host:port"
        )
    return tuple(addresses)


class ClientSettingError(SettingError):
    """Raised for *error* in the settings of a client of *cluster*."""

    def __init__(self, *, cluster: str, error: SettingError) -> None:
        self.cluster = cluster
        super().__init__(f"Clients of cluster {cluster}: {error}")


def clients_of(settings: object) -> Iterator[ClientSettings]:
    """Yields every client in *settings*: a dataclass of `mirrorflow_core.settings`, or a tuple of them."""
    if isinstance(settings, ClientSettings):
        yield settings
    elif isinstance(settings, tuple):
        for setting in settings:
            yield from clients_of(setting)
    elif is_dataclass(settings):
        for field in fields(settings):
            yield from clients_of(getattr(settings, field.name))


def check_client(client: ClientSettings) -> None:
    """Checks addresses, protocol, mechanism and login of *client*; values with secret references pass.

    Raises ClientSettingError.
    """
    try:
        _check(client.properties)
    except SettingError as error:
        raise ClientSettingError(cluster=client.alias, error=error) from None


def _check(properties: Mapping[str, str]) -> None:
    known = {key: value for key, value in properties.items() if not has_reference(value)}
    if known.get("bootstrap.servers"):
        parse_addresses(known["bootstrap.servers"])
    hidden = properties.keys() - known.keys()
    if hidden & {"security.protocol", "sasl.mechanism"}:
        return
    protocol, _ = check_protocol(known)
    if not protocol.startswith("SASL"):
        return
    mechanism, text = chosen_mechanism(known), properties.get(JAAS, "")
    if reference_at(text.strip(), 0):
        return  # the whole login is a secret
    module = login_module(known | {JAAS: resolve_jaas(text, lambda _: _UNKNOWN)}, mechanism)
    if mechanism == "OAUTHBEARER":
        from mirrorflow_kafka.security.oauth_settings import check_classes  # noqa: PLC0415

        check_classes(known)
    else:
        password_login(module, mechanism)

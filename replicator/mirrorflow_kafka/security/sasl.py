"""The client side of Kafka's SASL exchanges: PLAIN, SCRAM-SHA-256 and -512, OAUTHBEARER; chooses the mechanism.

One client object is one exchange; `client.connection` sends its bytes. kafka-python computes SCRAM; what
Java's client does in addition is done here: names are escaped (RFC 5802, saslname), a server that requests
fewer than 4096 iterations is refused, an `e=` response is an error, and delegation tokens are marked
(KIP-48). PLAIN and OAUTHBEARER are one message each, in Java's bytes. Errors hold neither names nor secrets.
`java.jaas` parses `sasl.jaas.config`; `login_module` checks that it fits the mechanism.
"""

import binascii
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from mirrorflow_core.errors import AuthenticationFailedError, InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.cloud_logins import (
    AWS_MECHANISM,
    AWS_MODULE,
    CLIENT_HANDLER_KEY,
    LOGIN_HANDLER_KEY,
    OAUTH_MODULE,
)
from mirrorflow_core.java.jaas import KEY as JAAS
from mirrorflow_core.java.jaas import LoginModule, parse_jaas
from mirrorflow_core.light_dataclasses import dataclass

if TYPE_CHECKING:
    from mirrorflow_kafka.security.oauth import TokenCache

# ScramMechanism.minIterations: with fewer, a false broker could find the password by brute force.
SCRAM_ITERATIONS_MIN = 4096
SCRAM_MECHANISMS = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})
MECHANISMS = frozenset({"PLAIN", "OAUTHBEARER"}) | SCRAM_MECHANISMS
_LOGIN_MODULES = frozenset(
    f"org.apache.kafka.common.security.{name}"
    for name in ("plain.PlainLoginModule", "scram.ScramLoginModule")
)


class SaslClient(Protocol):
    """One SASL exchange; `mechanism` is the name for SaslHandshake."""

    mechanism: str

    async def first(self) -> bytes:
        """Returns the client's first message. Raises AuthenticationFailedError if no token is available."""

    def receive(self, data: bytes) -> bytes | None:
        """Returns the response to the broker's *data*, or None when the exchange is complete.

        Raises AuthenticationFailedError.
        """

    def refused(self, problem: str) -> str:
        """Notes that the broker refused the exchange; returns *problem*, the broker's words, with what may be missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A user name and password; with `token_auth` they are a delegation token's id and HMAC (KIP-48)."""

    username: str = field(repr=False)
    password: str = field(repr=False)
    token_auth: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """The context of an authentication error: the cluster's alias, the broker, the mechanism."""

    cluster: str
    address: str
    mechanism: str

    def failed(self, problem: str) -> AuthenticationFailedError:
        """Returns the error to raise."""
        return AuthenticationFailedError(
            cluster=self.cluster, address=self.address, mechanism=self.mechanism, problem=problem
        )


class PlainClient:
    """PLAIN (RFC 4616) without an authorization identity, as Java's PlainSaslClient."""

    def __init__(self, login: Login, place: BrokerAddress) -> None:
        self.mechanism = place.mechanism
        self._login = login
        self._place = place

    async def first(self) -> bytes:
        """Returns the only message."""
        return b"\0" + self._login.username.encode() + b"\0" + self._login.password.encode()

    def receive(self, data: bytes) -> None:
        """Completes the exchange. Raises AuthenticationFailedError if the broker sends *data*."""
        if data:
            raise self._place.failed("the broker wants more than PLAIN has")

    def refused(self, problem: str) -> str:
        """Returns *problem*."""
        return problem


class ScramClient:
    """SCRAM (RFC 5802, 7677) without channel binding; the broker must also prove it knows the password."""

    def __init__(self, login: Login, place: BrokerAddress) -> None:
        # Imported here: most flows do not use SCRAM.
        from kafka.net.sasl.scram import ScramClient as Arithmetic  # noqa: PLC0415

        self.mechanism = place.mechanism
        self._place = place
        self._token_auth = login.token_auth
        escaped = login.username.replace("=", "=3D").replace(",", "=2C")
        self._arithmetic: Any = Arithmetic(escaped, login.password, place.mechanism)
        self._responses = 0

    async def first(self) -> bytes:
        """Returns the client-first-message."""
        message: bytes = self._arithmetic.first_message()
        if self._token_auth:
            self._arithmetic.auth_message += b",tokenauth=true"
            message += b",tokenauth=true"
        return message

    def receive(self, data: bytes) -> bytes | None:
        """Returns the client-final-message after server-first, None after a verified server-final."""
        self._responses += 1
        attributes = self._attributes(data)
        if "e" in attributes:
            raise self._place.failed("the broker does not accept the name and password")
        if self._responses == 1:
            self._check_first(attributes)
            return self._final(data)
        if self._responses > 2:
            raise self._place.failed("the broker continues after the final SCRAM message")
        try:
            self._arithmetic.process_server_final_message(data)
        except (ValueError, KeyError, binascii.Error):
            problem = "the broker does not prove that it knows the password; it may not be the broker that it claims to be"
            raise self._place.failed(problem) from None
        return None

    def refused(self, problem: str) -> str:
        """Returns *problem*."""
        return problem

    def _final(self, data: bytes) -> bytes:
        try:
            self._arithmetic.process_server_first_message(data)
            final: bytes = self._arithmetic.final_message()
        except (ValueError, KeyError, binascii.Error):
            raise self._place.failed("the broker's first message does not follow RFC 5802") from None
        return final

    def _check_first(self, attributes: Mapping[str, str]) -> None:
        if "m" in attributes:
            raise self._place.failed("the broker requires an unknown SCRAM extension")
        iterations = attributes.get("i", "")
        if iterations.isascii() and iterations.isdigit() and int(iterations[:12]) < SCRAM_ITERATIONS_MIN:
            problem = f"the broker asks for fewer than {SCRAM_ITERATIONS_MIN} iterations, which would expose the password"
            raise self._place.failed(problem)

    def _attributes(self, data: bytes) -> dict[str, str]:
        try:
            return dict(pair.split("=", 1) for pair in data.decode().split(","))
        except ValueError:
            raise self._place.failed("the broker's response is not SCRAM's") from None


class OAuthBearerClient:
    """OAUTHBEARER (RFC 7628) with Kafka's SASL extensions (KIP-342); the token is from `oauth.TokenCache`."""

    def __init__(
        self,
        tokens: "TokenCache",
        extensions: Mapping[str, str],
        place: BrokerAddress,
        *,
        refusal_hint: str | None = None,
    ) -> None:
        self.mechanism = place.mechanism
        self._refusal_hint = refusal_hint
        self._tokens = tokens
        self._extensions = extensions
        self._place = place

    async def first(self) -> bytes:
        """Returns the only message, with a token that has not expired."""
        token = await self._tokens.token(address=self._place.address)
        pairs = "".join(f"\x01{name}={value}" for name, value in self._extensions.items())
        return f"n,,\x01auth=Bearer {token}{pairs}\x01\x01".encode()

    def receive(self, data: bytes) -> bytes | None:
        """Returns None if *data* is empty, otherwise RFC 7628's byte that ends a failed exchange."""
        if not data:
            return None
        # The broker may have refused a token that looked valid (revoked, keys rotated): do not send it again.
        self._tokens.forget()
        return b"\x01"

    def refused(self, problem: str) -> str:
        """Drops the token, and returns *problem* with what may be missing."""
        self._tokens.forget()
        return problem if self._refusal_hint is None else f"{problem}; {self._refusal_hint}"


def chosen_mechanism(properties: Mapping[str, str]) -> str:
    """Returns the mechanism for `sasl.mechanism`. Raises RefusedSettingError if it is unsupported or not set."""
    mechanism = properties.get("sasl.mechanism", "").strip()
    offered = ", ".join(sorted(MECHANISMS))
    if not mechanism:
        why = f"it is not set, and Java's default, GSSAPI (Kerberos), is not offered; set one of {offered}"
        raise RefusedSettingError(key="sasl.mechanism", why=why)
    if mechanism == AWS_MECHANISM:
        return "OAUTHBEARER"  # MSK offers both at the same port
    if mechanism not in MECHANISMS:
        raise RefusedSettingError(
            key="sasl.mechanism", why=f"only {offered} are offered; brokers can have several"
        )
    return mechanism


def login_module(properties: Mapping[str, str], mechanism: str) -> LoginModule:
    """Returns the login module of `sasl.jaas.config`, which must fit *mechanism*. Raises SettingError."""
    text = properties.get(JAAS, "")
    if not text.strip():
        raise InvalidSettingError(key=JAAS, problem=f"it is missing; {mechanism} needs it")
    module = parse_jaas(text)
    fitting = {OAUTH_MODULE} if mechanism == "OAUTHBEARER" else _LOGIN_MODULES
    if properties.get("sasl.mechanism", "").strip() == AWS_MECHANISM:
        fitting = {AWS_MODULE}
    if module.class_name not in fitting:
        if module.class_name in _LOGIN_MODULES | {OAUTH_MODULE}:
            raise InvalidSettingError(
                key=JAAS, problem=f"its login module is not for sasl.mechanism={mechanism}"
            )
        raise RefusedSettingError(
            key=JAAS, why="its login module is none of Kafka's own: " + ", ".join(sorted(fitting))
        )
    if mechanism == "OAUTHBEARER":
        return module
    for key in (LOGIN_HANDLER_KEY, CLIENT_HANDLER_KEY):
        if properties.get(key, ""):
            raise RefusedSettingError(
                key=key, why="it loads a Java class; put the credentials into sasl.jaas.config"
            )
    return module


def password_login(module: LoginModule, mechanism: str) -> Login:
    """Returns the user and password for PLAIN or SCRAM. Raises InvalidSettingError."""
    for option in ("username", "password"):
        if option not in module.options:
            raise InvalidSettingError(key=JAAS, problem=f"{mechanism} needs the option {option}")
    if not module.options["username"]:
        raise InvalidSettingError(key=JAAS, problem="the option username is empty")
    token_auth = mechanism in SCRAM_MECHANISMS and module.options.get("tokenauth", "").lower() == "true"
    return Login(
        username=module.options["username"], password=module.options["password"], token_auth=token_auth
    )

"""SASL conversations as a Kafka client holds them: PLAIN, SCRAM-SHA-256 and -512, OAUTHBEARER.

One client object is one conversation; `kafka.handshake` carries its bytes. SCRAM's arithmetic is kafka-python's; what
Java's client does besides is done here: names are escaped (RFC 5802, saslname), a server that asks for fewer iterations
than 4096 is turned away, an `e=` answer is an error, and delegation tokens are marked (KIP-48). PLAIN and OAUTHBEARER
are one message each, in Java's bytes. Errors hold neither names nor secrets.
"""

import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from mirrorflow_replicator.errors import AuthenticationFailedError
from mirrorflow_replicator.kafka.oauth import TokenCache

# ScramMechanism.minIterations: fewer would let a false broker learn the password by trying.
SCRAM_ITERATIONS_MIN = 4096
SCRAM_MECHANISMS = frozenset({"SCRAM-SHA-256", "SCRAM-SHA-512"})


class SaslClient(Protocol):
    """One conversation; `mechanism` is the name for SaslHandshake."""

    mechanism: str

    async def first(self) -> bytes:
        """The client's first message. Raises AuthenticationFailedError when no token can be had."""

    def receive(self, data: bytes) -> bytes | None:
        """The answer to the broker's *data*; None when the broker is satisfied and proven. Raises AuthenticationFailedError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A name and its password; `token_auth` marks a delegation token's id and HMAC (KIP-48)."""

    username: str = field(repr=False)
    password: str = field(repr=False)
    token_auth: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What an error names: the cluster's alias, the broker, the mechanism."""

    cluster: str
    address: str
    mechanism: str

    def failed(self, problem: str) -> AuthenticationFailedError:
        """The error to raise."""
        return AuthenticationFailedError(
            cluster=self.cluster, address=self.address, mechanism=self.mechanism, problem=problem
        )


class PlainClient:
    """RFC 4616, without an authorization identity, as Java's PlainSaslClient."""

    def __init__(self, login: Login, place: Place) -> None:
        self.mechanism = place.mechanism
        self._login = login
        self._place = place

    async def first(self) -> bytes:
        """The one message."""
        return b"\0" + self._login.username.encode() + b"\0" + self._login.password.encode()

    def receive(self, data: bytes) -> None:
        """A broker that is satisfied says nothing."""
        if data:
            raise self._place.failed("the broker wants more than PLAIN has")


class ScramClient:
    """RFC 5802 and 7677 without channel binding; the broker must prove that it knows the password, too."""

    def __init__(self, login: Login, place: Place) -> None:
        # Imported here: most flows do not use SCRAM.
        from kafka.net.sasl.scram import ScramClient as Arithmetic  # noqa: PLC0415

        self.mechanism = place.mechanism
        self._place = place
        self._token_auth = login.token_auth
        escaped = login.username.replace("=", "=3D").replace(",", "=2C")
        self._arithmetic: Any = Arithmetic(escaped, login.password, place.mechanism)
        self._answers = 0

    async def first(self) -> bytes:
        """client-first-message."""
        message: bytes = self._arithmetic.first_message()
        if self._token_auth:
            self._arithmetic.auth_message += b",tokenauth=true"
            message += b",tokenauth=true"
        return message

    def receive(self, data: bytes) -> bytes | None:
        """client-final-message after server-first, None after a proven server-final."""
        self._answers += 1
        attributes = self._attributes(data)
        if "e" in attributes:
            raise self._place.failed("the broker does not accept the name and password")
        if self._answers == 1:
            self._check_first(attributes)
            return self._final(data)
        if self._answers > 2:
            raise self._place.failed("the broker goes on after the last message of SCRAM")
        try:
            self._arithmetic.process_server_final_message(data)
        except (ValueError, KeyError, binascii.Error):
            problem = "the broker does not prove that it knows the password; it may not be the broker that it claims to be"
            raise self._place.failed(problem) from None
        return None

    def _final(self, data: bytes) -> bytes:
        try:
            self._arithmetic.process_server_first_message(data)
            final: bytes = self._arithmetic.final_message()
        except (ValueError, KeyError, binascii.Error):
            raise self._place.failed("the broker's first message does not follow RFC 5802") from None
        return final

    def _check_first(self, attributes: Mapping[str, str]) -> None:
        if "m" in attributes:
            raise self._place.failed("the broker demands a SCRAM extension that nobody knows")
        iterations = attributes.get("i", "")
        if iterations.isascii() and iterations.isdigit() and int(iterations[:12]) < SCRAM_ITERATIONS_MIN:
            problem = f"the broker asks for fewer than {SCRAM_ITERATIONS_MIN} iterations, which would expose the password"
            raise self._place.failed(problem)

    def _attributes(self, data: bytes) -> dict[str, str]:
        try:
            return dict(pair.split("=", 1) for pair in data.decode().split(","))
        except ValueError:
            raise self._place.failed("the broker's answer is not SCRAM's") from None


class OAuthBearerClient:
    """RFC 7628 with Kafka's SASL extensions (KIP-342); the token comes from `oauth.TokenCache`."""

    def __init__(self, tokens: TokenCache, extensions: Mapping[str, str], place: Place) -> None:
        self.mechanism = place.mechanism
        self._tokens = tokens
        self._extensions = extensions
        self._place = place

    async def first(self) -> bytes:
        """The one message, with a token that has not expired."""
        token = await self._tokens.token(address=self._place.address)
        pairs = "".join(f"\x01{name}={value}" for name, value in self._extensions.items())
        return f"n,,\x01auth=Bearer {token}{pairs}\x01\x01".encode()

    def receive(self, data: bytes) -> bytes | None:
        """None when the broker says nothing; RFC 7628's one byte when it tells a problem, so that it can end with an error."""
        if not data:
            return None
        # The broker may have refused a token that looked fresh (revoked, keys rotated): do not offer it again.
        self._tokens.forget()
        return b"\x01"

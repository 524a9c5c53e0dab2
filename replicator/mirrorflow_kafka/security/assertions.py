"""Tokens by a signed assertion instead of a client secret: client authentication (KIP-1258) and the JWT bearer grant (KIP-1139).

The assertion is a JWT (RFC 7521, 7523): the content of a file that another program renews, such as a projected ServiceAccount token,
or signed here with a private key. Files are read at each use. Unlike in Java, keys may also be PEM, and ES256 is signed as RFC 7518
demands, with a key on P-256.
"""

import base64
import binascii
import json
import ssl
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import urlencode

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_kafka.security.identity_requests import (
    DEFAULT_LIMITS,
    FORM,
    TOKEN_BYTES_MAX,
    IdentityRequest,
    RequestLimits,
    TokenError,
    send,
    shown_url,
)
from mirrorflow_kafka.security.jwt_claims import json_object, jwt_claims, to_base64url
from mirrorflow_kafka.security.oauth import Token, read_token_response

ALGORITHMS = ("RS256", "ES256")
_CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_P256_BYTES = 32


class Assertion(Protocol):
    """Gives an assertion for each request."""

    def create(self) -> str:
        """Returns a JWT. Raises TokenError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileAssertion:
    """The assertion that the file has now."""

    path: str

    def create(self) -> str:
        return read_text(self.path, "the assertion file")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedAssertion:
    """An assertion signed here; each layer of claims overrides the one before: `claims`, the template file, times."""

    algorithm: str
    private_key: Callable[[], bytes] = field(repr=False)
    passphrase: str = field(default="", repr=False)
    claims: Mapping[str, str] = field(default_factory=dict, repr=False)
    template_file: str | None = None
    key_id: str | None = None
    expires_in_s: int = 300
    not_before_s: int = 60
    has_id: bool = False
    now: Callable[[], float] = time.time

    def create(self) -> str:
        template = (
            json_object(read_text(self.template_file, "the template file").encode())
            if self.template_file is not None
            else {}
        )
        now = int(self.now())
        header = {
            **({} if self.key_id is None else {"kid": self.key_id}),
            **_mapping(template.get("header")),
            "alg": self.algorithm,
            "typ": "JWT",
        }
        payload = {
            **self.claims,
            **_mapping(template.get("payload")),
            "iat": now,
            "exp": now + self.expires_in_s,
            "nbf": now - self.not_before_s,
            **({"jti": str(uuid.uuid4())} if self.has_id else {}),
        }
        content = ".".join(
            to_base64url(json.dumps(part, separators=(",", ":")).encode()) for part in (header, payload)
        )
        return f"{content}.{to_base64url(_sign(content.encode(), self.algorithm, self.private_key(), self.passphrase))}"


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _sign(content: bytes, algorithm: str, key: bytes, passphrase: str) -> bytes:
    """Returns the signature of *content*. Raises TokenError if *key* is not for *algorithm*."""
    # It takes 9 MiB, so only for this kind of login.
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils  # noqa: PLC0415

    password = passphrase.encode() or None
    try:
        if b"-----BEGIN" in key:
            private = serialization.load_pem_private_key(key, password)
        else:
            private = serialization.load_der_private_key(_der(key), password)
    except (ValueError, TypeError):
        raise TokenError(
            "the private key of the assertion cannot be read; check its format and passphrase"
        ) from None
    if algorithm == "RS256" and isinstance(private, rsa.RSAPrivateKey):
        return private.sign(content, padding.PKCS1v15(), hashes.SHA256())
    if algorithm == "ES256" and isinstance(private, ec.EllipticCurvePrivateKey):
        r, s = utils.decode_dss_signature(private.sign(content, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(_P256_BYTES, "big") + s.to_bytes(_P256_BYTES, "big")
    raise TokenError(f"the private key of the assertion is not for {algorithm}")


def _der(key: bytes) -> bytes:
    """Returns *key* as DER: Java reads base64 of it without PEM's lines, and DER itself if it is encrypted."""
    try:
        return base64.b64decode(key.strip(), validate=True)
    except (ValueError, binascii.Error):
        return key


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertionGrant:
    """Exchanges an assertion for a token at `url`: as client authentication, or with `is_bearer` as the JWT bearer grant."""

    url: str
    assertion: Assertion
    client_id: str = field(default="", repr=False)
    scope: str | None = None
    is_bearer: bool = False
    context: ssl.SSLContext | None = field(default=None, repr=False)
    limits: RequestLimits = DEFAULT_LIMITS

    async def fetch(self) -> Token:
        """Returns a new token; retries unless the error is final. Raises TokenError, which names who was refused."""
        return await self.limits.retried(self._request_token)

    async def _request_token(self) -> Token:
        assertion = self.assertion.create()
        response = await send(self._request(assertion), self.limits)
        endpoint = shown_url(self.url)
        try:
            return read_token_response(response.status, response.body, endpoint=endpoint)
        except TokenError as error:
            if response.status == 200:
                raise
            raise TokenError(f"{error}{_presented(assertion)}", final=error.final) from None

    def _request(self, assertion: str) -> IdentityRequest:
        form = (
            {"grant_type": _JWT_BEARER, "assertion": assertion}
            if self.is_bearer
            else {
                "grant_type": "client_credentials",
                "client_assertion_type": _CLIENT_ASSERTION,
                "client_assertion": assertion,
            }
        )
        if self.client_id and not self.is_bearer:
            form["client_id"] = self.client_id
        if self.scope is not None:
            form["scope"] = self.scope
        headers = {"Accept": "application/json", "Cache-Control": "no-cache", "Content-Type": FORM}
        return IdentityRequest(
            url=self.url, method="POST", headers=headers, body=urlencode(form).encode(), context=self.context
        )


def _presented(assertion: str) -> str:
    """Returns who an assertion says that it is from, which the endpoint must trust; no part of it is secret."""
    claims = jwt_claims(assertion)
    shown = [f"{name} {claims[name]}" for name in ("iss", "sub", "aud") if name in claims]
    return f"; the assertion has {', '.join(shown)}" if shown else ""


def read_text(path: str, purpose: str) -> str:
    """Returns the text of the file at *path*. Raises TokenError, which may pass."""
    return _read(path, purpose).decode("utf-8", "replace").strip()


def _read(path: str, purpose: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(TOKEN_BYTES_MAX)
    except OSError as error:
        raise TokenError(f"{purpose} {path} cannot be read ({error.strerror})", final=False) from None


def assertion_of(properties: Mapping[str, str], number: Callable[..., float]) -> Assertion | None:
    """Returns the assertion of `sasl.oauthbearer.assertion.*`; None if they name none. Raises InvalidSettingError.

    *number* reads a number of *properties* within limits.
    """
    prefix = "sasl.oauthbearer.assertion."
    if path := properties.get(f"{prefix}file", ""):
        return FileAssertion(path=path)
    key_file = properties.get(f"{prefix}private.key.file", "")
    if not key_file:
        return None
    algorithm = properties.get(f"{prefix}algorithm", "").strip().upper() or "RS256"
    if algorithm not in ALGORITHMS:
        raise InvalidSettingError(
            key=f"{prefix}algorithm", problem="it is unknown", action=f"use {' or '.join(ALGORITHMS)}"
        )
    claims = {name: properties.get(f"{prefix}claim.{name}", "") for name in ("aud", "iss", "sub")}
    return SignedAssertion(
        algorithm=algorithm,
        private_key=lambda: _read(key_file, "the private key file"),
        passphrase=properties.get(f"{prefix}private.key.passphrase", ""),
        claims={name: value for name, value in claims.items() if value},
        template_file=properties.get(f"{prefix}template.file") or None,
        expires_in_s=int(number(properties, f"{prefix}claim.exp.seconds", 300, least=0, most=86_400)),
        not_before_s=int(number(properties, f"{prefix}claim.nbf.seconds", 60, least=0, most=3_600)),
        has_id=properties.get(f"{prefix}claim.jti.include", "").strip().lower() == "true",
    )

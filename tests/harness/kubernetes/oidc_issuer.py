"""An OpenID Connect issuer on loopback with TLS. It has a sign-in form, one-time codes, and id tokens signed with its
key.

It simulates the issuer of a company. API servers and proxies verify its tokens by discovery, its keys, the issuer, the
audience and the expiry. The issuer checks what they send: the client and its secret, the address to return to, and the
proof of the code (PKCE).
"""

import base64
import hashlib
import json
import secrets
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from tests.harness.kubernetes.authority import Authority

LIFETIME_S: Final = 600
KEY_ID: Final = "one"


def new_key() -> rsa.RSAPrivateKey:
    """Returns a key that signs tokens."""
    return rsa.generate_private_key(65537, 2048)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedUser:
    """A user with the claims of its id tokens."""

    email: str
    password: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Code:
    """The user and the request to which a one-time code belongs."""

    user: IssuedUser
    redirect: str
    nonce: str
    challenge: str


@dataclass(slots=True, kw_only=True)
class OidcIssuer:
    """Signs users in for one client, which may return to `redirects`."""

    client_id: str
    client_secret: str
    users: tuple[IssuedUser, ...]
    redirects: set[str] = field(default_factory=set)
    url: str = ""
    key: rsa.RSAPrivateKey = field(default_factory=new_key)
    _codes: dict[str, _Code] = field(default_factory=dict)

    def id_token(
        self, user: IssuedUser, *, nonce: str = "", audience: str = "", key: rsa.RSAPrivateKey | None = None
    ) -> str:
        """Returns an id token of *user*.

        If given, it is for a different *audience* or signed with a different *key*.
        """
        now = int(time.time())
        claims: dict[str, Any] = {
            "iss": self.url,
            "aud": audience or self.client_id,
            "sub": user.email.partition("@")[0],
            "email": user.email,
            "email_verified": True,
            "groups": list(user.groups),
            "iat": now,
            "exp": now + LIFETIME_S,
        }
        if nonce:
            claims["nonce"] = nonce
        parts = ({"alg": "RS256", "kid": KEY_ID, "typ": "JWT"}, claims)
        content = ".".join(_encoded(json.dumps(part).encode()) for part in parts)
        signature = (key or self.key).sign(content.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{content}.{_encoded(signature)}"

    @contextmanager
    def running(self, authority: Authority) -> Iterator[None]:
        """Serves with a certificate of *authority*."""
        identity = authority.server("issuer", "127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(identity.certificate, identity.key)
        handler = type("Handler", (_Handler,), {"issuer": self})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            self.url = f"https://127.0.0.1:{server.server_port}"
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield
            finally:
                server.shutdown()

    def configuration(self) -> dict[str, Any]:
        """Returns the discovery document."""
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/keys",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "code_challenge_methods_supported": ["S256"],
        }

    def keys(self) -> dict[str, Any]:
        """Returns the key that verifies id tokens."""
        numbers = self.key.public_key().public_numbers()
        n, e = (
            _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big")) for value in (numbers.n, numbers.e)
        )
        return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KEY_ID, "n": n, "e": e}]}

    def is_valid(self, request: Mapping[str, str]) -> bool:
        """Returns whether *request*, a sign-in request, is from the client and returns to one of the client's
        addresses.
        """
        return (
            request.get("response_type") == "code"
            and request.get("client_id") == self.client_id
            and request.get("redirect_uri") in self.redirects
            and request.get("code_challenge_method") == "S256"
            and "openid" in request.get("scope", "").split()
        )

    def sign_in(self, request: Mapping[str, str], form: Mapping[str, str]) -> str | None:
        """Returns the address of the redirect after a sign-in, or None if the password is wrong."""
        user = next((user for user in self.users if user.email == form.get("email")), None)
        if user is None or form.get("password") != user.password:
            return None
        code = secrets.token_urlsafe(16)
        self._codes[code] = _Code(
            user=user,
            redirect=request["redirect_uri"],
            nonce=request.get("nonce", ""),
            challenge=request["code_challenge"],
        )
        return f"{request['redirect_uri']}?{urlencode({'code': code, 'state': request.get('state', '')})}"

    def redeem(self, form: Mapping[str, str], authorization: str) -> dict[str, Any] | None:
        """Returns the tokens for a code, or None if the client, its address or its proof is wrong."""
        code = self._codes.pop(form.get("code", ""), None)
        scheme, _, given = authorization.partition(" ")
        name, _, secret = (
            base64.b64decode(given).decode().partition(":") if scheme == "Basic" else ("", "", "")
        )
        client = (unquote(name) or form.get("client_id"), unquote(secret) or form.get("client_secret"))
        proof = _encoded(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if (
            code is None
            or client != (self.client_id, self.client_secret)
            or form.get("redirect_uri") != code.redirect
            or proof != code.challenge
        ):
            return None
        return {
            "access_token": secrets.token_urlsafe(16),
            "token_type": "Bearer",
            "expires_in": LIFETIME_S,
            "id_token": self.id_token(code.user, nonce=code.nonce),
        }


class _Handler(BaseHTTPRequestHandler):
    """The endpoints of an issuer."""

    issuer: OidcIssuer

    def do_GET(self) -> None:
        """Serves discovery, keys and the form."""
        url = urlsplit(self.path)
        if url.path == "/.well-known/openid-configuration":
            self._send(200, self.issuer.configuration())
        elif url.path == "/keys":
            self._send(200, self.issuer.keys())
        elif url.path == "/authorize" and self.issuer.is_valid(dict(parse_qsl(url.query))):
            self._send(
                200,
                "<form method=post><input name=email><input name=password><button>Sign in</button></form>",
            )
        else:
            self._send(400, {"error": "invalid_request"})

    def do_POST(self) -> None:
        """Receives the form, and redeems codes."""
        url = urlsplit(self.path)
        form = dict(parse_qsl(self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()))
        request = dict(parse_qsl(url.query))
        if url.path == "/token":
            tokens = self.issuer.redeem(form, self.headers.get("Authorization", ""))
            self._send(200, tokens) if tokens else self._send(400, {"error": "invalid_grant"})
        elif url.path == "/authorize" and self.issuer.is_valid(request):
            target = self.issuer.sign_in(request, form)
            self._send(303, "", Location=target) if target else self._send(403, "The password is wrong.")
        else:
            self._send(400, {"error": "invalid_request"})

    def log_message(self, *_: Any) -> None:
        """Prints nothing, to keep the test's output readable."""

    def _send(self, status: int, body: Any, **headers: str) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        kind = "text/html" if isinstance(body, str) else "application/json"
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")

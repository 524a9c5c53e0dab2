"""A bearer token and its lifetime. The token itself is not validated; brokers do that."""

import base64
import binascii
import json
import re
import time
from dataclasses import dataclass, field

# A token with a hundred roles is 8 KiB; anything above this limit is not a token.
TOKEN_BYTES_MAX = 1 << 20
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, b64token: nothing that could end the SASL message


class TokenError(Exception):
    """Raised if no token was obtained; the message holds no secret.

    `final` means that a retry would not help.
    """

    def __init__(self, problem: str, *, final: bool = True) -> None:
        self.final = final
        super().__init__(problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token and its lifetime, in seconds since 1970; `expires_at` None means unknown."""

    text: str = field(repr=False)
    begins_at: float
    expires_at: float | None


def read_token(text: str, *, origin: str, expires_in_s: float | None = None) -> Token:
    """Return the token in *text*; its lifetime is from its JWT claims, or else from *expires_in_s*.

    Raises TokenError.
    """
    if not _TOKEN.fullmatch(text):
        raise TokenError(f"{origin} gives something that is no bearer token")
    claims = _claims(text)
    now = time.time()
    begins, expires = claims.get("iat"), claims.get("exp")
    begins_at = float(begins) if isinstance(begins, int | float) and begins <= now else now
    if isinstance(expires, int | float):
        return Token(text=text, begins_at=begins_at, expires_at=float(expires))
    return Token(text=text, begins_at=now, expires_at=None if expires_in_s is None else now + expires_in_s)


def _claims(text: str) -> dict[str, object]:
    parts = text.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}

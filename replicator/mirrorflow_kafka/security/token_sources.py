"""Sources of tokens other than an endpoint: a file (KIP-768), or unsigned tokens made here (KIP-255)."""

import base64
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mirrorflow_kafka.security.tokens import TOKEN_BYTES_MAX, Token, TokenError, read_token


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """Reads a token from a file that another program keeps up to date (`file:` URL)."""

    path: str

    async def fetch(self) -> Token:
        """Return the current token in the file. Raises TokenError."""
        return self._read()

    def _read(self) -> Token:
        try:
            with Path(self.path).open("rb") as file:
                content = file.read(TOKEN_BYTES_MAX)
        except OSError as error:
            raise TokenError(f"the token file {self.path} cannot be read ({error.strerror})") from None
        return read_token(content.decode("ascii", "replace").strip(), origin=f"the token file {self.path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsecuredToken:
    """Makes unsigned tokens for development (RFC 7515, algorithm none)."""

    claims: Mapping[str, object] = field(repr=False)
    lifetime_s: float = 3600.0

    async def fetch(self) -> Token:
        """Return a token that is valid from now."""
        now = time.time()
        claims = {"iat": now, "exp": now + self.lifetime_s, **self.claims}
        parts = [_to_base64url(json.dumps(part).encode()) for part in ({"alg": "none"}, claims)]
        return Token(text=".".join(parts) + ".", begins_at=now, expires_at=now + self.lifetime_s)


def _to_base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

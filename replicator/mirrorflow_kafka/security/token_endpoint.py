"""Fetches tokens with the OAuth client credentials grant (RFC 6749, 4.4), retried as in Java.

Follows KIP-768 and KIP-1139. No error shows the secret or the endpoint's query. `token_http` sends the
request; `oauth` decides when.
"""

import base64
import json
import re
import ssl
import time
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlsplit

from mirrorflow_core.backoff import Backoff
from mirrorflow_kafka.security.token_http import Request, post
from mirrorflow_kafka.security.tokens import Token, TokenError, read_token

# HttpAccessTokenRetriever does not retry these, because they are caused by settings and are not transient.
_FINAL_STATUSES = frozenset({400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 505})
_ERROR_CODE = re.compile(r"[a-z_]{1,40}")  # RFC 6749, 5.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCredentials:
    """The client credentials grant at `url`.

    `retry_total_s` limits all attempts (`sasl.login.retry.backoff.max.ms`).
    """

    url: str
    client_id: str = field(repr=False)
    client_secret: str = field(repr=False)
    scope: str = ""
    header_urlencode: bool = False
    context: ssl.SSLContext | None = field(default=None, repr=False)
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    retry_s: float = 0.1
    retry_total_s: float = 10.0

    @property
    def place(self) -> str:
        """The endpoint for error messages, without query and user part, which could hold a secret."""
        url = urlsplit(self.url)
        port = f":{url.port}" if url.port else ""
        return f"{url.scheme}://{url.hostname}{port}{url.path}"

    async def fetch(self) -> Token:
        """Return a new token; retries for at most `retry_total_s` unless the error is final.

        Raises TokenError.
        """
        ends_at = time.monotonic() + self.retry_total_s
        attempts = Backoff(min_s=self.retry_s, max_s=self.retry_total_s)
        async for _ in attempts:
            try:
                return await self._ask()
            except TokenError as error:
                if error.final or time.monotonic() + attempts.next_s > ends_at:
                    raise
        raise AssertionError("the last attempt raises")

    async def _ask(self) -> Token:
        status, body = await post(
            self.url,
            self._request(),
            place=self.place,
            context=self.context,
            connect_timeout_s=self.connect_timeout_s,
            read_timeout_s=self.read_timeout_s,
        )
        try:
            answer = json.loads(body)
        except ValueError:
            answer = None
        fields = answer if isinstance(answer, dict) else {}
        if status != 200:
            code = str(fields.get("error", ""))
            shown = f" {code}" if _ERROR_CODE.fullmatch(code) else ""
            raise TokenError(
                f"{self.place} answers {status}{shown}", final=status in _FINAL_STATUSES or status < 400
            )
        text = fields.get("access_token") or fields.get("id_token")
        if not isinstance(text, str):
            raise TokenError(f"{self.place} answers without an access_token")
        seconds = fields.get("expires_in")
        return read_token(
            text, origin=self.place, expires_in_s=seconds if isinstance(seconds, int | float) else None
        )

    def _request(self) -> Request:
        url = urlsplit(self.url)
        pair = [self.client_id, self.client_secret]
        if self.header_urlencode:
            pair = [quote_plus(word) for word in pair]
        body = "grant_type=client_credentials" + (f"&scope={quote_plus(self.scope)}" if self.scope else "")
        headers = [
            ("Host", url.netloc.rpartition("@")[2]),
            ("Accept", "application/json"),
            ("Authorization", "Basic " + base64.b64encode(":".join(pair).encode()).decode()),
            ("Cache-Control", "no-cache"),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        return target, headers, body.encode()

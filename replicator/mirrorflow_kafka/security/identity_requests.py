"""Requests to endpoints that issue tokens or credentials: OAuth, AWS, Google Cloud, Entra. One connection each, retried with backoff.

Redirects are not followed, because they would send a secret elsewhere. Errors show an endpoint without its query and user part,
which could hold a secret.
"""

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from mirrorflow_core.backoff import Backoff
from mirrorflow_kafka.security.tls import certificate_name

if TYPE_CHECKING:
    from mirrorflow_kafka.client.http_exchange import HttpResponse

# A token with a hundred roles is 8 KiB; anything above this limit is not a token.
TOKEN_BYTES_MAX = 1 << 20
# HttpAccessTokenRetriever does not retry these, because they are caused by settings and are not transient.
FINAL_STATUSES = frozenset({400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 505})
FORM = "application/x-www-form-urlencoded"
_Result = TypeVar("_Result")


class TokenError(Exception):
    """Raised if no token was obtained; the message holds no secret. `final` means that a retry would not help."""

    def __init__(self, problem: str, *, final: bool = True) -> None:
        self.final = final
        super().__init__(problem)


def shown_url(url: str) -> str:
    """Returns *url* for error messages: without query and user part."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}{parts.path}"


def is_final(status: int) -> bool:
    """Returns whether another attempt after the HTTP *status* would not help."""
    return status in FINAL_STATUSES or status < 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """The limits of requests. `retry_total_s` limits all attempts (`sasl.login.retry.backoff.max.ms`)."""

    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    retry_s: float = 0.1
    retry_total_s: float = 10.0

    async def retried(self, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """Returns the result of *attempt*, repeated for at most `retry_total_s`. Raises its last TokenError."""
        ends_at = time.monotonic() + self.retry_total_s
        attempts = Backoff(min_s=self.retry_s, max_s=self.retry_total_s)
        async for _ in attempts:
            try:
                return await attempt()
            except TokenError as error:
                if error.final or time.monotonic() + attempts.next_s > ends_at:
                    raise
        raise AssertionError("the last attempt raises")


DEFAULT_LIMITS = RequestLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityRequest:
    """One HTTP request; `context` None trusts the system's authorities if the URL is https."""

    url: str = field(repr=False)
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes = field(default=b"", repr=False)
    context: ssl.SSLContext | None = field(default=None, repr=False)


async def send(request: IdentityRequest, limits: RequestLimits) -> "HttpResponse":
    """Returns the response to *request*, of any status. Raises TokenError if there is none."""
    url, shown = urlsplit(request.url), shown_url(request.url)
    context = None
    if url.scheme == "https":
        context = request.context or ssl.create_default_context()
    try:
        async with asyncio.timeout(limits.connect_timeout_s):
            reader, writer = await asyncio.open_connection(
                url.hostname,
                url.port or (80 if context is None else 443),
                ssl=context,
                server_hostname=None if context is None else certificate_name(url.hostname),
            )
    except TimeoutError:
        raise TokenError(
            f"{shown} did not accept a connection within {limits.connect_timeout_s:g} s", final=False
        ) from None
    except ssl.SSLCertVerificationError as error:
        raise TokenError(
            f"the TLS certificate of {shown} cannot be verified ({error.verify_message})"
        ) from None
    except OSError as error:
        problem = error.strerror or type(error).__name__
        raise TokenError(f"{shown} cannot be reached ({problem})", final=False) from None
    except UnicodeError:
        raise TokenError(f"{shown} cannot be reached (its host name is not valid)") from None
    try:
        async with asyncio.timeout(limits.read_timeout_s):
            return await _exchange(reader, writer, request, shown)
    except TimeoutError:
        raise TokenError(f"{shown} did not respond within {limits.read_timeout_s:g} s", final=False) from None
    except OSError:
        raise TokenError(f"{shown} closed the connection", final=False) from None
    finally:
        writer.transport.abort()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: IdentityRequest, shown: str
) -> "HttpResponse":
    # Only for this kind of authentication.
    import h11  # noqa: PLC0415

    from mirrorflow_kafka.client.http_exchange import LongResponseError, exchange  # noqa: PLC0415

    url = urlsplit(request.url)
    headers = [("Host", url.netloc.rpartition("@")[2]), *request.headers.items()]
    if request.body or request.method != "GET":
        headers.append(("Content-Length", str(len(request.body))))
    headers.append(("Connection", "close"))
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    try:
        head = h11.Request(method=request.method, target=target, headers=headers)
        return await exchange(reader, writer, head, request.body, bytes_max=TOKEN_BYTES_MAX)
    except LongResponseError:
        raise TokenError(f"{shown} returned more than {TOKEN_BYTES_MAX} bytes") from None
    except h11.ProtocolError:
        raise TokenError(
            f"{shown} returned an invalid HTTP response, or a credential has characters that HTTP does not allow",
            final=False,
        ) from None

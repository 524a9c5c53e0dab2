"""One question to one pod about one connector: `GET /progress` -> a Reading. Whatever happens is a Reading, never an exception.

A pod is not trusted further than its own flow: the answer is bounded in bytes and in time, no redirect is followed, nothing is
unpacked, no proxy and no cookie is used. Each question has a connection of its own: it costs 0.4 ms of processor time, over
one that stays open 0.16, but 3,000 of those would cost 20 MB, and every pod a socket.
"""

import ssl
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from mirrorflow_operator.assess.progress import BODY_MAX_BYTES, Reading, Unread, read_summary
from mirrorflow_operator.plan.pod import HTTP_PORT

PATH: Final = "/progress"
CONNECT_MAX_S: Final = (
    2.0  # a pod is in the same cluster: a handshake that is lost is sent again after one second
)
ANSWER_MAX_S: Final = (
    4.0  # a replicator renders its summary within milliseconds; its loop never stands still for one second
)
HEAD_LINE_MAX_BYTES: Final = 2_048  # a replicator sends a handful of short header lines
_HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "mirrorflow-operator",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """TLS: *context* has the authorities to believe, *name* is what the pod's certificate must be for."""

    context: ssl.SSLContext
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one pod answers. *tls* is None where it speaks plain HTTP."""

    uid: str
    host: str  # an address, never a name: nobody is asked where it is
    ready: bool = False  # Kubernetes' word; when it turns, the pod is asked soon
    port: int = HTTP_PORT
    connector: str = ""  # by name, of those that it runs; "" for the only one
    tls: Verified | None = None


def session() -> aiohttp.ClientSession:
    """What `ask` needs, for all pods; close it. Must be made where the event loop runs."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),  # how many at once is the poller's to say
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        headers=_HEADERS,
        timeout=aiohttp.ClientTimeout(total=ANSWER_MAX_S, sock_connect=CONNECT_MAX_S),
        read_bufsize=BODY_MAX_BYTES,
        max_line_size=HEAD_LINE_MAX_BYTES,
        max_field_size=HEAD_LINE_MAX_BYTES,
    )


async def ask(client: aiohttp.ClientSession, place: Place, *, now_s: float) -> Reading:
    """What the pod at *place* says at *now_s* (wall clock)."""
    url = URL.build(
        scheme="http" if place.tls is None else "https",
        host=place.host,
        port=place.port,
        path=PATH,
        query={"connector": place.connector} if place.connector else {},
    )
    try:
        async with client.get(
            url,
            allow_redirects=False,
            ssl=True if place.tls is None else place.tls.context,
            server_hostname=None if place.tls is None else place.tls.name,
        ) as answer:
            if answer.status != 200:
                return _unread(now_s, Unread.REFUSED, f"it answers with HTTP status {answer.status}")
            return read_summary(await _body(answer.content), read_at_s=now_s)
    except TimeoutError:
        return _unread(now_s, Unread.UNREACHABLE, f"it does not answer within {ANSWER_MAX_S:g} seconds")
    except (aiohttp.ClientSSLError, ssl.CertificateError):
        return _unread(now_s, Unread.REFUSED, "its certificate is not one to be believed")
    except (OSError, aiohttp.ServerDisconnectedError):
        return _unread(now_s, Unread.UNREACHABLE, "the connection fails")
    except (aiohttp.ClientError, ValueError):
        return _unread(now_s, Unread.UNREADABLE, "it does not speak HTTP as it should")


async def _body(content: aiohttp.StreamReader) -> bytes:
    """All of it, or one byte more than is allowed."""
    body = b""
    while len(body) <= BODY_MAX_BYTES and (part := await content.read(BODY_MAX_BYTES + 1 - len(body))):
        body += part
    return body


def _unread(now_s: float, unread: Unread, problem: str) -> Reading:
    return Reading(read_at_s=now_s, unread=unread, problem=problem)

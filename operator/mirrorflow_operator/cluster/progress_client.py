"""Requests a pod's progress: one `GET` for each request, over HTTP or TLS that verifies the pod's certificate.

A pod is trusted only for its own flow: each response is bounded in bytes and in time as a whole, no redirect is followed,
nothing is decompressed, and no proxy or cookie is used. Each request opens a connection: that costs 0.4 ms of
CPU time, against 0.16 ms on an open one, but 3,000 open connections would cost 20 MB, and a socket in each
pod.
"""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
from yarl import URL

from mirrorflow_operator.errors import SettingsError
from mirrorflow_operator.plan.pod_template import HTTP_PORT
from mirrorflow_operator.status.pod_reports import (
    BODY_MAX_BYTES,
    PollFailure,
    Reading,
    failed_reading,
    parse_reading,
)
from mirrorflow_operator.status.source_ends import ROWS_MAX, SourceEnds, parse_source_ends

PATH: Final = "/progress"
PARTITIONS_PATH: Final = "/progress/partitions"
PARTITIONS_MAX_BYTES: Final = 4 * 1024 * 1024  # a row has some 700 bytes, and at most 2,000 are requested
# A pod is in the same cluster; TCP repeats a lost handshake packet after one second
CONNECT_MAX_S: Final = 2.0
# A replicator renders its summary within milliseconds; its event loop never blocks for one second
RESPONSE_MAX_S: Final = 4.0
HEAD_LINE_MAX_BYTES: Final = 2_048  # a replicator sends a few short header lines
_HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "mirrorflow-operator",
}
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsParameters:
    """TLS parameters: *context* holds the trusted CAs, *name* is the host name the certificate must match."""

    context: ssl.SSLContext
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PollTarget:
    """The address of one pod's progress endpoint. *tls* is None for plain HTTP."""

    uid: str
    host: str  # an IP address, so no DNS lookup is needed
    ready: bool = False  # the pod's readiness; a change makes the poller poll the pod soon
    port: int = HTTP_PORT
    connector: str | None = None  # the connector's name where the pod runs several; None for the only one
    tls: TlsParameters | None = None


def session() -> aiohttp.ClientSession:
    """Returns the HTTP session for all calls of `get`.

    Create it inside the running event loop, and close it.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),  # the poller limits the requests in flight
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        headers=_HEADERS,
        timeout=aiohttp.ClientTimeout(total=RESPONSE_MAX_S, sock_connect=CONNECT_MAX_S),
        read_bufsize=BODY_MAX_BYTES,
        max_line_size=HEAD_LINE_MAX_BYTES,
        max_field_size=HEAD_LINE_MAX_BYTES,
    )


async def request_progress(client: aiohttp.ClientSession, target: PollTarget, *, now_s: float) -> Reading:
    """Requests the progress of the pod at *target*; the Reading is stamped with *now_s* (wall clock)."""
    query = {} if target.connector is None else {"connector": target.connector}
    try:
        status, body = await get(client, target, PATH, query, max_bytes=BODY_MAX_BYTES)
    except TimeoutError:
        return failed_reading(
            now_s, PollFailure.UNREACHABLE, f"it does not answer within {RESPONSE_MAX_S:g} seconds"
        )
    except (aiohttp.ClientSSLError, ssl.CertificateError):
        return failed_reading(now_s, PollFailure.REFUSED, "TLS certificate verification failed")
    except (OSError, aiohttp.ServerDisconnectedError):
        return failed_reading(now_s, PollFailure.UNREACHABLE, "the connection fails")
    except (aiohttp.ClientError, ValueError):
        return failed_reading(now_s, PollFailure.UNREADABLE, "invalid HTTP response")
    if status != 200:
        return failed_reading(now_s, PollFailure.REFUSED, f"it answers with HTTP status {status}")
    return parse_reading(body, read_at_s=now_s)


async def request_source_ends(
    client: aiohttp.ClientSession, target: PollTarget, *, now_s: float
) -> SourceEnds | None:
    """Requests what the pod at *target* has read of its source; None where it does not answer with it."""
    query = {"limit": str(ROWS_MAX)}
    body = await get_or_none(client, target, PARTITIONS_PATH, query, max_bytes=PARTITIONS_MAX_BYTES)
    return None if body is None else parse_source_ends(body, now_s=now_s)


async def get_or_none(
    client: aiohttp.ClientSession, target: PollTarget, path: str, query: Mapping[str, str], *, max_bytes: int
) -> bytes | None:
    """Returns the body that `get` returns; None where the pod does not answer, or with another status than 200."""
    try:
        status, body = await get(client, target, path, query, max_bytes=max_bytes)
    except (TimeoutError, OSError, aiohttp.ClientError, ssl.CertificateError, ValueError) as error:
        _LOG.debug("%s%s: %s", target.host, path, error)
        return None
    return body if status == 200 else None


async def get(
    client: aiohttp.ClientSession, target: PollTarget, path: str, query: Mapping[str, str], *, max_bytes: int
) -> tuple[int, bytes]:
    """Returns the status and the body of the response, or *max_bytes* + 1 bytes of a longer body.

    It ends after RESPONSE_MAX_S, however the pod answers. Raises TimeoutError, OSError, aiohttp.ClientError,
    ssl.CertificateError, ValueError.
    """
    url = URL.build(
        scheme="http" if target.tls is None else "https",
        host=target.host,
        port=target.port,
        path=path,
        query=query,
    )
    # The session's limit of time does not count where a response never waits: this one cancels.
    async with (
        asyncio.timeout(RESPONSE_MAX_S),
        client.get(
            url,
            allow_redirects=False,
            ssl=True if target.tls is None else target.tls.context,
            server_hostname=None if target.tls is None else target.tls.name,
        ) as response,
    ):
        body = b""
        while len(body) <= max_bytes and (part := await response.content.read(max_bytes + 1 - len(body))):
            body += part
        return response.status, body


@dataclass(slots=True, kw_only=True)
class CaBundle:
    """The CA certificates of *file* (PEM).

    Raises SettingsError where the file cannot be read at the start.
    """

    file: str
    _context: ssl.SSLContext = field(init=False)
    _loaded_version: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        try:
            self._loaded_version = self._file_version()
            self._context = _tls_context(self.file)
        except OSError as error:  # ssl.SSLError is one
            raise SettingsError(
                "MIRRORFLOW_PROGRESS_CA", self.file, f"set it to a PEM file of CA certificates ({error})"
            ) from error

    def tls_parameters(self, name: str) -> TlsParameters:
        """Returns the TLS parameters to poll a pod with a certificate for *name*; reloads a changed file."""
        try:
            version = self._file_version()
            if version != self._loaded_version:
                self._loaded_version = version  # before loading, so that a broken file is tried only once
                self._context = _tls_context(self.file)
        except OSError as error:
            _LOG.warning("Keeping the previous CA certificates of connectors: %s: %s", self.file, error)
        return TlsParameters(context=self._context, name=name)

    def _file_version(self) -> tuple[int, int, int]:
        status = Path(self.file).stat()
        return status.st_mtime_ns, status.st_ino, status.st_size


def _tls_context(file: str) -> ssl.SSLContext:
    # Not create_default_context: since Python 3.13 it is strict and refuses CAs without a key identifier,
    # which many private CAs lack.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cafile=file)
    return context

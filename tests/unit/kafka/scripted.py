"""A broker on loopback that sends frames as scripted by the test."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kafka.protocol.metadata import ApiVersionsResponse

KNOWN = {3: (0, 13), 17: (0, 1), 18: (0, 4), 36: (0, 2), 60: (0, 2)}


@dataclass(frozen=True)
class ReceivedRequest:
    """One request as the broker received it."""

    api_key: int
    version: int
    correlation_id: int
    body: bytes

    def response(self, body: bytes, *, flexible: bool = False) -> bytes:
        """Returns the frame of a response to this request."""
        frame = struct.pack(">i", self.correlation_id) + (b"\x00" if flexible else b"") + body
        return struct.pack(">i", len(frame)) + frame


class Broker:
    """The broker's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def next(self) -> ReceivedRequest:
        """Returns the next request without its header."""
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        frame = await self.reader.readexactly(size)
        api_key, version, correlation_id, length = struct.unpack_from(">hhih", frame)
        return ReceivedRequest(api_key, version, correlation_id, frame[10 + length :])

    async def send(self, frame: bytes) -> None:
        """Sends *frame*."""
        self.writer.write(frame)
        await self.writer.drain()

    async def respond_to_api_versions(self) -> ReceivedRequest:
        """Responds to ApiVersions with the versions in KNOWN, and returns the request."""
        request = await self.next()
        await self.send(request.response(versions(request.version)))
        return request


def versions(version: int, *, error: int = 0) -> bytes:
    """Returns the body of an ApiVersions response."""
    api_class = ApiVersionsResponse.ApiVersion
    keys = [api_class(api_key=key, min_version=low, max_version=high) for key, (low, high) in KNOWN.items()]
    return bytes(ApiVersionsResponse(error_code=error, api_keys=keys).encode(version=version))


@asynccontextmanager
async def scripted(script: Callable[[Broker], Awaitable[None]]) -> AsyncIterator[int]:
    """Yields the port of a broker that runs *script* for each connection and closes the connection when the script
    ends.

    Assertion errors of the script are raised at the end of the block.
    """
    failures: list[BaseException] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(Broker(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except AssertionError as error:
            failures.append(error)
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
    for failure in failures:
        raise failure

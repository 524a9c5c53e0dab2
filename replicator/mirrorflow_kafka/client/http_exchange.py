"""Sends one HTTP/1.1 request over an open connection, by h11: for OAuth tokens, calls between nodes of a group, and schema registries."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import h11

_READ_BYTES: Final = 64 * 1024


class LongResponseError(h11.RemoteProtocolError):
    """The body of a response has more bytes than the caller takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A whole response; names of headers are lower case."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


async def exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    head: h11.Request,
    body: bytes,
    *,
    bytes_max: int,
) -> HttpResponse:
    """Returns the response to one request. Raises OSError and h11.ProtocolError; the time is bounded by the caller."""
    client = h11.Connection(h11.CLIENT)
    writer.write(client.send(head) or b"")
    if body:
        writer.write(client.send(h11.Data(data=body)) or b"")
    writer.write(client.send(h11.EndOfMessage()) or b"")
    await writer.drain()
    status, received = 0, bytearray()
    headers: Sequence[tuple[bytes, bytes]] = ()
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Response):
            status, headers = event.status_code, tuple(event.headers)
        elif isinstance(event, h11.Data):
            received += event.data
            if len(received) > bytes_max:
                message = f"the response has more than {bytes_max} bytes"
                raise LongResponseError(message)
        elif isinstance(event, h11.EndOfMessage):
            return HttpResponse(status=status, headers=headers, body=bytes(received))
        elif isinstance(event, h11.ConnectionClosed):
            raise ConnectionResetError("it closed the connection")

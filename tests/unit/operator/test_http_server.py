"""The operator's HTTP server has three pages. It closes slow connections and those above the limit."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from mirrorflow_operator import process
from mirrorflow_operator.metrics import Metrics

T = TypeVar("T")
WAIT_S = 300.0
LARGE_BYTES = 16 * 1024 * 1024  # larger than the kernel's socket buffers on both sides


def run(
    client: Callable[[int], Awaitable[T]], *, unhealthy: str | None = None, not_ready: str | None = None
) -> T:
    async def main() -> T:
        pages = process.serving("127.0.0.1", 0, Metrics(), lambda: unhealthy, lambda: not_ready)
        async with asyncio.timeout(WAIT_S), pages as port:
            return await client(port)

    return asyncio.run(main())


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Reads until the server closes or resets the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := await reader.read(1024 * 1024):
            data += chunk
    return data


def page(
    path: str, *headers: str, unhealthy: str | None = None, not_ready: str | None = None
) -> tuple[bytes, bytes]:
    """Head and body of the response to GET *path*. The server then closes the connection."""

    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write("\r\n".join([f"GET {path} HTTP/1.1", "Host: h", *headers, "", ""]).encode())
        response = await read_all(reader)
        writer.close()
        return response

    head, _, body = run(client, unhealthy=unhealthy, not_ready=not_ready).partition(b"\r\n\r\n")
    return head, body


def test_probes_return_503_with_the_problem():
    assert page("/healthz")[1] == b"ok"
    head, body = page("/healthz", unhealthy="No pass has ended.")
    assert (head.split()[1], body) == (b"503", b"No pass has ended.")
    head, body = page("/readyz", not_ready="The CRD is missing.")
    assert (head.split()[1], body) == (b"503", b"The CRD is missing.")


@pytest.mark.parametrize(
    ("accepted", "kind"),
    [("*/*", b"text/plain"), ("application/openmetrics-text", b"application/openmetrics-text")],
)
def test_metrics_have_the_accepted_format(accepted: str, kind: bytes):
    head, body = page("/metrics", f"Accept: {accepted}")

    assert b"\r\nContent-Type: " + kind in head
    assert b"\nmirrorflow_operator_leader 0.0\n" in body


def test_a_connection_with_an_unfinished_request_is_closed_at_the_deadline(monkeypatch: pytest.MonkeyPatch):
    """Further bytes do not extend the deadline."""
    monkeypatch.setattr(process, "DEADLINE_S", 0.05)

    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        closed = asyncio.ensure_future(read_all(reader))
        for letter in "GET /healthz HTTP/1.1\r\nX: " + "x" * 4000:
            if closed.done():
                break
            writer.write(letter.encode())
            await asyncio.sleep(0.001)
        response = await closed
        writer.close()
        return response

    assert run(client) == b""


def test_a_connection_whose_client_does_not_read_is_closed(monkeypatch: pytest.MonkeyPatch):
    """Its deadline has passed when a later connection is closed at its own deadline."""
    monkeypatch.setattr(process, "DEADLINE_S", 0.2)

    async def client(port: int) -> int:
        not_reading = socket.socket()
        not_reading.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        not_reading.setblocking(False)
        await asyncio.get_running_loop().sock_connect(not_reading, ("127.0.0.1", port))
        await asyncio.get_running_loop().sock_sendall(
            not_reading, b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
        )
        later, later_writer = await asyncio.open_connection("127.0.0.1", port)
        assert await read_all(later) == b""
        later_writer.close()
        reader, writer = await asyncio.open_connection(sock=not_reading)
        response = await read_all(reader)
        writer.close()
        return len(response)

    assert run(client, unhealthy="x" * LARGE_BYTES) < LARGE_BYTES


def test_connections_above_the_limit_are_closed(monkeypatch: pytest.MonkeyPatch):
    """A new connection is accepted after another one has ended."""
    monkeypatch.setattr(process, "CONNECTIONS_MAX", 1)

    async def client(port: int) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        second, second_writer = await asyncio.open_connection("127.0.0.1", port)
        from_second = await read_all(second)
        second_writer.close()
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n")
        await read_all(reader)
        writer.close()
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n")
            response = await read_all(reader)
            writer.close()
            if response:
                return from_second, response

    from_second, response = run(client)
    assert from_second == b""
    assert response.endswith(b"\r\n\r\nok")

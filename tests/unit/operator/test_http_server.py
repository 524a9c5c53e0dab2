"""The operator's three pages over loopback; a slow client, one that never reads and one too many are dropped."""

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
LARGE_BYTES = 16 * 1024 * 1024  # more than the kernel buffers of both sides


def run(client: Callable[[int], Awaitable[T]], *, sick: str = "", unready: str = "") -> T:
    async def main() -> T:
        pages = process.serving("127.0.0.1", 0, Metrics(), lambda: sick, lambda: unready)
        async with asyncio.timeout(WAIT_S), pages as port:
            return await client(port)

    return asyncio.run(main())


async def received(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server closes or resets the connection."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := await reader.read(1024 * 1024):
            found += piece
    return found


def page(path: str, *headers: str, sick: str = "", unready: str = "") -> tuple[bytes, bytes]:
    """Head and body of a response; the server closes the connection after it."""

    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write("\r\n".join([f"GET {path} HTTP/1.1", "Host: h", *headers, "", ""]).encode())
        found = await received(reader)
        writer.close()
        return found

    head, _, body = run(client, sick=sick, unready=unready).partition(b"\r\n\r\n")
    return head, body


def test_probes_report_the_problem():
    assert page("/healthz")[1] == b"ok"
    head, body = page("/healthz", sick="No pass has ended.")
    assert (head.split()[1], body) == (b"503", b"No pass has ended.")
    head, body = page("/readyz", unready="The CRD is missing.")
    assert (head.split()[1], body) == (b"503", b"The CRD is missing.")


@pytest.mark.parametrize(
    ("accepted", "kind"),
    [("*/*", b"text/plain"), ("application/openmetrics-text", b"application/openmetrics-text")],
)
def test_metrics_come_in_the_format_that_is_asked_for(accepted: str, kind: bytes):
    head, body = page("/metrics", f"Accept: {accepted}")

    assert b"\r\nContent-Type: " + kind in head
    assert b"\nmirrorflow_operator_leader 0.0\n" in body


def test_an_unfinished_request_is_closed(monkeypatch: pytest.MonkeyPatch):
    """At the deadline, also where bytes still arrive."""
    monkeypatch.setattr(process, "DEADLINE_S", 0.05)

    async def client(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        closed = asyncio.ensure_future(received(reader))
        for letter in "GET /healthz HTTP/1.1\r\nX: " + "x" * 4000:
            if closed.done():
                break
            writer.write(letter.encode())
            await asyncio.sleep(0.001)
        found = await closed
        writer.close()
        return found

    assert run(client) == b""


def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch):
    """Its deadline has passed when that of a later connection has; others are served."""
    monkeypatch.setattr(process, "DEADLINE_S", 0.2)

    async def client(port: int) -> int:
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.setblocking(False)
        await asyncio.get_running_loop().sock_connect(lazy, ("127.0.0.1", port))
        await asyncio.get_running_loop().sock_sendall(lazy, b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        later, silent = await asyncio.open_connection("127.0.0.1", port)
        assert await received(later) == b""
        silent.close()
        reader, writer = await asyncio.open_connection(sock=lazy)
        found = await received(reader)
        writer.close()
        return len(found)

    assert run(client, sick="x" * LARGE_BYTES) < LARGE_BYTES


def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch):
    """One more than allowed is dropped; when one leaves there is room again."""
    monkeypatch.setattr(process, "CONNECTIONS_MAX", 1)

    async def client(port: int) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        surplus, other = await asyncio.open_connection("127.0.0.1", port)
        dropped = await received(surplus)
        other.close()
        writer.write(b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n")
        await received(reader)
        writer.close()
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: h\r\n\r\n")
            found = await received(reader)
            writer.close()
            if found:
                return dropped, found

    dropped, found = run(client)
    assert dropped == b""
    assert found.endswith(b"\r\n\r\nok")

"""Connectors that only serve HTTP: thousands of pods' addresses in one process, each with its own `/progress`.

        python -m tests.harness.kubernetes.stub_connectors PORT BLOCK COUNT [CERTIFICATE KEY]   # for a benchmark: `addresses(BLOCK, COUNT)`

Tests use `StubConnectors` in their own event loop and change its `responses`, which are bytes and so may be invalid. In the
process of a benchmark, SIGUSR1 starts traffic, so that the lag changes with each request; SIGUSR2 stops it.
"""

import asyncio
import json
import signal
import ssl
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SUMMARY: dict[str, Any] = {
    "version": 1,
    "flow": "east-west",
    "state": "RUNNING",
    "uptimeSeconds": 3600.5,
    "tasks": {"total": 2, "failed": 0},
    "partitions": {"total": 12, "stopped": 0},
    "caughtUp": True,
    "lagRecords": 0,
    "lagSeconds": 0.0,
    "recordsPerSecond": 0.0,
    "bytesPerSecond": 0.0,
    "replicating": "Idle",
    "reasons": [],
    # Without cluster ids, because flows with the same ids would be refused as duplicates.
    "source": {"reach": "Reachable", "sinceSeconds": 3600.0},
    "target": {"reach": "Reachable", "sinceSeconds": 3600.0},
    "checkpoints": {"groups": 3, "failing": 0, "ageSeconds": 12.0, "intervalSeconds": 60.0},
}
LAGGING = {"caughtUp": False, "lagRecords": 500, "recordsPerSecond": 90.0, "replicating": "Advancing"}
EVERYWHERE = ("0.0.0.0",)
SILENT = b""  # accepts and reads, but does not respond


def response_of(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """Returns a whole HTTP response."""
    lines = (
        f"HTTP/1.1 {status}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def summary(**changes: object) -> bytes:
    """Returns a response with SUMMARY and *changes*."""
    return response_of(json.dumps({**SUMMARY, **changes}).encode())


def addresses(block: int, count: int) -> list[str]:
    """Returns the first *count* addresses of 127.*block*.0.0/16, all of which are this machine's."""
    return [f"127.{block}.{number // 250}.{number % 250 + 1}" for number in range(count)]


def stub_command(port: int, block: int, count: int, *certificate_and_key: Path) -> list[str]:
    """Returns the command that serves `addresses(block, count)` at *port* in its own process.

    With a certificate, it uses TLS.
    """
    program = [sys.executable, "-m", "tests.harness.kubernetes.stub_connectors"]
    return [*program, *map(str, (port, block, count)), *map(str, certificate_and_key)]


class StubConnectors:
    """Listens on *hosts* at one port. `responses` has the response of each address."""

    def __init__(
        self, *, port: int = 0, hosts: Sequence[str] = EVERYWHERE, tls: ssl.SSLContext | None = None
    ) -> None:
        self.port = port
        self.traffic = False
        self._hosts = hosts
        self.default = summary()
        self.responses: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.paths: Counter[str] = Counter()
        self.open = 0
        self.open_max = 0
        self._tls = tls

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), self._hosts, self.port, backlog=4096, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    def response_of(self, address: str) -> bytes:
        if self.traffic:
            return _WITH_TRAFFIC[self.requests[address] % 2]
        return self.responses.get(address, self.default)


_WITH_TRAFFIC = [summary(**LAGGING, lagSeconds=lag_s) for lag_s in (0.5, 5.0)]


class _Connection(asyncio.Protocol):
    def __init__(self, stubs: StubConnectors) -> None:
        self._stubs = stubs
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._stubs.open += 1
        self._stubs.open_max = max(self._stubs.open, self._stubs.open_max)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stubs.open -= 1

    def data_received(self, data: bytes) -> None:
        self._received += data
        if b"\r\n\r\n" not in self._received:
            return
        address = self._transport.get_extra_info("sockname")[0]
        self._stubs.requests[address] += 1
        self._stubs.paths[self._received.split(b" ", 2)[1].decode("latin-1")] += 1
        self._received = b""
        response = self._stubs.response_of(address)
        if response:
            self._transport.write(response)
            self._transport.close()


async def _serve(port: int, block: int, count: int, *certificate_and_key: str) -> None:
    tls = None
    if certificate_and_key:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate_and_key)
    async with StubConnectors(port=port, hosts=addresses(block, count), tls=tls) as stubs:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, setattr, stubs, "traffic", True)
        loop.add_signal_handler(signal.SIGUSR2, setattr, stubs, "traffic", False)
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))

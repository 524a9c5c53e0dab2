"""Connectors that only answer HTTP: thousands of pods' addresses in one process, each with a `/progress` of its own.

    python -m tests.harness.kubernetes.stub_connectors PORT     # for a benchmark: every 127.x.y.z answers on PORT

Within a test's own loop: `StubConnectors`, whose `answers` a test changes at any time. What is answered is bytes, so that
it may be anything.
"""

import asyncio
import json
import ssl
import sys
from collections import Counter
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
    "source": {"reach": "Reachable", "sinceSeconds": 3600.0, "clusterId": "r4zt_wrqTRuT7W2NJsB_GA"},
    "target": {"reach": "Reachable", "sinceSeconds": 3600.0, "clusterId": "5L6g3nShT-eMCtK--X86sw"},
    "checkpoints": {"groups": 3, "failing": 0, "ageSeconds": 12.0, "intervalSeconds": 60.0},
}
SILENT = b""  # accepts, reads, and says nothing


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole HTTP answer."""
    lines = (
        f"HTTP/1.1 {status}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def summary(**changes: object) -> bytes:
    """An answer with SUMMARY but for *changes*."""
    return answer(json.dumps({**SUMMARY, **changes}).encode())


class StubConnectors:
    """Listens on every address of this machine at one port; `answers` is by the address that was asked."""

    def __init__(self, *, port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.default = summary()
        self.answers: dict[str, bytes] = {}
        self.asked: Counter[str] = Counter()
        self.open = 0
        self.open_max = 0
        self._tls = tls

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Conversation(self), "0.0.0.0", self.port, backlog=4096, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()


class _Conversation(asyncio.Protocol):
    def __init__(self, stubs: StubConnectors) -> None:
        self._stubs = stubs
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._stubs.open += 1
        self._stubs.open_max = max(self._stubs.open, self._stubs.open_max)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stubs.open -= 1

    def data_received(self, data: bytes) -> None:
        self._got += data
        if b"\r\n\r\n" not in self._got:
            return
        address = self._transport.get_extra_info("sockname")[0]
        self._stubs.asked[address] += 1
        self._got = b""
        said = self._stubs.answers.get(address, self._stubs.default)
        if said:
            self._transport.write(said)
            self._transport.close()


async def _serve(port: int) -> None:
    async with StubConnectors(port=port):
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))

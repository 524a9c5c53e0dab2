"""`python -m benchmarks console`: measures the console with 1,000 flows of 10 partitions and one of 10,000, without brokers.

        python -m benchmarks console [--seconds N]    # writes benchmarks/CONSOLE.md with the default

Connectors are stubs in a separate process that return real documents and count requests; the console runs in its own
process. Chromium opens pages if it is installed; sockets open streams.
"""

import argparse
import asyncio
import json
import re
import signal
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Final, cast
from urllib.parse import parse_qsl, urlencode, urlsplit

import uvicorn

from benchmarks.machine import console_facts
from benchmarks.results import Result, document
from mirrorflow_console.connector_client import ConnectorAddress
from mirrorflow_console.documents import Figures, FlowReading
from mirrorflow_console.flow_reader import ConnectedFlow, FlowReader
from mirrorflow_console.history import History
from mirrorflow_console.local_server import HOSTS, listening_socket, server_config
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_console.poller import OPEN_INTERVAL_S, SharedPoller
from mirrorflow_console.server import Console
from mirrorflow_replicator.process import allow_open_files
from tests.harness.kafka.processes import Child, cpu_s, pss_bytes, start, wait_until
from tests.unit.console.flow_readings import healthy, table
from tests.unit.http.reports import partition

FLOWS, PARTITIONS, LARGE = 1_000, 10, 10_000
LARGE_FLOW: Final = "large"
LARGE_FLOW_INDEX: Final = FLOWS  # after the others
STREAMS: Final = 200
SECONDS: Final = 60
PAINTS: Final = 5
WATCHED_MS: Final = 12_000  # two updates, during which the pointer moves over the heat map
MOVES: Final = 24  # of the pointer in that time
HERE: Final = Path(__file__).parent
MIB: Final = 1 << 20


class _Connectors(asyncio.Protocol):
    """All connectors on one port, because a port for each would need 1,000 ports; each has an address of 127.0.0.0/8.

    Connections stay open, as a replicator's do. All figures of all connectors change with each response.
    """

    requests = 0
    tables: ClassVar[dict[tuple[bool, str], dict[str, Any]]] = {}  # by size and limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, _ = transport.get_extra_info("sockname")
        self._is_large = host == _address(LARGE_FLOW_INDEX)

    def data_received(self, data: bytes) -> None:
        target = urlsplit(data.split(b" ", 2)[1].decode())
        if target.path == "/count":
            body = str(type(self).requests).encode()
        else:
            type(self).requests += 1
            body = json.dumps(self._document(dict(parse_qsl(target.query)))).encode()
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    def _document(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Returns a response whose figures are those of this moment."""
        known = self.tables.get((self._is_large, query["limit"]))
        if known is None:
            count = LARGE if self._is_large else PARTITIONS
            parts = (partition(number, f"topic-{number % 100}") for number in range(count))
            known = table(healthy(*parts), limit=int(query["limit"]), query={**query, "unless": ""})
            self.tables[self._is_large, query["limit"]] = known
        now_s = round(time.monotonic(), 1)
        lag = int(now_s) % 100
        figures = {
            "uptimeSeconds": now_s,
            "lagRecords": lag,
            "lagSeconds": lag / 40,
            "records": int(now_s) * 90,
        }
        if known["columns"]:
            offsets = [int(now_s) * 9 + number for number in range(len(known["columns"]["partition"]))]
            known["columns"].update(sourceOffset=offsets, targetOffset=offsets, records=offsets)
        if query.get("unless") == known["digest"]:
            return {"version": 1, "digest": known["digest"], "figures": figures, "columns": known["columns"]}
        return {**known, "summary": {**known["summary"], **figures}}


async def _serve_connectors() -> None:
    server = await asyncio.get_running_loop().create_server(_Connectors, "0.0.0.0", 0, backlog=FLOWS)
    print(f"port {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def _address(index: int) -> str:
    """Returns the address of a connector: of loopback, where Linux has 16 million."""
    return f"127.0.{1 + index // 250}.{1 + index % 250}"


class StubbedFlows:
    """A source of flows whose connectors share one port."""

    problem = ""

    def __init__(self, port: int) -> None:
        self._reader = FlowReader()
        names = [*(f"flow-{number}" for number in range(FLOWS)), LARGE_FLOW]
        self._flows = [
            ConnectedFlow(
                reading=FlowReading(key=name, name=name, source=f"c{index % 7}", target=f"c{7 + index % 5}"),
                subject="Its process",
                sources=(ConnectorAddress(_address(index), port),),
            )
            for index, name in enumerate(names)
        ]

    @property
    def figures(self) -> Mapping[str, Figures]:
        return self._reader.figures

    @property
    def partitions(self) -> Mapping[str, PartitionTable]:
        return self._reader.partitions

    def read(self, detailed: Any, groups: Any, *, is_watched: bool) -> list[FlowReading]:
        if not is_watched:
            return [flow.reading for flow in self._flows]
        return self._reader.read(self._flows, detailed, groups, is_watched=True)


def _serve_console(port: int, folder: Path) -> None:
    allow_open_files()
    history = History(folder / "console.sqlite")
    console = Console(SharedPoller(StubbedFlows(port), history), history)
    listener = listening_socket(0)
    print(f"port {listener.getsockname()[1]}", flush=True)
    uvicorn.Server(server_config(console, hosts=HOSTS)).run(sockets=[listener])


def main(arguments: Sequence[str]) -> int:
    """Returns exit status 1 if a demand is missed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if arguments[:1] == ["connectors"]:
        allow_open_files()
        asyncio.run(_serve_connectors())
    if arguments[:1] == ["serve"]:
        _serve_console(int(arguments[1]), Path(arguments[2]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks console")
    parser.add_argument("--seconds", type=int, default=SECONDS, metavar="N")
    seconds = parser.parse_args(arguments).seconds
    result = Result(
        name="console",
        title=f"{FLOWS:,} flows of {PARTITIONS} partitions, and one of {LARGE:,}",
        setting="One page, then 200 open pages, for the same time. CPU and memory are the console's process alone; a poll reads"
        f" all {FLOWS + 1:,} connectors over HTTP, whose figures all change; an update renders the page and sends it."
        " Partitions differ in their offsets alone.",
    )
    heading = console_facts(" ".join(["python -m benchmarks console", *arguments]))
    with tempfile.TemporaryDirectory(prefix="mf-console-") as folder, ExitStack() as stack:
        connectors = _child(stack, "connectors", Path(folder), "connectors")
        console = _child(stack, "console", Path(folder), "serve", str(connectors[1]), folder)
        _measure(result, console[0], console[1], connectors[1], seconds)
    _demand(result)
    text = document([result], heading=heading, title="The console")
    target = HERE / "CONSOLE.md" if seconds == SECONDS else Path(tempfile.gettempdir()) / "console.md"
    target.write_text(text)
    print(f"{text}\n{target}")
    return 0 if all(demand.is_met for demand in result.demands) else 1


def _child(stack: ExitStack, name: str, folder: Path, *arguments: str) -> tuple[Child, int]:
    log = folder / f"{name}.log"
    child = start(name, [sys.executable, "-m", "benchmarks", "console", *arguments], log=log)
    stack.callback(child.kill)
    match = wait_until(f"{name} listens", lambda: re.search(r"port (\d+)", log.read_text()), timeout_s=60)
    assert match is not None
    return child, int(match[1])


def _measure(result: Result, console: Child, port: int, connectors: int, seconds: int) -> None:
    for row, path, query, streams in (
        ("one page", "/", "", 1),
        (f"{STREAMS} pages", "/", "", STREAMS),
        ("10,000 partitions", "/partitions", f"flow={LARGE_FLOW}", 1),
    ):
        with ExitStack() as stack:
            opened = [stack.enter_context(_stream(port, path, query)) for _ in range(streams)]
            _until_first_update(opened)
            asked, used, began = _asked(connectors), cpu_s(console.pid), time.monotonic()
            read = _drain(opened, seconds)
            took = time.monotonic() - began
            polls = max(1.0, (_asked(connectors) - asked) / (FLOWS + 1))
            result.add(
                row,
                core_percent=100 * (cpu_s(console.pid) - used) / took,
                CPU_ms_a_poll_and_update=1000 * (cpu_s(console.pid) - used) / polls,
                requests_a_connector=polls * OPEN_INTERVAL_S / took,
                MB_sent=read / 1e6,
                memory_MiB=pss_bytes(console.pid) / MIB,
            )
    _render(result, port)
    _paint(result, port)


def _stream(port: int, path: str, query: str) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=60)
    events = f"/events?{urlencode({'path': path, 'query': query})}"
    opened.sendall(f"GET {events} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    return opened


def _until_first_update(opened: Sequence[socket.socket]) -> None:
    for stream in opened:
        text = b""
        while b"event: page" not in text:
            text += stream.recv(1 << 16)


def _drain(opened: Sequence[socket.socket], seconds: int) -> int:
    """Reads all streams for *seconds*, and returns the number of bytes."""
    read, end = 0, time.monotonic() + seconds
    for stream in opened:
        stream.setblocking(False)
    while time.monotonic() < end:
        for stream in opened:
            try:
                read += len(stream.recv(1 << 20))
            except BlockingIOError:
                continue
        time.sleep(0.05)
    return read


def _asked(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/count") as response:
        return int(response.read())


def _render(result: Result, port: int) -> None:
    """Measures the server's time for each page when its documents are already read."""
    for name, path in (("all flows", "/"), ("10,000 partitions", f"/partitions?flow={LARGE_FLOW}")):
        for run in range(PAINTS):
            began = time.monotonic()
            # Each has a query of its own: a page that was rendered before is sent again from memory.
            query = f"{'&' if '?' in path else '?'}run={run}"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}{query}") as response:
                size = len(response.read())
            result.add(name, response_ms=1000 * (time.monotonic() - began), kB=size / 1000)


def _paint(result: Result, port: int) -> None:
    from tests.harness.browser import ABSENT, chromium, started_browser  # noqa: PLC0415  Playwright

    if chromium() is None:
        result.notes.append(ABSENT)
        return
    script = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1"
    with started_browser() as browser:
        for name, path in (("all flows", "/"), ("10,000 partitions", f"/partitions?flow={LARGE_FLOW}")):
            page = browser.new_page()
            for _ in range(PAINTS):
                page.goto(f"http://127.0.0.1:{port}{path}")
                page.wait_for_timeout(300)
                result.add(name, first_paint_ms=page.evaluate(script))
            page.close()
        _stutter(result, browser.new_page(), port)


# The browser reports tasks that take longer than 50 ms; it neither scrolls nor draws during one.
_WATCH_TASKS: Final = """() => {
  window.longestTask = 0;
  new PerformanceObserver((list) => {
    for (const task of list.getEntries()) window.longestTask = Math.max(window.longestTask, task.duration);
  }).observe({type: "longtask"});
}"""


def _stutter(result: Result, page: Any, port: int) -> None:
    """Measures the longest task of an open page of 10,000 partitions while it updates and the pointer moves over it."""
    page.goto(f"http://127.0.0.1:{port}/partitions?flow={LARGE_FLOW}")
    page.wait_for_timeout(1_000)
    canvas = page.locator("#heat-canvas")
    canvas.wait_for()
    box = canvas.bounding_box()
    page.evaluate(_WATCH_TASKS)
    for move in range(MOVES):
        page.mouse.move(
            box["x"] + box["width"] * (move % 7 + 1) / 8, box["y"] + box["height"] * (move % 5 + 1) / 6
        )
        page.wait_for_timeout(WATCHED_MS // MOVES)
    result.add("10,000 partitions", longest_task_ms=page.evaluate("window.longestTask"))


def _demand(result: Result) -> None:
    for what, metric, row, limit, unit in (
        ("first paint of all flows", "first_paint_ms", "all flows", 1000, "ms"),
        ("first paint of 10,000 partitions", "first_paint_ms", "10,000 partitions", 1000, "ms"),
        (
            "longest task of an open page of 10,000 partitions",
            "longest_task_ms",
            "10,000 partitions",
            100,
            "ms",
        ),
        ("response with the page of all flows", "response_ms", "all flows", 100, "ms"),
        ("response with the page of 10,000 partitions", "response_ms", "10,000 partitions", 100, "ms"),
        ("CPU of a poll and update, one page", "CPU_ms_a_poll_and_update", "one page", 100, "ms"),
        (
            "CPU of a poll and update, 10,000 partitions",
            "CPU_ms_a_poll_and_update",
            "10,000 partitions",
            100,
            "ms",
        ),
        ("memory with one page", "memory_MiB", "one page", 128, "MiB"),
        ("memory with 200 pages", "memory_MiB", f"{STREAMS} pages", 128, "MiB"),
        ("memory with a page of 10,000 partitions", "memory_MiB", "10,000 partitions", 128, "MiB"),
        ("requests a connector each 5 s, one page", "requests_a_connector", "one page", 1.05, ""),
        ("requests a connector each 5 s, 200 pages", "requests_a_connector", f"{STREAMS} pages", 1.05, ""),
    ):
        result.demand(what, metric, row, sense="<=", limit=limit, unit=unit)

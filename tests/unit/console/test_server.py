"""The console over HTTP: pages, event streams, and protection against attacks."""

import hashlib
import http.client
import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest

from mirrorflow_cli.run_process import RunningFlow
from mirrorflow_console import local_flows, server
from mirrorflow_console.documents import FlowReading
from mirrorflow_console.figures import UNKNOWN
from mirrorflow_console.gate import Visitor
from mirrorflow_console.lag_forecast import Forecast, Outlook
from mirrorflow_console.local_server import listening_socket
from mirrorflow_console.pages import PAGES, Page
from mirrorflow_console.rendering import with_code
from mirrorflow_core.reports import GroupsReport, HeartbeatReport, SchemasReport
from tests.harness.kafka.processes import wait_until
from tests.unit.console.flow_readings import STOPPED, FixedFlows, conditions, healthy, reading
from tests.unit.console.served_console import ServedConsole, served
from tests.unit.http.reports import NOW_S, connector, partition, task

SCRIPT = "<script>alert(1)</script>"


class Tags(HTMLParser):
    """The tags of a page, and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def flows() -> FixedFlows:
    hostile = reading(
        healthy(partition(0, SCRIPT), partition(1, SCRIPT, **{**STOPPED, "message": f"{SCRIPT} is too large"})),
        name=f"flow {SCRIPT}",
        status={
            **conditions(("Ready", "False", "Stuck", SCRIPT)),
            "verify": {"phase": "Failed", "message": SCRIPT, "windows": {"total": 3, "different": 1, "equal": 2}},
        },
        offsets=(
            {
                "group": SCRIPT, "topic": SCRIPT, "partition": 0, "targetTopic": SCRIPT, "sourceOffset": 1,
                "targetOffset": 1, "translation": "exact", "checkpointAgeSeconds": 1.0, "groupOffset": 1,
                "written": False, "why": SCRIPT, "readAgainAtLeast": 0, "readAgainAtMost": 0,
            },
        ),
    )  # fmt: skip
    return FixedFlows([reading(healthy(partition(0), partition(1))), hostile])


@pytest.fixture
def console() -> Iterator[ServedConsole]:
    with served(flows()) as served_console:
        yield served_console


def get(console: ServedConsole, path: str, **headers: str) -> tuple[int, http.client.HTTPMessage, str]:
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers, response.read().decode()
    finally:
        connection.close()


def paths() -> list[str]:
    key = quote(f"flow {SCRIPT}")
    return [f"{path}?flow={key}" if page.of_flow else path for path, page in PAGES.items()]


@pytest.mark.parametrize(
    "path", [*paths(), f"/?q={quote(SCRIPT)}", f"/partitions?flow=east-to-west&topic={quote(SCRIPT)}"]
)
def test_names_that_contain_markup_are_escaped(console: ServedConsole, path: str):
    """The page contains only its own scripts, and no attribute that runs code."""
    status, _, body = get(console, path)
    tags = Tags(body).tags

    assert status == 200
    assert SCRIPT not in body
    sources = {str(attributes["src"]) for tag, attributes in tags if tag == "script"}
    assert {source.partition("?v=")[0] for source in sources} == {
        "/static/theme.js", "/static/uPlot.iife.min.js", "/static/console.js",
    }  # fmt: skip
    assert not [
        name for _, attributes in tags for name in attributes if name.startswith("on") or name == "style"
    ]
    assert not [tag for tag, _ in tags if tag in {"style", "iframe", "object", "base"}]
    assert not re.findall(r"""(?:href|src|action)=["']?(?:https?:|//|javascript:)""", body)


def test_the_page_of_groups_requests_partitions_for_their_lag():
    """Otherwise partitions of a flow without problems are not requested."""
    source = FixedFlows([reading(healthy(), name="a")])
    with served(source) as console:
        get(console, "/groups?flow=a")

    assert (frozenset({"a"}), frozenset({"a"})) in [request[:2] for request in source.requests]


def test_the_page_of_a_flow_shows_its_other_connectors_and_its_schemas():
    """All are of one process; texts of a registry are escaped."""
    groups = GroupsReport(
        selected=5, failing=1, unlike=2, active=1, checkpoints=40, moved=30, latencies=(), translations={}
    )
    beat = HeartbeatReport(cluster="B", topic="A.heartbeats", timestamp_ms=int(NOW_S * 1000))
    schemas = SchemasReport(subjects=3, versions=7, missing=1, conflicts=1, passed_s=NOW_S - 4)
    others = (
        connector(task(), name="MirrorCheckpointConnector", groups=groups),
        connector(task(), name="MirrorHeartbeatConnector", heartbeats=(beat,)),
        connector(task(), name="MirrorSchemaConnector", schemas=schemas, warnings=(f"{SCRIPT} has id 17",)),
    )
    with served(FixedFlows([reading(healthy(), *others, name="a")])) as console:
        status, _, body = get(console, "/flow?flow=a")

    assert status == 200
    assert "5 groups, 40 checkpoints, 30 offsets committed, 1 failing" in body
    assert "A.heartbeats on B" in body
    assert "<b>6 of 7</b> versions of 3 subjects are on" in body
    assert "has id 17" in body
    assert SCRIPT not in body


def test_an_opened_partition_shows_both_positions_its_leader_epochs_and_its_last_error():
    opened = partition(
        3, source_offset=61, target_offset=52, source_leader_epoch=7, target_leader_epoch=4, **STOPPED
    )
    with served(FixedFlows([reading(healthy(partition(0), opened), name="a")])) as console:
        _, _, body = get(console, "/partitions?flow=a&topic=orders&partition=3")

    sides = re.findall(r'<tr><th scope="row">([\w ]+)</th><td[^>]*>(.*?)</td><td[^>]*>(.*?)</td></tr>', body)
    assert {name: values for name, *values in sides if name != "topic"} == {
        "copied up to": ["61", "52"],
        "end": ["100", UNKNOWN],
        "leader epoch": ["7", "4"],
    }
    assert '<code class="reason">RecordTooLarge</code> orders-3: the target refuses a record of 2 MB.' in body


def test_the_page_of_a_flow_shows_its_conditions_the_time_of_catching_up_and_a_line_for_each_topic(
    monkeypatch: pytest.MonkeyPatch,
):
    estimate = Forecast(outlook=Outlook.ESTIMATE, least_s=600.0, most_s=900.0)
    monkeypatch.setattr("mirrorflow_console.flow_views.forecast", lambda *_, **__: estimate)
    status = conditions(("Ready", "False", "SecretMissing", "Secret east-user does not exist."))
    flow = reading(healthy(partition(0), partition(0, "bills")), name="a", status=status)
    with served(FixedFlows([flow])) as console:
        now_s = time.time()
        for age_s, lag in ((120, 30), (60, 10)):
            console.history.add({}, {"a": [("orders", lag), ("bills", lag)]}, [], now_s - age_s)
        _, _, body = get(console, "/flow?flow=a")

    assert "<b>Ready</b> is False <code>SecretMissing</code>" in body
    assert "Secret east-user does not exist." in body
    caught_up = body[body.index("Caught up") : body.index("Throughput")]
    assert len(re.findall(r'<time datetime="[\dTZ:-]+"', caught_up)) == 2
    lines = dict(re.findall(r'aria-label="Lag of (\w+) in the last hour"><path d="([^"]*)"', body))
    assert lines.keys() == {"orders", "bills"}
    assert all(line.count("M") + line.count("L") >= 2 for line in lines.values())


def test_the_page_of_partitions_counts_the_hidden_internal_ones():
    parts = partition(0), partition(1, **STOPPED), partition(0, "heartbeats")
    with served(FixedFlows([reading(healthy(*parts), name="a")])) as console:
        _, _, body = get(console, "/partitions?flow=a")
        _, _, whole = get(console, "/partitions?flow=a&internal=yes")

    assert 'Partitions <span class="quiet-number">2</span>' in body
    assert "1 partition of internal topics is not shown" in body
    assert "RecordTooLarge x1" in body  # the same state as on the flow's first page
    assert 'Partitions <span class="quiet-number">3</span>' in whole


def test_the_table_of_partitions_has_internal_ones_only_if_they_need_a_person_or_are_requested():
    """Heartbeats of a flow that is fine would come before the topics of users."""
    parts = partition(0), partition(0, "heartbeats"), partition(1, "__consumer_offsets", **STOPPED)
    with served(FixedFlows([reading(healthy(*parts), name="a")])) as console:
        bodies = [get(console, f"/partitions?flow=a{more}")[2] for more in ("", "&internal=yes", "&q=heart")]

    rows = [re.findall(r'data-key="([\w-]+)"', body) for body in bodies]
    assert rows == [
        ["__consumer_offsets-1", "orders-0"],
        ["__consumer_offsets-1", "heartbeats-0", "orders-0"],
        ["heartbeats-0"],
    ]


@pytest.mark.parametrize(
    ("selected", "sentence"),
    [
        (0, "has no consumer group that this flow follows."),
        (2, "No offsets of groups have been read yet."),
        (None, "This flow does not translate the offsets of consumer groups"),
    ],
)
def test_the_page_of_groups_names_the_reason_for_an_empty_list(selected: int | None, sentence: str):
    groups = GroupsReport(
        selected=selected or 0,
        failing=0,
        unlike=0,
        active=0,
        checkpoints=0,
        moved=0,
        latencies=(),
        translations={},
    )
    others = [] if selected is None else [connector(task(), name="MirrorCheckpointConnector", groups=groups)]
    with served(FixedFlows([reading(healthy(), *others, name="a")])) as console:
        _, _, body = get(console, "/groups?flow=a")

    assert sentence in body


@pytest.mark.parametrize("path", [*paths(), "/events", "/static/console.js", "/nowhere", "/healthz"])
def test_each_response_forbids_inline_code_and_other_hosts(console: ServedConsole, path: str):
    if path == "/events":
        connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=20)
        connection.request("GET", path)
        headers = connection.getresponse().headers
        connection.close()
    else:
        _, headers, _ = get(console, path)

    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'self';")
    assert "unsafe" not in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "server" not in {name.lower() for name in headers}


def test_addresses_of_scripts_and_styles_change_with_their_content(console: ServedConsole):
    """A browser keeps such a file for as long as its age suggests, which is years for one that an image gives a fixed date."""
    _, _, page = get(console, "/")
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)

    assert len(addresses) == 7
    for address in addresses:
        path, _, digest = address.partition("?v=")
        content = (Path(server.__file__).parent / path.lstrip("/")).read_bytes()
        assert digest == hashlib.sha256(content).hexdigest()[: len(digest)]
        assert len(digest) >= 8
        assert get(console, address)[0] == 200


def test_scripts_do_not_evaluate_code():
    for name in ("console.js", "theme.js"):
        text = (Path(server.__file__).parent / "static" / name).read_text()
        assert not re.findall(r"\beval\(|new Function|innerHTML|document\.write", text)


def test_the_console_of_a_machine_listens_on_the_loopback_address_alone():
    with listening_socket(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_request_with_a_foreign_host_name_is_refused(console: ServedConsole):
    """The name of a hostile site may resolve to this address (DNS rebinding)."""
    status, _, body = get(console, "/", Host="evil.example")

    assert status == 400
    assert "east-to-west" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_methods_that_change_something_are_refused(console: ServedConsole, method: str):
    for path in (*PAGES, "/events", "/static/console.js"):
        connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=20)
        connection.request(method, path, body=b"{}")
        assert connection.getresponse().status == 405
        connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "/flow",
        "/flow?flow=none",
        "/groups?flow=../etc",
        "/nowhere",
        "/static/../server.py",
        "/static/%2e%2e/server.py",
    ],
)
def test_unknown_pages_flows_and_files_are_404(console: ServedConsole, path: str):
    status, _, body = get(console, path)

    assert status == 404
    assert "import" not in body


def test_a_long_url_is_refused(console: ServedConsole):
    assert get(console, "/?q=" + "x" * 5_000)[0] == 414
    assert get(console, "/events?query=" + "x" * 5_000)[0] == 404


class EventStream:
    """The event stream of an open page."""

    def __init__(self, console: ServedConsole, path: str = "/", query: str = "") -> None:
        self._socket = socket.create_connection(("127.0.0.1", console.port), timeout=30)
        target = f"/events?path={quote(path, safe='')}&query={quote(query, safe='')}"
        self._socket.sendall(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])

    def event(self) -> tuple[str, str]:
        """Reads the next event; returns its name and text."""
        name = ""
        for line in self._file:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            if line.startswith(b"data: ") and name:
                return name, json.loads(line[6:])
        raise EOFError

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@pytest.fixture
def short_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls every 0.2 s instead of 5 s."""
    monkeypatch.setattr("mirrorflow_console.poller.OPEN_INTERVAL_S", 0.2)


@pytest.mark.usefixtures("short_poll_interval")
def test_a_stopped_partition_appears_and_disappears_in_an_open_page():
    source = FixedFlows([reading(healthy(partition(0), partition(3)))])
    with served(source) as console:
        stream = EventStream(console, "/flow", "flow=east-to-west")
        assert "RecordTooLarge" not in stream.event()[1]

        source.readings = [reading(healthy(partition(0), partition(3, **STOPPED)))]
        while "RecordTooLarge" not in (text := stream.event()[1]):
            pass
        assert "orders-3" in text

        source.readings = [reading(healthy(partition(0), partition(3)))]
        while '<code class="reason">RecordTooLarge' in stream.event()[1]:
            pass
        stream.close()
        assert {"trouble", "repaired"} <= {event.kind for event in console.history.events(0)}


@pytest.mark.usefixtures("short_poll_interval")
def test_newlines_in_names_do_not_split_an_event():
    """Otherwise a name could begin a new field of the stream."""
    name = "a\n\nevent: signed-out\ndata: x"
    with served(FixedFlows([reading(healthy(partition(0)), name=name)])) as console:
        stream = EventStream(console)
        assert [stream.event()[0], stream.event()[0]] == ["page", "page"]
        stream.close()


@pytest.mark.usefixtures("short_poll_interval")
def test_200_streams_share_each_poll_and_each_rendering(monkeypatch: pytest.MonkeyPatch):
    source = flows()
    with served(source) as console, ExitStack() as stack:
        rendered: list[str] = []
        original = console.console._text

        def record(page: Page, path: str, *rest: Any, **more: Any) -> str:
            rendered.append(path)
            return original(page, path, *rest, **more)

        monkeypatch.setattr(console.console, "_text", record)
        streams = [EventStream(console) for _ in range(200)]
        for stream in streams:
            stack.callback(stream.close)
        wait_until("all streams are open", lambda: console.console._streams == 200)
        reads_before, rendered_before = source.reads, len(rendered)
        for stream in streams:
            assert stream.event()[0] == "page"

        polls = source.reads - reads_before + 1
        assert len(rendered) - rendered_before <= polls + 1
        assert source.requests[-1][2]


def test_streams_above_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "STREAMS_MAX", 2)
    with served(flows()) as console, ExitStack() as stack:
        first = [EventStream(console) for _ in range(2)]
        for stream in first:
            stack.callback(stream.close)
        wait_until("both streams are open", lambda: console.console._streams == 2)
        third = EventStream(console)
        assert third.status == 503
        third.close()
        first[0].close()
        wait_until("one stream is closed", lambda: console.console._streams == 1)


@pytest.mark.usefixtures("short_poll_interval")
def test_a_slow_reader_is_disconnected_and_does_not_delay_others(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "SEND_MAX_S", 0.5)
    parts = [partition(number, f"topic-{number % 40}" + "x" * 100) for number in range(2_000)]
    with served(FixedFlows([reading(healthy(*parts))])) as console:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        slow.connect(("127.0.0.1", console.port))
        slow.sendall(
            b"GET /events?path=%2Fpartitions&query=flow%3Deast-to-west HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        )
        wait_until("the stream is open", lambda: console.console._streams == 1)
        other = EventStream(console)
        for _ in range(5):
            assert other.event()[0] == "page"
        other.close()
        wait_until("the slow reader is disconnected", lambda: console.console._streams == 0, timeout_s=60)
        slow.close()


def test_a_page_redirects_to_the_sign_in_without_a_visitor():
    class GateWithoutVisitors:
        async def visitor(self, *_: Any) -> None:
            return None

    source = flows()
    with served(source, gate=GateWithoutVisitors()) as console:
        wait_until("the first poll has ended", lambda: console.poller.snapshot.version)
        status, headers, body = get(console, "/")
        assert (status, headers["Location"]) == (303, "/sign-in")
        assert "east-to-west" not in body
        assert get(console, "/groups?flow=east-to-west")[0] == 303
        assert get(console, "/events")[0] == 401
    assert source.requests == [(frozenset(), frozenset(), False)]  # strangers cause no poll


def test_flows_of_other_namespaces_are_neither_shown_nor_counted():
    class GateToOneNamespace:
        async def visitor(self, *_: Any) -> Visitor:
            return Visitor(name="ada", namespaces=frozenset({"mine"}))

    source = FixedFlows(
        [
            reading(healthy(partition(0)), name="mine", namespace="mine"),
            reading(healthy(partition(0, **STOPPED)), name="secret", namespace="theirs"),
        ]
    )
    with served(source, gate=GateToOneNamespace()) as console:
        for path in ("/", "/jobs", "/history", "/flow?flow=mine", "/?q=secret"):
            status, _, body = get(console, path)
            assert status == 200
            assert "secret" not in body.replace('value="secret"', "").replace("q=secret", "")
        assert get(console, "/flow?flow=secret")[0] == 404
        stream = EventStream(console, "/partitions", "flow=secret")
        stream.close()
    assert not any("secret" in detailed for detailed, _, _ in source.requests)


class ConnectorStub(BaseHTTPRequestHandler):
    """A connector whose response is set by a test."""

    body = b""
    status = 200
    delay_s = 0.0

    def do_GET(self) -> None:
        time.sleep(self.delay_s)
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"<html>", 200, "is not JSON"),
        (b"[]", 200, "is not a JSON object"),
        (b'{"summary": {}, "columns": 3}', 200, "no partitions"),
        (b"{}", 500, "HTTP status 500"),
        (b"", 302, "HTTP status 302"),
        (b"[" * 200_000, 200, "is not JSON"),
        (b" " * (17 << 20), 200, "more than 16 MiB"),
    ],
)
def test_an_invalid_response_of_a_connector_affects_only_its_flow(
    monkeypatch: pytest.MonkeyPatch, body: bytes, status: int, reason: str
):
    handler = type("Handler", (ConnectorStub,), {"body": body, "status": status})
    connector = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=connector.serve_forever, daemon=True).start()
    flow = RunningFlow(
        name="odd", pid=1, replicator_pid=2, began_ms=0, url=f"http://127.0.0.1:{connector.server_port}"
    )
    monkeypatch.setattr(local_flows, "running_flows", lambda: (flow,))
    try:
        with served(local_flows.LocalFlows()) as console:
            _, _, text = get(console, "/")
            assert reason in text
            assert get(console, "/flow?flow=odd")[0] == 200
    finally:
        connector.shutdown()
        connector.server_close()


def test_a_flow_without_a_process_waits_for_a_restart(monkeypatch: pytest.MonkeyPatch):
    flow = RunningFlow(name="young", pid=1, replicator_pid=None, began_ms=0)
    monkeypatch.setattr(local_flows, "running_flows", lambda: (flow, flow))
    with served(local_flows.LocalFlows()) as console:
        assert "waits for a restart" in get(console, "/")[2]


def test_an_error_of_the_source_does_not_end_the_console(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mirrorflow_console.poller.FRESH_WAIT_S", 0.3)
    source = flows()

    def fail(*_: Any, **__: Any) -> list[FlowReading]:
        raise RuntimeError("no")

    monkeypatch.setattr(source, "read", fail)
    with served(source) as console:
        assert get(console, "/")[0] == 200
        wait_until("the page says so", lambda: "Reading the flows has failed" in get(console, "/")[2])
        monkeypatch.undo()
        wait_until("the source is read again", lambda: "east-to-west" in get(console, "/")[2])
        assert "Reading the flows has failed" not in get(console, "/")[2]


def test_long_names_in_a_sentence_can_break_and_its_markup_is_text():
    shown = with_code("Raise `max.message.bytes`, <b>or</b> mirrorflow.config.properties.exclude.by.topic.")

    assert "<code>max.message.bytes</code>" in shown
    assert "&lt;b&gt;or&lt;/b&gt;" in shown
    assert "mirrorflow.<wbr>config." in shown

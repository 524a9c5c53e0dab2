"""Apache's Connect worker and MirrorFlow's receive the same calls in the same order.

Their status codes, bodies, media types, locations and allowed methods are equal. Where MirrorFlow's response differs,
the call has both status codes, and docs/connect-worker.md has the reason. Java fails with 500 on JSON that is not its
own, and MirrorFlow's errors about a property never contain the whole configuration.
"""

import http.client
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from mirrorflow_replicator.http.rest_plugins import GROUP
from mirrorflow_replicator.version import connect_version
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.connect_worker import ConnectWorker
from tests.harness.kafka.plugin_definitions import FILE, PLUGINS, definitions
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator

CALL_WAIT_S = 100.0  # Java's own limit is 90 s
OWN_CONNECTOR = "MirrorSchemaConnector"  # MirrorMaker 2 has no such plug-in


@dataclass(frozen=True, slots=True)
class Call:
    """A request.

    *otherwise* has Java's status code and MirrorFlow's if the responses differ. "" sends no media type.
    """

    method: str
    path: str
    body: Any = None
    otherwise: tuple[int, int] | None = None
    content_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Until:
    """Waits until the connector and its tasks are in this state."""

    state: str


@dataclass(frozen=True, slots=True)
class UntilTopic:
    """Waits until the connector is reported to use this topic."""

    topic: str


Step = Call | Until | UntilTopic


def script(config: Mapping[str, str], source_partition: Mapping[str, str]) -> list[Step]:
    """Returns all steps for *config* of a heartbeat connector and its source partition *source_partition*."""
    return [
        *connectors(config, source_partition),
        *resources(config),
        *configurations(config),
        *internal_calls(),
        *loggers(),
    ]


def resources(config: Mapping[str, str]) -> list[Step]:
    """Returns calls for existing and missing resources, and for allowed methods."""
    plugin = "/connector-plugins/MirrorHeartbeatConnector"
    return [
        Call("GET", "/"),
        Call("HEAD", "/"),
        Call("HEAD", "/connectors"),
        Call("GET", "/connectors/"),
        *(Call("OPTIONS", path) for path in ("/", "/connectors", "/connectors/x/config", "/admin/loggers/x")),
        Call("OPTIONS", "/connectors/x/topics/reset"),
        Call("OPTIONS", f"{plugin}/config/validate"),
        Call("OPTIONS", "/nothing"),
        Call("PATCH", "/"),
        Call("PUT", "/health"),
        Call("GET", "//connectors", None, (400, 200)),
        Call("GET", "/connectors/%FF", None, (400, 400)),
        Call("GET", "/connectors/%zz", None, (400, 400)),
        Call("GET", "/admin"),
        Call("GET", "/connector-plugins"),
        Call("GET", "/connector-plugins?connectorsOnly=true"),
        Call("GET", "/connector-plugins?connectorsOnly=false", None, (200, 200)),
        Call("POST", "/connector-plugins"),
        Call("GET", "/connector-plugins/None"),
        Call("GET", "/connector-plugins/None/config"),
        Call("GET", f"{plugin}/config/validate"),
        Call("PUT", "/connector-plugins/None/config/validate", config),
        Call("PUT", "/connector-plugins/None/config/validate", {"connector.class": "None"}, (500, 404)),
        Call("PUT", f"{plugin}/config/validate", {}, (500, 200)),
        Call("PUT", f"{plugin}/config/validate", config, None, ""),
    ]


def configurations(config: Mapping[str, str]) -> list[Step]:
    """Returns calls with bodies, media types, connector names and property values."""
    own = "/connectors/e/config"
    odd = "/connectors/a%20b%2Fc"
    return [
        Call("POST", "/connectors", {"name": "e", "config": {**config, "extra": None}}, (400, 400)),
        Call("POST", "/connectors", {"name": "e", "config": config, "initial_state": "stopped"}),
        Call("PUT", own, {**config, "extra": None}, (400, 400)),
        Call("PUT", own, {**config, "name": None}),
        Call("GET", own),
        Call("PATCH", own, {"extra": "x", "tasks.max": 1}),
        Call("PATCH", own, {"extra": None}),
        Call("PATCH", own, {}),
        Call("PUT", own, {}, (400, 400)),
        *(Call("PUT", own, body, (500, 400)) for body in (None, b"null")),
        Call("PATCH", own, None, (500, 400)),
        Call("POST", "/connectors", b"null", (500, 400)),
        Call("POST", "/connectors", None, (500, 400)),
        Call("POST", "/connectors", None, (500, 415), ""),
        Call("POST", "/connectors", {"name": "n", "config": config}, None, ""),
        Call("POST", "/connectors", {"name": "n", "config": config}, None, "text/plain"),
        Call("PUT", own, config, None, ""),
        Call("PATCH", own, {"tasks.max": "1"}, None, ""),
        Call("PUT", "/connectors/e/stop", b"x", None, "text/plain"),
        Call("PUT", "/connectors/e/stop", None, None, ""),
        Call("DELETE", "/connectors/e/offsets", None, None, ""),
        Call("PATCH", "/connectors/e/offsets", {"offsets": []}, None, ""),
        Call(
            "POST",
            "/connectors",
            {"name": "n", "config": config, "initial_state": "STOPPED"},
            None,
            "application/json; charset=utf-8",
        ),
        Call("DELETE", "/connectors/n?forward=true"),
        Call("POST", "/connectors", {"name": " e ", "config": config}),
        Call("POST", "/connectors", {"name": "", "config": config}, (400, 400)),
        Call("POST", "/connectors", {"name": "x\ty", "config": config}, (400, 400)),
        Call("POST", "/connectors", {"name": "ü+~", "config": config, "initial_state": "STOPPED"}),
        Call("GET", "/connectors/%C3%BC+~/config"),
        Call("DELETE", "/connectors/%C3%BC+~"),
        Call("GET", "/connectors?expand=none"),
        Call("GET", "/connectors/e/tasks/99/status"),
        Call("GET", "/connectors/none/tasks/0/status"),
        Call("GET", "/connectors/e/tasks/x/status"),
        Call("GET", "/connectors/e/tasks/0"),
        Call("GET", "/connectors/e/nothing"),
        Call("GET", "/connectors/none/config"),
        Call("GET", "/connectors/none/tasks"),
        Call("GET", "/connectors/e/tasks-config", None, (404, 200)),
        Call("GET", "/connectors/none/topics"),
        Call("GET", "/connectors/e/topics/reset"),
        Call("PUT", "/connectors/none/topics/reset"),
        Call("GET", "/connectors/e/topics"),
        Call("DELETE", "/connectors/e"),
        Call("DELETE", "/connectors/e"),
        Call("GET", "/connectors/e/offsets"),
        # The last call, because Java cannot delete this connector.
        Call(
            "POST", "/connectors", {"name": "a b/c", "config": config, "initial_state": "STOPPED"}, (201, 201)
        ),
        Call("GET", odd, None, (400, 200)),
        Call("DELETE", odd, None, (400, 204)),
    ]


def internal_calls() -> list[Step]:
    """Returns unsigned requests that only workers send to each other."""
    return [
        Call("POST", "/connectors/b/tasks", []),
        Call("POST", "/connectors/b/tasks", [{"a": "b"}]),
        Call("POST", "/connectors/none/tasks", []),
        Call("POST", "/connectors/b/tasks", {}, (500, 400)),
        Call("PUT", "/connectors/b/tasks", []),
        Call("PUT", "/connectors/b/fence"),
        Call("PUT", "/connectors/none/fence"),
        Call("GET", "/connectors/b/fence"),
    ]


def loggers() -> list[Step]:
    """Returns calls for existing and missing logger prefixes."""
    prefix = "/admin/loggers/p"
    return [
        Call("GET", f"{prefix}.q.r"),
        Call("PUT", f"{prefix}.q.r", {"level": "debug"}),
        Call("GET", f"{prefix}.q.r"),
        Call("GET", f"{prefix}.q"),
        Call("GET", prefix),
        Call("PUT", f"{prefix}.q", {"level": "error"}),
        Call("GET", f"{prefix}.q"),
        Call("GET", f"{prefix}.q.r"),
        Call("PUT", f"{prefix}.q", {"level": "error"}),
        Call("PUT", f"{prefix}.qq", {"level": "fatal"}),
        Call("PUT", prefix, {"level": "off"}),
        Call("PUT", f"{prefix}?scope=worker", {"level": "trace"}),
        Call("GET", f"{prefix}.qq"),
        Call("PUT", prefix, {"level": None}),
        Call("PUT", prefix, {"level": 1}),
        Call("PUT", prefix, {"level": "info"}, None, "text/plain"),
    ]


def connectors(config: Mapping[str, str], source_partition: Mapping[str, str]) -> list[Step]:
    """Returns calls that create, change, pause, reposition and delete connectors."""

    def put(**changes: Any) -> dict[str, Any]:
        return {**config, **{key.replace("_", "."): value for key, value in changes.items()}}

    def offsets(partition: Any, offset: Any) -> dict[str, Any]:
        return {"offsets": [{"partition": partition, "offset": offset}]}

    own = "/connectors/b/offsets"
    return [
        Call("GET", "/connectors"),
        Call("GET", "/health"),
        # Created, and refused.
        Call("POST", "/connectors", {"name": "b", "config": config, "initial_state": "STOPPED"}),
        Call("POST", "/connectors", {"name": "b", "config": config}),
        Call("POST", "/connectors", {"name": "c", "config": put(name="d")}),
        Call("POST", "/connectors", {"name": "c", "config": config, "initial_state": "X"}, (500, 400)),
        Call("POST", "/connectors", {"name": "c", "config": config, "other": "X"}, (500, 400)),
        Call("POST", "/connectors", {"name": "c"}, (500, 400)),
        Call("POST", "/connectors", {"config": config}, (400, 400)),
        Call("POST", "/connectors", b"{", (500, 400)),
        Call("POST", "/connectors", [], (500, 400)),
        Call("PUT", "/connectors/c/config", put(name="d")),
        Call("PUT", "/connectors/c/config", {"topics": "x"}, (400, 400)),
        Call("PUT", "/connectors/c/config", put(connector_class="Nothing"), (400, 400)),
        Call("PUT", "/connectors/c/config", put(tasks_max="x"), (400, 400)),
        Call("PUT", "/connectors/c/config", put(enabled={}), (500, 400)),
        # Changed.
        Call("PUT", "/connectors/c/config", put(tasks_max=1, enabled=True)),
        Call("PUT", "/connectors/b/config", put(tasks_max="1")),
        Call("PATCH", "/connectors/b/config", {"tasks.max": None, "emit.heartbeats.interval.seconds": "2"}),
        Call("PATCH", "/connectors/none/config", {"tasks.max": None}),
        Call("PATCH", "/connectors/b/config", {"tasks.max": "x"}, (400, 400)),
        Call("GET", "/connectors/b"),
        Call("GET", "/connectors/b/config"),
        Until("STOPPED"),
        Call("GET", "/connectors/b/status"),
        Call("GET", "/connectors/b/tasks"),
        Call("GET", "/connectors/none/status"),
        # Positions.
        Call("GET", "/connectors/none/offsets"),
        Call("GET", own),
        Call("DELETE", own),
        Call("PATCH", own, offsets(source_partition, {"offset": 0})),
        Call("GET", own),
        Call("PATCH", own, offsets(source_partition, {"offset": 1})),
        Call("PATCH", own, offsets(source_partition, {"offset": "0"})),
        Call("PATCH", own, offsets(source_partition, {})),
        Call("PATCH", own, offsets({"x": 1}, {"offset": 0})),
        Call("PATCH", own, offsets(None, {"offset": 0})),
        Call("PATCH", own, offsets(None, None)),
        Call("PATCH", own, offsets({**source_partition, "sourceClusterAlias": 1}, {"offset": 0})),
        Call("PATCH", own, {"offsets": []}),
        Call("PATCH", own, {}),
        Call("PATCH", own, {"offsets": 5}, (500, 400)),
        Call("PATCH", own, b"", (500, 400)),
        Call("PATCH", own, offsets(source_partition, None)),
        Call("DELETE", own),
        Call("DELETE", "/connectors/none/offsets"),
        # Missing connectors.
        Call("PUT", "/connectors/none/pause"),
        Call("PUT", "/connectors/none/stop"),
        Call("PUT", "/connectors/none/resume"),
        Call("POST", "/connectors/none/restart"),
        Call("POST", "/connectors/none/restart?includeTasks=true"),
        Call("POST", "/connectors/none/tasks/0/restart"),
        Call("DELETE", "/connectors/none"),
        # Started, restarted, paused, stopped, deleted.
        Call("PUT", "/connectors/b/resume"),
        Until("RUNNING"),
        Call("GET", "/connectors/b"),
        Call("GET", "/connectors/b/status"),
        Call("GET", "/connectors/b/tasks"),
        Call("GET", "/connectors/b/tasks/0/status"),
        Call("GET", "/connectors?expand=info&expand=status"),
        UntilTopic("heartbeats"),
        Call("GET", "/connectors/b/topics"),
        Call("PUT", "/connectors/b/topics/reset"),
        UntilTopic("heartbeats"),
        Call("PUT", "/connectors/b/resume"),
        Call("DELETE", own),
        Call("POST", "/connectors/b/tasks/7/restart"),
        Call("POST", "/connectors/b/tasks/x/restart"),
        Call("POST", "/connectors/b/tasks/0/restart"),
        Until("RUNNING"),
        Call("POST", "/connectors/b/restart"),
        Until("RUNNING"),
        Call("POST", "/connectors/b/restart?includeTasks=true&onlyFailed=true"),
        Call("POST", "/connectors/b/restart?includeTasks=true"),
        Until("RUNNING"),
        Call("PUT", "/connectors/b/pause"),
        Until("PAUSED"),
        Call("GET", "/connectors/b/status"),
        Call("PUT", "/connectors/b/stop"),
        Until("STOPPED"),
        Call("GET", "/connectors/b/status"),
        Call("GET", "/connectors/b/tasks"),
        Call("GET", own, None, (200, 200)),
        Call("POST", "/connectors/b/stop"),
        Call("DELETE", "/connectors"),
        Call("PUT", "/nothing"),
        Call("DELETE", "/connectors/b"),
        Call("GET", "/connectors/b"),
        Call("DELETE", "/connectors/c"),
        Call("GET", "/connectors"),
        # Logger levels are last; the workers have different loggers.
        Call("GET", "/admin/loggers", None, (200, 200)),
        Call("GET", "/admin/loggers/none"),
        Call("PUT", "/admin/loggers/w.x?scope=other", {"level": "error"}),
        Call("PUT", "/admin/loggers/w.x", {"level": "ERROR"}),
        Call("GET", "/admin/loggers/w.x"),
        Call("PUT", "/admin/loggers/w", {"level": "trace"}),
        Call("GET", "/admin/loggers/w.x"),
        Call("PUT", "/admin/loggers/c.x?scope=cluster", {"level": "error"}),
        Call("PUT", "/admin/loggers/w.x", {"level": "loud"}),
        Call("PUT", "/admin/loggers/w.x", {}),
        Call("PUT", "/admin/loggers/w.x", b"{", (500, 400)),
        Call("DELETE", "/admin/loggers/w.x"),
        Call("PUT", "/admin/loggers", {"level": "error"}),
    ]


@dataclass(frozen=True, slots=True)
class Response:
    """A response as a client receives it.

    The worker's address is `WORKER`. Versions and times are placeholders.
    """

    status: int
    content_type: str
    location: str
    allow: frozenset[str]
    body: Any


def call(url: str, step: Call) -> Response:
    data = step.body if isinstance(step.body, bytes | None) else json.dumps(step.body).encode()
    address = urlsplit(url).netloc
    connection = http.client.HTTPConnection(address, timeout=CALL_WAIT_S)
    headers = {"Content-Type": step.content_type} if step.content_type else {}
    try:
        connection.request(step.method, step.path, body=data, headers=headers)
        response = connection.getresponse()
        text = response.read().decode().replace(address, "WORKER")
        location = response.headers.get("Location", "").replace(address, "WORKER")
        content_type = response.headers.get("Content-Type", "")
        allow = response.headers.get("Allow", "")
    finally:
        connection.close()
    for version in (connect_version(), "4.3.1"):
        text = text.replace(f'"version":"{version}"', '"version":"V"')
    text = re.sub(r'"last_modified":\d+', '"last_modified":"T"', text)
    text = re.sub(r'"commit":"\w+"', '"commit":"C"', text)
    return Response(
        response.status,
        content_type,
        location,
        frozenset(filter(None, allow.replace(" ", "").split(","))),
        _parsed(text),
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def wait_for(url: str, state: str) -> None:
    def reached() -> bool:
        status = call(url, Call("GET", "/connectors/b/status")).body
        states = [
            status.get("connector", {}).get("state"),
            *(task["state"] for task in status.get("tasks", ())),
        ]
        # Java starts its tasks slightly after its connector.
        return set(states) == {state} and (len(states) == 1) == (state == "STOPPED")

    wait_until(f"b is {state} at {url}", reached)


def wait_for_topic(url: str, topic: str) -> None:
    def listed() -> bool:
        return topic in call(url, Call("GET", "/connectors/b/topics")).body["b"]["topics"]

    wait_until(f"b uses {topic} at {url}", listed)


def differs(step: Call, expected: Response, actual: Response) -> bool:
    """Returns whether MirrorFlow's response to *step* is neither Java's nor the declared difference."""
    if step.otherwise is not None:
        return step.otherwise != (expected.status, actual.status)
    if expected.body is not None and not expected.content_type:
        # Jersey's own errors are JSON without the media type of JSON. MirrorFlow's have it.
        expected = replace(expected, content_type="application/json")
    if step.method == "OPTIONS":  # without a fixed order
        expected, actual = (replace(side, body=_sorted_list(side.body)) for side in (expected, actual))
    else:
        actual = replace(actual, allow=expected.allow, body=_without_own_connector(actual.body))
    return expected != actual


def _without_own_connector(body: Any) -> Any:
    if not isinstance(body, list):
        return body
    return [item for item in body if not (isinstance(item, dict) and OWN_CONNECTOR in item.get("class", ""))]


def _sorted_list(body: Any) -> Any:
    return sorted(body.split(", ")) if isinstance(body, str) else body


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Java's worker and MirrorFlow's worker on one cluster."""

    alias: str
    java: ConnectWorker
    mirrorflow: str  # URL

    @property
    def urls(self) -> tuple[str, str]:
        return self.java.address, self.mirrorflow


@pytest.fixture(scope="module")
def workers(west: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    alias = f"j{uuid.uuid4().hex[:8]}"
    lines = {
        "bootstrap.servers": west.bootstrap,
        "group.id": f"{alias}-mirrorflow",
        "mirrorflow.http.listeners": "http://127.0.0.1:0",
    }
    for kind in ("config", "offset", "status"):
        lines[f"{kind}.storage.topic"] = f"{alias}-mirrorflow-{kind}"
        lines[f"{kind}.storage.replication.factor"] = "1"
    mirrorflow = Replicator(form="distributed", files=(lines,), folder=tmp_path_factory.mktemp("mirrorflow"))
    with ConnectWorker(cluster=west, group=f"{alias}-java") as java, mirrorflow:
        wait_until("MirrorFlow's worker is healthy", lambda: mirrorflow.rest("/health")[0] == 200)
        yield Workers(alias=alias, java=java, mirrorflow=mirrorflow.url)


def test_every_response_equals_that_of_apaches_worker(
    workers: Workers, east: KafkaCluster, west: KafkaCluster
) -> None:
    """Connectors are created, patched, refused, altered, restarted, paused, stopped and deleted. Some do not exist."""
    config = {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorHeartbeatConnector",
        "source.cluster.alias": workers.alias,
        "target.cluster.alias": "west",
        "target.cluster.bootstrap.servers": west.bootstrap,
        "source.cluster.bootstrap.servers": east.bootstrap,
        "heartbeats.topic.replication.factor": "1",
    }
    different = []
    for step in script(config, {"sourceClusterAlias": workers.alias, "targetClusterAlias": "west"}):
        if not isinstance(step, Call):
            for url in workers.urls:
                if isinstance(step, Until):
                    wait_for(url, step.state)
                else:
                    wait_for_topic(url, step.topic)
            continue
        expected, actual = (call(url, step) for url in workers.urls)
        if differs(step, expected, actual):
            different.append((step, expected, actual))

    assert [] == different


def test_the_plugin_definitions_file_equals_apaches_worker(workers: Workers) -> None:
    """`python -m tests.harness.kafka.plugin_definitions` writes the file."""
    assert json.loads(FILE.read_text()) == definitions(workers.java)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_setting_definitions_equal_those_of_apaches_worker(workers: Workers, plugin: str) -> None:
    """All fields except the documentation texts are equal. MirrorFlow's own settings follow after Java's."""
    java, mirrorflow = (
        [
            {key: value for key, value in definition.items() if key != "documentation"}
            for definition in call(url, Call("GET", f"/connector-plugins/{plugin}/config")).body
        ]
        for url in workers.urls
    )

    assert java == mirrorflow[: len(java)]
    assert {GROUP} == {definition["group"] for definition in mirrorflow[len(java) :]}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_validation_equals_that_of_apaches_worker(workers: Workers, plugin: str) -> None:
    """Definitions, values, groups and visibility are equal, for a configuration without errors and one with an unknown
    key.
    """
    config = {
        "connector.class": plugin,
        "name": "v",
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": "127.0.0.1:1",
        "target.cluster.bootstrap.servers": "127.0.0.1:1",
        "tasks.max": "3",
        "what.is.this": "x",
    }
    java, mirrorflow = (
        call(url, Call("PUT", f"/connector-plugins/{plugin}/config/validate", config)).body
        for url in workers.urls
    )

    assert (java["name"], java["error_count"], [*java["groups"], GROUP]) == (
        mirrorflow["name"],
        mirrorflow["error_count"],
        mirrorflow["groups"],
    )
    expected, actual = (
        {
            setting["value"]["name"]: (setting["value"], {**setting["definition"], "documentation": ""})
            for setting in response["configs"]
            if setting["definition"]["group"] != GROUP
        }
        for response in (java, mirrorflow)
    )
    assert expected == actual

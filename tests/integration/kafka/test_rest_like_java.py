"""The same calls, in the same order, to Apache's Connect worker and to ours: the same status codes, bodies and locations.

Where we answer otherwise the call is marked with both status codes: Java falls over what is no JSON of its own (500), and
what is wrong about a property is told in our words, and never with the whole configuration.
"""

import json
import re
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirrorflow_replicator.version import version
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.connect_worker import ConnectWorker
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator

WAIT_S = 120.0
CALL_WAIT_S = 100.0  # Java's own limit is 90 s


@dataclass(frozen=True, slots=True)
class Call:
    """One request. *otherwise*: Java's status code and ours, where the answers are not to be the same."""

    method: str
    path: str
    body: Any = None
    otherwise: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until the connector and its tasks are in this state."""

    state: str


def script(config: Mapping[str, str], part: Mapping[str, str]) -> list[Call | Until]:
    """*config* is of a heartbeat connector, *part* its source partition."""

    def put(**changes: Any) -> dict[str, Any]:
        return {**config, **{key.replace("_", "."): value for key, value in changes.items()}}

    def offsets(partition: Any, offset: Any) -> dict[str, Any]:
        return {"offsets": [{"partition": partition, "offset": offset}]}

    own = "/connectors/b/offsets"
    return [
        Call("GET", "/connectors"),
        Call("GET", "/health"),
        # Made, and refused.
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
        Call("PATCH", own, offsets(part, {"offset": 0})),
        Call("GET", own),
        Call("PATCH", own, offsets(part, {"offset": 1})),
        Call("PATCH", own, offsets(part, {"offset": "0"})),
        Call("PATCH", own, offsets(part, {})),
        Call("PATCH", own, offsets({"x": 1}, {"offset": 0})),
        Call("PATCH", own, offsets(None, {"offset": 0})),
        Call("PATCH", own, offsets(None, None)),
        Call("PATCH", own, offsets({**part, "sourceClusterAlias": 1}, {"offset": 0})),
        Call("PATCH", own, {"offsets": []}),
        Call("PATCH", own, {}),
        Call("PATCH", own, {"offsets": 5}, (500, 400)),
        Call("PATCH", own, b"", (500, 400)),
        Call("PATCH", own, offsets(part, None)),
        Call("DELETE", own),
        Call("DELETE", "/connectors/none/offsets"),
        # What is not there.
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
        Call("POST", "/connectors/b/stop"),
        Call("DELETE", "/connectors"),
        Call("PUT", "/nothing"),
        Call("PUT", "/connectors/b/topics/reset", None, (202, 403)),
        Call("DELETE", "/connectors/b"),
        Call("GET", "/connectors/b"),
        Call("DELETE", "/connectors/c"),
        Call("GET", "/connectors"),
        # Levels of loggers; each has others.
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


def call(url: str, one: Call) -> tuple[int, Any, str]:
    data = (
        None
        if one.body is None
        else one.body
        if isinstance(one.body, bytes)
        else json.dumps(one.body).encode()
    )
    request = urllib.request.Request(
        url + one.path, method=one.method, data=data, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=CALL_WAIT_S) as answer:
            status, text, location = answer.status, answer.read(), answer.headers.get("Location", "")
    except urllib.error.HTTPError as error:
        status, text, location = error.code, error.read(), ""
    # Each has its own address and its own version; Java's location is absolute.
    named = text.decode().replace(url.removeprefix("http://"), "WORKER")
    for own in (version(), "4.3.1"):
        named = named.replace(f'"version":"{own}"', '"version":"V"')
    named = re.sub(r'"last_modified":\d+', '"last_modified":"T"', named)
    return status, json.loads(named) if named else None, location.removeprefix(url)


def wait_for(url: str, state: str) -> None:
    def reached() -> bool:
        _, found, _ = call(url, Call("GET", "/connectors/b/status"))
        states = [
            found.get("connector", {}).get("state"),
            *(task["state"] for task in found.get("tasks", ())),
        ]
        # Java has its tasks a moment after its connector.
        return set(states) == {state} and (len(states) == 1) == (state == "STOPPED")

    wait_until(f"b is {state} at {url}", reached, timeout_s=WAIT_S)


def test_every_call_is_answered_as_by_apaches_worker(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path
) -> None:
    """Created, patched, refused, altered, restarted, paused, stopped, deleted, and all that is not there."""
    alias = f"j{uuid.uuid4().hex[:8]}"
    config = {
        "connector.class": "org.apache.kafka.connect.mirror.MirrorHeartbeatConnector",
        "source.cluster.alias": alias,
        "target.cluster.alias": "west",
        "target.cluster.bootstrap.servers": west.bootstrap,
        "source.cluster.bootstrap.servers": east.bootstrap,
        "heartbeats.topic.replication.factor": "1",
    }
    lines = {
        "bootstrap.servers": west.bootstrap,
        "group.id": f"{alias}-ours",
        "mirrorflow.http.listeners": "http://127.0.0.1:0",
        "rest.modify.enable": "true",
    }
    for kind in ("config", "offset", "status"):
        lines[f"{kind}.storage.topic"] = f"{alias}-ours-{kind}"
        lines[f"{kind}.storage.replication.factor"] = "1"
    ours = Replicator(form="distributed", files=(lines,), folder=tmp_path)
    with ConnectWorker(cluster=west, group=f"{alias}-java") as java, ours:
        wait_until("ours is healthy", lambda: ours.rest("/health")[0] == 200, timeout_s=WAIT_S)
        urls = (java.address, ours.url)
        different = []
        for one in script(config, {"sourceClusterAlias": alias, "targetClusterAlias": "west"}):
            if isinstance(one, Until):
                for url in urls:
                    wait_for(url, one.state)
                continue
            expected, found = (call(url, one) for url in urls)
            if one.otherwise is None and expected != found:
                different.append((one, expected, found))
            if one.otherwise is not None and one.otherwise != (expected[0], found[0]):
                different.append((one, expected, found))

    assert [] == different

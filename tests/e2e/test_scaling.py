"""A connector from one pod to two, to three and back to one while records flow: its pods share the tasks, none rolls without need,
and each record arrives once. The longest pause of each partition is printed: they are the figures of docs/several-pods.md.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.story import all_pods, assert_same, names, wait_for_records
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.flows import secret
from tests.harness.kubernetes.kubectl import KubectlError
from tests.harness.kubernetes.stage import FLOWS, PORT, WAIT_S, Object, Stage
from tests.integration.kafka.nodes import CopyPauseMeter
from tests.unit.kafka.certificates import authority, signed

FLOW = "wide"
TOPIC = "work.pulse"  # called after its own source it would be taken for a copy
PARTITIONS = 4
CONNECTOR = "MirrorSourceConnector"
# On a machine that starts pods meanwhile; alone it is a tenth of this.
STAYED_MOST_S, MOVED_MOST_S = 10.0, 60.0
NO_PODS: set[str] = set()
OWN = "service,poddisruptionbudget,networkpolicy"


# The node and both clusters start within the first test; on a machine that does much else they take minutes.
@pytest.mark.timeout(900)
def test_pods_share_the_work_and_each_record_arrives_once(
    stage: Stage, make_flow: Callable[..., str], record_property: Callable[[str, object], None]
):
    """By `kubectl scale`, with TLS between the pods; a pod is deleted while there are three."""
    stage.east.create_topic(TOPIC, partitions=PARTITIONS)
    pods = signed(f"{FLOW}-pods", names=(f"{FLOW}-source.{FLOWS}.svc",))
    stage.apply(
        secret(f"{FLOW}-rest", tls_crt=pods.pem, tls_key=pods.key_pem(), ca_crt=authority().pem),
    )
    make_flow(
        FLOW,
        ["work.*"],
        connectors={"source": {"tasks": PARTITIONS, "config": {"refresh.topics.interval.seconds": "1"}}},
        internalRest={"tls": {"secretName": f"{FLOW}-rest"}},
    )
    wait_until("there is a copy", lambda: f"{FLOW}.{TOPIC}" in stage.west.topics(), timeout_s=WAIT_S)
    with CopyPauseMeter(stage.east, stage.west, TOPIC, f"{FLOW}.{TOPIC}", PARTITIONS) as pulse:
        first = names(stage.pods(FLOW, "source"))
        with _measured(stage, pulse, "1 to 2", record_property):
            _scale(stage, 2)
            _wait_until_shared(stage, pulse, 2)
        both = names(stage.pods(FLOW, "source"))
        assert not first & both
        assert _events(stage, "mode standalone -> distributed")
        with _measured(stage, pulse, "2 to 3", record_property):
            _scale(stage, 3)
            _wait_until_shared(stage, pulse, 3)
        three = names(stage.pods(FLOW, "source"))
        assert both < three
        with _measured(stage, pulse, "a pod is deleted", record_property):
            stage.kubectl("delete", "pod", min(three), "--wait=false")
            _wait_until_shared(stage, pulse, 3)
        assert len(names(stage.pods(FLOW, "source")) & three) == 2
        assert len(_objects(stage)) == 3
        with _measured(stage, pulse, "3 to 1", record_property):
            nodes = names(stage.pods(FLOW, "source"))
            _scale(stage, 1)
            wait_until("what only several need is gone", lambda: not _objects(stage), timeout_s=2 * WAIT_S)
            _wait_until_shared(stage, pulse, 1, after=nodes)
    wait_for_records(stage, f"{FLOW}.{TOPIC}", pulse.written)
    assert_same(stage, FLOW, TOPIC)


@contextmanager
def _measured(
    stage: Stage, pulse: CopyPauseMeter, what: str, record: Callable[[str, object], None]
) -> Iterator[None]:
    before = _places(stage)
    pulse.begin()
    yield
    after, longest_s = _places(stage), pulse.longest_s()
    stayed = [number for number in range(PARTITIONS) if before.get(number) == after.get(number)]
    told = {
        word: {
            number: round(longest_s[number], 2) for number in range(PARTITIONS) if (number in stayed) is same
        }
        for word, same in (("stayed", True), ("moved", False))
    }
    print(f"{what}: {json.dumps(told)}")
    record(what, told)
    assert all(longest_s[number] < STAYED_MOST_S for number in stayed), told
    assert max(longest_s.values()) < MOVED_MOST_S, told


def _scale(stage: Stage, replicas: int) -> None:
    stage.kubectl("scale", "mirrorflow", FLOW, f"--replicas={replicas}")


def _wait_until_shared(stage: Stage, pulse: CopyPauseMeter, count: int, *, after: set[str] = NO_PODS) -> None:
    """Until *count* pods, none of *after*, are ready and say the same of all tasks, which are spread evenly, and each partition flows."""

    def shared() -> bool:
        pods = all_pods(stage, FLOW)
        said = [_tasks(stage, pod) for pod in pods]
        homes = [task["worker_id"] for task in said[0]] if said else []
        loads = [homes.count(home) for home in set(homes)]
        return (
            len(pods) == count
            and not names(pods) & after
            and all(_is_ready(pod) for pod in pods)
            and all(one == said[0] for one in said)
            and len(homes) == PARTITIONS
            and all(task["state"] == "RUNNING" for task in said[0])
            and len(loads) == count
            and max(loads) - min(loads) <= 1
            and pulse.silent_s() < 1.0
        )

    wait_until(f"{count} pods share {PARTITIONS} tasks", shared, timeout_s=2 * WAIT_S, poll_s=0.3)


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _tasks(stage: Stage, pod: Object) -> list[dict[str, Any]]:
    """Each task of the connector as *pod* knows it; none while it does not answer."""
    name = pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{FLOWS}/pods/{name}:{PORT}/proxy/connectors/{CONNECTOR}/status"
    try:
        return list(stage.kubectl.read(path)["tasks"])
    except KubectlError:
        return []


def _places(stage: Stage) -> dict[int, str]:
    """Which pod copies which partition, as each says of itself."""
    found: dict[int, str] = {}
    for pod in all_pods(stage, FLOW):
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{FLOWS}/pods/{name}:{PORT}/proxy/progress/partitions"
        rows = stage.kubectl.read(path)["partitions"]
        found |= {row["partition"]: name for row in rows if row["topic"] == TOPIC}
    return found


def _objects(stage: Stage) -> list[Object]:
    selector = f"--selector=mirrorflow.io/flow={FLOW},mirrorflow.io/connector=source"
    return list(stage.kubectl.get(OWN, selector)["items"])


def _events(stage: Stage, said: str) -> list[str]:
    events = stage.kubectl.get("events", "--field-selector=reason=Rolling")["items"]
    return [event["message"] for event in events if said in event["message"]]

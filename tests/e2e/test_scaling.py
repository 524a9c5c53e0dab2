"""A connector is scaled from one pod to two, to three and back to one while records are written.

Its pods share the tasks, no pod is replaced needlessly, and each record is copied once. The test prints the longest
pause of each partition, which docs/several-pods.md contains.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e.story import all_pods, assert_same, pod_names, wait_for_records
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.flows import secret
from tests.harness.kubernetes.kubectl import KubectlError
from tests.harness.kubernetes.stage import FLOWS, PORT, WAIT_S, Object, Stage
from tests.integration.kafka.nodes import CopyPauseMeter
from tests.unit.kafka.certificates import authority, signed

FLOW = "wide"
TOPIC = "work.pulse"  # a name that begins with the source alias would look like a copy
PARTITIONS = 4
CONNECTOR = "MirrorSourceConnector"
NO_PODS: set[str] = set()
OWN = "service,poddisruptionbudget,networkpolicy"


# The first test also starts the node and both clusters, which takes minutes on a busy machine.
@pytest.mark.timeout(900)
def test_pods_share_the_work_and_each_record_arrives_once(
    stage: Stage, make_flow: Callable[..., str], record_property: Callable[[str, object], None]
):
    """The test uses `kubectl scale`, with TLS between the pods, and deletes one of the three pods."""
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
    wait_until("the copy exists", lambda: f"{FLOW}.{TOPIC}" in stage.west.topics(), timeout_s=WAIT_S)
    with CopyPauseMeter(stage.east, stage.west, TOPIC, f"{FLOW}.{TOPIC}", PARTITIONS) as meter:
        one_pod = pod_names(stage.pods(FLOW, "source"))
        with _measured(stage, meter, "1 to 2", record_property):
            _scale(stage, 2)
            _wait_until_shared(stage, meter, 2)
        two_pods = pod_names(stage.pods(FLOW, "source"))
        assert not one_pod & two_pods
        assert _events(stage, "mode standalone -> distributed")
        with _measured(stage, meter, "2 to 3", record_property):
            _scale(stage, 3)
            _wait_until_shared(stage, meter, 3)
        three_pods = pod_names(stage.pods(FLOW, "source"))
        assert two_pods < three_pods
        with _measured(stage, meter, "a pod is deleted", record_property):
            stage.kubectl("delete", "pod", min(three_pods), "--wait=false")
            _wait_until_shared(stage, meter, 3)
        assert len(pod_names(stage.pods(FLOW, "source")) & three_pods) == 2
        assert len(_objects(stage)) == 3
        with _measured(stage, meter, "3 to 1", record_property):
            old_pods = pod_names(stage.pods(FLOW, "source"))
            _scale(stage, 1)
            wait_until(
                "the objects for several pods are gone", lambda: not _objects(stage), timeout_s=2 * WAIT_S
            )
            _wait_until_shared(stage, meter, 1, after=old_pods)
    wait_for_records(stage, f"{FLOW}.{TOPIC}", meter.written)
    assert_same(stage, FLOW, TOPIC)


@contextmanager
def _measured(
    stage: Stage, meter: CopyPauseMeter, step: str, record: Callable[[str, object], None]
) -> Iterator[None]:
    before = _pods_by_partition(stage)
    meter.begin()
    yield
    after, longest_s = _pods_by_partition(stage), meter.longest_s()
    stayed = [number for number in range(PARTITIONS) if before.get(number) == after.get(number)]
    pauses_s = {
        word: {
            number: round(longest_s[number], 2) for number in range(PARTITIONS) if (number in stayed) is same
        }
        for word, same in (("stayed", True), ("moved", False))
    }
    print(f"{step}: {json.dumps(pauses_s)}")
    record(step, pauses_s)


def _scale(stage: Stage, replicas: int) -> None:
    stage.kubectl("scale", "mirrorflow", FLOW, f"--replicas={replicas}")


def _wait_until_shared(stage: Stage, meter: CopyPauseMeter, count: int, *, after: set[str] = NO_PODS) -> None:
    """Waits until *count* new pods are ready and report the same evenly spread tasks, and every partition is copied.

    Pods in *after* are not new.
    """

    def shared() -> bool:
        pods = all_pods(stage, FLOW)
        reports = [_tasks(stage, pod) for pod in pods]
        workers = [task["worker_id"] for task in reports[0]] if reports else []
        loads = [workers.count(worker) for worker in set(workers)]
        return (
            len(pods) == count
            and not pod_names(pods) & after
            and all(_is_ready(pod) for pod in pods)
            and all(report == reports[0] for report in reports)
            and len(workers) == PARTITIONS
            and all(task["state"] == "RUNNING" for task in reports[0])
            and len(loads) == count
            and max(loads) - min(loads) <= 1
            and meter.silent_s() < 1.0
        )

    wait_until(f"{count} pods share {PARTITIONS} tasks", shared, timeout_s=2 * WAIT_S, poll_s=0.3)


def _is_ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(entry["type"] == "Ready" and entry["status"] == "True" for entry in conditions)


def _tasks(stage: Stage, pod: Object) -> list[dict[str, Any]]:
    """Returns the tasks of the connector as reported by *pod*, or none while the pod does not respond."""
    name = pod["metadata"]["name"]
    path = f"/api/v1/namespaces/{FLOWS}/pods/{name}:{PORT}/proxy/connectors/{CONNECTOR}/status"
    try:
        return list(stage.kubectl.read(path)["tasks"])
    except KubectlError:
        return []


def _pods_by_partition(stage: Stage) -> dict[int, str]:
    """Returns the pod that reports each partition."""
    pods: dict[int, str] = {}
    for pod in all_pods(stage, FLOW):
        name = pod["metadata"]["name"]
        path = f"/api/v1/namespaces/{FLOWS}/pods/{name}:{PORT}/proxy/progress/partitions"
        rows = stage.kubectl.read(path)["partitions"]
        pods |= {row["partition"]: name for row in rows if row["topic"] == TOPIC}
    return pods


def _objects(stage: Stage) -> list[Object]:
    selector = f"--selector=mirrorflow.io/flow={FLOW},mirrorflow.io/connector=source"
    return list(stage.kubectl.get(OWN, selector)["items"])


def _events(stage: Stage, text: str) -> list[str]:
    events = stage.kubectl.get("events", "--field-selector=reason=Rolling")["items"]
    return [event["message"] for event in events if text in event["message"]]

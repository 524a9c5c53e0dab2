"""Helpers of the end-to-end tests that wait for copied records and conditions, and compare a copy with its source."""

from typing import Any, Final

from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import digest
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.stage import WAIT_S, Object, Stage

# Settings with which a flow discovers new topics and groups within a second.
QUICKLY: Final[dict[str, Any]] = {
    "connectors": {
        "source": {"config": {"refresh.topics.interval.seconds": "1"}},
        "checkpoint": {"config": {"emit.checkpoints.interval.seconds": "1"}},
    }
}


def copied_records(stage: Stage, topic: str) -> int:
    """Returns the number of records in the copy *topic* on west."""
    return sum(stage.west.end_offsets(topic).values()) if topic in stage.west.topics() else 0


def wait_for_records(stage: Stage, topic: str, count: int, *, timeout_s: float = WAIT_S) -> None:
    """Waits until the copy *topic* has at least *count* records."""
    wait_until(
        f"{topic} has {count} records",
        lambda: copied_records(stage, topic) >= count,
        timeout_s=timeout_s,
        poll_s=0.1,
    )


def assert_same(stage: Stage, flow: str, topic: str) -> None:
    """Asserts that the copy of *flow* has each record of *topic* once, in order, with key, value, headers and timestamp."""
    assert digest(stage.west, f"{flow}.{topic}") == digest(stage.east, topic)


def pod_names(pods: list[Object]) -> set[str]:
    """Returns the names of *pods*."""
    return {pod["metadata"]["name"] for pod in pods}


def all_pods(stage: Stage, flow: str) -> list[Object]:
    """Returns the pods of the source connector of *flow*, including those that are being deleted."""
    selector = f"mirrorflow.io/flow={flow},mirrorflow.io/connector=source"
    return list(stage.kubectl.get("pods", f"--selector={selector}")["items"])


def restarts(pods: list[Object]) -> int:
    """Returns the number of restarts of all containers of *pods*."""
    return sum(
        container["restartCount"] for pod in pods for container in pod["status"].get("containerStatuses", ())
    )


def condition_of(resource: Object, type_: str) -> tuple[str, str, str]:
    """Returns status, reason and message of a condition, or empty strings if it is missing."""
    entry = condition(resource, type_)
    return entry.get("status", ""), entry.get("reason", ""), entry.get("message", "")


def wait_for_reason(stage: Stage, name: str, type_: str, expected: str) -> str:
    """Waits until the condition has the reason *expected*, and returns its message."""
    wait_until(
        f"{name} has {type_}: {expected}",
        lambda: condition_of(stage.resource(name), type_)[1] == expected,
        timeout_s=WAIT_S,
        poll_s=0.2,
    )
    return condition_of(stage.resource(name), type_)[2]

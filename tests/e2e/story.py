"""What the end-to-end tests say again and again: records go in on one side, and are the same on the other."""

from typing import Any, Final

from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import digest
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.stage import WAIT_S, Object, Stage

# A new topic, a new group: seen after a second.
QUICKLY: Final[dict[str, Any]] = {
    "connectors": {
        "source": {"config": {"refresh.topics.interval.seconds": "1"}},
        "checkpoint": {"config": {"emit.checkpoints.interval.seconds": "1"}},
    }
}


def arrived(stage: Stage, topic: str) -> int:
    """Records of the copy *topic* on west."""
    return sum(stage.west.end_offsets(topic).values()) if topic in stage.west.topics() else 0


def wait_for_records(stage: Stage, topic: str, count: int, *, timeout_s: float = WAIT_S) -> None:
    """Until the copy *topic* has *count* records, or more."""
    wait_until(
        f"{topic} has {count} records",
        lambda: arrived(stage, topic) >= count,
        timeout_s=timeout_s,
        poll_s=0.1,
    )


def assert_same(stage: Stage, flow: str, topic: str) -> None:
    """Each record of *topic* is in the copy of *flow* once, in order, with key, value, headers and timestamp."""
    assert digest(stage.west, f"{flow}.{topic}") == digest(stage.east, topic)


def names(pods: list[Object]) -> set[str]:
    """Of *pods*."""
    return {pod["metadata"]["name"] for pod in pods}


def all_pods(stage: Stage, flow: str) -> list[Object]:
    """Those of the source connector of *flow*, on their way out or not."""
    wanted = f"mirrorflow.io/flow={flow},mirrorflow.io/connector=source"
    return list(stage.kubectl.get("pods", f"--selector={wanted}")["items"])


def restarts(pods: list[Object]) -> int:
    """Of all containers of *pods*."""
    return sum(one["restartCount"] for pod in pods for one in pod["status"].get("containerStatuses", ()))


def reason(resource: Object, type_: str) -> tuple[str, str, str]:
    """Status, reason and message of a condition; empty words while there is none."""
    found = condition(resource, type_)
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def wait_for_reason(stage: Stage, name: str, type_: str, wanted: str) -> str:
    """Until the condition gives the reason *wanted*; its message."""
    wait_until(
        f"{name} says {type_}: {wanted}",
        lambda: reason(stage.resource(name), type_)[1] == wanted,
        timeout_s=WAIT_S,
        poll_s=0.2,
    )
    return reason(stage.resource(name), type_)[2]

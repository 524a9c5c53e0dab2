"""A MirrorPair between the clusters of a `Stage`, and its Switchovers, as users of the end-to-end tests write and read them."""

from typing import Any, Final

from tests.e2e.story import condition_of
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.flows import API_VERSION
from tests.harness.kubernetes.stage import FLOWS, Object, Stage

PAIR: Final = "east-west"
FLOW_FROM: Final = {"east": "east-to-west", "west": "west-to-east"}
ENDPOINT, KEY = "kafka", "bootstrap.servers"
# The chart's value that lets the Jobs of the pair switch its endpoint.
ENDPOINT_RIGHTS: Final = {"namespace": FLOWS, "configMap": ENDPOINT, "flows": [*FLOW_FROM.values()]}
# A switchover takes some ten seconds on an idle machine; pods start slowly on a busy one.
MOVE_S: Final = 300.0


def endpoint(servers: str) -> Object:
    """Returns the ConfigMap that a Switchover switches, with the bootstrap *servers* of the active member."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": ENDPOINT},
        "data": {KEY: servers},
    }


def sides(stage: Stage) -> dict[str, KafkaCluster]:
    """Returns both clusters by their aliases."""
    return {cluster.name: cluster for cluster in (stage.east, stage.west)}


def wait_until_switchable(stage: Stage, active: str) -> None:
    """Waits until the pair reports that applications, which are on *active*, could be moved now."""

    def is_switchable() -> bool:
        current = stage.kubectl.get("mirrorpair", PAIR)
        return (
            condition_of(current, "Ready")[:2] == ("True", "CanSwitch")
            and current["status"]["active"] == active
        )

    wait_until(f"{PAIR} can be switched, with {active} active", is_switchable, timeout_s=MOVE_S, poll_s=0.5)


def create_switchover(stage: Stage, name: str, **spec: Any) -> None:
    """Creates a Switchover of the pair."""
    stage.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "Switchover",
            "metadata": {"name": name},
            "spec": {"pair": PAIR, **spec},
        }
    )


def status_of(stage: Stage, name: str) -> Object:
    """Returns the status of a Switchover; it is empty before the operator has written one."""
    return dict(stage.kubectl.get("switchover", name).get("status", {}))


def wait_until_ended(stage: Stage, name: str) -> Object:
    """Waits until the Switchover has ended, and returns its status."""
    wait_until(
        f"Switchover {name} has ended",
        lambda: "completionTime" in status_of(stage, name),
        timeout_s=MOVE_S,
        poll_s=0.5,
    )
    return status_of(stage, name)

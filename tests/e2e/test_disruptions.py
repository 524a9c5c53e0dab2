"""What a cluster does to pods, and to its own API server: records arrive once, whatever happens."""

import json
import time
from collections.abc import Callable

import pytest

from tests.e2e.story import (
    arrived,
    assert_same,
    names,
    reason,
    restarts,
    wait_for_reason,
    wait_for_records,
)
from tests.harness.demo.producer import SteadyProducer
from tests.harness.kafka.processes import frozen, wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.stage import WAIT_S, Stage

RATE = 200  # records a second: enough that some are under way at any moment
SILENCE_S = 60.0  # four times the operator's Lease, and longer than a node may be silent


def _producer(stage: Stage, topic: str) -> SteadyProducer:
    return SteadyProducer(bootstrap=stage.east.internal_bootstrap, topics=(topic,), backlog=1_000, rate=RATE)


def _finish(stage: Stage, producer: SteadyProducer, flow: str, topic: str) -> None:
    producer.stop()
    wait_for_records(stage, f"{flow}.{topic}", producer.acknowledged)
    assert_same(stage, flow, topic)


@pytest.mark.parametrize("how", ["deleted", "evicted", "killed"])
def test_a_connector_pod_that_goes_costs_no_record(stage: Stage, ready_flow: Callable[..., str], how: str):
    """Deleted, evicted as `kubectl drain` does it, or killed with -9 from outside."""
    topic = f"orders.{how}"
    flow = ready_flow(f"pod-{how}", topic, partitions=2)
    with _producer(stage, topic) as producer:
        wait_for_records(stage, f"{flow}.{topic}", 1_000)
        pod = stage.pods(flow, "source")[0]
        name = pod["metadata"]["name"]
        if how == "deleted":
            stage.kubectl("delete", "pod", name, "--wait=false")
        elif how == "evicted":
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            path = f"/api/v1/namespaces/{stage.kubectl.namespace}/pods/{name}/eviction"
            stage.kubectl("create", "--raw", path, "--filename=-", stdin=json.dumps(eviction))
        else:
            stage.kill(pod)
        seen = sum(stage.west.end_offsets(f"{flow}.{topic}").values())
        wait_for_records(stage, f"{flow}.{topic}", seen + 5 * RATE)
        _finish(stage, producer, flow, topic)

    after = stage.pods(flow, "source")
    assert (name in names(after)) == (how == "killed")
    stage.wait_for(flow, "Ready")


def test_an_operator_that_is_killed_comes_back_and_touches_no_pod_but_those_that_change(
    stage: Stage, ready_flow: Callable[..., str]
):
    flow = ready_flow("operator-killed", "orders.operator")
    before, operator = stage.pods(flow), stage.release.operators()[0]

    stage.kill(operator)
    stage.patch(flow, {"limits": {"bytesPerSecond": "50Mi"}})
    wait_until(
        "the source connector has another pod alone",
        lambda: bool(found := names(stage.pods(flow, "source"))) and not found & names(before),
        timeout_s=WAIT_S,
    )
    stage.wait_for(flow, "Ready")

    assert restarts(stage.release.operators()) == restarts([operator]) + 1
    checkpoint = stage.pods(flow, "checkpoint")
    assert names(checkpoint) <= names(before)
    assert restarts(checkpoint) == 0


def test_records_go_on_while_no_api_server_answers(stage: Stage, ready_flow: Callable[..., str]):
    """A whole minute, frozen: its connections stay open and nothing comes. A connector that is killed meanwhile is started
    again by its kubelet. Afterwards no pod is replaced or restarted, and the status is updated again.
    """
    topic = "orders.silence"
    flow = ready_flow("silence", topic, partitions=2)
    with _producer(stage, topic) as producer:
        wait_for_records(stage, f"{flow}.{topic}", 1_000)
        before, operators = stage.pods(flow), stage.release.operators()
        killed = stage.pods(flow, "source")[0]
        with frozen(stage.cluster.pids("kube-apiserver")):
            end = time.monotonic() + SILENCE_S
            stage.kill(killed)
            while time.monotonic() < end:
                arrived_at_least = arrived(stage, f"{flow}.{topic}") + RATE
                wait_for_records(stage, f"{flow}.{topic}", arrived_at_least, timeout_s=SILENCE_S / 2)
        wait_until("the API server answers", lambda: bool(stage.pods(flow)), timeout_s=WAIT_S)
        _finish(stage, producer, flow, topic)

    stage.patch(flow, {"connectors": {"heartbeat": {"resources": {"requests": {"memory": "48Mi"}}}}})
    wait_until(
        "the operator works",
        lambda: not names(stage.pods(flow, "heartbeat")) & names(before),
        timeout_s=WAIT_S,
    )
    stage.wait_for(flow, "Ready")
    kept = [pod for pod in stage.pods(flow) if names([pod]) <= names(before)]
    assert len(kept) == len(before) - 1
    assert restarts(kept) == restarts([pod for pod in before if names([pod]) <= names(kept)]) + 1
    assert names(stage.release.operators()) == names(operators)
    assert restarts(stage.release.operators()) == restarts(operators)
    assert reason(stage.resource(flow), "Stalled")[0] == "False"


def test_a_target_that_is_away_is_named_and_its_lag_is_never_none(
    stage: Stage, ready_flow: Callable[..., str]
):
    """A thousand records wait for it. No connector calls itself idle, and the same pods continue afterwards."""
    topic = "orders.away"
    flow = ready_flow("target-away", topic)
    load(stage.east, topic, 500)
    wait_for_records(stage, f"{flow}.{topic}", 500)
    before = stage.pods(flow)
    stage.west.broker(1).stop()
    try:
        message = wait_for_reason(stage, flow, "TargetReachable", "Unreachable")
        load(stage.east, topic, 1_000)
        wait_until(
            "it is not Ready",
            lambda: reason(stage.resource(flow), "Ready")[0] == "False",
            timeout_s=WAIT_S,
        )
        away = stage.resource(flow)
        states = {
            one["replicating"] for pod in stage.pods(flow) for one in [stage.progress(pod)] if "source" in one
        }
    finally:
        stage.west.broker(1).start()
    wait_for_records(stage, f"{flow}.{topic}", 1_500)
    stage.wait_for(flow, "Ready")

    assert stage.cluster.host_ip in message
    assert away["status"].get("lag") != "0"
    assert states
    assert "Idle" not in states
    assert_same(stage, flow, topic)
    assert restarts(stage.pods(flow)) == restarts(before)

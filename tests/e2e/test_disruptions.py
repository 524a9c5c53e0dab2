"""Each record is copied once even if pods, the operator, the API server or the target fail."""

import json
import time
from collections.abc import Callable

import pytest

from tests.e2e.story import (
    assert_same,
    condition_of,
    copied_records,
    pod_names,
    restarts,
    wait_for_reason,
    wait_for_records,
)
from tests.harness.demo.producer import SteadyProducer
from tests.harness.kafka.processes import frozen, wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.stage import WAIT_S, Stage

RATE = 200  # records per second, so that some are always in flight
SILENCE_S = 60.0  # longer than the operator's Lease, and than a node may be silent


def _producer(stage: Stage, topic: str) -> SteadyProducer:
    return SteadyProducer(bootstrap=stage.east.internal_bootstrap, topics=(topic,), backlog=1_000, rate=RATE)


def _finish(stage: Stage, producer: SteadyProducer, flow: str, topic: str) -> None:
    producer.stop()
    wait_for_records(stage, f"{flow}.{topic}", producer.acknowledged)
    assert_same(stage, flow, topic)


@pytest.mark.parametrize("how", ["deleted", "evicted", "killed"])
def test_loss_of_a_connector_pod_loses_no_record(stage: Stage, ready_flow: Callable[..., str], how: str):
    """The pod is deleted, evicted like by `kubectl drain`, or killed with -9 from outside."""
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
        copied = sum(stage.west.end_offsets(f"{flow}.{topic}").values())
        wait_for_records(stage, f"{flow}.{topic}", copied + 5 * RATE)
        _finish(stage, producer, flow, topic)

    after = stage.pods(flow, "source")
    assert (name in pod_names(after)) == (how == "killed")
    stage.wait_for(flow, "Ready")


def test_a_killed_operator_restarts_and_replaces_only_pods_that_change(
    stage: Stage, ready_flow: Callable[..., str]
):
    flow = ready_flow("operator-killed", "orders.operator")
    before, operator = stage.pods(flow), stage.release.operators()[0]

    stage.kill(operator)
    stage.patch(flow, {"limits": {"bytesPerSecond": "50Mi"}})
    wait_until(
        "the source connector has only a new pod",
        lambda: bool(pods := pod_names(stage.pods(flow, "source"))) and not pods & pod_names(before),
        timeout_s=WAIT_S,
    )
    stage.wait_for(flow, "Ready")

    assert restarts(stage.release.operators()) == restarts([operator]) + 1
    checkpoint = stage.pods(flow, "checkpoint")
    assert pod_names(checkpoint) <= pod_names(before)
    assert restarts(checkpoint) == 0


def test_records_are_copied_while_the_api_server_is_frozen(stage: Stage, ready_flow: Callable[..., str]):
    """The API server is frozen for a minute with open connections. Meanwhile the kubelet restarts a connector that is
    killed.

    Afterwards no pod is replaced or restarted, and the status is updated again.
    """
    topic = "orders.silence"
    flow = ready_flow("silence", topic, partitions=2)
    with _producer(stage, topic) as producer:
        wait_for_records(stage, f"{flow}.{topic}", 1_000)
        before, operators = stage.pods(flow), stage.release.operators()
        killed = stage.pods(flow, "source")[0]
        with frozen(stage.cluster.pids("kube-apiserver")):
            deadline = time.monotonic() + SILENCE_S
            stage.kill(killed)
            while time.monotonic() < deadline:
                expected = copied_records(stage, f"{flow}.{topic}") + RATE
                wait_for_records(stage, f"{flow}.{topic}", expected, timeout_s=SILENCE_S / 2)
        wait_until("the API server responds", lambda: bool(stage.pods(flow)), timeout_s=WAIT_S)
        _finish(stage, producer, flow, topic)

    stage.patch(flow, {"connectors": {"heartbeat": {"resources": {"requests": {"memory": "48Mi"}}}}})
    wait_until(
        "the operator has replaced the heartbeat pod",
        lambda: not pod_names(stage.pods(flow, "heartbeat")) & pod_names(before),
        timeout_s=WAIT_S,
    )
    stage.wait_for(flow, "Ready")
    kept = [pod for pod in stage.pods(flow) if pod_names([pod]) <= pod_names(before)]
    assert len(kept) == len(before) - 1
    assert restarts(kept) == restarts([pod for pod in before if pod_names([pod]) <= pod_names(kept)]) + 1
    assert pod_names(stage.release.operators()) == pod_names(operators)
    assert restarts(stage.release.operators()) == restarts(operators)
    assert condition_of(stage.resource(flow), "Stalled")[0] == "False"


def test_an_unreachable_target_is_reported_and_the_lag_is_not_zero(
    stage: Stage, ready_flow: Callable[..., str]
):
    """A thousand records wait for the target. No connector reports Idle. Afterwards the same pods continue."""
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
            "the flow is not Ready",
            lambda: condition_of(stage.resource(flow), "Ready")[0] == "False",
            timeout_s=WAIT_S,
        )
        unreachable = stage.resource(flow)
        states = {
            report["replicating"]
            for pod in stage.pods(flow)
            for report in [stage.progress(pod)]
            if "source" in report
        }
    finally:
        stage.west.broker(1).start()
    wait_for_records(stage, f"{flow}.{topic}", 1_500)
    stage.wait_for(flow, "Ready")

    assert stage.cluster.host_ip in message
    assert unreachable["status"].get("lag") != "0"
    assert states
    assert "Idle" not in states
    assert_same(stage, flow, topic)
    assert restarts(stage.pods(flow)) == restarts(before)

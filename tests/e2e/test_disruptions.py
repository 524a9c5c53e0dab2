"""What a cluster does to pods, and to its own API server: records arrive once, whatever happens."""

import json
import os
import signal
import time

import pytest

from tests.e2e.story import (
    assert_same,
    names,
    reason,
    restarts,
    wait_for_reason,
    wait_for_records,
)
from tests.harness.demo.producer import SteadyProducer
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.stage import WAIT_S, Stage

pytestmark = pytest.mark.xdist_group("node")
RATE = 200  # records a second: enough that some are under way at any moment
SILENCE_S = 20.0  # longer than the operator's Lease, shorter than a node's


def _producer(stage: Stage, topic: str) -> SteadyProducer:
    stage.east.create_topic(topic, partitions=2)
    return SteadyProducer(bootstrap=stage.east.internal_bootstrap, topics=(topic,), backlog=1_000, rate=RATE)


def _finish(stage: Stage, producer: SteadyProducer, topic: str) -> None:
    producer.stop()
    wait_for_records(stage, f"east.{topic}", producer.acknowledged)
    assert_same(stage, topic)


@pytest.mark.parametrize("how", ["deleted", "evicted", "killed"])
def test_a_connector_pod_that_goes_costs_no_record(stage: Stage, flow: str, how: str):
    """Deleted, evicted as `kubectl drain` does it, or killed with -9 from outside."""
    topic = f"orders.{how}"
    with _producer(stage, topic) as producer:
        wait_for_records(stage, f"east.{topic}", 1_000)
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
        seen = sum(stage.west.end_offsets(f"east.{topic}").values())
        wait_for_records(stage, f"east.{topic}", seen + 5 * RATE)
        _finish(stage, producer, topic)

    after = stage.pods(flow, "source")
    assert (name in names(after)) == (how == "killed")
    stage.wait_for(flow, "Ready")


def test_an_operator_that_is_killed_comes_back_and_touches_no_pod(stage: Stage, flow: str):
    before, operator = stage.pods(flow), stage.release.operators()[0]

    stage.kill(operator)
    stage.patch(flow, {"state": "Paused"})
    wait_for_reason(stage, flow, "Ready", "Paused")
    stage.patch(flow, {"state": "Running"})
    stage.wait_for(flow, "Ready")

    assert restarts(stage.release.operators()) == restarts([operator]) + 1
    checkpoint = stage.pods(flow, "checkpoint")
    assert names(checkpoint) <= names(before)
    assert restarts(checkpoint) == 0


def test_records_go_on_while_no_api_server_answers(stage: Stage, flow: str):
    """Frozen: its connections stay open and nothing comes. Afterwards the status follows again."""
    topic = "orders.silence"
    stage.east.create_topic(topic)
    load(stage.east, topic, 500)
    wait_for_records(stage, f"east.{topic}", 500)
    before = stage.pods(flow)
    servers = stage.cluster.pids("kube-apiserver")
    assert servers
    for pid in servers:
        os.kill(pid, signal.SIGSTOP)
    try:
        begin = time.monotonic()
        load(stage.east, topic, 500)
        wait_for_records(stage, f"east.{topic}", 1_000, timeout_s=SILENCE_S)
        wait_until("it was long", lambda: time.monotonic() > begin + SILENCE_S, timeout_s=2 * SILENCE_S)
        load(stage.east, topic, 500)
        wait_for_records(stage, f"east.{topic}", 1_500, timeout_s=WAIT_S)
    finally:
        for pid in servers:
            os.kill(pid, signal.SIGCONT)

    wait_until("the API server answers", lambda: bool(stage.pods(flow)), timeout_s=WAIT_S)
    assert_same(stage, topic)
    after = stage.pods(flow)
    assert names(after) == names(before)
    assert restarts(after) == restarts(before)
    stage.patch(flow, {"state": "Paused"})
    wait_for_reason(stage, flow, "Ready", "Paused")
    stage.patch(flow, {"state": "Running"})
    stage.wait_for(flow, "Ready")
    assert reason(stage.resource(flow), "Stalled")[0] == "False"

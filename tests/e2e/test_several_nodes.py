"""Two nodes: pods of one connector spread over them and call each other, and a node is drained. Records arrive once."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import VALUES
from tests.e2e.story import assert_same, names, wait_for_records
from tests.harness.demo.producer import SteadyProducer
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.flows import secret
from tests.harness.kubernetes.kubectl import KubectlError
from tests.harness.kubernetes.skipping import skip_without
from tests.harness.kubernetes.stage import FLOWS, PORT, WAIT_S, Object, Stage, require_nodes
from tests.unit.kafka.certificates import authority, signed

NAME, NETWORK = "two-nodes", 246  # beside the node of the other tests
WORKER = f"{NAME}-2"
CONNECTOR = "MirrorSourceConnector"
TASKS = 4
RATE = 200


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two nodes of ours, and an operator of two replicas."""
    skip_without(require_nodes)
    values = {**VALUES, "replicas": 2}
    folder = tmp_path_factory.mktemp("nodes")
    with Stage(folder=folder, name=NAME, network=NETWORK, workers=1, values=values) as stage:
        yield stage


def _shared(stage: Stage, make_flow: Callable[..., str], name: str, topic: str) -> str:
    """A flow whose source connector has two pods that call each other by TLS, and take changes over REST."""
    stage.east.create_topic(topic, partitions=TASKS)
    pods = signed(f"{name}-pods", names=(f"{name}-source.{FLOWS}.svc",))
    stage.apply(secret(f"{name}-rest", tls_crt=pods.pem, tls_key=pods.key_pem(), ca_crt=authority().pem))
    make_flow(
        name,
        [topic],
        connectors={
            "source": {
                "replicas": 2,
                "tasks": TASKS,
                "config": {"refresh.topics.interval.seconds": "1", "rest.modify.enable": "true"},
            }
        },
        internalRest={"tls": {"secretName": f"{name}-rest"}},
    )
    _wait_until_shared(stage, name, 2)
    return name


def _wait_until_shared(stage: Stage, flow: str, count: int) -> None:
    """Until *count* ready pods report the same running tasks, on all of them."""

    def shared() -> bool:
        pods = stage.pods(flow, "source")
        reported = [_tasks(stage, pod) for pod in pods]
        return (
            len(pods) == count
            and all(one == reported[0] for one in reported)
            and len(reported[0]) == TASKS
            and all(task["state"] == "RUNNING" for task in reported[0])
            and len({task["worker_id"] for task in reported[0]}) == count
        )

    wait_until(f"{count} pods share {TASKS} tasks", shared, timeout_s=2 * WAIT_S, poll_s=1.0)


def _tasks(stage: Stage, pod: Object) -> list[dict[str, Any]]:
    """Each task of the connector as *pod* reports it; none while it does not answer."""
    try:
        return list(json.loads(_rest(stage, pod, "GET", f"connectors/{CONNECTOR}/status"))["tasks"])
    except KubectlError:
        return []


def _rest(stage: Stage, pod: Object, method: str, path: str) -> str:
    """The answer of *pod*, called from inside: the NetworkPolicy refuses other nodes, so the API server's proxy, too."""
    request = f"urllib.request.Request('http://127.0.0.1:{PORT}/{path}', method='{method}')"
    program = f"import urllib.request; print(urllib.request.urlopen({request}).read().decode())"
    return stage.kubectl("exec", pod["metadata"]["name"], "--", "python3", "-c", program)


def _homes(pods: list[Object]) -> dict[str, str]:
    """Node by pod."""
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}


def _producer(stage: Stage, topic: str) -> SteadyProducer:
    return SteadyProducer(bootstrap=stage.east.internal_bootstrap, topics=(topic,), backlog=1_000, rate=RATE)


def _finish(stage: Stage, producer: SteadyProducer, flow: str, topic: str) -> None:
    producer.stop()
    wait_for_records(stage, f"{flow}.{topic}", producer.acknowledged)
    assert_same(stage, flow, topic)


def test_pods_of_a_connector_spread_over_the_nodes_and_call_each_other(
    stage: Stage, make_flow: Callable[..., str]
):
    """The default topology spread. A restart of a task is forwarded to the pod that has it, over mutual TLS."""
    topic = "orders.spread"
    flow = _shared(stage, make_flow, "spread", topic)
    with _producer(stage, topic) as producer:
        wait_for_records(stage, f"{flow}.{topic}", 1_000)
        pods = stage.pods(flow, "source")
        addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods}
        restarted = []
        for pod in pods:
            mine = addresses[pod["metadata"]["name"]]
            other = next(one for one in _tasks(stage, pod) if mine not in one["worker_id"])
            _rest(stage, pod, "POST", f"connectors/{CONNECTOR}/tasks/{other['id']}/restart")
            restarted.append(other["worker_id"])
        _wait_until_shared(stage, flow, 2)
        _finish(stage, producer, flow, topic)

    assert set(_homes(pods).values()) == {NAME, WORKER}
    assert set(_homes(stage.release.operators()).values()) == {NAME, WORKER}
    assert len(set(restarted)) == 2


def test_a_drained_node_costs_no_record(stage: Stage, make_flow: Callable[..., str]):
    """`kubectl drain` moves the pods to the other node, one of a connector at a time; an uncordoned node is used again."""
    topic = "orders.drained"
    flow = _shared(stage, make_flow, "drained", topic)
    with _producer(stage, topic) as producer:
        wait_for_records(stage, f"{flow}.{topic}", 1_000)
        before = stage.pods(flow)
        try:
            stage.kubectl(
                "drain",
                WORKER,
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                f"--timeout={WAIT_S:.0f}s",
                timeout_s=WAIT_S + 10,
            )
            _wait_until_shared(stage, flow, 2)
            stage.wait_for(flow, "Ready")
            drained = stage.pods(flow)
        finally:
            stage.kubectl("uncordon", WORKER)
        _finish(stage, producer, flow, topic)

    assert WORKER in _homes(before).values()
    assert set(_homes(drained).values()) == {NAME}
    stayed = {pod for pod, node in _homes(before).items() if node == NAME}
    assert stayed <= names(drained)

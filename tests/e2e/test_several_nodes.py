"""Two nodes share the pods of a connector. Each record is copied once when a node is drained or loses power.

The test prints the status while the node is lost. docs/operator.md describes it.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import VALUES
from tests.e2e.story import assert_same, copied_records, pod_names, wait_for_records
from tests.harness.demo.producer import SteadyProducer
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import digest
from tests.harness.kubernetes.cluster import Cluster
from tests.harness.kubernetes.flows import condition, secret
from tests.harness.kubernetes.kubectl import KubectlError
from tests.harness.kubernetes.skipping import skip_without
from tests.harness.kubernetes.stage import FLOWS, PORT, WAIT_S, Object, Stage, require_nodes
from tests.unit.kafka.certificates import authority, signed

NAME, NETWORK = "two-nodes", 246  # differs from the node of the other tests
WORKER = f"{NAME}-2"
CONNECTOR = "MirrorSourceConnector"
TASKS = 4
RATE = 200
TOLERATION_S = 40  # the time from the loss of the node, long enough for the status to settle
# The node controller reports a node as lost after 50 s of silence. Then the toleration begins.
LOST_WAIT_S = 300.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A `Stage` with two nodes and an operator of two replicas."""
    skip_without(require_nodes)
    values = {**VALUES, "replicas": 2}
    folder = tmp_path_factory.mktemp("nodes")
    with Stage(folder=folder, name=NAME, network=NETWORK, workers=1, values=values) as stage:
        yield stage


def _make_shared_flow(stage: Stage, make_flow: Callable[..., str], name: str, topic: str) -> str:
    """Creates a flow whose source connector has two pods, which connect with TLS and accept changes over REST."""
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
    """Waits until *count* ready pods report the same running tasks, spread over all of them."""

    def is_shared() -> bool:
        pods = stage.pods(flow, "source")
        reported = [_tasks(stage, pod) for pod in pods]
        return (
            len(pods) == count
            and all(tasks == reported[0] for tasks in reported)
            and len(reported[0]) == TASKS
            and all(task["state"] == "RUNNING" for task in reported[0])
            and len({task["worker_id"] for task in reported[0]}) == count
        )

    wait_until(f"{count} pods share {TASKS} tasks", is_shared, timeout_s=2 * WAIT_S, poll_s=1.0)


def _tasks(stage: Stage, pod: Object) -> list[dict[str, Any]]:
    """Returns the tasks of the connector as reported by *pod*, or none while the pod does not respond."""
    try:
        return list(json.loads(_rest(stage, pod, "GET", f"connectors/{CONNECTOR}/status"))["tasks"])
    except KubectlError:
        return []


def _rest(stage: Stage, pod: Object, method: str, path: str) -> str:
    """Calls *pod* from inside the pod, because the NetworkPolicy refuses the API server's proxy.

    Returns the response.
    """
    request = f"urllib.request.Request('http://127.0.0.1:{PORT}/{path}', method='{method}')"
    program = f"import urllib.request; print(urllib.request.urlopen({request}).read().decode())"
    return stage.kubectl("exec", pod["metadata"]["name"], "--", "python3", "-c", program)


def _node_by_pod(pods: list[Object]) -> dict[str, str]:
    """Returns the node of each pod by name."""
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}


def _producer(stage: Stage, topic: str) -> SteadyProducer:
    return SteadyProducer(bootstrap=stage.east.internal_bootstrap, topics=(topic,), backlog=1_000, rate=RATE)


def _finish(stage: Stage, producer: SteadyProducer, flow: str, topic: str) -> None:
    producer.stop()
    wait_for_records(stage, f"{flow}.{topic}", producer.acknowledged)
    assert_same(stage, flow, topic)


def test_pods_of_a_connector_spread_over_nodes_and_forward_requests(
    stage: Stage, make_flow: Callable[..., str]
):
    """The default topology spread applies.

    A pod forwards the restart of a task over mutual TLS to the pod that runs it.
    """
    topic = "orders.spread"
    flow = _make_shared_flow(stage, make_flow, "spread", topic)
    with _producer(stage, topic) as producer:
        wait_for_records(stage, f"{flow}.{topic}", 1_000)
        pods = stage.pods(flow, "source")
        addresses = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in pods}
        restarted = []
        for pod in pods:
            own_address = addresses[pod["metadata"]["name"]]
            remote_task = next(task for task in _tasks(stage, pod) if own_address not in task["worker_id"])
            _rest(stage, pod, "POST", f"connectors/{CONNECTOR}/tasks/{remote_task['id']}/restart")
            restarted.append(remote_task["worker_id"])
        _wait_until_shared(stage, flow, 2)
        _finish(stage, producer, flow, topic)

    assert set(_node_by_pod(pods).values()) == {NAME, WORKER}
    assert len(set(restarted)) == 2
    assert set(_node_by_pod(stage.release.operators()).values()) == {NAME, WORKER}


def test_draining_a_node_loses_no_record(stage: Stage, make_flow: Callable[..., str]):
    """`kubectl drain` moves the pods to the other node one by one. Kubernetes uses an uncordoned node again."""
    topic = "orders.drained"
    flow = _make_shared_flow(stage, make_flow, "drained", topic)
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

    assert WORKER in _node_by_pod(before).values()
    assert set(_node_by_pod(drained).values()) == {NAME}
    stayed = {pod for pod, node in _node_by_pod(before).items() if node == NAME}
    assert stayed <= pod_names(drained)


def test_losing_a_node_loses_no_record(stage: Stage, make_flow: Callable[..., str]):
    """The node with the operator's leader loses power.

    The pod on the other node takes over the tasks before Kubernetes detects the loss. A connector of one pod gets a new
    pod after its toleration. Until that pod copies, the flow is not Ready. The other operator acquires the Lease.
    """
    cluster = stage.cluster
    assert isinstance(cluster, Cluster)
    worker = cluster.workers[0]
    topics = ("orders.several", "orders.single")
    several = _make_shared_flow(stage, make_flow, "several", topics[0])
    single = _make_flow_on_worker(stage, make_flow, "single", topics[1])
    flows = dict(zip((several, single), topics, strict=True))
    _move_leadership_to_worker(stage)
    with SteadyProducer(
        bootstrap=stage.east.internal_bootstrap, topics=topics, backlog=1_000, rate=RATE
    ) as producer:
        for flow, topic in flows.items():
            wait_for_records(stage, f"{flow}.{topic}", 1_000)
            stage.wait_for(flow, "Ready")
        lost = pod_names(stage.pods(single))
        surviving_pod = next(pod for pod in stage.pods(several, "source") if pod["spec"]["nodeName"] == NAME)
        timeline = Timeline(stage, tuple(flows))
        worker.crash()
        try:
            timeline.wait_until("the other operator leads", lambda: _leader_node(stage) == NAME)
            timeline.wait_until(
                "the pod on the other node has all tasks",
                lambda: (
                    len(tasks := _tasks(stage, surviving_pod)) == TASKS
                    and all(surviving_pod["status"]["podIP"] in task["worker_id"] for task in tasks)
                    and all(task["state"] == "RUNNING" for task in tasks)
                ),
            )
            copied = copied_records(stage, f"{several}.{topics[0]}")
            timeline.wait_until(
                "the flow of several pods copies",
                lambda: copied_records(stage, f"{several}.{topics[0]}") > copied + 10 * RATE,
            )
            before_kubernetes_noticed = _node_is_ready(stage)
            timeline.wait_until("the node is not ready", lambda: not _node_is_ready(stage))
            timeline.wait_until("the flow of one pod is not Ready", lambda: not _is_ready(stage, single))
            at_loss = copied_records(stage, f"{single}.{topics[1]}")
            unready_status = stage.resource(single)["status"]
            timeline.wait_until(
                "the pod has a successor",
                lambda: set(_node_by_pod(stage.pods(single, "source")).values()) == {NAME},
            )
            timeline.wait_until("the flow of one pod is Ready", lambda: _is_ready(stage, single))
            at_ready = copied_records(stage, f"{single}.{topics[1]}")
        finally:
            worker.start(outlive=False)
        cluster.wait_until_ready(worker)
        timeline.note("the node is back")
        timeline.wait_until("the lost pods are gone", lambda: not lost & _pods_of(stage, single))
        _wait_until_shared(stage, several, 2)
        timeline.note("the pods of several share the tasks again")
        for flow in flows:
            timeline.wait_until(f"{flow} is Ready", lambda flow=flow: _is_ready(stage, flow))  # type: ignore[misc]
        producer.stop()
        for flow, topic in flows.items():
            wait_for_records(stage, f"{flow}.{topic}", producer.acknowledged // len(flows))
            wait_until("the copy is complete", lambda copy=(flow, topic): _is_same(stage, *copy), poll_s=2.0)  # type: ignore[misc]
    assert before_kubernetes_noticed
    assert {kind: connector["readyReplicas"] for kind, connector in unready_status["connectors"].items()} == {
        "source": 0,
        "checkpoint": 0,
        "heartbeat": 0,
    }
    assert at_ready > at_loss


class Timeline:
    """Prints the events after the crash line by line, and each change of the flows' conditions."""

    def __init__(self, stage: Stage, flows: tuple[str, ...]) -> None:
        self._stage, self._flows = stage, flows
        self._began = time.monotonic()
        self._reported: dict[tuple[str, str], tuple[str, str, str]] = {}
        self._print_changes()

    def wait_until(self, event: str, happened: Callable[[], bool]) -> None:
        def happened_after_print() -> bool:
            self._print_changes()
            return happened()

        wait_until(event, happened_after_print, timeout_s=LOST_WAIT_S, poll_s=0.5)
        self.note(event)

    def note(self, event: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {event}")

    def _print_changes(self) -> None:
        for flow in self._flows:
            status = self._stage.resource(flow)["status"]
            for kind, connector in status["connectors"].items():
                now = (connector["phase"], str(connector["readyReplicas"]), str(connector["replicas"]))
                if self._reported.get((flow, kind)) != now:
                    self._reported[flow, kind] = now
                    self.note(f"    {flow}: {kind} {now}")
            for condition_entry in status["conditions"]:
                now = (condition_entry["status"], condition_entry["reason"], condition_entry["message"])
                if self._reported.get((flow, condition_entry["type"])) != now:
                    self._reported[flow, condition_entry["type"]] = now
                    self.note(f"    {flow}: {condition_entry['type']}={now[0]} {now[1]}: {now[2]}")


def _make_flow_on_worker(stage: Stage, make_flow: Callable[..., str], name: str, topic: str) -> str:
    """Creates a flow whose pods prefer the worker node, and tolerate its loss only for a few seconds."""
    stage.east.create_topic(topic)
    toleration = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_S}
    keys = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    on_worker = {"key": "kubernetes.io/hostname", "operator": "In", "values": [WORKER]}
    preferred = [{"weight": 100, "preference": {"matchExpressions": [on_worker]}}]
    template = {
        "tolerations": [{"key": key, **toleration} for key in keys],
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}},
    }
    connectors = {kind: {"template": template} for kind in ("source", "checkpoint", "heartbeat")}
    connectors["source"]["config"] = {"refresh.topics.interval.seconds": "1"}
    make_flow(name, [topic], connectors=connectors)
    stage.wait_for(name, "Ready")
    assert set(_node_by_pod(stage.pods(name)).values()) == {WORKER}
    return name


def _move_leadership_to_worker(stage: Stage) -> None:
    """Deletes the operator's leader until the replica on the worker node is the leader."""

    def leads() -> bool:
        pods = stage.release.operators()
        holder = _leader(stage)
        for pod in pods:
            if pod["metadata"]["name"] == holder and pod["spec"]["nodeName"] != WORKER:
                stage.release.kubectl("delete", "pod", holder, timeout_s=WAIT_S)
        return _leader_node(stage) == WORKER

    wait_until("the operator on the worker leads", leads, timeout_s=WAIT_S, poll_s=1.0)
    stage.release.kubectl(
        "rollout",
        "status",
        "deployment/mirrorflow-operator",
        f"--timeout={WAIT_S:.0f}s",
        timeout_s=WAIT_S + 10,
    )


def _leader(stage: Stage) -> str:
    """Returns the pod that holds or last held the Lease, or an empty text after a release."""
    leases = stage.release.kubectl.get("leases")["items"]
    holders = [lease["spec"].get("holderIdentity") or "" for lease in leases]
    return next((pod for pod, _, _ in (holder.rpartition("_") for holder in holders) if pod), "")


def _leader_node(stage: Stage) -> str:
    """Returns the node of the operator's leader."""
    return _node_by_pod(stage.release.operators()).get(_leader(stage), "")


def _node_is_ready(stage: Stage) -> bool:
    """Returns whether Kubernetes reports the worker node as ready."""
    conditions = stage.kubectl.get("node", WORKER)["status"]["conditions"]
    return any((entry["type"], entry["status"]) == ("Ready", "True") for entry in conditions)


def _is_same(stage: Stage, flow: str, topic: str) -> bool:
    """Returns whether the copy has each record once, in order."""
    return digest(stage.west, f"{flow}.{topic}") == digest(stage.east, topic)


def _is_ready(stage: Stage, flow: str) -> bool:
    return condition(stage.resource(flow), "Ready").get("status") == "True"


def _pods_of(stage: Stage, flow: str) -> set[str]:
    """Returns the names of all pods of the flow, including those that are being deleted."""
    return pod_names(stage.kubectl.get("pods", f"--selector=mirrorflow.io/flow={flow}")["items"])

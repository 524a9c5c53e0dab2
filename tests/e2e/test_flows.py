"""A flow from installation to removal as a user sees it, with Helm, kubectl and the copied records."""

from collections.abc import Callable

from tests.e2e.story import (
    assert_same,
    condition_of,
    pod_names,
    restarts,
    wait_for_reason,
    wait_for_records,
)
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.release import NAME
from tests.harness.kubernetes.stage import WAIT_S, Stage

CONNECTORS = {"source", "checkpoint", "heartbeat"}


def test_helm_test_succeeds(stage: Stage):
    assert "Succeeded" in stage.release.helm("test", NAME)


def test_a_flow_with_tls_and_scram_from_secrets_copies_and_is_ready(
    stage: Stage, ready_flow: Callable[..., str]
):
    """The flow has one pod for each connector. `kubectl get` shows its sides and its state."""
    flow = ready_flow("tls", "orders.eu", partitions=3)
    load(stage.east, "orders.eu", 5_000)

    wait_for_records(stage, f"{flow}.orders.eu", 5_000)

    assert_same(stage, flow, "orders.eu")
    pods = stage.pods(flow)
    assert {pod["metadata"]["labels"]["mirrorflow.io/connector"] for pod in pods} == CONNECTORS
    assert len(pods) == len(CONNECTORS)
    table = stage.kubectl("get", "mirrorflows", flow).splitlines()
    columns = dict(zip(table[0].split(), table[1].split(), strict=False))
    assert (columns["SOURCE"], columns["TARGET"], columns["STATE"], columns["READY"]) == (
        flow,
        "west",
        "Running",
        "True",
    )


def test_the_status_reports_both_cluster_ids_and_running_connectors(
    stage: Stage, ready_flow: Callable[..., str]
):
    """The flow is Ready because of the reports of its pods.

    The kubelet, which probes them, may report them ready later.
    """
    flow = ready_flow("status", "orders.status")

    def phases() -> dict[str, str]:
        connectors = stage.resource(flow)["status"]["connectors"]
        return {name: connector["phase"] for name, connector in connectors.items()}

    def ids() -> dict[str, str]:
        return dict(stage.resource(flow)["status"].get("clusterIds", {}))

    wait_until(
        "every connector runs", lambda: phases() == dict.fromkeys(CONNECTORS, "Running"), timeout_s=WAIT_S
    )
    wait_until(
        "the status has the cluster ids",
        lambda: ids() == {"source": stage.east.cluster_id, "target": stage.west.cluster_id},
        timeout_s=WAIT_S,
    )

    assert stage.resource(flow)["status"]["version"] == "0.1.0"


def test_a_change_to_one_connector_rolls_only_its_pod_and_an_event_gives_the_reason(
    stage: Stage, ready_flow: Callable[..., str]
):
    flow = ready_flow("change", "orders.change")
    load(stage.east, "orders.change", 1_000)
    before = {kind: pod_names(stage.pods(flow, kind)) for kind in CONNECTORS}

    stage.patch(flow, {"limits": {"bytesPerSecond": "200Mi"}})
    _wait_for_new_pods(stage, flow, "source", before["source"])
    load(stage.east, "orders.change", 1_000)
    wait_for_records(stage, f"{flow}.orders.change", 2_000)

    assert_same(stage, flow, "orders.change")
    assert {kind: pod_names(stage.pods(flow, kind)) for kind in CONNECTORS - {"source"}} == {
        kind: before[kind] for kind in CONNECTORS - {"source"}
    }
    events = stage.kubectl("events", f"--for=mirrorflow/{flow}")
    assert "source" in events


def test_paused_flow_keeps_its_pods_and_resumes_at_its_offsets(stage: Stage, ready_flow: Callable[..., str]):
    flow = ready_flow("pause", "orders.pause")
    load(stage.east, "orders.pause", 500)
    wait_for_records(stage, f"{flow}.orders.pause", 500)
    before = pod_names(stage.pods(flow))

    stage.patch(flow, {"state": "Paused"})
    wait_for_reason(stage, flow, "Ready", "Paused")
    wait_until("every source pod is paused", lambda: _all_paused(stage, flow), timeout_s=WAIT_S, poll_s=0.2)
    load(stage.east, "orders.pause", 500)
    pods = stage.pods(flow)
    paused_offsets = stage.west.end_offsets(f"{flow}.orders.pause")
    stage.patch(flow, {"state": "Running"})
    wait_for_records(stage, f"{flow}.orders.pause", 1_000)

    assert before == pod_names(pods) == pod_names(stage.pods(flow))
    assert paused_offsets == {0: 500}
    assert {pod["metadata"]["labels"]["mirrorflow.io/connector"] for pod in pods} == CONNECTORS
    assert_same(stage, flow, "orders.pause")
    stage.wait_for(flow, "Ready")


def test_deleted_flow_leaves_kafka_unchanged_and_resumes_when_recreated(
    stage: Stage, ready_flow: Callable[..., str]
):
    """Topics, groups and offsets stay. No record is copied twice."""
    flow = ready_flow("delete", "orders.delete", partitions=2)
    load(stage.east, "orders.delete", 1_000)
    wait_for_records(stage, f"{flow}.orders.delete", 1_000)
    resource = stage.resource(flow)
    topics = stage.west.topics()

    stage.delete(flow)
    remaining = stage.kubectl(
        "get", "deployments,configmaps,networkpolicies", f"--selector=mirrorflow.io/flow={flow}"
    )
    load(stage.east, "orders.delete", 1_000)
    after = stage.west.topics()
    stage.apply({key: resource[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": flow}})
    wait_for_records(stage, f"{flow}.orders.delete", 2_000)
    stage.wait_for(flow, "Ready")

    assert remaining.strip() == ""
    assert topics.items() <= after.items()
    assert_same(stage, flow, "orders.delete")


def test_a_flow_copies_without_an_operator_and_a_new_operator_reconciles_it(
    stage: Stage, ready_flow: Callable[..., str]
):
    """`helm uninstall` keeps the CRD, the flows and their pods."""
    flow = ready_flow("uninstall", "orders.uninstall")
    before, sources = pod_names(stage.pods(flow)), pod_names(stage.pods(flow, "source"))

    stage.release.uninstall()
    try:
        load(stage.east, "orders.uninstall", 500)
        wait_for_records(stage, f"{flow}.orders.uninstall", 500)
    finally:
        stage.release.install()
    stage.patch(flow, {"limits": {"bytesPerSecond": "150Mi"}})
    _wait_for_new_pods(stage, flow, "source", sources)
    stage.wait_for(flow, "Ready")

    assert_same(stage, flow, "orders.uninstall")
    kept = stage.pods(flow)
    assert pod_names([pod for pod in kept if not _is_source(pod)]) <= before
    assert restarts(kept) == 0
    assert condition_of(stage.resource(flow), "Accepted")[0] == "True"


def _all_paused(stage: Stage, flow: str) -> bool:
    """Returns whether all source pods report a pause.

    This includes pods that are being deleted, because they copy until they have ended.
    """
    selector = f"--selector=mirrorflow.io/flow={flow},mirrorflow.io/connector=source"
    states = {stage.progress(pod).get("state") for pod in stage.kubectl.get("pods", selector)["items"]}
    return states == {"PAUSED"}


def _is_source(pod: dict[str, dict[str, dict[str, str]]]) -> bool:
    return pod["metadata"]["labels"]["mirrorflow.io/connector"] == "source"


def _wait_for_new_pods(stage: Stage, flow: str, connector: str, before: set[str]) -> None:
    """Waits until a new pod is ready and no old pod exists."""

    def rolled() -> bool:
        pods = stage.pods(flow, connector)
        ready = all(
            container["ready"] for pod in pods for container in pod["status"].get("containerStatuses", ())
        )
        return bool(pods) and ready and not pod_names(pods) & before

    wait_until(f"{connector} has rolled", rolled, timeout_s=WAIT_S, poll_s=0.2)

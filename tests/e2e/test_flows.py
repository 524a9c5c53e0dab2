"""A flow from its installation to its removal, as its user sees it: by Helm, kubectl and what arrives."""

from collections.abc import Callable

from tests.e2e.story import (
    assert_same,
    names,
    reason,
    restarts,
    wait_for_reason,
    wait_for_records,
)
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.release import NAME
from tests.harness.kubernetes.stage import WAIT_S, Stage

CONNECTORS = {"source", "checkpoint", "heartbeat"}


def test_helms_own_test_finds_the_operator_at_work(stage: Stage):
    assert "Succeeded" in stage.release.helm("test", NAME)


def test_a_flow_with_tls_and_scram_from_secrets_copies_and_is_ready(
    stage: Stage, ready_flow: Callable[..., str]
):
    """`kubectl wait` has returned; one pod each; the table says it at a glance."""
    flow = ready_flow("tls", "orders.eu", partitions=3)
    load(stage.east, "orders.eu", 5_000)

    wait_for_records(stage, f"{flow}.orders.eu", 5_000)

    assert_same(stage, flow, "orders.eu")
    pods = stage.pods(flow)
    assert {pod["metadata"]["labels"]["mirrorflow.io/connector"] for pod in pods} == CONNECTORS
    assert len(pods) == len(CONNECTORS)
    table = stage.kubectl("get", "mirrorflows", flow).splitlines()
    shown = dict(zip(table[0].split(), table[1].split(), strict=False))
    assert (shown["SOURCE"], shown["TARGET"], shown["STATE"], shown["READY"]) == (
        flow,
        "west",
        "Running",
        "True",
    )


def test_the_status_knows_both_clusters_and_what_runs(stage: Stage, ready_flow: Callable[..., str]):
    """The pods' own reports make a flow Ready; the kubelet, which probes them, may call them ready a moment later."""
    flow = ready_flow("status", "orders.status")

    def phases() -> dict[str, str]:
        connectors = stage.resource(flow)["status"]["connectors"]
        return {name: one["phase"] for name, one in connectors.items()}

    def ids() -> dict[str, str]:
        return dict(stage.resource(flow)["status"].get("clusterIds", {}))

    wait_until(
        "every connector runs", lambda: phases() == dict.fromkeys(CONNECTORS, "Running"), timeout_s=WAIT_S
    )
    wait_until(
        "the clusters' ids are there",
        lambda: ids() == {"source": stage.east.cluster_id, "target": stage.west.cluster_id},
        timeout_s=WAIT_S,
    )

    assert stage.resource(flow)["status"]["version"] == "0.1.0"


def test_a_change_to_one_connector_rolls_that_one_alone_and_an_event_says_why(
    stage: Stage, ready_flow: Callable[..., str]
):
    flow = ready_flow("change", "orders.change")
    load(stage.east, "orders.change", 1_000)
    before = {kind: names(stage.pods(flow, kind)) for kind in CONNECTORS}

    stage.patch(flow, {"limits": {"bytesPerSecond": "200Mi"}})
    _wait_for_other_pods(stage, flow, "source", before["source"])
    load(stage.east, "orders.change", 1_000)
    wait_for_records(stage, f"{flow}.orders.change", 2_000)

    assert_same(stage, flow, "orders.change")
    assert {kind: names(stage.pods(flow, kind)) for kind in CONNECTORS - {"source"}} == {
        kind: before[kind] for kind in CONNECTORS - {"source"}
    }
    said = stage.kubectl("events", f"--for=mirrorflow/{flow}")
    assert "source" in said


def test_paused_flow_keeps_its_pods_and_resumes_where_it_was(stage: Stage, ready_flow: Callable[..., str]):
    flow = ready_flow("pause", "orders.pause")
    load(stage.east, "orders.pause", 500)
    wait_for_records(stage, f"{flow}.orders.pause", 500)
    before = names(stage.pods(flow))

    stage.patch(flow, {"state": "Paused"})
    wait_for_reason(stage, flow, "Ready", "Paused")
    wait_until("every source pod is paused", lambda: _all_paused(stage, flow), timeout_s=WAIT_S, poll_s=0.2)
    load(stage.east, "orders.pause", 500)
    pods = stage.pods(flow)
    held = stage.west.end_offsets(f"{flow}.orders.pause")
    stage.patch(flow, {"state": "Running"})
    wait_for_records(stage, f"{flow}.orders.pause", 1_000)

    assert before == names(pods) == names(stage.pods(flow))
    assert held == {0: 500}
    assert {pod["metadata"]["labels"]["mirrorflow.io/connector"] for pod in pods} == CONNECTORS
    assert_same(stage, flow, "orders.pause")
    stage.wait_for(flow, "Ready")


def test_deleted_flow_leaves_kafka_unchanged_and_resumes_when_recreated(
    stage: Stage, ready_flow: Callable[..., str]
):
    """Topics, groups and positions stay; no record is copied twice."""
    flow = ready_flow("delete", "orders.delete", partitions=2)
    load(stage.east, "orders.delete", 1_000)
    wait_for_records(stage, f"{flow}.orders.delete", 1_000)
    resource = stage.resource(flow)
    topics = stage.west.topics()

    stage.delete(flow)
    left = stage.kubectl(
        "get", "deployments,configmaps,networkpolicies", f"--selector=mirrorflow.io/flow={flow}"
    )
    load(stage.east, "orders.delete", 1_000)
    after = stage.west.topics()
    stage.apply({key: resource[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": flow}})
    wait_for_records(stage, f"{flow}.orders.delete", 2_000)
    stage.wait_for(flow, "Ready")

    assert left.strip() == ""
    assert topics.items() <= after.items()
    assert_same(stage, flow, "orders.delete")


def test_a_flow_outlives_its_operator_and_the_next_operator_takes_it_on(
    stage: Stage, ready_flow: Callable[..., str]
):
    """`helm uninstall` leaves the definition, the flows and their pods; records go on."""
    flow = ready_flow("uninstall", "orders.uninstall")
    before, sources = names(stage.pods(flow)), names(stage.pods(flow, "source"))

    stage.release.uninstall()
    try:
        load(stage.east, "orders.uninstall", 500)
        wait_for_records(stage, f"{flow}.orders.uninstall", 500)
    finally:
        stage.release.install()
    stage.patch(flow, {"limits": {"bytesPerSecond": "150Mi"}})
    _wait_for_other_pods(stage, flow, "source", sources)
    stage.wait_for(flow, "Ready")

    assert_same(stage, flow, "orders.uninstall")
    kept = stage.pods(flow)
    assert names([pod for pod in kept if not _is_source(pod)]) <= before
    assert restarts(kept) == 0
    assert reason(stage.resource(flow), "Accepted")[0] == "True"


def _all_paused(stage: Stage, flow: str) -> bool:
    """Those on their way out included: until they have gone they copy."""
    wanted = f"--selector=mirrorflow.io/flow={flow},mirrorflow.io/connector=source"
    states = {stage.progress(pod).get("state") for pod in stage.kubectl.get("pods", wanted)["items"]}
    return states == {"PAUSED"}


def _is_source(pod: dict[str, dict[str, dict[str, str]]]) -> bool:
    return pod["metadata"]["labels"]["mirrorflow.io/connector"] == "source"


def _wait_for_other_pods(stage: Stage, flow: str, connector: str, before: set[str]) -> None:
    """Until a new pod is ready, and no old one is there."""

    def rolled() -> bool:
        pods = stage.pods(flow, connector)
        ready = all(one["ready"] for pod in pods for one in pod["status"].get("containerStatuses", ()))
        return bool(pods) and ready and not names(pods) & before

    wait_until(f"{connector} has rolled", rolled, timeout_s=WAIT_S, poll_s=0.2)

"""The operator polls each connector of running pods, over TLS if the pod has a certificate."""

from dataclasses import replace
from pathlib import Path

import pytest

from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.cluster.poll_targets import poll_targets
from mirrorflow_operator.cluster.progress_client import CaBundle, PollTarget
from mirrorflow_operator.plan.spark_pods import PROGRESS_PORT
from mirrorflow_operator.status.observation import ObservedPod
from tests.unit.kafka.certificates import authority

KEY = ("flows", "east-to-west")
CONNECTOR_NAMES = {
    ConnectorKind.SOURCE: "Source",
    ConnectorKind.CHECKPOINT: "Check",
    ConnectorKind.HEARTBEAT: "Beat",
}
POD = ObservedPod(
    name="p", uid="u1", phase="Running", ready=True, ip="10.0.0.1", connectors=("source",), is_secure=True
)


def targets(
    *pods: ObservedPod, drivers: tuple[ObservedPod, ...] = (), ca_bundle: CaBundle | None = None
) -> list[PollTarget]:
    return poll_targets(
        KEY,
        [("source", pod) for pod in pods],
        [("a-job", pod) for pod in drivers],
        connector_names=CONNECTOR_NAMES,
        ca_bundle=ca_bundle,
    )


def test_a_pod_with_one_connector_is_polled_without_a_connector_name() -> None:
    assert targets(POD) == [PollTarget(uid="u1", host="10.0.0.1", ready=True)]


def test_a_shared_pod_is_polled_for_each_connector_by_name() -> None:
    shared = replace(POD, connectors=("source", "checkpoint", "heartbeat"))
    assert [target.connector for target in targets(shared)] == ["Source", "Check", "Beat"]


@pytest.mark.parametrize(
    "change", [{"ip": None}, {"phase": "Pending"}, {"phase": "Failed"}, {"deleting": True}], ids=str
)
def test_a_pod_that_cannot_respond_is_not_polled(change: dict[str, str | bool]) -> None:
    changed = replace(POD, **change)  # type: ignore[arg-type]
    assert targets(changed, drivers=(changed,)) == []


def test_a_spark_driver_is_polled_at_its_own_port() -> None:
    assert targets(drivers=(POD,)) == [PollTarget(uid="u1", host="10.0.0.1", ready=True, port=PROGRESS_PORT)]


def test_only_a_secure_pod_is_polled_over_tls_with_its_service_name(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(authority().pem)
    ca_bundle = CaBundle(file=str(file))
    secure, plain = targets(POD, replace(POD, is_secure=False), ca_bundle=ca_bundle)
    assert plain.tls is None
    assert secure.tls == ca_bundle.tls_parameters("east-to-west-source.flows.svc")

"""A real API server stores the recorded statuses unchanged, and kubectl shows the reason."""

from typing import Any

import pytest

from mirrorflow_operator.api.status import parse_status
from mirrorflow_operator.reconcile.status_writer import status_document
from tests.harness.goldens import STATUS_NAMES, recorded_status
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError


def _ready(status: dict[str, Any]) -> tuple[str, str]:
    ready = next(condition for condition in status["conditions"] if condition["type"] == "Ready")
    return ready["status"], ready["reason"]


def test_every_recorded_status_is_stored_unchanged_and_shown_by_kubectl_get(
    mirrorflows: ApiServer, namespace: Kubectl
) -> None:
    """Nothing is refused, pruned or changed. `kubectl get` and `kubectl wait` work with it."""
    cluster = mirrorflows.kubectl.within(namespace.namespace)
    recorded = {name: recorded_status(name) for name in STATUS_NAMES}
    for name, document in recorded.items():
        metadata = {"name": name, "namespace": namespace.namespace}
        flow = {**document, "metadata": metadata}
        status = flow.pop("status")
        cluster.apply(flow)
        written = {
            "apiVersion": flow["apiVersion"],
            "kind": flow["kind"],
            "metadata": metadata,
            "status": status,
        }
        cluster.apply(written, "--subresource=status", "--field-manager=mirrorflow-operator")

    stored = {flow_["metadata"]["name"]: flow_["status"] for flow_ in cluster.get("mirrorflows")["items"]}
    rows = {row.split()[0]: row.split() for row in cluster("get", "mirrorflows").splitlines()[1:]}

    assert {name: document["status"] for name, document in recorded.items()} == stored
    assert stored == {name: status_document(parse_status(status)) for name, status in stored.items()}
    assert {name: _ready(status) for name, status in stored.items()} == {
        name: (row[4], row[5]) for name, row in rows.items()
    }
    assert "condition met" in cluster("wait", "--for=condition=Ready", "mirrorflow/idle", "--timeout=5s")
    with pytest.raises(KubectlError, match="timed out"):
        cluster("wait", "--for=condition=Ready", "mirrorflow/stuck", "--timeout=1s")

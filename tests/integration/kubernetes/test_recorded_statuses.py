"""The recorded statuses on a real API server: it takes them whole, and kubectl shows at a glance what is wrong."""

from typing import Any

import pytest

from mirrorflow_operator.api.status import parse_status
from mirrorflow_operator.reconcile.status_writer import status_document
from tests.harness.goldens import STATUS_NAMES, recorded_status
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError


def _ready(status: dict[str, Any]) -> tuple[str, str]:
    found = next(one for one in status["conditions"] if one["type"] == "Ready")
    return found["status"], found["reason"]


def test_every_recorded_status_is_stored_as_it_is_and_shown_at_a_glance(
    mirrorflows: ApiServer, namespace: Kubectl
) -> None:
    """Nothing is refused, pruned or changed; `kubectl get` and `kubectl wait` understand it."""
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

    stored = {one["metadata"]["name"]: one["status"] for one in cluster.get("mirrorflows")["items"]}
    rows = {row.split()[0]: row.split() for row in cluster("get", "mirrorflows").splitlines()[1:]}

    assert {name: document["status"] for name, document in recorded.items()} == stored
    assert stored == {name: status_document(parse_status(status)) for name, status in stored.items()}
    assert {name: _ready(status) for name, status in stored.items()} == {
        name: (row[4], row[5]) for name, row in rows.items()
    }
    assert "condition met" in cluster("wait", "--for=condition=Ready", "mirrorflow/idle", "--timeout=5s")
    with pytest.raises(KubectlError, match="timed out"):
        cluster("wait", "--for=condition=Ready", "mirrorflow/stuck", "--timeout=1s")

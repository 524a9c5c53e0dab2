"""The chart's role contains exactly the permissions that the operator uses, by the API server's audit log of a whole
run.

A missing verb causes a refused request, and an unneeded verb is missing from the log.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer, RequestKind
from tests.harness.kubernetes.chart import (
    NAMESPACE,
    OPERATOR,
    OPERATOR_USER,
    WHOLE_CLUSTER,
    granted,
)
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess

EXAMPLES = Path(__file__).parents[3] / "examples" / "valid"
PAIRS = EXAMPLES.parent / "pairs" / "valid"
NAME = "with-every-right"
HANGING_POD_NAME = f"{NAME}-source-hangs"
UNPLANNED_JOB = {
    "suspend": True,
    "template": {
        "spec": {"restartPolicy": "Never", "containers": [{"name": "left", "image": "left:behind"}]},
    },
}
# Objects that an operator of an earlier release may have left, with its label and owner, but in no current plan.
UNPLANNED = (
    {"apiVersion": "v1", "kind": "ServiceAccount"},
    {"apiVersion": "v1", "kind": "ConfigMap"},
    {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
    },
    {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}},
    {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"left": "behind"}}},
    },
    {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"left": "behind"}},
            "template": {
                "metadata": {"labels": {"left": "behind"}},
                "spec": {"containers": [{"name": "left", "image": "left:behind"}]},
            },
        },
    },
    {"apiVersion": "batch/v1", "kind": "Job", "spec": UNPLANNED_JOB},
    {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": UNPLANNED_JOB}},
    },
)
KINDS = "serviceaccounts,configmaps,networkpolicies,services,poddisruptionbudgets,deployments,jobs,cronjobs"


def _unplanned(manifest: dict[str, Any], owner: dict[str, Any]) -> dict[str, Any]:
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": NAME,
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
    metadata = {
        "name": f"{NAME}-left",
        "labels": {"mirrorflow.io/flow": NAME, "app.kubernetes.io/managed-by": "mirrorflow-operator"},
        "ownerReferences": [reference],
    }
    return {**manifest, "metadata": metadata}


HANGING_MANIFEST = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": HANGING_POD_NAME,
        "labels": {"mirrorflow.io/flow": NAME, "mirrorflow.io/connector": "source"},
    },
    "spec": {
        "automountServiceAccountToken": False,
        "serviceAccountName": NAME,
        "containers": [{"name": "replicator", "image": "mirrorflow/replicator:0.1.0"}],
    },
}


def _add_hanging_pod(administrator: Kubectl) -> None:
    """Adds a pod of the flow whose container cannot start. No kubelet runs, so this writes the status."""
    administrator.apply(HANGING_MANIFEST)
    waiting = {"reason": "CreateContainerConfigError", "message": 'secret "east" not found'}
    container = {
        "name": "replicator",
        "image": "mirrorflow/replicator:0.1.0",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waiting},
    }
    status = {"status": {"phase": "Pending", "containerStatuses": [container]}}
    administrator(
        "patch",
        "pod",
        HANGING_POD_NAME,
        "--subresource=status",
        "--type=merge",
        f"--patch={json.dumps(status)}",
    )


def test_the_charts_role_has_exactly_the_permissions_that_the_operator_uses(
    installed: ApiServer,
    administrator: Kubectl,
    operator: Kubectl,
    tmp_path: Path,
):
    """A flow is created, changed, cleaned up, has a hanging pod and is deleted.

    The Lease is acquired, renewed and released.
    """
    since = installed.log_size()
    flow = yaml.safe_load((EXAMPLES / "smallest.yaml").read_text())
    flow["metadata"]["name"] = NAME
    flow["spec"]["connectors"] = {"source": {"replicas": 2}}
    flow["spec"] |= {"seed": {"runId": "1"}, "verify": {"schedule": "0 3 * * *"}}
    environment = {
        "POD_NAMESPACE": NAMESPACE,
        "MIRRORFLOW_LEASE": OPERATOR,
        "MIRRORFLOW_REPLICATOR_IMAGE": "mirrorflow/replicator",
    }
    administrator("delete", "lease", OPERATOR, f"--namespace={NAMESPACE}", "--ignore-not-found")
    # Helm installs the CRDs without this annotation, and adds none on an upgrade.
    administrator("annotate", "crd", "mirrorflows.mirrorflow.io", "mirrorflow.io/release-")
    administrator("delete", "crd", "switchovers.mirrorflow.io", "mirrorpairs.mirrorflow.io")

    def existing_objects() -> set[str]:
        items = administrator.get(KINDS, f"--selector=mirrorflow.io/flow={NAME}")["items"]
        return {f"{item['kind']} {item['metadata']['name']}" for item in items}

    with OperatorProcess(
        kubeconfig=operator.kubeconfig, folder=tmp_path / "operator", environment=environment
    ) as process:
        process.wait_until_leading()
        for example in ("smallest-pair", "planned"):
            administrator.apply((PAIRS / f"{example}.yaml").read_text())
        administrator.apply(flow)
        wait_until("all objects exist", lambda: len(existing_objects()) == 17)
        owner = administrator.get("mirrorflow", NAME)
        for manifest in UNPLANNED:
            administrator.apply(_unplanned(manifest, owner))
        wait_until(
            "the unplanned objects are gone", lambda: not any("left" in name for name in existing_objects())
        )
        _add_hanging_pod(administrator)
        wait_until(
            "the pod's events are read",
            lambda: _verbs(installed, since, "events") == {"create", "list"},
        )
        wait_until(
            "the Lease is renewed", lambda: _verbs(installed, since, "leases") == {"create", "get", "update"}
        )
        wait_until(
            "the statuses of the pair and the switchover are written",
            lambda: all(
                _verbs(installed, since, plural) == {"list", "watch", "patch"}
                for plural in ("mirrorpairs", "switchovers")
            ),
        )
        process.child.stop()

    requests = [request for request in installed.audit_log_of(OPERATOR_USER, since) if request.kind.resource]
    administrator("delete", "mirrorflow", NAME)
    administrator("delete", "mirrorpairs,switchovers", "--all")
    administrator("delete", "pod", HANGING_POD_NAME, "--grace-period=0", "--force")
    assert [] == [request for request in requests if not request.allowed]
    used = _with_create({request.kind for request in requests})
    assert "secrets" not in {kind.resource for kind in used}
    assert set(granted(WHOLE_CLUSTER)) == used


def _verbs(server: ApiServer, since: int, resource: str) -> set[str]:
    return {
        request.kind.verb
        for request in server.audit_log_of(OPERATOR_USER, since)
        if request.kind.resource.partition("/")[0] == resource
    }


def _with_create(used: set[RequestKind]) -> set[RequestKind]:
    """Adds the verb `create` to a server-side apply. It is logged as a patch even if it creates the object."""
    created = {*KINDS.split(","), "customresourcedefinitions"}
    return used | {
        RequestKind(verb="create", group=kind.group, resource=kind.resource)
        for kind in used
        if kind.verb == "patch" and kind.resource in created
    }

"""The chart's role is exactly what the operator needs: the API server's own log of a whole run names each right, and no other.

A verb too few is a request that is refused; a verb too many is one that the log does not have.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer, Asked
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
NAME = "with-every-right"
HANGING = f"{NAME}-source-hangs"
LEFT_JOB = {
    "suspend": True,
    "template": {
        "spec": {"restartPolicy": "Never", "containers": [{"name": "left", "image": "left:behind"}]},
    },
}
# As an operator of another release may have left them: its label, its owner, in no plan of this one.
LEFT_BEHIND = (
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
    {"apiVersion": "batch/v1", "kind": "Job", "spec": LEFT_JOB},
    {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": LEFT_JOB}},
    },
)
KINDS = "serviceaccounts,configmaps,networkpolicies,services,poddisruptionbudgets,deployments,jobs,cronjobs"


def _left(one: dict[str, Any], owner: dict[str, Any]) -> dict[str, Any]:
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
    return {**one, "metadata": metadata}


HANGING_POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": HANGING,
        "labels": {"mirrorflow.io/flow": NAME, "mirrorflow.io/connector": "source"},
    },
    "spec": {
        "automountServiceAccountToken": False,
        "serviceAccountName": NAME,
        "containers": [{"name": "replicator", "image": "mirrorflow/replicator:0.1.0"}],
    },
}


def _let_hang(administrator: Kubectl) -> None:
    """A pod of the flow whose container cannot be made: no kubelet runs, so it is said here."""
    administrator.apply(HANGING_POD)
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
        "patch", "pod", HANGING, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}"
    )


def test_each_right_is_needed_and_each_need_is_granted(
    installed: ApiServer,
    administrator: Kubectl,
    operator: Kubectl,
    tmp_path: Path,
):
    """A flow comes, changes, loses what is not planned, has a pod that hangs, is stopped and goes; the Lease is taken, kept and left."""
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
    administrator(
        "annotate", "crd", "mirrorflows.mirrorflow.io", "mirrorflow.io/release-"
    )  # as Helm installs it

    def found() -> set[str]:
        items = administrator.get(KINDS, f"--selector=mirrorflow.io/flow={NAME}")["items"]
        return {f"{one['kind']} {one['metadata']['name']}" for one in items}

    with OperatorProcess(
        kubeconfig=operator.kubeconfig, folder=tmp_path / "operator", environment=environment
    ) as process:
        process.wait_until_leading()
        administrator.apply(flow)
        wait_until("everything is there", lambda: len(found()) == 17)
        owner = administrator.get("mirrorflow", NAME)
        for one in LEFT_BEHIND:
            administrator.apply(_left(one, owner))
        wait_until("what is left behind is gone", lambda: not any("left" in one for one in found()))
        _let_hang(administrator)
        wait_until(
            "its events are read",
            lambda: _verbs(installed, since, "events") == {"create", "list"},
        )
        wait_until(
            "the Lease is kept", lambda: _verbs(installed, since, "leases") == {"create", "get", "update"}
        )
        process.child.stop()

    asked = [one for one in installed.log_of(OPERATOR_USER, since) if one.asked.resource]
    administrator("delete", "mirrorflow", NAME)
    administrator("delete", "pod", HANGING, "--grace-period=0", "--force")
    assert [] == [one for one in asked if not one.allowed]
    used = _as_granted({one.asked for one in asked})
    assert "secrets" not in {one.resource for one in used}
    assert set(granted(WHOLE_CLUSTER)) == used


def _verbs(server: ApiServer, since: int, resource: str) -> set[str]:
    return {one.asked.verb for one in server.log_of(OPERATOR_USER, since) if one.asked.resource == resource}


def _as_granted(asked: set[Asked]) -> set[Asked]:
    """A server-side apply of what is not there yet is logged as a patch, and needs `create` as well."""
    made = set(KINDS.split(","))
    return asked | {
        Asked(verb="create", group=one.group, resource=one.resource)
        for one in asked
        if one.verb == "patch" and one.resource in made
    }

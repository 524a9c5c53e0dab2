"""The access that a pod of a ServiceAccount has to the API server."""

from pathlib import Path
from urllib.parse import urlsplit

import yaml

from mirrorflow_replicator.switchover.api_server_access import ApiServerAccess
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.kubectl import Kubectl


def account_access(namespace: Kubectl, account: str, folder: Path) -> ApiServerAccess:
    """Returns the access of a pod of *account*, whose token and CA are written to *folder*."""
    (folder / "token").write_text(namespace("create", "token", account))
    wait_until(
        "the CA is there", lambda: "kube-root-ca.crt" in namespace("get", "configmaps", "--output=name")
    )
    (folder / "ca.crt").write_text(namespace.get("configmap", "kube-root-ca.crt")["data"]["ca.crt"])
    server = yaml.safe_load(namespace.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    host, port = urlsplit(server).hostname, urlsplit(server).port
    assert host is not None
    assert port is not None
    return ApiServerAccess(host=host, port=port, credentials=folder)

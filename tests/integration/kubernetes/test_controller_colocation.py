"""The operator, as a process, on a real API server: connectors move into one pod and out of it again, and none is let go before."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.imagined_pods import run_pods
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.integration.kubernetes.controlled import events, manifest, there

NAME = "east-to-west"
UNREACHABLE = "127.0.0.2"  # no connector listens there
WAIT_S = 90.0  # some seconds alone
APART = {"source": ["connector"], "checkpoint": ["connector"], "heartbeat": ["connector"]}
TOGETHER = {"source": ["connector"], "checkpoint": ["checkpoint", "heartbeat"]}


@pytest.fixture
def operator(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One for the test's namespace."""
    user = mirrorflows.user("operator-of-shared-pods", groups=["system:masters"])
    with OperatorProcess(
        kubeconfig=user.kubeconfig, folder=tmp_path, namespaces=[namespace.namespace]
    ) as one:
        one.wait_until_leading()
        yield one


def _files(namespace: Kubectl) -> dict[str, list[str]]:
    """By Deployment, which connectors' files its pods read."""
    return {
        name.removeprefix(f"Deployment {NAME}-"): [
            file.rpartition("/")[2].removesuffix(".properties")
            for file in one["spec"]["template"]["spec"]["containers"][0]["args"][2:]
        ]
        for name, one in there(namespace).items()
        if name.startswith("Deployment ")
    }


def _wait_for(namespace: Kubectl, wanted: dict[str, list[str]]) -> None:
    """No kubelet runs: pods are said to be ready here, or no roll would end."""

    def moved() -> bool:
        run_pods(Requests(namespace.kubeconfig), iter([UNREACHABLE] * 9), namespace=namespace.namespace)
        return _files(namespace) == wanted

    wait_until(f"pods run {wanted}", moved, timeout_s=WAIT_S)


def _colocate(namespace: Kubectl, *names: str, **spec: Any) -> None:
    patch = json.dumps({"spec": {"connectors": {"colocate": list(names)}, **spec}})
    namespace("patch", "mirrorflow", NAME, "--type=merge", f"--patch={patch}")


def _status(namespace: Kubectl) -> dict[str, Any]:
    return dict(namespace.get("mirrorflow", NAME).get("status", {}).get("connectors", {}))


@pytest.mark.usefixtures("operator")
def test_connectors_move_into_one_pod_and_out_of_it_once_the_new_pod_is_ready(
    namespace: Kubectl,
):
    """The pod that is not ready yet takes nothing away; Events say why pods roll, and why a Deployment goes."""
    namespace.apply(manifest())
    _wait_for(namespace, APART)

    _colocate(namespace, "checkpoint", "heartbeat")
    wait_until("the new pod is asked for", lambda: _files(namespace) == APART | TOGETHER)
    wait_until(
        "the event is written", lambda: _rolls("connectors checkpoint -> checkpoint and heartbeat", namespace)
    )
    config = there(namespace)[f"ConfigMap {NAME}-checkpoint"]["data"]
    assert set(config) == {"worker.properties", "checkpoint.properties", "heartbeat.properties"}
    wait_until("each new pod reports its connector", lambda: _told(namespace) == {"source", "checkpoint"})
    assert "heartbeat" in _files(namespace)

    _wait_for(namespace, TOGETHER)
    wait_until(
        "the event is written",
        lambda: (
            f"Deployment {NAME}-heartbeat: heartbeat runs in the pod of checkpoint."
            in events(namespace, "Removed")
        ),
    )
    assert f"ConfigMap {NAME}-heartbeat" not in there(namespace)

    _colocate(namespace)
    wait_until("its own pod is asked for", lambda: "heartbeat" in _files(namespace))
    assert _files(namespace)["checkpoint"] == TOGETHER["checkpoint"]
    config = there(namespace)[f"ConfigMap {NAME}-checkpoint"]["data"]
    assert "heartbeat.properties" in config
    _wait_for(namespace, APART)


def _rolls(said: str, namespace: Kubectl) -> bool:
    return any(said in one for one in events(namespace, "Rolling"))


def _told(namespace: Kubectl) -> set[str]:
    """Whose pods the status has, by the selector of each connector's."""
    selectors = (one.get("selector", "") for one in _status(namespace).values())
    return {
        part.partition("=")[2]
        for one in selectors
        for part in one.split(",")
        if part.startswith("mirrorflow.io/connector=")
    }

"""The operator process on a real API server moves connectors into one pod and out again, without a gap."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.harness.kubernetes.simulated_pods import mark_pods_running
from tests.integration.kubernetes.controlled import events, existing_objects, manifest

NAME = "east-to-west"
UNREACHABLE = "127.0.0.2"  # no connector listens at this address
WAIT_S = 90.0  # seconds on an idle machine
APART = {"source": ["connector"], "checkpoint": ["connector"], "heartbeat": ["connector"]}
TOGETHER = {"source": ["connector"], "checkpoint": ["checkpoint", "heartbeat"]}


@pytest.fixture
def operator(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One operator for the test's namespace."""
    user = mirrorflows.user("operator-of-shared-pods", groups=["system:masters"])
    with OperatorProcess(
        kubeconfig=user.kubeconfig, folder=tmp_path, namespaces=[namespace.namespace]
    ) as process:
        process.wait_until_leading()
        yield process


def _files(namespace: Kubectl) -> dict[str, list[str]]:
    """Returns the connector files that the pods of each Deployment read."""
    return {
        name.removeprefix(f"Deployment {NAME}-"): [
            file.rpartition("/")[2].removesuffix(".properties")
            for file in deployment["spec"]["template"]["spec"]["containers"][0]["args"][2:]
        ]
        for name, deployment in existing_objects(namespace).items()
        if name.startswith("Deployment ")
    }


def _wait_for(namespace: Kubectl, expected: dict[str, list[str]]) -> None:
    """Waits until pods read the *expected* files. No kubelet runs, so this function marks the pods as ready."""

    def moved() -> bool:
        mark_pods_running(
            Requests(namespace.kubeconfig), iter([UNREACHABLE] * 9), namespace=namespace.namespace
        )
        return _files(namespace) == expected

    wait_until(f"pods run {expected}", moved, timeout_s=WAIT_S)


def _colocate(namespace: Kubectl, *names: str, **spec: Any) -> None:
    patch = json.dumps({"spec": {"connectors": {"colocate": list(names)}, **spec}})
    namespace("patch", "mirrorflow", NAME, "--type=merge", f"--patch={patch}")


def _status(namespace: Kubectl) -> dict[str, Any]:
    return dict(namespace.get("mirrorflow", NAME).get("status", {}).get("connectors", {}))


@pytest.mark.usefixtures("operator")
def test_connectors_move_into_one_pod_and_out_of_it_once_the_new_pod_is_ready(
    namespace: Kubectl,
):
    """While the new pod is not ready, no pod is removed. Events give the reason of each rollout and removal."""
    namespace.apply(manifest())
    _wait_for(namespace, APART)

    _colocate(namespace, "checkpoint", "heartbeat")
    wait_until("the new pod is created", lambda: _files(namespace) == APART | TOGETHER)
    wait_until(
        "the event is written", lambda: _rolls("connectors checkpoint -> checkpoint and heartbeat", namespace)
    )
    config = existing_objects(namespace)[f"ConfigMap {NAME}-checkpoint"]["data"]
    assert set(config) == {"worker.properties", "checkpoint.properties", "heartbeat.properties"}
    wait_until(
        "the status has the pods of both connectors",
        lambda: _reported_connectors(namespace) == {"source", "checkpoint"},
    )
    assert "heartbeat" in _files(namespace)

    _wait_for(namespace, TOGETHER)
    wait_until(
        "the event is written",
        lambda: (
            f"Deployment {NAME}-heartbeat: heartbeat runs in the pod of checkpoint."
            in events(namespace, "Removed")
        ),
    )
    assert f"ConfigMap {NAME}-heartbeat" not in existing_objects(namespace)

    _colocate(namespace)
    wait_until("its own pod is created", lambda: "heartbeat" in _files(namespace))
    assert _files(namespace)["checkpoint"] == TOGETHER["checkpoint"]
    config = existing_objects(namespace)[f"ConfigMap {NAME}-checkpoint"]["data"]
    assert "heartbeat.properties" in config
    _wait_for(namespace, APART)


def _rolls(message: str, namespace: Kubectl) -> bool:
    return any(message in event_message for event_message in events(namespace, "Rolling"))


def _reported_connectors(namespace: Kubectl) -> set[str]:
    """Returns the connectors whose pods are in the status, from the selector of each connector."""
    selectors = (connector_status.get("selector", "") for connector_status in _status(namespace).values())
    return {
        label.partition("=")[2]
        for selector in selectors
        for label in selector.split(",")
        if label.startswith("mirrorflow.io/connector=")
    }

"""The operator process on a real API server scales a connector to several pods and back to one."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
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
SOURCE = f"{NAME}-source"
UNREACHABLE = "127.0.0.2"  # no connector listens at this address
OF_SEVERAL = {f"{kind} {SOURCE}" for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy")}


Start = Callable[[], OperatorProcess]


@pytest.fixture
def start(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path) -> Iterator[Start]:
    """Starts operators for the test's namespace. They end with the test."""
    user = mirrorflows.user("operator-that-scales", groups=["system:masters"])
    with ExitStack() as ends:

        def started() -> OperatorProcess:
            operator = OperatorProcess(
                kubeconfig=user.kubeconfig, folder=tmp_path, namespaces=[namespace.namespace]
            )
            ends.enter_context(operator).wait_until_leading()
            return operator

        yield started


def _deployment(namespace: Kubectl) -> dict[str, Any]:
    return existing_objects(namespace).get(f"Deployment {SOURCE}", {})


def _wait_for_replicas(namespace: Kubectl, count: int, *, form: str = "distributed") -> dict[str, Any]:
    """Waits for *count* replicas in mode *form*. No kubelet runs, so this function marks the pods as ready."""

    def scaled() -> bool:
        mark_pods_running(
            Requests(namespace.kubeconfig), itertools.repeat(UNREACHABLE), namespace=namespace.namespace
        )
        spec = _deployment(namespace).get("spec")
        return spec is not None and (spec["replicas"], _form(spec)) == (count, form)

    wait_until(f"the source connector has {count} replicas in mode {form}", scaled)
    return dict(_deployment(namespace))


def _form(spec: dict[str, Any]) -> str:
    return str(spec["template"]["spec"]["containers"][0]["args"][0])


def test_the_scale_subresource_adds_and_removes_pods(namespace: Kubectl, start: Start):
    """The second pod changes the mode and adds objects, which the last pod does not need. A third pod replaces none."""
    start()
    namespace.apply(manifest())
    single = _wait_for_replicas(namespace, 1, form="standalone")
    namespace("scale", "mirrorflow", NAME, "--replicas=2")
    second = _wait_for_replicas(namespace, 2)
    assert OF_SEVERAL <= set(existing_objects(namespace))
    namespace("scale", "mirrorflow", NAME, "--replicas=3")
    third = _wait_for_replicas(namespace, 3)

    assert second["spec"]["template"] == third["spec"]["template"] != single["spec"]["template"]
    wait_until(
        "the event is written", lambda: f"Scaled {SOURCE} to 3 replicas." in events(namespace, "Scaled")
    )
    assert any("mode standalone -> distributed" in message for message in events(namespace, "Rolling"))

    def all_counted() -> bool:
        scale = _scale(namespace)
        pods = namespace.get("pods", f"--selector={scale['selector']}")["items"]
        return scale["replicas"] >= 3 and len(pods) >= 3

    wait_until("the scale subresource counts the pods", all_counted)

    namespace("scale", "mirrorflow", NAME, "--replicas=1")
    single_again = _wait_for_replicas(namespace, 1, form="standalone")
    assert single_again["spec"]["template"] == single["spec"]["template"]
    wait_until(
        "the objects for several pods are gone", lambda: not OF_SEVERAL & set(existing_objects(namespace))
    )


def _scale(namespace: Kubectl) -> dict[str, Any]:
    path = f"/apis/mirrorflow.io/v1alpha1/namespaces/{namespace.namespace}/mirrorflows/{NAME}/scale"
    return dict({"selector": "", "replicas": 0} | namespace.read(path)["status"])

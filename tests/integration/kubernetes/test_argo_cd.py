"""Argo CD's own application controller syncs MirrorFlows and the chart; docs/gitops.md has the settings for users.

The API server has no nodes: stub connectors respond to the operator in place of pods.
"""

import asyncio
import itertools
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mirrorflow_operator.plan.pod_template import HTTP_PORT
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.argo_cd import ArgoCd, exists, require_argo_cd
from tests.harness.kubernetes.chart import CHART
from tests.harness.kubernetes.installation import require_helm
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.harness.kubernetes.simulated_pods import mark_pods_running
from tests.harness.kubernetes.skipping import skip_without
from tests.harness.kubernetes.stub_connectors import StubConnectors, addresses, summary
from tests.integration.kubernetes.controlled import manifest

HEALTH = CHART / "files" / "argocd" / "mirrorflow.io" / "MirrorFlow" / "health.lua"
FLOW = "east-to-west"
STUCK = summary(replicating="Stuck", caughtUp=False, lagRecords=500)
WAIT_S = 180.0


@pytest.fixture(scope="module")
def argo(mirrorflows: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArgoCd]:
    """Argo CD with the health check of the documentation.

    Each test has its own Application and its own folder in Git.
    """
    skip_without(require_argo_cd)
    skip_without(require_helm)
    customizations = {"resource.customizations.health.mirrorflow.io_MirrorFlow": HEALTH.read_text()}
    folder = tmp_path_factory.mktemp("argo-cd")
    with ArgoCd(kubectl=mirrorflows.kubectl, folder=folder, customizations=customizations) as argo:
        yield argo


class SimulatedNode:
    """After `start`, each pod of *namespace* becomes Ready. `stubs` responds for all of them."""

    def __init__(self, namespace: Kubectl) -> None:
        self._namespace = namespace
        self._address = addresses(random.randrange(200, 250), 1)[0]
        self.stubs = StubConnectors(port=HTTP_PORT, hosts=[self._address])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    async def _run(self) -> None:
        requests = Requests(self._namespace.kubeconfig)
        pod_addresses = itertools.repeat(self._address)
        async with self.stubs:
            while not self._ended.is_set():
                await asyncio.to_thread(
                    mark_pods_running, requests, pod_addresses, namespace=self._namespace.namespace
                )
                await asyncio.sleep(0.5)


@pytest.fixture
def node(namespace: Kubectl) -> Iterator[SimulatedNode]:
    simulated = SimulatedNode(namespace)
    yield simulated
    simulated.end()


@pytest.fixture
def operator(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path) -> Iterator[OperatorProcess]:
    with OperatorProcess(
        kubeconfig=mirrorflows.user(f"argo-{namespace.namespace}", groups=["system:masters"]).kubeconfig,
        folder=tmp_path,
        namespaces=[namespace.namespace],
        environment={"MIRRORFLOW_POLL_S": "1", "MIRRORFLOW_SETTLE_S": "1"},
    ) as process:
        yield process


def assert_no_drift(argo: ArgoCd, name: str) -> dict[str, Any]:
    """Asserts that three comparisons without a cache find no difference and start no sync, and returns the last status."""
    compared = [argo.refresh(name) for _ in range(3)]
    assert [status["sync"]["status"] for status in compared] == ["Synced"] * 3
    assert len({status["operationState"]["startedAt"] for status in compared}) == 1
    return compared[-1]


@pytest.mark.usefixtures("operator")
def test_health_follows_the_status_of_the_operator(argo: ArgoCd, namespace: Kubectl, node: SimulatedNode):
    """Argo CD watches the status. The test refreshes nothing unless Git changes."""
    flow = manifest(FLOW)
    argo.write("health/flow.yaml", yaml.safe_dump(flow))
    argo.apply(argo.application("health", path="health", namespace=namespace.namespace))
    argo.wait_for("health", sync="Synced", health="Progressing")
    node.start()
    argo.wait_for("health", sync="Synced", health="Healthy")

    node.stubs.default = STUCK
    argo.wait_for("health", sync="Synced", health="Degraded")
    node.stubs.default = summary()
    argo.wait_for("health", sync="Synced", health="Healthy")

    flow["spec"]["state"] = "Stopped"
    argo.write("health/flow.yaml", yaml.safe_dump(flow))
    argo.refresh("health")
    argo.wait_for("health", sync="Synced", health="Suspended")

    flow["spec"]["version"] = "99.0.0"
    argo.write("health/flow.yaml", yaml.safe_dump(flow))
    argo.refresh("health")
    argo.wait_for("health", sync="Synced", health="Degraded")


@pytest.mark.usefixtures("operator")
def test_a_flow_in_git_does_not_drift_and_is_repaired_and_pruned(
    argo: ArgoCd, namespace: Kubectl, node: SimulatedNode
):
    """Writes of the API server and the operator are no difference. Objects of the operator are not pruned."""

    def spec() -> dict[str, Any]:
        return dict(namespace.get("mirrorflow", FLOW)["spec"])

    node.start()
    argo.write("drift/flow.yaml", yaml.safe_dump(manifest(FLOW, connectors={"source": {"tasks": 2}})))
    argo.apply(argo.application("drift", path="drift", namespace=namespace.namespace))
    argo.wait_for("drift", sync="Synced", health="Healthy")
    drift_status = assert_no_drift(argo, "drift")
    assert [resource["kind"] for resource in drift_status["resources"]] == ["MirrorFlow"]

    # A field in Git is repaired. Other fields belong to other managers.
    changed = {"spec": {"connectors": {"source": {"tasks": 3}}, "limits": {"bytesPerSecond": "50Mi"}}}
    namespace("patch", "mirrorflow", FLOW, "--type=merge", f"--patch={json.dumps(changed)}")
    wait_until("the change is undone", lambda: spec()["connectors"]["source"]["tasks"] == 2, timeout_s=WAIT_S)
    argo.wait_for("drift", sync="Synced", health="Healthy")
    assert spec()["limits"] == {"bytesPerSecond": "50Mi"}

    namespace("delete", "mirrorflow", FLOW)
    wait_until("the flow is created again", lambda: exists(namespace, "mirrorflow", FLOW), timeout_s=WAIT_S)
    argo.wait_for("drift", sync="Synced", health="Healthy")
    assert_no_drift(argo, "drift")

    argo.remove("drift/flow.yaml")
    argo.refresh("drift")
    wait_until("the flow is pruned", lambda: not exists(namespace, "mirrorflow", FLOW), timeout_s=WAIT_S)
    wait_until(
        "the objects of the flow are gone",
        lambda: not namespace.get("deployments")["items"],
        timeout_s=WAIT_S,
    )
    argo.wait_for("drift", sync="Synced", health="Healthy")


def test_the_chart_as_an_application_does_not_drift(mirrorflows: ApiServer, argo: ArgoCd, namespace: Kubectl):
    """Argo CD does not track CRDs.

    MirrorFlow's CRD and all resources stay when the chart no longer renders it, and without the chart.
    """
    name = namespace.namespace

    def chart(*, skip_crds: bool) -> None:
        values = {"watch": {"namespaces": [name]}}
        helm = {"releaseName": "by-argo", "valuesObject": values, "skipCrds": skip_crds}
        argo.apply(argo.application("operator", path="chart", namespace=name, helm=helm))

    argo.write("chart", CHART)
    chart(skip_crds=False)
    wait_until("the operator has pods", lambda: len(namespace.get("pods")["items"]) == 2, timeout_s=WAIT_S)
    mark_pods_running(Requests(mirrorflows.kubectl.kubeconfig), ["10.0.0.1", "10.0.0.2"], namespace=name)
    argo.wait_for("operator", sync="Synced", health="Healthy")
    rendered = assert_no_drift(argo, "operator")["resources"]
    namespace.apply(manifest(FLOW))

    chart(skip_crds=True)
    argo.refresh("operator")
    argo.wait_for("operator", sync="Synced", health="Healthy")
    not_rendered = assert_no_drift(argo, "operator")["resources"]
    argo.delete("operator")

    assert "CustomResourceDefinition" in {resource["kind"] for resource in rendered}
    assert "CustomResourceDefinition" not in {resource["kind"] for resource in not_rendered}
    assert namespace.get("deployments")["items"] == []
    assert exists(namespace, "mirrorflow", FLOW)

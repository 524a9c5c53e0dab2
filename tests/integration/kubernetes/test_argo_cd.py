"""Argo CD's own application controller syncs MirrorFlows and the chart; docs/gitops.md says what users set.

The API server has no nodes: stub connectors answer the operator in place of pods.
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
from tests.harness.kubernetes.argo_cd import ArgoCd, is_there, require_argo_cd
from tests.harness.kubernetes.chart import CHART
from tests.harness.kubernetes.imagined_pods import run_pods
from tests.harness.kubernetes.installation import require_helm
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.harness.kubernetes.skipping import skip_without
from tests.harness.kubernetes.stub_connectors import StubConnectors, addresses, summary
from tests.integration.kubernetes.controlled import manifest

HEALTH = CHART / "files" / "argocd" / "mirrorflow.io" / "MirrorFlow" / "health.lua"
FLOW = "east-to-west"
STUCK = summary(replicating="Stuck", caughtUp=False, lagRecords=500)
WAIT_S = 180.0


@pytest.fixture(scope="module")
def argo(mirrorflows: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArgoCd]:
    """Argo CD with the health check of the documentation; each test has an Application and a folder in Git of its own."""
    skip_without(require_argo_cd)
    skip_without(require_helm)
    customizations = {"resource.customizations.health.mirrorflow.io_MirrorFlow": HEALTH.read_text()}
    folder = tmp_path_factory.mktemp("argo-cd")
    with ArgoCd(kubectl=mirrorflows.kubectl, folder=folder, customizations=customizations) as argo:
        yield argo


class ImaginedNode:
    """Once started, each pod of *namespace* becomes Ready; `stubs` answers for all of them."""

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
        places = itertools.repeat(self._address)
        async with self.stubs:
            while not self._ended.is_set():
                await asyncio.to_thread(run_pods, requests, places, namespace=self._namespace.namespace)
                await asyncio.sleep(0.5)


@pytest.fixture
def node(namespace: Kubectl) -> Iterator[ImaginedNode]:
    made = ImaginedNode(namespace)
    yield made
    made.end()


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
    """Three comparisons without a cache find no difference and start no sync; returns the last status."""
    compared = [argo.refresh(name) for _ in range(3)]
    assert [one["sync"]["status"] for one in compared] == ["Synced"] * 3
    assert len({one["operationState"]["startedAt"] for one in compared}) == 1
    return compared[-1]


@pytest.mark.usefixtures("operator")
def test_health_is_what_the_operator_reports(argo: ArgoCd, namespace: Kubectl, node: ImaginedNode):
    """Argo CD follows the status by its watch: nothing is refreshed here unless Git changes."""
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
def test_a_flow_in_git_does_not_drift_is_repaired_and_pruned(
    argo: ArgoCd, namespace: Kubectl, node: ImaginedNode
):
    """What the API server and the operator write is no difference, and nothing that the operator creates is pruned."""

    def spec() -> dict[str, Any]:
        return dict(namespace.get("mirrorflow", FLOW)["spec"])

    node.start()
    argo.write("drift/flow.yaml", yaml.safe_dump(manifest(FLOW, connectors={"source": {"tasks": 2}})))
    argo.apply(argo.application("drift", path="drift", namespace=namespace.namespace))
    argo.wait_for("drift", sync="Synced", health="Healthy")
    found = assert_no_drift(argo, "drift")
    assert [one["kind"] for one in found["resources"]] == ["MirrorFlow"]

    # A field that Git names is repaired; one that it does not name is another manager's.
    changed = {"spec": {"connectors": {"source": {"tasks": 3}}, "limits": {"bytesPerSecond": "50Mi"}}}
    namespace("patch", "mirrorflow", FLOW, "--type=merge", f"--patch={json.dumps(changed)}")
    wait_until("the change is undone", lambda: spec()["connectors"]["source"]["tasks"] == 2, timeout_s=WAIT_S)
    argo.wait_for("drift", sync="Synced", health="Healthy")
    assert spec()["limits"] == {"bytesPerSecond": "50Mi"}

    namespace("delete", "mirrorflow", FLOW)
    wait_until("it is created again", lambda: is_there(namespace, "mirrorflow", FLOW), timeout_s=WAIT_S)
    argo.wait_for("drift", sync="Synced", health="Healthy")
    assert_no_drift(argo, "drift")

    argo.remove("drift/flow.yaml")
    argo.refresh("drift")
    wait_until("it is pruned", lambda: not is_there(namespace, "mirrorflow", FLOW), timeout_s=WAIT_S)
    wait_until("its objects are gone", lambda: not namespace.get("deployments")["items"], timeout_s=WAIT_S)
    argo.wait_for("drift", sync="Synced", health="Healthy")


def test_the_chart_as_an_application_does_not_drift(mirrorflows: ApiServer, argo: ArgoCd, namespace: Kubectl):
    """Argo CD does not track CRDs: this one, and every MirrorFlow, stays when it is no longer rendered, and without the chart."""
    name = namespace.namespace

    def chart(*, skip_crds: bool) -> None:
        values = {"watch": {"namespaces": [name]}}
        helm = {"releaseName": "by-argo", "valuesObject": values, "skipCrds": skip_crds}
        argo.apply(argo.application("operator", path="chart", namespace=name, helm=helm))

    argo.write("chart", CHART)
    chart(skip_crds=False)
    wait_until("the operator has pods", lambda: len(namespace.get("pods")["items"]) == 2, timeout_s=WAIT_S)
    run_pods(Requests(mirrorflows.kubectl.kubeconfig), ["10.0.0.1", "10.0.0.2"], namespace=name)
    argo.wait_for("operator", sync="Synced", health="Healthy")
    rendered = assert_no_drift(argo, "operator")["resources"]
    namespace.apply(manifest(FLOW))

    chart(skip_crds=True)
    argo.refresh("operator")
    argo.wait_for("operator", sync="Synced", health="Healthy")
    not_rendered = assert_no_drift(argo, "operator")["resources"]
    argo.delete("operator")

    assert "CustomResourceDefinition" in {one["kind"] for one in rendered}
    assert "CustomResourceDefinition" not in {one["kind"] for one in not_rendered}
    assert namespace.get("deployments")["items"] == []
    assert is_there(namespace, "mirrorflow", FLOW)

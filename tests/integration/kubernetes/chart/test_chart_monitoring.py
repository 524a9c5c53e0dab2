"""What the chart makes for the Prometheus operator is what its own definitions take, on a real API server."""

from collections.abc import Iterator

import pytest

from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.chart import WHOLE_CLUSTER, Manifest, rendered
from tests.harness.kubernetes.installation import MONITORING, require_monitoring
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.skipping import skip_without

NAMESPACE = "monitored"
GROUP = "monitoring.coreos.com"
KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
EVERYTHING = {
    **WHOLE_CLUSTER,
    "monitors": {"enabled": True, "labels": {"release": "prometheus"}},
    "alerts": {"enabled": True, "labels": {"release": "prometheus"}},
    "progressTls": {"secretName": "mirrors-ca"},
}


@pytest.fixture(scope="module")
def monitored(api_server: ApiServer) -> Iterator[Kubectl]:
    """The definitions, and the release's namespace; both go with the tests."""
    skip_without(require_monitoring)
    kubectl = api_server.kubectl.within(NAMESPACE)
    files = sorted(MONITORING.glob("*.yaml"))
    assert len(files) == len(KINDS)
    for file in files:
        kubectl.apply(file.read_text())
    names = [f"customresourcedefinition/{file.stem.rpartition('_')[2]}.{GROUP}" for file in files]
    kubectl("wait", "--for=condition=Established", *names, "--timeout=60s")
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield kubectl
    kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    for file in files:
        kubectl("delete", f"--filename={file}", "--wait=false")


@pytest.fixture(scope="module")
def manifests(with_helm: None) -> dict[str, Manifest]:  # noqa: ARG001  it renders them
    """By kind."""
    return {
        one["kind"]: one
        for one in rendered(EVERYTHING, namespace=NAMESPACE)
        if one["apiVersion"].startswith(GROUP)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_prometheus_operators_definition_takes_it(
    monitored: Kubectl, manifests: dict[str, Manifest], kind: str
):
    """Every field, strictly: one that is unknown or of another type is refused."""
    monitored.apply(manifests[kind], "--validate=strict")
    kept = monitored.get(kind.lower(), manifests[kind]["metadata"]["name"])

    assert kept["spec"].keys() >= manifests[kind]["spec"].keys()


@pytest.mark.parametrize("slip", [{"intervall": "30s"}, {"interval": "soon"}, {"scheme": "gopher"}])
def test_a_slip_in_it_is_refused(monitored: Kubectl, manifests: dict[str, Manifest], slip: dict[str, str]):
    """So the test above can fail."""
    (endpoint,) = manifests["PodMonitor"]["spec"]["podMetricsEndpoints"]
    spec = {**manifests["PodMonitor"]["spec"], "podMetricsEndpoints": [{**endpoint, **slip}]}

    with pytest.raises(KubectlError, match=next(iter(slip))):
        monitored.apply({**manifests["PodMonitor"], "spec": spec}, "--validate=strict")

"""The chart's monitors and rules match the CRDs of the Prometheus operator on a real API server."""

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
    """An API server with the CRDs of the Prometheus operator and a namespace. Both are deleted after the tests."""
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
def manifests(with_helm: None) -> dict[str, Manifest]:  # noqa: ARG001  it provides the Helm that renders them
    """The chart's objects for the Prometheus operator, by kind."""
    return {
        manifest["kind"]: manifest
        for manifest in rendered(EVERYTHING, namespace=NAMESPACE)
        if manifest["apiVersion"].startswith(GROUP)
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_prometheus_operators_crd_accepts_the_object(
    monitored: Kubectl, manifests: dict[str, Manifest], kind: str
):
    """The API server checks every field strictly, and refuses an unknown field or a wrong type."""
    monitored.apply(manifests[kind], "--validate=strict")
    stored = monitored.get(kind.lower(), manifests[kind]["metadata"]["name"])

    assert stored["spec"].keys() >= manifests[kind]["spec"].keys()


@pytest.mark.parametrize("wrong_field", [{"intervall": "30s"}, {"interval": "soon"}, {"scheme": "gopher"}])
def test_a_wrong_field_is_refused(
    monitored: Kubectl, manifests: dict[str, Manifest], wrong_field: dict[str, str]
):
    """This shows that the test above can fail."""
    (endpoint,) = manifests["PodMonitor"]["spec"]["podMetricsEndpoints"]
    spec = {**manifests["PodMonitor"]["spec"], "podMetricsEndpoints": [{**endpoint, **wrong_field}]}

    with pytest.raises(KubectlError, match=next(iter(wrong_field))):
        monitored.apply({**manifests["PodMonitor"], "spec": spec}, "--validate=strict")

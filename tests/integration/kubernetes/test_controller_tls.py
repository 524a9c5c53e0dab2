"""An operator with a certificate authority polls connectors with TLS and verifies the host name in their certificates."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorflow_operator.plan.names import SCHEME_ANNOTATION
from mirrorflow_operator.plan.pod_template import HTTP_PORT
from tests.harness.kafka.processes import start, wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.authority import Authority
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.harness.kubernetes.simulated_pods import mark_pods_running
from tests.harness.kubernetes.stub_connectors import addresses, stub_command
from tests.integration.kubernetes.controlled import manifest

PODS = 6  # pods of two flows
WAIT_S = 120.0
TLS = {"internalRest": {"tls": {"secretName": "rest"}}}


@pytest.fixture
def connectors(namespace: Kubectl, tmp_path: Path) -> Iterator[tuple[list[str], Path]]:
    """Returns addresses with one certificate, which is valid for the connectors of flow `proven`, and the path of its
    authority.
    """
    authority = Authority(tmp_path)
    names = (
        f"proven-{connector}.{namespace.namespace}.svc" for connector in ("source", "checkpoint", "heartbeat")
    )
    identity = authority.server("connectors", *names)
    block = random.randrange(200, 250)
    command = stub_command(HTTP_PORT, block, PODS, identity.certificate, identity.key)
    stubs = start("stubs", command, log=tmp_path / "stubs.log")
    try:
        yield addresses(block, PODS), authority.own.certificate
    finally:
        stubs.kill()


def _reason(namespace: Kubectl, flow: str, type_: str) -> tuple[str, str]:
    condition_ = condition(namespace.get("mirrorflow", flow), type_)
    return condition_.get("status", ""), condition_.get("reason", "")


def test_a_connector_is_trusted_only_if_the_certificate_has_its_name(
    mirrorflows: ApiServer, namespace: Kubectl, connectors: tuple[list[str], Path], tmp_path: Path
):
    """Two flows present the same certificate.

    The flow with the name in it is Ready, and the progress of the other is unknown.
    """
    user = mirrorflows.user(f"verifier-{namespace.namespace}", groups=["system:masters"])
    for flow in ("proven", "borrowed"):
        namespace.apply(manifest(flow, **TLS))
    pod_addresses, authority = connectors
    with OperatorProcess(
        kubeconfig=user.kubeconfig,
        folder=tmp_path,
        namespaces=[namespace.namespace],
        environment={
            "MIRRORFLOW_PROGRESS_CA": str(authority),
            "MIRRORFLOW_POLL_S": "0.5",
            "MIRRORFLOW_SETTLE_S": "0",
        },
    ):
        wait_until("every pod exists", lambda: len(namespace.get("pods")["items"]) == PODS, timeout_s=WAIT_S)
        pods = namespace.get("pods")["items"]
        requests = Requests(mirrorflows.kubectl.kubeconfig)
        assert mark_pods_running(requests, pod_addresses, namespace=namespace.namespace) == PODS
        wait_until(
            "the flow with its own certificate is Ready",
            lambda: _reason(namespace, "proven", "Ready") == ("True", "Replicating"),
            timeout_s=WAIT_S,
        )
        wait_until(
            "the other flow is not trusted",
            lambda: _reason(namespace, "borrowed", "Replicating") == ("Unknown", "ProgressUnknown"),
            timeout_s=WAIT_S,
        )

    assert {pod["metadata"]["annotations"][SCHEME_ANNOTATION] for pod in pods} == {"https"}

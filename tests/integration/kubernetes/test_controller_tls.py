"""An operator that knows an authority asks connectors over TLS, by the name that each of them must have a certificate for."""

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
from tests.harness.kubernetes.imagined_pods import run_pods
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.harness.kubernetes.stub_connectors import addresses, stub_command
from tests.integration.kubernetes.controlled import manifest

PODS = 6  # of two flows
WAIT_S = 120.0
TLS = {"internalRest": {"tls": {"secretName": "rest"}}}


@pytest.fixture
def connectors(namespace: Kubectl, tmp_path: Path) -> Iterator[tuple[list[str], Path]]:
    """Addresses that all show one certificate, for the connectors of the flow `proven`; and the authority of it."""
    authority = Authority(tmp_path)
    names = (f"proven-{one}.{namespace.namespace}.svc" for one in ("source", "checkpoint", "heartbeat"))
    own = authority.server("connectors", *names)
    block = random.randrange(200, 250)
    command = stub_command(HTTP_PORT, block, PODS, own.certificate, own.key)
    stubs = start("stubs", command, log=tmp_path / "stubs.log")
    try:
        yield addresses(block, PODS), authority.own.certificate
    finally:
        stubs.kill()


def _reason(namespace: Kubectl, flow: str, type_: str) -> tuple[str, str]:
    found = condition(namespace.get("mirrorflow", flow), type_)
    return found.get("status", ""), found.get("reason", "")


def test_a_connector_is_believed_by_the_name_in_its_certificate(
    mirrorflows: ApiServer, namespace: Kubectl, connectors: tuple[list[str], Path], tmp_path: Path
):
    """Of two flows that show the same certificate, the one that it is for is Ready; the other's progress is not known."""
    user = mirrorflows.user(f"verifier-{namespace.namespace}", groups=["system:masters"])
    for flow in ("proven", "borrowed"):
        namespace.apply(manifest(flow, **TLS))
    places, authority = connectors
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
        wait_until(
            "every pod is there", lambda: len(namespace.get("pods")["items"]) == PODS, timeout_s=WAIT_S
        )
        pods = namespace.get("pods")["items"]
        requests = Requests(mirrorflows.kubectl.kubeconfig)
        assert run_pods(requests, places, namespace=namespace.namespace) == PODS
        wait_until(
            "the flow with its own certificate is Ready",
            lambda: _reason(namespace, "proven", "Ready") == ("True", "Replicating"),
            timeout_s=WAIT_S,
        )
        wait_until(
            "the other is not believed",
            lambda: _reason(namespace, "borrowed", "Replicating") == ("Unknown", "ProgressUnknown"),
            timeout_s=WAIT_S,
        )

    assert {pod["metadata"]["annotations"][SCHEME_ANNOTATION] for pod in pods} == {"https"}

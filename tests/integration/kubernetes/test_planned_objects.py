"""A real API server takes the objects that are planned for a flow, and real controllers make their pods.

This proves what goldens cannot: every field is known, Pod Security's restricted standard lets the pods in, and what is
applied a second time changes nothing.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorflow_operator.api.load import parse_flow, read_document
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.settings import SEED_ACCOUNT
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.kubernetes.controlled import everything

VALID = sorted((Path(__file__).parents[2] / "examples" / "valid").glob("*.yaml"))


@pytest.fixture
def planned(namespace: Kubectl) -> Callable[[Path], list[Object]]:
    """The objects of an example in the test's own namespace, which holds pods to the restricted standard."""
    namespace("label", "namespace", namespace.namespace, "pod-security.kubernetes.io/enforce=restricted")
    namespace("create", "serviceaccount", SEED_ACCOUNT)  # the chart's

    def made(example: Path) -> list[Object]:
        document = dict(read_document(example.read_text()))
        document["metadata"]["namespace"] = namespace.namespace
        flow = parse_flow(document)
        return everything(flow, image="mirrorflow-replicator:test")

    return made


@pytest.mark.parametrize("example", VALID, ids=lambda path: path.stem)
def test_planned_objects_become_pods_and_do_not_change_when_applied_again(
    namespace: Kubectl, planned: Callable[[Path], list[Object]], example: Path
):
    """Strictly applied; every Deployment and Job gets its pods; a second time nothing differs."""
    found = planned(example)
    text = "\n---\n".join(json.dumps(one) for one in found)
    replicas = sum(one["spec"]["replicas"] for one in found if one["kind"] == "Deployment")
    replicas += sum(one["kind"] == "Job" for one in found)

    namespace.apply(text, "--validate=strict")
    wait_until("every pod is let in", lambda: len(namespace.get("pods")["items"]) == replicas)
    namespace("diff", "--server-side", "--filename=-", stdin=text)  # a difference is an error

    assert replicas >= 1

"""A real API server accepts the objects planned for a flow, and real controllers create their pods.

Golden files cannot show that every field is known, that Pod Security's restricted standard admits the pods, and that a
second apply changes nothing.
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
from tests.integration.kubernetes.controlled import all_objects

VALID = sorted((Path(__file__).parents[2] / "examples" / "valid").glob("*.yaml"))


@pytest.fixture
def planned(namespace: Kubectl) -> Callable[[Path], list[Object]]:
    """Plans the objects of an example in the test's namespace, which enforces the restricted standard."""
    namespace("label", "namespace", namespace.namespace, "pod-security.kubernetes.io/enforce=restricted")
    namespace("create", "serviceaccount", SEED_ACCOUNT)  # the chart creates it

    def plan_example(example: Path) -> list[Object]:
        document = dict(read_document(example.read_text()))
        document["metadata"]["namespace"] = namespace.namespace
        flow = parse_flow(document)
        return all_objects(flow, image="mirrorflow-replicator:test")

    return plan_example


@pytest.mark.parametrize("example", VALID, ids=lambda path: path.stem)
def test_planned_objects_get_pods_and_do_not_change_when_applied_again(
    namespace: Kubectl, planned: Callable[[Path], list[Object]], example: Path
):
    """Validation is strict. Every Deployment and Job gets its pods. The second apply has no difference."""
    manifests = planned(example)
    text = "\n---\n".join(json.dumps(manifest) for manifest in manifests)
    replicas = sum(manifest["spec"]["replicas"] for manifest in manifests if manifest["kind"] == "Deployment")
    replicas += sum(manifest["kind"] == "Job" for manifest in manifests)

    namespace.apply(text, "--validate=strict")
    wait_until("every pod is admitted", lambda: len(namespace.get("pods")["items"]) == replicas)
    namespace("diff", "--server-side", "--filename=-", stdin=text)  # a difference is an error

    assert replicas >= 1

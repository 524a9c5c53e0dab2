"""Host aliases and ids of the pod template: in every pod of a flow, within the restricted Pod Security Standard."""

import json
from typing import Any

import pytest

from mirrorflow_operator.api.load import flow_of
from mirrorflow_operator.errors import InvalidSpecError
from mirrorflow_operator.plan.job_files import EXECUTOR_FILE
from mirrorflow_operator.plan.jobs import job_objects
from mirrorflow_operator.plan.layout import POD_LAYOUT
from mirrorflow_operator.plan.objects import Object, objects
from mirrorflow_operator.plan.plan import plan
from mirrorflow_operator.plan.rollouts import reasons_to_roll
from mirrorflow_operator.plan.runs import Runs, SparkDefaults
from tests.unit.control_plane.observations import document, mirror_flow

ALIASES = [{"ip": "10.0.0.7", "hostnames": ["broker-0.internal", "broker-1.internal"]}]
IDS = {"runAsUser": 10_001, "runAsGroup": 10_002, "fsGroup": 10_003, "supplementalGroups": [10_004]}
TEMPLATE: dict[str, Any] = {"hostAliases": ALIASES, "securityContext": IDS}


def deployment(template: dict[str, Any]) -> Object:
    flow = mirror_flow(connectors={"source": {"template": template}})
    found = objects(flow, plan(flow, POD_LAYOUT), image="replicator:1", layout=POD_LAYOUT)
    return next(one for one in found if one["kind"] == "Deployment")


def test_a_connectors_pod_has_host_aliases_and_ids() -> None:
    pod = deployment(TEMPLATE)["spec"]["template"]["spec"]

    assert pod["hostAliases"] == ALIASES
    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        **IDS,
    }


def test_driver_and_executors_have_host_aliases_and_ids() -> None:
    """All pods of a job read the same brokers."""
    flow = mirror_flow(seed={"runId": "1", "template": TEMPLATE})
    found = job_objects(flow, Runs(seed=True), defaults=SparkDefaults(image="seed:1"), layout=POD_LAYOUT)
    driver = next(one for one in found if one["kind"] == "Job")["spec"]["template"]["spec"]
    files = next(one for one in found if one["kind"] == "ConfigMap")["data"]
    executor = json.loads(files[EXECUTOR_FILE])["spec"]

    for pod in (driver, executor):
        assert (pod["hostAliases"], pod["securityContext"]["runAsUser"]) == (ALIASES, 10_001)


def test_a_template_without_them_adds_nothing() -> None:
    """Another template would replace pods when the operator is upgraded."""
    pod = deployment({})["spec"]["template"]["spec"]

    assert "hostAliases" not in pod
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ({"securityContext": {"runAsUser": 0}}, "securityContext.runAsUser"),
        ({"securityContext": {"fsGroup": 0}}, "securityContext.fsGroup"),
        ({"securityContext": {"supplementalGroups": [0]}}, "securityContext.supplementalGroups[0]"),
        ({"securityContext": {"runAsNonRoot": False}}, "securityContext.runAsNonRoot"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, "securityContext.seccompProfile"),
        ({"securityContext": {"sysctls": []}}, "securityContext.sysctls"),
        ({"hostAliases": [{"ip": "broker", "hostnames": ["a"]}]}, "hostAliases[0].ip"),
        ({"hostAliases": [{"ip": "10.0.0.7", "hostnames": []}]}, "hostAliases[0].hostnames"),
        ({"hostAliases": [{"ip": "10.0.0.7", "hostnames": ["A_b"]}]}, "hostAliases[0].hostnames[0]"),
    ],
)
def test_ids_that_a_restricted_namespace_refuses_are_refused(template: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidSpecError) as found:
        flow_of(document(connectors={"source": {"template": template}}))

    assert [one.path for one in found.value.errors] == [f"spec.connectors.source.template.{path}"]


@pytest.mark.parametrize(
    ("part", "word"), [("hostAliases", "host aliases"), ("securityContext", "security context")]
)
def test_a_change_of_them_replaces_pods(part: str, word: str) -> None:
    old, new = deployment({}), deployment({part: TEMPLATE[part]})

    assert reasons_to_roll(old, new, {}, {}) == (word,)


@pytest.mark.parametrize("part", ["hostAliases", "securityContext"])
def test_connectors_of_a_shared_pod_use_the_hosts_template(part: str) -> None:
    connectors = {"colocate": ["source", "checkpoint"], "checkpoint": {"template": {part: TEMPLATE[part]}}}

    with pytest.raises(InvalidSpecError, match="the connector runs in the pod of source"):
        flow_of(document(connectors=connectors))

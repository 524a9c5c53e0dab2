"""The facts that the operator reads from API objects."""

from pathlib import Path
from typing import Any

import yaml

from mirrorflow_operator.cluster.observed_objects import cached_flow, observed_pod

SMALLEST = Path(__file__).parents[3] / "examples" / "valid" / "smallest.yaml"


def _body(status: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(SMALLEST.read_text())
    body["metadata"] |= {"namespace": "default", "uid": "1", "resourceVersion": "7", "generation": 2}
    return body | {"status": status}


def test_the_pinned_version_is_read_from_a_status_of_a_different_release() -> None:
    """Otherwise the operator would use its default version and roll all connectors of the flow."""
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Replicating",
        "lastTransitionTime": "2026-11-22T00:00:00Z",
    }
    cached = cached_flow(
        _body(
            {
                "observedGeneration": 2,
                "version": "0.9.0",
                "lag": "a bucket of a later release",
                "conditions": [condition, {"type": "Later", "status": "Perhaps"}],
                "later": {"field": 1},
            }
        )
    )

    status = cached.resource.status
    assert ("0.9.0", 2, ["Ready"]) == (
        status.version,
        status.observed_generation,
        [condition.type for condition in status.conditions],
    )


def test_a_flow_that_is_nested_too_deeply_is_invalid() -> None:
    """The API server stores it, because the schema does not describe affinity. Reading it must not end the operator of all flows."""
    body, affinity = _body({}), dict[str, Any]()
    for _ in range(5_000):
        affinity = {"nodeAffinity": affinity}
    body["spec"]["connectors"] = {"source": {"template": {"affinity": affinity}}}

    (error,) = cached_flow(body).resource.errors

    assert error.path.startswith("spec.connectors.source.template.affinity.nodeAffinity")
    assert error.message == "it is nested deeper than 64 levels"


def test_fields_of_a_newer_crd_are_ignored_and_reported() -> None:
    """After a rollback of the operator, the newer CRD stays and adds the defaults of its fields to all flows."""
    body = _body({})
    known = cached_flow(body).resource
    body["spec"] |= {"newer": "as ever", "topics": {**body["spec"].get("topics", {}), "later": {"a": 1}}}

    observed = cached_flow(body).resource

    assert observed.errors == ()
    assert observed.flow is not None
    assert observed.flow == known.flow
    assert ["spec.topics.later", "spec.newer"] == sorted(
        (error.path for error in observed.newer_fields), key=len, reverse=True
    )
    assert str(observed.newer_fields[-1]).endswith(
        ": this operator is older than the field, which has no effect; upgrade the operator."
    )


def test_a_wrong_value_is_an_error_despite_a_field_of_a_newer_crd() -> None:
    body = _body({})
    body["spec"] |= {"newer": "as ever", "isolationLevel": "later"}

    observed = cached_flow(body).resource

    assert observed.flow is None
    assert ["spec.isolationLevel"] == [error.path for error in observed.errors]


def test_the_waiting_reason_of_a_pod_is_that_of_its_failing_init_container() -> None:
    """While an init container fails, the other containers only have the reason PodInitializing."""
    own = {"name": "replicator", "state": {"waiting": {"reason": "PodInitializing"}}}
    failing = {
        "name": "fetch",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        "lastState": {"terminated": {"exitCode": 7, "reason": "Error"}},
    }
    starting = {"name": "fetch", "state": {"waiting": {"reason": "PodInitializing"}}}

    def waiting_reason(init: dict[str, Any]) -> tuple[str | None, int | None]:
        pod = observed_pod(
            {
                "metadata": {"name": "p", "uid": "1"},
                "spec": {"containers": [{"name": "replicator", "image": "x"}]},
                "status": {"initContainerStatuses": [init], "containerStatuses": [own]},
            }
        )
        return pod.waiting_reason, pod.exit_code

    assert waiting_reason(failing) == ("CrashLoopBackOff", 7)
    assert waiting_reason(starting) == ("PodInitializing", None)

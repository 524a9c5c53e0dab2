"""The facts that the operator keeps of an API object."""

from pathlib import Path
from typing import Any

import yaml

from mirrorflow_operator.cluster.observed_objects import cached_flow, observed_pod

SMALLEST = Path(__file__).parents[3] / "examples" / "valid" / "smallest.yaml"


def _body(status: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = yaml.safe_load(SMALLEST.read_text())
    body["metadata"] |= {"namespace": "default", "uid": "1", "resourceVersion": "7", "generation": 2}
    return body | {"status": status}


def test_a_pinned_version_survives_a_status_that_another_release_has_written() -> None:
    """Without it the operator would take its own default, and roll every connector of the flow."""
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Replicating",
        "lastTransitionTime": "2026-11-22T00:00:00Z",
    }
    seen = cached_flow(
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

    status = seen.resource.status
    assert ("0.9.0", 2, ["Ready"]) == (
        status.version,
        status.observed_generation,
        [one.type for one in status.conditions],
    )


def test_fields_of_a_newer_crd_are_ignored_and_named() -> None:
    """Such a CRD stays when an operator is rolled back, and gives every flow the defaults of its fields."""
    body = _body({})
    known = cached_flow(body).resource
    body["spec"] |= {"newer": "as ever", "topics": {**body["spec"].get("topics", {}), "later": {"a": 1}}}

    seen = cached_flow(body).resource

    assert seen.errors == ()
    assert seen.flow is not None
    assert seen.flow == known.flow
    assert ["spec.topics.later", "spec.newer"] == sorted(
        (one.path for one in seen.newer_fields), key=len, reverse=True
    )
    assert str(seen.newer_fields[-1]).endswith(
        ": this operator is older than the field, which has no effect; upgrade the operator."
    )


def test_a_wrong_value_beside_a_field_of_a_newer_crd_is_an_error() -> None:
    body = _body({})
    body["spec"] |= {"newer": "as ever", "isolationLevel": "later"}

    seen = cached_flow(body).resource

    assert seen.flow is None
    assert ["spec.isolationLevel"] == [one.path for one in seen.errors]


def test_a_pod_waits_for_the_reason_of_its_init_container() -> None:
    """Its own container says only PodInitializing, for as long as an init container fails."""
    own = {"name": "replicator", "state": {"waiting": {"reason": "PodInitializing"}}}
    failing = {
        "name": "fetch",
        "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
        "lastState": {"terminated": {"exitCode": 7, "reason": "Error"}},
    }
    starting = {"name": "fetch", "state": {"waiting": {"reason": "PodInitializing"}}}

    def seen(init: dict[str, Any]) -> tuple[str, int | None]:
        pod = observed_pod(
            {
                "metadata": {"name": "p", "uid": "1"},
                "spec": {"containers": [{"name": "replicator", "image": "x"}]},
                "status": {"initContainerStatuses": [init], "containerStatuses": [own]},
            }
        )
        return pod.waiting_reason, pod.exit_code

    assert seen(failing) == ("CrashLoopBackOff", 7)
    assert seen(starting) == ("PodInitializing", None)

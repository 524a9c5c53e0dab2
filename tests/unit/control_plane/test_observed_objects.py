"""The facts that the operator keeps of an API object."""

from pathlib import Path
from typing import Any

import yaml

from mirrorflow_operator.cluster.observed_objects import cached_flow, observed_pod

SMALLEST = Path(__file__).parents[2] / "examples" / "valid" / "smallest.yaml"


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

"""The facts that the operator keeps of an API object."""

from pathlib import Path
from typing import Any

import yaml

from mirrorflow_operator.cluster.observed_objects import cached_flow

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

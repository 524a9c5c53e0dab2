"""The condition SchemasInSync is derived from the report of the schema connector's pod."""

import json
from typing import Any

import pytest

from mirrorflow_operator.api.spec import State
from mirrorflow_operator.status.pod_reports import parse_reading
from mirrorflow_operator.status.replication import schemas_in_sync
from tests.unit.operator.observations import NOW_S, SCHEMAS, connector, observed, pod, reading


def summary(**schemas: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "state": "RUNNING",
        "uptimeSeconds": 600.0,
        "firstWarnings": ["Version 1 of orders-value (id 7) cannot be copied."],
        "schemas": {"missing": 0, "conflicts": 0, "ageSeconds": 3.0, "intervalSeconds": 5.0, **schemas},
    }


def condition(value: dict[str, Any]) -> tuple[str, str, str]:
    read = parse_reading(json.dumps(value).encode(), read_at_s=NOW_S)
    in_sync = schemas_in_sync(
        observed(connectors=(connector(SCHEMAS, pods=(pod(reading=read),)),)), State.RUNNING
    )
    assert in_sync is not None
    return in_sync.status.value, in_sync.reason.value, in_sync.message


@pytest.mark.parametrize(
    ("schemas", "status", "reason"),
    [
        ({}, "True", "InSync"),
        ({"conflicts": 2, "missing": 2}, "False", "ConflictsFound"),
        ({"ageSeconds": 500.0}, "False", "Stale"),
        ({"ageSeconds": 500.0, "intervalSeconds": 300.0}, "True", "InSync"),
        ({"ageSeconds": None, "missing": 900}, "Unknown", "Starting"),
    ],
)
def test_the_condition_follows_the_last_pass(schemas: dict[str, Any], status: str, reason: str) -> None:
    assert condition(summary(**schemas))[:2] == (status, reason)


def test_the_condition_names_a_schema_conflict() -> None:
    assert "orders-value (id 7)" in condition(summary(conflicts=1))[2]


def test_a_registry_that_cannot_be_used_is_the_reason() -> None:
    reasons = [{"reason": "RegistryUnreachable", "count": 1}]
    status, reason, message = condition({**summary(), "state": "FAILED", "reasons": reasons})

    assert (status, reason) == ("False", "Stale")
    assert "RegistryUnreachable" in message


def test_a_flow_without_registries_has_no_condition_for_schemas() -> None:
    assert (
        schemas_in_sync(observed(connectors=(connector(pods=(pod(reading=reading()),)),)), State.RUNNING)
        is None
    )

"""Turns what a schema connector reports into the part of a flow's page about schemas. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_console.flow_views import Level
from mirrorflow_console.runbook import Advice, advice_for

CONFLICTS_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaView:
    """The schemas of a flow; `conflicts` are sentences with subject, version and id, the first of `conflicts_total`."""

    level: Level
    problem: str  # why the registries cannot be compared; "" if they can
    subjects: int
    versions: int
    present: int
    age_s: float | None
    conflicts: tuple[str, ...]
    conflicts_total: int
    advice: Advice | None


def schema_view(
    companions: Sequence[Mapping[str, Any]], own_pod: Mapping[str, Any] | None
) -> SchemaView | None:
    """Returns the view of the schema connector among *companions*, else of that in a pod of its own; None if there is none."""
    received = next((row for row in companions if row.get("schemas")), own_pod)
    if received is None:
        return None
    schemas = received["schemas"]
    problem = str(received["message"] or received["reason"]) if received["state"] == "FAILED" else ""
    present = max(0, schemas["versions"] - schemas["missing"])
    if problem or schemas["conflicts"]:
        level = Level.WARNING
    elif schemas["ageSeconds"] is None or schemas["missing"]:
        level = Level.WAITING
    else:
        level = Level.FINE
    return SchemaView(
        level=level,
        problem=problem,
        subjects=schemas["subjects"],
        versions=schemas["versions"],
        present=present,
        age_s=schemas["ageSeconds"],
        conflicts=tuple(received["warnings"][:CONFLICTS_SHOWN]) if schemas["conflicts"] else (),
        conflicts_total=schemas["conflicts"],
        advice=advice_for("ConflictsFound") if schemas["conflicts"] else None,
    )

"""Golden files: expected texts, most of them stored as differences from one full example.

`MIRRORFLOW_REWRITE_GOLDENS=1 pytest tests/unit/operator` rewrites them.
"""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mirrorflow_operator.status.conditions import ConditionType

STATUSES = Path(__file__).parents[1] / "examples" / "statuses"
FULL_STATUS = "advancing"  # the other recorded statuses are differences from this one
CONDITION_ORDER = [kind.value for kind in ConditionType]
STATUS_NAMES = sorted(path.stem for path in STATUSES.glob("*.yaml"))


def check_golden(path: Path, text: str) -> None:
    """Asserts that *text* is the content of the golden file *path*, or writes it there."""
    if os.environ.get("MIRRORFLOW_REWRITE_GOLDENS"):
        path.write_text(text)
    assert path.read_text() == text


def text_difference(full: str, text: str) -> str:
    """Returns a unified diff without line numbers, so that a change of both texts does not change it."""
    lines = difflib.unified_diff(full.splitlines(), text.splitlines(), n=1, lineterm="")
    return "".join(f"{'@@' if line.startswith('@@') else line}\n" for line in list(lines)[2:])


def difference(full: Any, other: Any) -> Any:
    """Returns the changes with which `apply_difference` makes *other* from *full*; None means a missing key.

    Lists of conditions are compared by type; other lists are replaced as a whole.
    """
    if _are_conditions(full, other):
        return difference(_by_type(full), _by_type(other))
    if not (isinstance(full, dict) and isinstance(other, dict)):
        return other
    changed = {
        key: difference(full[key], value) if key in full else value
        for key, value in other.items()
        if key not in full or full[key] != value
    }
    return changed | {key: None for key in full if key not in other}


def apply_difference(full: Any, changes: Any) -> Any:
    """Returns *full* with *changes*, as `difference` returned them."""
    if _are_conditions(full, full) and isinstance(changes, dict):
        conditions = apply_difference(_by_type(full), changes)
        return [{"type": kind, **conditions[kind]} for kind in CONDITION_ORDER if kind in conditions]
    if not (isinstance(full, dict) and isinstance(changes, dict)):
        return changes
    merged = full | {
        key: apply_difference(full[key], value) if key in full else value for key, value in changes.items()
    }
    return {key: value for key, value in merged.items() if value is not None}


def recorded_status(name: str) -> dict[str, Any]:
    """Returns the whole flow with the status that is recorded under *name*."""
    full = _read(FULL_STATUS)
    flow: dict[str, Any] = full if name == FULL_STATUS else apply_difference(full, _read(name))
    return flow


def _read(name: str) -> Any:
    # libyaml's parser needs a tenth of the time, and there are some sixty files.
    return yaml.load((STATUSES / f"{name}.yaml").read_text(), yaml.CSafeLoader)


def _are_conditions(*values: Any) -> bool:
    return all(
        isinstance(value, list) and value and all("type" in item for item in value) for value in values
    )


def _by_type(conditions: list[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        condition["type"]: {key: value for key, value in condition.items() if key != "type"}
        for condition in conditions
    }

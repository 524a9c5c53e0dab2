"""A pod may report anything: a value of the wrong type is left out, and never ends a pass."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mirrorflow_operator.status.pod_reports import parse_reading, parse_report
from mirrorflow_operator.status.source_ends import parse_source_ends
from mirrorflow_operator.status.switchover_reports import parse_switchover_report

TIME = "2026-11-30T10:00:00Z"
SIDE = {"reach": "Unreachable", "sinceSeconds": 3, "clusterId": "a", "message": "m", "reason": "R"}
PROGRESS = {
    "version": 1, "state": "RUNNING", "uptimeSeconds": 3, "tasks": {"failed": 1}, "partitions": {"total": 3},
    "lagSeconds": 1.5, "replicating": "Advancing", "reasons": [{"reason": "A", "count": 2, "example": "e"}],
    "firstWarnings": ["a"], "source": SIDE, "missing": {"path": "/mnt/mirrorflow/secrets/a", "key": "k"},
    "checkpoints": {"groups": 1, "ageSeconds": 3}, "schemas": {"missing": 1},
}  # fmt: skip
JOB = {
    "version": 1, "job": "seed", "phase": "Succeeded", "partitions": {"total": 1}, "windows": {"total": 1},
    "cost": {"bytesRead": 1}, "records": 1, "wave": 1, "guarantee": "exactly-once", "archivedTime": TIME, "message": "m",
}  # fmt: skip
SWITCHOVER = {
    "version": 1, "job": "switchover", "switchover": "a/b", "state": "Done", "since": TIME, "reason": "r", "source": "e",
    "epoch": 1, "mayCopyBack": True, "writesRefusedMs": 3, "seal": {"partitions": 1, "sha256": "ab"},
    "loss": {"topics": [{"topic": "a"}]}, "states": [{"state": "A", "entered": TIME}],
    "canary": {"passed": True, "seconds": {"copied": 1}}, "notes": ["n"],
}  # fmt: skip
ENDS = {
    "partitions": [{"topic": "a", "partition": 1, "sourceEndOffset": 1, "sourceOffset": 1, "connector": "c"}],
    "connectors": [{"connector": "c", "source": SIDE}],
}
WRONG: tuple[Any, ...] = (
    None,
    [],
    {},
    [[]],
    {"a": []},
    True,
    -1,
    1e308,
    10**400,
    "",
    "x" * 300,
    "\ud800",
    [None],
    TIME,
)
PARSERS: dict[str, tuple[Callable[[bytes], object], dict[str, Any]]] = {
    "progress": (lambda body: parse_reading(body, read_at_s=1.0), PROGRESS),
    "job": (lambda body: parse_report(body.decode()), JOB),
    "switchover": (parse_switchover_report, SWITCHOVER),
    "source ends": (lambda body: parse_source_ends(body, now_s=9.0), ENDS),
}


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of each value below *value*."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield (*path, key)
        yield from _paths(value[key], (*path, key))


@pytest.mark.parametrize("name", PARSERS)
def test_a_value_of_the_wrong_type_anywhere_is_no_error(name: str) -> None:
    parse, document = PARSERS[name]
    for *above, last in _paths(document):
        for wrong in WRONG:
            changed = copy.deepcopy(document)
            below: Any = changed
            for key in above:
                below = below[key]
            below[last] = wrong

            parse(json.dumps(changed).encode())

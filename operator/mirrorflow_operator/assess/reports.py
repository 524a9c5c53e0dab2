"""Parses a Spark driver's `GET /progress` or termination message into a Report. Pure and total.

As in `progress`, which parses the connectors', every part is bounded and unknown fields are ignored. The
writer is mirrorflow_seed's `report`; a test compares the two.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.api.status import Cost, SeedPartitions, Windows
from mirrorflow_operator.assess.findings import bounded
from mirrorflow_operator.assess.json_values import VERSIONS, count, matching, number, object_at
from mirrorflow_operator.plan.runs import RunKind

MESSAGE_MAX: Final = 500  # characters of the job's own message
COUNT_MAX: Final = 2**53  # the largest integer that every JSON reader represents exactly
_GUARANTEE: Final = re.compile(r"[a-z-]{1,64}")
_KINDS: Final = {kind.value: kind for kind in RunKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The progress of a job at one moment; figures of another kind of job are zero."""

    kind: RunKind
    is_done: bool = False  # it ran to its end, whatever it found
    partitions: SeedPartitions
    records: int = 0
    bytes: int = 0
    remaining_records: int = 0
    gap_records: int = 0
    records_per_s: int = 0
    bytes_per_s: int = 0
    estimated_s: int | None = None
    guarantee: str = ""
    windows: Windows
    source_records: int = 0
    target_records: int = 0
    differences: int = 0
    cost: Cost
    message: str = ""


def report_of(text: str) -> Report | None:
    """Parses *text* into a report; None where it is none, such as the last log lines of a crashed driver."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return read_report(value) if isinstance(value, dict) else None


def read_report(value: Mapping[str, Any]) -> Report | None:
    """Parses decoded JSON into a report, as `report_of` does."""
    kind = _KINDS.get(str(value.get("job")))
    if kind is None or value.get("version") not in VERSIONS:
        return None
    partitions, windows, cost = (object_at(value, key) for key in ("partitions", "windows", "cost"))
    estimated, message = number(value.get("estimatedSeconds")), value.get("message")
    return Report(
        kind=kind,
        is_done=value.get("phase") == "Succeeded",
        partitions=SeedPartitions(
            total=_count(partitions.get("total")),
            done=_count(partitions.get("done")),
            lost=_count(partitions.get("lost")),
        ),
        records=_count(value.get("records")),
        bytes=_count(value.get("bytes")),
        remaining_records=_count(value.get("remainingRecords")),
        gap_records=_count(value.get("gapRecords")),
        records_per_s=_count(value.get("recordsPerSecond")),
        bytes_per_s=_count(value.get("bytesPerSecond")),
        estimated_s=None if estimated is None else _count(estimated),
        guarantee=matching(_GUARANTEE, value.get("guarantee")),
        windows=Windows(**{name: _count(windows.get(name)) for name in Windows.model_fields}),
        source_records=_count(value.get("sourceRecords")),
        target_records=_count(value.get("targetRecords")),
        differences=_count(value.get("differences")),
        cost=Cost(
            executor_seconds=_count(cost.get("executorSeconds")),
            bytes_read=_count(cost.get("bytesRead")),
            bytes_written=_count(cost.get("bytesWritten")),
        ),
        message=bounded(message, MESSAGE_MAX) if isinstance(message, str) else "",
    )


def _count(value: Any) -> int:
    return count(value, COUNT_MAX)

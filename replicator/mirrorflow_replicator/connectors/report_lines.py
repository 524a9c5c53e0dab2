"""The JSON lines in which a task process reports to its worker; `task_messages` has the other direction."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from mirrorflow_core.reports import (
    AcknowledgedPosition,
    Guarantee,
    PartitionPhase,
    PartitionReport,
    SideReport,
    TaskReport,
)

_PARTITION_FIELDS = tuple(field.name for field in fields(PartitionReport))
_row = attrgetter(*_PARTITION_FIELDS)
_TASK_FIELDS = tuple(field.name for field in fields(TaskReport) if field.name not in {"partitions", "errors"})


def encode_report(report: TaskReport) -> bytes:
    """Returns one JSON line. Partitions are arrays, because one line may have thousands."""
    body: dict[str, Any] = {name: getattr(report, name) for name in _TASK_FIELDS}
    body["errors"] = dict(report.errors)
    body["source"], body["target"] = asdict(report.source), asdict(report.target)
    body["partitions"] = [
        [value.value if isinstance(value, PartitionPhase | Guarantee) else value for value in _row(partition)]
        for partition in report.partitions
    ]
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode_report(line: bytes) -> TaskReport:
    """Returns the report in a line of `encode_report`."""
    body: Mapping[str, Any] = json.loads(line)
    partitions = []
    for row in body["partitions"]:
        values = dict(zip(_PARTITION_FIELDS, row, strict=True))
        values["phase"] = PartitionPhase(values["phase"])
        values["guarantee"] = Guarantee(values["guarantee"])
        partitions.append(PartitionReport(**values))
    return TaskReport(
        task=body["task"],
        state=body["state"],
        trace=body["trace"],
        reason=body["reason"],
        partitions=tuple(partitions),
        errors=body["errors"],
        throttle_ms=body["throttle_ms"],
        is_rate_limited=body["is_rate_limited"],
        refused_settings=tuple(body["refused_settings"]),
        offset_syncs=body["offset_syncs"],
        active_records=body["active_records"],
        buffer_free_bytes=body["buffer_free_bytes"],
        commit_ms=body["commit_ms"],
        warnings=tuple(body["warnings"]),
        source=SideReport(**body["source"]),
        target=SideReport(**body["target"]),
        sessions_ended=body["sessions_ended"],
        acknowledged=tuple(AcknowledgedPosition(*values) for values in body["acknowledged"]),
    )

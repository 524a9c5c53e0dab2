"""Builds the reports of partition copiers, and encodes task reports as JSON lines.

The worker decodes the lines that its task processes write.
"""

import json
from collections.abc import Iterable, Mapping
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
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier

# How long a loss after which the policy continued is its partition's reason: long enough for rare checks to
# see it, short enough that it is not taken for a new one a day later. The counter stays.
ALERT_SHOWN_MS = 3_600_000

_PHASES = {
    CopierState.ASKING: PartitionPhase.STARTING,
    CopierState.COPYING: PartitionPhase.COPYING,
    CopierState.STOPPED: PartitionPhase.STOPPED,
    CopierState.LEAVING: PartitionPhase.COPYING,
}
_PARTITION_FIELDS = tuple(field.name for field in fields(PartitionReport))
_row = attrgetter(*_PARTITION_FIELDS)
_TASK_FIELDS = tuple(field.name for field in fields(TaskReport) if field.name not in {"partitions", "errors"})


def partition_report(lane: PartitionCopier) -> PartitionReport:
    """Returns the current report of *lane*."""
    stream = lane.stream
    # One that was asked before and is asked again still counts as copying. One that stopped and is retried
    # counts as stopped until it copies again.
    phase = (
        PartitionPhase.COPYING if lane.state is CopierState.ASKING and lane.records else _PHASES[lane.state]
    )
    reason, message = _said(lane)
    next_offset = -1 if stream is None else stream.delivered.source_offset + 1
    return PartitionReport(
        topic=lane.topic,
        target_topic=lane.target_topic,
        partition=lane.partition,
        phase=PartitionPhase.STOPPED if lane.is_halted else phase,
        source_offset=next_offset,
        source_end_offset=lane.cursor.end_offset,
        target_offset=-1 if stream is None else stream.delivered.target_offset + 1,
        records=lane.records,
        bytes=lane.bytes,
        value_bytes=lane.bytes,
        batches_raw=lane.packer.raw,
        batches_coalesced=lane.packer.coalesced,
        batches_reencoded=lane.packer.reencoded,
        skipped_records=lane.skipped,
        lost_records=lane.lost_records,
        losses=lane.losses,
        refused_writes=lane.refused_writes,
        record_timestamp_ms=lane.record_timestamp_ms,
        record_age_ms=lane.age_ms,
        latency_ms=lane.latency_ms,
        reached_start_end=stream is not None and 0 <= lane.start_end <= next_offset,
        guarantee=guarantee_of(lane),
        guarantee_reason=lane.around.unfenced_why,
        reason=reason,
        message=message,
        stalled_since_ms=-1 if lane.stalled is None else lane.stalled.since_ms,
    )


def active_records(lanes: Iterable[PartitionCopier]) -> int:
    """Returns the number of records of *lanes* that are sent and not yet acknowledged."""
    return sum(span.count for lane in lanes if lane.stream is not None for span in lane.stream.in_flight)


def guarantee_of(lane: PartitionCopier) -> Guarantee:
    """Returns what holds for *lane* now."""
    return Guarantee.EXACTLY_ONCE if lane.around.is_fenced else Guarantee.AT_LEAST_ONCE


def _said(lane: PartitionCopier) -> tuple[str, str]:
    """Returns reason and message of what delays *lane*.

    That is what stopped it, else its stall, a transient error, or a recent loss.
    """
    error = lane.error
    if lane.stalled is not None and not lane.is_halted:
        stall = lane.stalled.stall
        return stall.reason, stall.sentence
    if error is None and lane.around.now_ms - lane.alerted_ms < ALERT_SHOWN_MS:
        error = lane.alert
    return ("", "") if error is None else (error.reason, str(error))


def encode_report(report: TaskReport) -> bytes:
    """Returns one JSON line. Partitions are arrays, because one line may have thousands."""
    body: dict[str, Any] = {name: getattr(report, name) for name in _TASK_FIELDS}
    body["errors"] = dict(report.errors)
    body["source"], body["target"] = asdict(report.source), asdict(report.target)
    body["partitions"] = [
        [value.value if isinstance(value, PartitionPhase | Guarantee) else value for value in _row(one)]
        for one in report.partitions
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
        refused_settings=tuple(body["refused_settings"]),
        offset_syncs=body["offset_syncs"],
        active_records=body["active_records"],
        buffer_free_bytes=body["buffer_free_bytes"],
        commit_ms=body["commit_ms"],
        warnings=tuple(body["warnings"]),
        source=SideReport(**body["source"]),
        target=SideReport(**body["target"]),
        starts_ended=body["starts_ended"],
        acknowledged=tuple(AcknowledgedPosition(*one) for one in body["acknowledged"]),
    )

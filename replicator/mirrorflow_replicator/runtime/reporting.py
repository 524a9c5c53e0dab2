"""What a lane says of itself, as a value that can leave the process; and the JSON lines in which it leaves."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from operator import attrgetter
from typing import Any

from mirrorflow_replicator.flow.report import Guarantee, PartitionReport, Phase, SideReport, TaskReport
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.surroundings import State

# A loss that policy went on after is the news of its partition for so long: every look at it, however rare, sees it, and
# a day later nobody takes it for a new one. The counter stays.
ALERT_SHOWN_MS = 3_600_000

_PHASES = {
    State.ASKING: Phase.STARTING,
    State.COPYING: Phase.COPYING,
    State.WAITING: Phase.WAITING,
    State.STOPPED: Phase.STOPPED,
    State.LEAVING: Phase.COPYING,
}
_PARTITION_FIELDS = tuple(field.name for field in fields(PartitionReport))
_row = attrgetter(*_PARTITION_FIELDS)
_TASK_FIELDS = tuple(field.name for field in fields(TaskReport) if field.name not in {"partitions", "errors"})


def partition_report(lane: Lane) -> PartitionReport:
    """The report of *lane* now."""
    stream = lane.stream
    # Asked before and about to be asked again, it is still copying as far as anybody outside can tell; stopped, and
    # tried again without having moved since, it is stopped.
    phase = Phase.COPYING if lane.state is State.ASKING and lane.records else _PHASES[lane.state]
    is_recent = lane.around.now_ms - lane.alerted_ms < ALERT_SHOWN_MS
    said = lane.alert if lane.error is None and is_recent else lane.error
    next_offset = -1 if stream is None else stream.delivered.source_offset + 1
    return PartitionReport(
        topic=lane.topic,
        target_topic=lane.target_topic,
        partition=lane.partition,
        phase=Phase.STOPPED if lane.is_halted else phase,
        source_offset=next_offset,
        source_end_offset=lane.source_end,
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
        guarantee=lane.guarantee,
        guarantee_reason=lane.guarantee_reason,
        reason="" if said is None else said.reason,
        message="" if said is None else str(said),
    )


def encode_report(report: TaskReport) -> bytes:
    """One JSON line. Partitions are arrays, because there may be thousands in a line."""
    body: dict[str, Any] = {name: getattr(report, name) for name in _TASK_FIELDS}
    body["errors"] = dict(report.errors)
    body["source"], body["target"] = asdict(report.source), asdict(report.target)
    body["partitions"] = [
        [value.value if isinstance(value, Phase | Guarantee) else value for value in _row(one)]
        for one in report.partitions
    ]
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"


def decode_report(line: bytes) -> TaskReport:
    """The report in a line of `encode_report`."""
    body: Mapping[str, Any] = json.loads(line)
    partitions = []
    for row in body["partitions"]:
        values = dict(zip(_PARTITION_FIELDS, row, strict=True))
        values["phase"] = Phase(values["phase"])
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
        warnings=tuple(body["warnings"]),
        source=SideReport(**body["source"]),
        target=SideReport(**body["target"]),
    )

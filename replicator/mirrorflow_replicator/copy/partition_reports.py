"""Builds the reports of partition copiers."""

from collections.abc import Iterable

from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.reports import Guarantee, PartitionPhase, PartitionReport, known_number
from mirrorflow_core.stall_detection import StallReason
from mirrorflow_core.writer.position import WriteMode

# How long a loss after which the policy continued is its partition's reason: long enough for rare checks to
# see it, short enough that it is not taken for a new one a day later. The counter stays.
ALERT_SHOWN_MS = 3_600_000

_PHASES = {
    CopierState.RESUMING: PartitionPhase.STARTING,
    CopierState.COPYING: PartitionPhase.COPYING,
    CopierState.STOPPED: PartitionPhase.STOPPED,
    CopierState.LEAVING: PartitionPhase.COPYING,
}


def partition_report(copier: PartitionCopier, now_ms: int) -> PartitionReport:
    """Returns the report of *copier* at *now_ms* (wall clock)."""
    counts = copier.counts
    stream = copier.stream
    # One that has copied and is resynced still counts as copying. One that stopped and is retried
    # counts as stopped until it copies again.
    phase = (
        PartitionPhase.COPYING
        if copier.state is CopierState.RESUMING and counts.records
        else _PHASES[copier.state]
    )
    reason, message = _reason_and_message(copier, now_ms)
    next_offset = copier.settled_next_offset  # a kill aborts what follows it
    return PartitionReport(
        topic=copier.topic,
        target_topic=copier.target_topic,
        partition=copier.partition,
        phase=PartitionPhase.STOPPED if copier.health.is_halted else phase,
        source_offset=known_number(next_offset),
        source_end_offset=known_number(_source_end(copier)),
        target_offset=None if stream is None else stream.delivered.target_offset + 1,
        records=counts.records,
        bytes=counts.bytes,
        value_bytes=counts.bytes,
        batches_raw=copier.packer.raw,
        batches_coalesced=copier.packer.coalesced,
        batches_reencoded=copier.packer.reencoded,
        skipped_records=counts.skipped_records,
        lost_records=counts.lost_records,
        losses=counts.losses,
        refused_writes=counts.refused_writes,
        record_timestamp_ms=known_number(counts.record_timestamp_ms),
        record_age_ms=counts.age_ms if counts.age_ms >= 0 else None,
        latency_ms=counts.latency_ms if counts.latency_ms >= 0 else None,
        reached_start_end=0 <= copier.start_end <= next_offset,
        guarantee=guarantee_of(copier),
        guarantee_reason=copier.session.unfenced_reason,
        reason=reason,
        message=message,
        stalled_since_ms=None if copier.health.stalled is None else copier.health.stalled.since_ms,
        source_leader_epoch=known_number(copier.cursor.leader_epoch),
        target_leader_epoch=known_number(copier.target_epoch),
        write_mode=_write_mode(copier),
    )


def active_records(copiers: Iterable[PartitionCopier]) -> int:
    """Returns the number of records of *copiers* that are sent and not yet acknowledged."""
    return sum(
        span.count for copier in copiers if copier.stream is not None for span in copier.stream.in_flight
    )


def guarantee_of(copier: PartitionCopier) -> Guarantee:
    """Returns what holds for *copier* now."""
    return Guarantee.EXACTLY_ONCE if copier.session.is_fenced else Guarantee.AT_LEAST_ONCE


def _write_mode(copier: PartitionCopier) -> str | None:
    if copier.mode is None:
        return None
    return str((WriteMode.PLAIN if copier.mode.is_plain else WriteMode.TRANSACTION).value)


def _source_end(copier: PartitionCopier) -> int:
    """Returns where the source ends for *copier*; -1: unknown.

    While an open transaction stalls a reader of committed records, what it hides counts as not copied.
    """
    stalled, cursor = copier.health.stalled, copier.cursor
    is_held_back = stalled is not None and stalled.stall.reason == StallReason.OPEN_TRANSACTION.value
    return cursor.high_watermark if is_held_back and cursor.is_held_back else cursor.end_offset


def _reason_and_message(copier: PartitionCopier, now_ms: int) -> tuple[str | None, str | None]:
    """Returns reason and message of what delays *copier*.

    That is what stopped it, else its stall, a transient error, or a recent loss.
    """
    error = copier.health.error
    if copier.health.stalled is not None and not copier.health.is_halted:
        stall = copier.health.stalled.stall
        return stall.reason, stall.sentence
    if error is None and now_ms - copier.counts.alerted_ms < ALERT_SHOWN_MS:
        error = copier.counts.alert
    return (None, None) if error is None else (error.reason, str(error))

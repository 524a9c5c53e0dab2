"""Finds where a partition starts: after what its last writer copied, unless either log has changed since.

All functions are generators, see `broker_requests`.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final, NamedTuple

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.source_epochs import EpochStart, SourceEpochs, end_of, up_to
from mirrorflow_core.writer.broker_requests import (
    LeaderEpochEnd,
    LogEnd,
    Pause,
    Producer,
    ReadEnd,
    ReadEpochEnd,
    ReadOffsetMap,
    ReadSourceStart,
    SourceStart,
    Steps,
    ask,
)
from mirrorflow_core.writer.end_lookup import EndLookup, aborted_after, look_up_end, open_transactions
from mirrorflow_core.writer.flow_lock import RETRY_MS
from mirrorflow_core.writer.flow_plan import (
    FlowPlan,
    PartitionProblem,
    SourceLoss,
    TopicIds,
    WritePoint,
    was_recreated,
)
from mirrorflow_core.writer.position import WriteMode, WriterPosition
from mirrorflow_core.writer.transaction_log import SEQUENCES

MARKER_WAIT_MS: Final = 5_000  # a marker that takes longer is lost (KAFKA-20734, an unclean election)


@dataclass(frozen=True, slots=True)
class PartitionStart:
    """The start of one partition, before its position is stored."""

    point: WritePoint | None
    problem: PartitionProblem | None = None
    loss: SourceLoss | None = None
    open_transactions: Mapping[Producer, bool] = field(default_factory=dict)  # and whether to commit them
    has_unknown: bool = False  # transactions of other ids, which may be ours, are open or were aborted
    lacks_marker: bool = False  # of its fence, or of `open_transactions`: try again once it is there


def start_of_partition(
    plan: FlowPlan,
    producers: Mapping[str, Producer],
    partition: TopicPartition,
    position: WriterPosition | None,
    remembered: int | None = None,
) -> Steps[PartitionStart]:
    """Finds where the last writer ended, and whether either log has changed since.

    *remembered* is its last sequence number, where the log does not show it any more; -1: it wrote nothing.
    """
    if position is None:
        source_start, log_end = yield (ReadSourceStart(partition), ReadEnd(partition))
        return PartitionStart(_first_point(source_start, log_end))
    ids = plan.topic_ids.get(partition.topic, TopicIds())
    if was_recreated(position.target_topic, ids.copy):
        # The flow's naming has changed. The other topic keeps what it has.
        log_end = yield from ask(ReadEnd(partition))
        return PartitionStart(_point(position.next_source_offset, position, log_end))
    if was_recreated(position.target_topic_id, ids.target):
        return (yield from _start_in_new_target(plan, producers, partition, position))
    looked_up = yield from _fenced_lookup(producers, position)
    if looked_up is None:
        return PartitionStart(None, lacks_marker=True)
    lookup, log_end, kept = looked_up
    if _has_replaced(position, producers) and log_end.stable < log_end.end:
        return PartitionStart(None, lacks_marker=True)
    markers = yield from _missing_markers(producers, position, log_end, kept)
    if markers.has_unknown and _has_replaced(position, producers):
        # A transaction of the id that is busy may have been aborted although the position counts it.
        return PartitionStart(None, lacks_marker=True)
    kept = markers.kept
    if kept is not None:
        if markers.decisions:
            # They are written first: a commit that is interrupted becomes an abort, and then records are lost.
            return PartitionStart(
                None,
                lacks_marker=True,
                open_transactions=markers.decisions,
                has_unknown=markers.has_unknown,
            )
        mapped: int | None = yield from ask(ReadOffsetMap(partition, kept, position.generation))
        if mapped is not None:
            return PartitionStart(_point(mapped, position, log_end), has_unknown=markers.has_unknown)
    point = _point_after(position, lookup, log_end)
    problem = _problem_of_target(position, lookup, log_end, kept)
    if lookup.last_sequence is None and remembered is not None and kept is None:
        copied = (remembered - position.sequence) % SEQUENCES
        if copied <= deleted_offsets(position, log_end):
            problem = None
            if copied:
                # How the records lie on the target is unknown: a new count begins.
                point = _point(position.next_source_offset + copied, position, log_end)
    if problem is not None:
        loss = SourceLoss(position.next_source_offset, position.next_source_offset, problem)
        start = yield from _apply_loss_policy(plan, partition, loss, position, log_end)
    else:
        start = yield from _start_in_source(plan, position, point, log_end)
    return replace(start, open_transactions=markers.decisions, has_unknown=markers.has_unknown)


class _MissingMarkers(NamedTuple):
    """The transactions of a partition whose markers the target does not have, or had lost."""

    decisions: Mapping[Producer, bool]  # of ours that are open, and whether to commit them
    kept: int | None  # where the copy ends that consumers of committed records see, if they miss some of it
    has_unknown: bool  # whether others are open or were aborted


def _missing_markers(
    producers: Mapping[str, Producer], position: WriterPosition, log_end: LogEnd, kept: int | None
) -> Steps[_MissingMarkers]:
    """Finds transactions that have lost their markers; *kept* is where the target's loss begins.

    A transaction whose records the position counts was committed: both are in the same transaction. If the target has lost
    records, the position may count others: those that were copied again after the abort marker, which is lost, too.
    """
    partition = position.topic_partition
    by_id = {producer.producer_id: producer for producer in producers.values()}
    opened = yield from open_transactions(partition, log_end)
    decisions: dict[Producer, bool] = {}
    for producer_id, first in opened.items():
        if producer_id in by_id:
            is_counted = first < position.target_end
            if is_counted and kept is not None:
                is_counted = yield from _is_mapped(position, first)
            decisions[by_id[producer_id]] = is_counted
    has_new_leader = UNKNOWN < position.target_epoch < log_end.leader_epoch
    if not producers or (kept is None and not has_new_leader):
        return _MissingMarkers(decisions, kept, has_unknown=False)
    copied_end = position.target_end if kept is None else kept
    aborted = yield from aborted_after(partition, copied_end, log_end)
    lost = [first for producer_id, first in aborted.items() if producer_id in by_id]
    has_unknown = not (opened.keys() | aborted.keys()) <= by_id.keys()
    return _MissingMarkers(decisions, min(lost, default=kept), has_unknown)


def _is_mapped(position: WriterPosition, target_offset: int) -> Steps[bool]:
    """Returns whether the offset map has the record at *target_offset*, or does not show that it lacks it."""
    partition, generation = position.topic_partition, position.generation
    before: int | None = yield from ask(ReadOffsetMap(partition, target_offset, generation))
    after: int | None = yield from ask(ReadOffsetMap(partition, target_offset + 1, generation))
    return before is None or before != after


def _problem_of_target(
    position: WriterPosition, lookup: EndLookup, log_end: LogEnd, kept: int | None
) -> PartitionProblem | None:
    """Returns why the target's log does not show where the writer of *position* ended."""
    if kept is not None:
        return PartitionProblem.TARGET_LOST_RECORDS
    # Up to `plain_start` the log had only markers after the last record, and what others wrote.
    is_trimmed = deleted_offsets(position, log_end) > 0 and log_end.start > position.plain_start
    return PartitionProblem.TARGET_TRIMMED if lookup.last_sequence is None and is_trimmed else None


def deleted_offsets(position: WriterPosition, log_end: LogEnd) -> int:
    """Returns how many offsets after the last record of *position* are deleted, if its writer may have used them."""
    if position.open_writer is None or position.mode is not WriteMode.PLAIN or position.target_end == UNKNOWN:
        return 0
    return max(0, log_end.start - position.target_end)


def _point_after(position: WriterPosition, lookup: EndLookup, log_end: LogEnd) -> WritePoint:
    """Returns the point after what was copied since *position*."""
    point = _point(position.next_source_offset + lookup.copied, position, log_end)
    point = replace(point, was_cut_off=position.open_writer is not None)
    if position.records == UNKNOWN:
        return point
    return replace(
        point,
        records=position.records + lookup.copied,
        generation=position.generation,
        records_end=position.target_end if lookup.records_end == UNKNOWN else lookup.records_end,
    )


def _start_in_source(
    plan: FlowPlan, position: WriterPosition, point: WritePoint, log_end: LogEnd
) -> Steps[PartitionStart]:
    """Starts at *point*, or as the loss policy says if the source has changed since *position*."""
    if not plan.reads_source:
        return PartitionStart(point)
    partition, wanted, epoch = position.topic_partition, point.next_source_offset, point.source_epoch
    if was_recreated(position.source_topic_id, plan.topic_ids.get(position.topic, TopicIds()).source):
        first: SourceStart = yield from ask(ReadSourceStart(partition, from_beginning=True))
        loss = SourceLoss(wanted, first.offset, PartitionProblem.SOURCE_CREATED_AGAIN)
        unknown = replace(position, source_epoch=UNKNOWN, epochs=())
        return (yield from _apply_loss_policy(plan, partition, loss, unknown, log_end))
    if epoch != UNKNOWN:
        source_end, has_epoch = yield from end_in_source(partition, epoch, point.epochs)
        # A fetch that names an epoch of which the source has nothing would diverge again and again.
        end = min(wanted, source_end.end)
        epochs = point.epochs if has_epoch else up_to(point.epochs, source_end.epoch, end)
        known = replace(position, source_epoch=source_end.epoch, epochs=epochs)
        if UNKNOWN < source_end.end < wanted:
            loss = SourceLoss(wanted, source_end.end, PartitionProblem.SOURCE_REWRITTEN)
            return (yield from _apply_loss_policy(plan, partition, loss, known, log_end))
        if not has_epoch:
            point = replace(point, source_epoch=source_end.epoch, epochs=epochs)
    return PartitionStart(point)


def end_in_source(
    partition: TopicPartition, epoch: int, epochs: SourceEpochs
) -> Steps[tuple[LeaderEpochEnd, bool]]:
    """Returns up to where the source has what was copied, whose last records are of *epoch*, and whether it knows that epoch.

    A log without any record of an epoch may have other records of earlier epochs in their place. So it is asked for the
    earlier *epochs*, until it has one of them (KIP-279). The epoch that is returned is one that the source knows, so that
    fetches find it if the source loses records once more.
    """
    asked = epoch
    while True:
        known_end: LeaderEpochEnd = yield from ask(ReadEpochEnd(partition, asked, on_target=False))
        if known_end.epoch in (UNKNOWN, asked):
            break
        copied = [start.epoch for start in epochs if start.epoch <= known_end.epoch]
        if not copied or copied[-1] == known_end.epoch:
            break
        asked = copied[-1]
    knows_epoch = known_end.epoch in (UNKNOWN, epoch)
    end = None if knows_epoch else end_of(epochs, known_end.epoch)
    return known_end if end is None else known_end._replace(end=min(known_end.end, end)), knows_epoch


def _fenced_lookup(
    producers: Mapping[str, Producer], position: WriterPosition
) -> Steps[tuple[EndLookup, LogEnd, int | None] | None]:
    """Looks up the end of the position's writer once its fence stands: its marker is in the log. None: it is lost.

    Also returns where the log ends that the position knows, if the target has lost records since.
    """
    fence: Producer | None = None
    log_end: LogEnd
    if position.open_writer is not None:
        plain = producers[position.open_writer.plain]
        fence = plain if plain.producer_id == position.producer_id else None
    for _ in range(0, MARKER_WAIT_MS, RETRY_MS):
        kept: int = UNKNOWN
        if position.target_epoch != UNKNOWN:
            epoch_end: LeaderEpochEnd = yield from ask(
                ReadEpochEnd(position.topic_partition, position.target_epoch, on_target=True)
            )
            kept = epoch_end.end
        is_shorter = UNKNOWN < kept < position.target_end
        known = replace(position, target_end=kept) if is_shorter else position
        lookup = EndLookup(position=known, fence=fence)
        if position.open_writer is None:  # nothing was written after it
            log_end = yield from ask(ReadEnd(position.topic_partition))
        else:
            lookup, log_end = yield from look_up_end(lookup)
        if fence is None or lookup.is_fenced:
            return lookup, log_end, kept if is_shorter else None
        yield from ask(Pause(RETRY_MS))
    return None


def _has_replaced(position: WriterPosition, producers: Mapping[str, Producer]) -> bool:
    """Returns whether a spare replaces one of *producers*, whose transactions are unknown then.

    It need not be the one that the position names: its records may be older than a position that names the spare.
    """
    return position.writer is not None and any(
        producer.transactional_id != name for name, producer in producers.items()
    )


def _start_in_new_target(
    plan: FlowPlan, producers: Mapping[str, Producer], partition: TopicPartition, position: WriterPosition
) -> Steps[PartitionStart]:
    """Starts in a target topic that was created again: of what the last writer sent, it has what was in flight."""
    problem = PartitionProblem.TARGET_CREATED_AGAIN
    looked_up = yield from _fenced_lookup(producers, replace(position, target_end=0, target_epoch=UNKNOWN))
    if looked_up is None:
        return PartitionStart(None, lacks_marker=True)
    if plan.loss_policy is LossPolicy.FAIL:
        return PartitionStart(None, problem)
    lookup, log_end, _ = looked_up
    wanted = position.next_source_offset + lookup.copied
    point = _point(wanted, position, log_end)
    if plan.loss_policy is LossPolicy.RESTART:
        point = _first_point((yield from ask(ReadSourceStart(partition, from_beginning=True))), log_end)
    return PartitionStart(point, loss=SourceLoss(wanted, point.next_source_offset, problem))


def _apply_loss_policy(
    plan: FlowPlan,
    partition: TopicPartition,
    loss: SourceLoss,
    position: WriterPosition,
    log_end: LogEnd,
) -> Steps[PartitionStart]:
    """Returns the start of a partition for which it cannot be shown that each record arrives once.

    *position* has the leader epochs up to where it continues.
    """
    match plan.loss_policy:
        case LossPolicy.FAIL:
            return PartitionStart(None, loss.problem, loss)
        case LossPolicy.ALERT:
            return PartitionStart(_point(loss.found, position, log_end), loss=loss)
        case LossPolicy.RESTART:
            first: SourceStart = yield from ask(ReadSourceStart(partition, from_beginning=True))
            return PartitionStart(_first_point(first, log_end), loss=loss)


def _first_point(first: SourceStart, log_end: LogEnd) -> WritePoint:
    """Returns the point of a partition of which nothing is copied.

    With the leader epoch of its first record, plain batches need no other position before them.
    """
    epochs = (EpochStart(first.leader_epoch, first.offset),)
    return _write_point(first.offset, first.leader_epoch, epochs, log_end)


def _point(next_source_offset: int, position: WriterPosition, log_end: LogEnd) -> WritePoint:
    """Returns the point from which a new epoch writes, after source records with the leader epochs of *position*."""
    return _write_point(next_source_offset, position.source_epoch, position.epochs, log_end)


def _write_point(
    next_source_offset: int, source_epoch: int, epochs: SourceEpochs, log_end: LogEnd
) -> WritePoint:
    return WritePoint(
        next_source_offset=next_source_offset,
        source_epoch=source_epoch,
        epochs=epochs,
        sequence=UNKNOWN,
        target_end=log_end.end,
        target_epoch=log_end.leader_epoch,
        plain_start=log_end.end,
    )

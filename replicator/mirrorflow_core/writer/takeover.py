"""Takes partitions over: fences their last writers, finds where those ended, and stores the new positions.

All functions are generators, see `broker_requests`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import UNKNOWN
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.writer.broker_requests import (
    LeaderEpochEnd,
    LogEnd,
    Pause,
    Producer,
    ReadEnd,
    ReadEpochEnd,
    ReadIdleLimit,
    ReadLastSequence,
    ReadOffsetMap,
    ReadPositions,
    ReadSourceStart,
    Refused,
    Steps,
    Transaction,
    send,
    side_by_side,
)
from mirrorflow_core.writer.end_lookup import EndLookup, look_up_end, open_transactions
from mirrorflow_core.writer.flow_lock import RETRY_MS, read_claims, take_ids
from mirrorflow_core.writer.flow_plan import (
    FlowPlan,
    PartitionProblem,
    SourceLoss,
    TaskProducers,
    TaskStart,
    TopicIds,
    WritePoint,
    position_at,
)
from mirrorflow_core.writer.position import Form, WriterPosition
from mirrorflow_core.writer.stream import EpochRun
from mirrorflow_core.writer.transaction_log import SEQUENCES, DecidedRecords, decided_records
from mirrorflow_core.writer.transactional_ids import WriterIds

_POLL_MS: Final = 1_000
_MARKER_WAIT_MS: Final = 5_000  # a marker that takes longer is lost (KAFKA-20734, an unclean election)
_CONNECTIONS_CLOSED_MS: Final = 60_000  # added to connections.max.idle.ms
_CREATED_AGAIN: Final = "the source topic was deleted and created again"


@dataclass(frozen=True, slots=True)
class _Start:
    """The start of one partition, before its position is stored."""

    point: WritePoint | None
    problem: PartitionProblem | None = None
    loss: SourceLoss | None = None
    open_transactions: Mapping[Producer, bool] = field(default_factory=dict)  # and whether to commit them
    is_unfenced: bool = False  # the fence's marker did not come: fence again


def take_partitions(
    plan: FlowPlan,
    lock: Producer,
    producers: dict[str, Producer],
    wanted: Mapping[WriterIds, tuple[TopicPartition, ...]],
    acknowledged: Iterable[WriterPosition] = (),
) -> Steps[tuple[TaskStart, ...] | Refused]:
    """Fence the last writers of the partitions, find where they ended, and store the new positions.

    *acknowledged* is what those writers had no time to store.
    """
    partitions = [one for assigned in wanted.values() for one in assigned]
    stored = yield from _decided_positions(lock, producers, partitions)
    if isinstance(stored, Refused):
        return stored
    positions = {one: stored[one] for one in partitions if one in stored}
    owners = _owners(plan, partitions, stored)
    newest = positions | (
        yield from side_by_side(
            {
                one.topic_partition: _newer_position(positions[one.topic_partition], one)
                for one in acknowledged
                if one.topic_partition in positions
            }
        )
    )
    remembered = yield from _remembered_sequences(newest.values())
    refused = yield from _fence(plan, producers, positions.values())
    if refused is not None:
        return refused
    starts = yield from side_by_side(
        {
            one: _start_of_partition(plan, producers, one, newest.get(one), remembered.get(one, UNKNOWN))
            for one in partitions
            if one not in owners
        }
    )
    if any(start.is_unfenced for start in starts.values()):
        return Refused(UNKNOWN)
    refused = yield from _decide_open_transactions(starts)
    if refused is not None:
        return refused
    decided = {one: start.open_transactions for one, start in starts.items() if start.open_transactions}
    are_decided = yield from side_by_side({one: _is_decided(one, found) for one, found in decided.items()})
    if not all(are_decided.values()):
        return Refused(UNKNOWN)
    now_ms: int = yield from send(Pause(0))
    found: list[TaskStart] = []
    for ids, assigned in wanted.items():
        own = TaskProducers(transactional=producers[ids.transactional], plain=producers[ids.plain])
        task = yield from _start_task(plan, own, assigned, starts, owners, now_ms)
        if isinstance(task, Refused):
            return task
        found.append(task)
    return tuple(found)


def _decided_positions(
    lock: Producer, producers: dict[str, Producer], partitions: Iterable[TopicPartition]
) -> Steps[dict[TopicPartition, WriterPosition] | Refused]:
    """Read all positions until none of *partitions* is in an open transaction; adds producers that they name.

    They are read up to the high watermark: the open transaction of another task must not hide a committed one.
    """
    wanted = set(partitions)
    while True:
        found = yield from read_positions(lock)
        newest = {one.topic_partition: one for one in found.committed}
        ours = [one for partition, one in newest.items() if partition in wanted]
        undecided = [one for one in found.undecided if one.topic_partition in wanted]
        open_ids = {name for one in (*ours, *undecided) for name in one.writer or ()}
        if unknown := sorted(open_ids - producers.keys()):
            more = yield from take_ids(lock, unknown)
            if isinstance(more, Refused):
                return more
            producers |= more
        elif not undecided:
            return {one: position for one, position in newest.items() if position.next_source_offset >= 0}
        yield from send(Pause(RETRY_MS))


def _owners(
    plan: FlowPlan, partitions: Iterable[TopicPartition], stored: Mapping[TopicPartition, WriterPosition]
) -> dict[TopicPartition, str]:
    """Return the topics that were copied into the copies of *partitions* that were never copied themselves."""
    owners = {(one.target_topic, one.partition): one.topic for one in stored.values() if one.target_topic}
    found: dict[TopicPartition, str] = {}
    for one in sorted(set(partitions) - stored.keys()):
        copy = plan.topic_ids.get(one.topic, TopicIds()).copy
        if copy and owners.setdefault((copy, one.partition), one.topic) != one.topic:
            found[one] = owners[copy, one.partition]
    return found


def _fence(
    plan: FlowPlan, producers: Mapping[str, Producer], positions: Iterable[WriterPosition]
) -> Steps[Refused | None]:
    """End the plain epochs that the positions name: an empty aborted transaction under each id's new epoch."""
    fences: dict[Producer, list[TopicPartition]] = {}
    lost_at_ms = UNKNOWN
    for position in positions:
        if position.open_writer is None:
            continue
        producer = producers[position.open_writer.plain]
        if producer.producer_id == position.producer_id:
            fences.setdefault(producer, []).append(position.topic_partition)
        else:
            lost_at_ms = max(lost_at_ms, position.time_ms)
    answers: tuple[Any, ...] = ()
    if fences:
        answers = yield tuple(
            Transaction(producer, commit=False, partitions=tuple(found)) for producer, found in fences.items()
        )
    if lost_at_ms != UNKNOWN:
        yield from _wait_for_closed_connections(plan, lost_at_ms)
    return next((answer for answer in answers if isinstance(answer, Refused)), None)


def _wait_for_closed_connections(plan: FlowPlan, lost_at_ms: int) -> Steps[None]:
    """Wait until what a writer sent whose id was forgotten meets a closed connection: it cannot be fenced."""
    idle_ms: int = yield from send(ReadIdleLimit())
    claims = yield from read_claims()
    renewed = [one.time_ms for one in claims.committed if one.process != plan.claim.process]
    until_ms = max((lost_at_ms, *renewed[-1:])) + idle_ms + _CONNECTIONS_CLOSED_MS
    now_ms: int = yield from send(Pause(0))
    while now_ms < until_ms:
        now_ms = yield from send(Pause(min(until_ms - now_ms, _POLL_MS)))


def _remembered_sequences(positions: Iterable[WriterPosition]) -> Steps[dict[TopicPartition, int]]:
    """Return the last sequences of plain writers whose batches the target may have deleted, as its leaders remember them.

    They forget them when the writers are fenced. What is written in the meantime is in the log.
    """
    open_ones = [one for one in positions if one.open_writer is not None and one.form is Form.PLAIN]
    ends = (yield tuple(ReadEnd(one.topic_partition) for one in open_ones)) if open_ones else ()
    trimmed = [one for one, end in zip(open_ones, ends, strict=True) if _deleted_offsets(one, end)]
    asked = tuple(
        ReadLastSequence(one.topic_partition, one.producer_id, one.producer_epoch) for one in trimmed
    )
    answers = (yield asked) if asked else ()
    return {one.topic_partition: answer for one, answer in zip(trimmed, answers, strict=True)}


def _newer_position(stored: WriterPosition, acknowledged: WriterPosition) -> Steps[WriterPosition]:
    """Return *acknowledged* if it is of the same writer, newer than *stored*, and the target still has it.

    The log may not show it any more, because retention has removed the records since.
    """
    writer = acknowledged.producer_id, acknowledged.producer_epoch
    is_newer = acknowledged.next_source_offset > stored.next_source_offset
    if writer != (stored.producer_id, stored.producer_epoch) or not is_newer:
        return stored
    if acknowledged.target_epoch != UNKNOWN:
        found: LeaderEpochEnd = yield from send(
            ReadEpochEnd(acknowledged.topic_partition, acknowledged.target_epoch, on_target=True)
        )
        if UNKNOWN < found.end < acknowledged.target_end:
            return stored
    return acknowledged


def _start_of_partition(
    plan: FlowPlan,
    producers: Mapping[str, Producer],
    partition: TopicPartition,
    position: WriterPosition | None,
    remembered: int = UNKNOWN,
) -> Steps[_Start]:
    """Find where the last writer ended, and whether either log has changed since.

    *remembered* is its last sequence number, where the log does not show it any more.
    """
    if position is None:
        source_start, log_end = yield (ReadSourceStart(partition), ReadEnd(partition))
        return _Start(_point(source_start, UNKNOWN, log_end))
    ids = plan.topic_ids.get(partition.topic, TopicIds())
    if _is_another(position.target_topic, ids.copy):
        # The flow's naming has changed. The other topic keeps what it has.
        log_end = yield from send(ReadEnd(partition))
        return _Start(_point(position.next_source_offset, position.source_epoch, log_end))
    if _is_another(position.target_topic_id, ids.target):
        return (yield from _start_in_new_target(plan, producers, partition, position))
    looked_up = yield from _fenced_lookup(producers, position)
    if looked_up is None:
        return _Start(None, is_unfenced=True)
    found, log_end, kept = looked_up
    by_id = {one.producer_id: one for one in producers.values()}
    unmarked = yield from open_transactions(partition, log_end, by_id)
    writer = producers.get(position.writer.transactional) if position.writer is not None else None
    # The records of a transaction are committed if the position counts them: both are in the same transaction.
    decisions = {
        by_id[one]: kept is None and by_id[one] == writer and first < position.target_end
        for one, first in unmarked.items()
    }
    if kept is not None:
        mapped: int | None = yield from send(ReadOffsetMap(partition, min((kept, *unmarked.values()))))
        if mapped is not None:
            return _Start(_point(mapped, position.source_epoch, log_end), open_transactions=decisions)
    point = _point_behind(position, found, log_end)
    problem = _problem_of_target(position, found, log_end, kept)
    if found.last_sequence is None and remembered != UNKNOWN and kept is None:
        copied = (remembered - position.sequence) % SEQUENCES
        if copied <= _deleted_offsets(position, log_end):
            problem = None
            # How the records lie on the target is unknown: a new count begins.
            wanted = position.next_source_offset + copied
            point = replace(_point(wanted, position.source_epoch, log_end), epoch_run=point.epoch_run)
    if problem is not None:
        loss = SourceLoss(position.next_source_offset, position.next_source_offset, problem.value)
        start = yield from _apply_loss_policy(plan, partition, loss, problem, position.source_epoch, log_end)
    else:
        start = yield from _start_in_source(plan, position, point, log_end)
    return replace(start, open_transactions=decisions)


def _problem_of_target(
    position: WriterPosition, found: EndLookup, log_end: LogEnd, kept: int | None
) -> PartitionProblem | None:
    """Return why the target's log does not show where the writer of *position* ended."""
    if kept is not None:
        return PartitionProblem.TARGET_LOST_RECORDS
    # The first offset behind the position may be the marker of the transaction that the position is in.
    is_trimmed = found.last_sequence is None and _deleted_offsets(position, log_end) > 1
    return PartitionProblem.TARGET_TRIMMED if is_trimmed else None


def _deleted_offsets(position: WriterPosition, log_end: LogEnd) -> int:
    """Return how many offsets behind *position* are deleted that may have been plain batches of its writer."""
    if position.open_writer is None or position.form is not Form.PLAIN or position.target_end == UNKNOWN:
        return 0
    return max(0, log_end.start - position.target_end)


def _point_behind(position: WriterPosition, found: EndLookup, log_end: LogEnd) -> WritePoint:
    """Return the point behind what was copied since *position*."""
    point = _point(position.next_source_offset + found.copied, position.source_epoch, log_end)
    run = EpochRun(position.source_epoch, position.epoch_first_offset, position.previous_epoch)
    point = replace(point, epoch_run=run, was_cut_off=position.open_writer is not None)
    if position.records == UNKNOWN:
        return point
    return replace(
        point,
        records=position.records + found.copied,
        counting=position.counting,
        records_end=position.target_end if found.records_end == UNKNOWN else found.records_end,
    )


def _start_in_source(
    plan: FlowPlan, position: WriterPosition, point: WritePoint, log_end: LogEnd
) -> Steps[_Start]:
    """Start at *point*, or as the loss policy says if the source has changed since *position*."""
    partition, wanted, epoch = position.topic_partition, point.next_source_offset, point.source_epoch
    if _is_another(position.source_topic_id, plan.topic_ids.get(position.topic, TopicIds()).source):
        first: int = yield from send(ReadSourceStart(partition))
        loss = SourceLoss(wanted, first, _CREATED_AGAIN)
        problem = PartitionProblem.SOURCE_REWRITTEN
        return (yield from _apply_loss_policy(plan, partition, loss, problem, UNKNOWN, log_end))
    if epoch != UNKNOWN:
        source_end, has_epoch = yield from _end_in_source(partition, epoch, point.epoch_run)
        if UNKNOWN < source_end < wanted:
            problem = PartitionProblem.SOURCE_REWRITTEN
            loss = SourceLoss(wanted, source_end, problem.value)
            return (yield from _apply_loss_policy(plan, partition, loss, problem, epoch, log_end))
        if not has_epoch:
            # A fetch that names it would be answered with a diverging epoch, again and again.
            point = replace(point, source_epoch=UNKNOWN, epoch_run=EpochRun())
    return _Start(point)


def _end_in_source(partition: TopicPartition, epoch: int, run: EpochRun) -> Steps[tuple[int, bool]]:
    """Return up to where the source has what was copied, whose last records are of *epoch*, and whether it knows that epoch.

    -1: unknown.

    A log without any record of that epoch may have other records of earlier epochs in their place: it is the same at most
    up to the first record of the epoch, and as far as the epoch before that one goes.
    """
    found: LeaderEpochEnd = yield from send(ReadEpochEnd(partition, epoch, on_target=False))
    has_epoch = found.epoch in (UNKNOWN, epoch)
    if has_epoch or run.first_offset == UNKNOWN:
        return found.end, has_epoch
    if UNKNOWN < run.previous_epoch < found.epoch:
        found = yield from send(ReadEpochEnd(partition, run.previous_epoch, on_target=False))
    return min(found.end, run.first_offset), False


def _fenced_lookup(
    producers: Mapping[str, Producer], position: WriterPosition
) -> Steps[tuple[EndLookup, LogEnd, int | None] | None]:
    """Look up the end of the position's writer once its fence stands: its marker is in the log. None: it is lost.

    Also returns where the log ends that the position knows, if the target has lost records since.
    """
    fence: Producer | None = None
    log_end: LogEnd
    if position.open_writer is not None:
        plain = producers[position.open_writer.plain]
        fence = plain if plain.producer_id == position.producer_id else None
    for _ in range(0, _MARKER_WAIT_MS, RETRY_MS):
        kept: int = UNKNOWN
        if position.target_epoch != UNKNOWN:
            epoch_end: LeaderEpochEnd = yield from send(
                ReadEpochEnd(position.topic_partition, position.target_epoch, on_target=True)
            )
            kept = epoch_end.end
        is_shorter = UNKNOWN < kept < position.target_end
        known = replace(position, target_end=kept) if is_shorter else position
        lookup = EndLookup(position=known, fence=fence)
        if position.open_writer is None:  # nothing was written behind it
            log_end = yield from send(ReadEnd(position.topic_partition))
        else:
            lookup, log_end = yield from look_up_end(lookup)
        if fence is None or lookup.is_fenced:
            return lookup, log_end, kept if is_shorter else None
        yield from send(Pause(RETRY_MS))
    return None


def _is_another(known: str, present: str) -> bool:
    return bool(known and present) and known != present


def _start_in_new_target(
    plan: FlowPlan, producers: Mapping[str, Producer], partition: TopicPartition, position: WriterPosition
) -> Steps[_Start]:
    """Start in a target topic that was created again: of what the last writer sent, it has what was in flight."""
    problem = PartitionProblem.TARGET_CREATED_AGAIN
    if plan.loss_policy is LossPolicy.FAIL:
        return _Start(None, problem)
    looked_up = yield from _fenced_lookup(producers, replace(position, target_end=0, target_epoch=UNKNOWN))
    if looked_up is None:
        return _Start(None, is_unfenced=True)
    found, log_end, _ = looked_up
    wanted = start = position.next_source_offset + found.copied
    epoch = position.source_epoch
    if plan.loss_policy is LossPolicy.RESTART:
        start, epoch = (yield from send(ReadSourceStart(partition))), UNKNOWN
    return _Start(_point(start, epoch, log_end), loss=SourceLoss(wanted, start, problem.value))


def _apply_loss_policy(
    plan: FlowPlan,
    partition: TopicPartition,
    loss: SourceLoss,
    problem: PartitionProblem,
    source_epoch: int,
    log_end: LogEnd,
) -> Steps[_Start]:
    """Return the start of a partition for which it cannot be shown that each record arrives once."""
    match plan.loss_policy:
        case LossPolicy.FAIL:
            return _Start(None, problem, loss)
        case LossPolicy.ALERT:
            return _Start(_point(loss.found, source_epoch, log_end), loss=loss)
        case LossPolicy.RESTART:
            source_start: int = yield from send(ReadSourceStart(partition))
            return _Start(_point(source_start, UNKNOWN, log_end), loss=loss)


def _point(next_source_offset: int, source_epoch: int, log_end: LogEnd) -> WritePoint:
    """Return the point from which a new epoch writes."""
    return WritePoint(
        next_source_offset=next_source_offset,
        source_epoch=source_epoch,
        sequence=UNKNOWN,
        target_end=log_end.end,
        target_epoch=log_end.leader_epoch,
    )


def _decide_open_transactions(starts: Mapping[TopicPartition, _Start]) -> Steps[Refused | None]:
    """Write the markers that are missing (KAFKA-20734)."""
    missing: dict[tuple[Producer, bool], list[TopicPartition]] = {}
    for partition, start in starts.items():
        for producer, commit in start.open_transactions.items():
            missing.setdefault((producer, commit), []).append(partition)
    # One after the other: both decisions can belong to one id.
    for (producer, commit), partitions in missing.items():
        answer = yield from send(Transaction(producer, commit=commit, partitions=tuple(partitions)))
        if isinstance(answer, Refused):
            return answer
    return None


def _is_decided(partition: TopicPartition, producers: Iterable[Producer]) -> Steps[bool]:
    """Return whether the markers that were missing are in the log now; they can be lost again.

    Before that no position of another writer may be stored: it would not show which of the transactions to commit.
    """
    ids = {one.producer_id for one in producers}
    for _ in range(0, _MARKER_WAIT_MS, RETRY_MS):
        log_end: LogEnd = yield from send(ReadEnd(partition))
        if not (yield from open_transactions(partition, log_end, ids)):
            return True
        yield from send(Pause(RETRY_MS))
    return False


def _start_task(
    plan: FlowPlan,
    own: TaskProducers,
    assigned: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, _Start],
    owners: Mapping[TopicPartition, str],
    now_ms: int,
) -> Steps[TaskStart | Refused]:
    """Store the positions that name the new epochs, before the first plain batch of the task."""
    task = _task_start(plan, own, assigned, starts, owners)
    positions = tuple(
        position_at(
            partition,
            replace(point, target_end=point.records_end),
            own,
            form=Form.PLAIN,
            time_ms=now_ms,
            topic_ids=plan.topic_ids.get(partition.topic, TopicIds()),
        )
        for partition, point in task.points.items()
    )
    if positions:
        answer = yield from send(Transaction(own.transactional, positions=positions))
        if isinstance(answer, Refused):
            return answer
    return task


def _task_start(
    plan: FlowPlan,
    own: TaskProducers,
    assigned: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, _Start],
    owners: Mapping[TopicPartition, str],
    unfenced_why: str = "",
) -> TaskStart:
    taken = {one: owners[one] for one in assigned if one in owners}
    found = {one: starts[one] for one in assigned if one not in owners}
    return TaskStart(
        producers=own,
        points={one: _counted(start.point, own) for one, start in found.items() if start.point is not None},
        problems=dict.fromkeys(taken, PartitionProblem.TARGET_TAKEN)
        | {one: start.problem for one, start in found.items() if start.problem is not None},
        losses={one: start.loss for one, start in found.items() if start.loss is not None},
        topic_ids=plan.topic_ids,
        owners=taken,
        unfenced_why=unfenced_why,
    )


def _counted(point: WritePoint, own: TaskProducers) -> WritePoint:
    """Return *point* with a new count if the number of its records is unknown."""
    if point.records != UNKNOWN:
        return point
    counting = (own.transactional.producer_id << 16) + own.transactional.epoch
    return replace(point, records=0, counting=counting, records_end=point.target_end)


def start_unfenced(
    plan: FlowPlan,
    producer: Producer,
    partitions: Iterable[TopicPartition],
    positions: Mapping[TopicPartition, WriterPosition],
    why: str,
) -> Steps[TaskStart]:
    """Return the start of a task beside writers that cannot be fenced: behind the positions that are stored.

    What was written behind them is written again. *producer* has no transactional id.
    """
    wanted = tuple(partitions)
    starts = yield from side_by_side(
        {one: _start_of_partition(plan, {}, one, positions.get(one)) for one in wanted}
    )
    own = TaskProducers(transactional=producer, plain=producer)
    return _task_start(plan, own, wanted, starts, {}, why)


def read_positions(barrier: Producer) -> Steps[DecidedRecords[WriterPosition]]:
    logs = yield from send(ReadPositions(barrier))
    found = [decided_records(log, WriterPosition) for log in logs]
    return DecidedRecords(
        tuple(record for part in found for record in part.committed),
        tuple(record for part in found for record in part.undecided),
    )

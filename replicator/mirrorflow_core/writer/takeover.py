"""Takes partitions over: fences their last writers, finds where those ended, and stores the new positions.

All functions are generators, see `broker_requests`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import UNKNOWN
from mirrorflow_core.writer.broker_requests import (
    LogEnd,
    Pause,
    Producer,
    ReadEnd,
    ReadEpochEnd,
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
    LossPolicy,
    PartitionProblem,
    SourceLoss,
    TaskProducers,
    TaskStart,
    TopicIds,
    position_at,
)
from mirrorflow_core.writer.position import Form, WriterPosition
from mirrorflow_core.writer.transaction_log import DecidedRecords, decided_records
from mirrorflow_core.writer.transactional_ids import WriterIds
from mirrorflow_core.writer.write_window import WritePoint

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
    known: Mapping[TopicPartition, WritePoint] | None = None,
) -> Steps[tuple[TaskStart, ...] | Refused]:
    """Fence the last writers of the partitions, find where they ended, and store the new positions."""
    partitions = [one for assigned in wanted.values() for one in assigned]
    positions = yield from _decided_positions(lock, producers, partitions)
    if isinstance(positions, Refused):
        return positions
    refused = yield from _fence(plan, producers, positions.values())
    if refused is not None:
        return refused
    starts = yield from side_by_side(
        {
            one: _start_of_partition(plan, producers, one, positions.get(one), (known or {}).get(one))
            for one in partitions
        }
    )
    if any(start.is_unfenced for start in starts.values()):
        return Refused(UNKNOWN)
    refused = yield from _decide_open_transactions(starts)
    if refused is not None:
        return refused
    now_ms: int = yield from send(Pause(0))
    found: list[TaskStart] = []
    for ids, assigned in wanted.items():
        own = TaskProducers(transactional=producers[ids.transactional], plain=producers[ids.plain])
        task = yield from _start_task(plan, own, assigned, starts, now_ms)
        if isinstance(task, Refused):
            return task
        found.append(task)
    return tuple(found)


def _decided_positions(
    lock: Producer, producers: dict[str, Producer], partitions: Iterable[TopicPartition]
) -> Steps[dict[TopicPartition, WriterPosition] | Refused]:
    """Read the positions until none of *partitions* is in an open transaction; adds producers that they name.

    They are read up to the high watermark: the open transaction of another task must not hide a committed one.
    """
    wanted = set(partitions)
    while True:
        found = yield from read_positions(lock)
        newest = {one.topic_partition: one for one in found.committed if one.topic_partition in wanted}
        undecided = [one for one in found.undecided if one.topic_partition in wanted]
        open_ids = {name for one in (*newest.values(), *undecided) for name in one.writer or ()}
        if unknown := sorted(open_ids - producers.keys()):
            more = yield from take_ids(lock, unknown)
            if isinstance(more, Refused):
                return more
            producers |= more
        elif not undecided:
            return {one: position for one, position in newest.items() if position.next_source_offset >= 0}
        yield from send(Pause(RETRY_MS))


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
    claims = yield from read_claims()
    renewed = [one.time_ms for one in claims.committed if one.process != plan.claim.process]
    until_ms = max((lost_at_ms, *renewed[-1:])) + plan.connections_max_idle_ms + _CONNECTIONS_CLOSED_MS
    now_ms: int = yield from send(Pause(0))
    while now_ms < until_ms:
        now_ms = yield from send(Pause(min(until_ms - now_ms, _POLL_MS)))


def _start_of_partition(
    plan: FlowPlan,
    producers: Mapping[str, Producer],
    partition: TopicPartition,
    position: WriterPosition | None,
    known: WritePoint | None,
) -> Steps[_Start]:
    """Find where the last writer ended, and whether either log has changed since."""
    if position is None:
        source_start, log_end = yield (ReadSourceStart(partition), ReadEnd(partition))
        return _Start(_point(source_start, UNKNOWN, log_end))
    ids = plan.topic_ids.get(partition.topic, TopicIds())
    if _is_another(position.target_topic, ids.copy):
        # The flow's naming has changed. The other topic keeps what it has.
        log_end = yield from send(ReadEnd(partition))
        return _Start(_point(position.next_source_offset, position.source_epoch, log_end))
    if _is_another(position.target_topic_id, ids.target):
        return (yield from _start_in_new_target(plan, partition, position))
    if known is not None:
        position = replace(position, target_end=known.target_end, target_epoch=known.target_epoch)
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
        if mapped is None:
            return _Start(None, PartitionProblem.TARGET_LOST_RECORDS, open_transactions=decisions)
        return _Start(_point(mapped, position.source_epoch, log_end), open_transactions=decisions)
    next_source_offset = position.next_source_offset + found.copied
    source_epoch = position.source_epoch
    if known is not None:
        next_source_offset, source_epoch = known.next_source_offset, known.source_epoch
    if _is_another(position.source_topic_id, ids.source):
        first: int = yield from send(ReadSourceStart(partition))
        loss = SourceLoss(next_source_offset, first, _CREATED_AGAIN)
        start = yield from _apply_loss_policy(plan, partition, loss, UNKNOWN, log_end)
        return replace(start, open_transactions=decisions)
    if source_epoch != UNKNOWN:
        source_end: int = yield from send(ReadEpochEnd(partition, source_epoch, on_target=False))
        if UNKNOWN < source_end < next_source_offset:
            loss = SourceLoss(next_source_offset, source_end, PartitionProblem.SOURCE_REWRITTEN.value)
            start = yield from _apply_loss_policy(plan, partition, loss, source_epoch, log_end)
            return replace(start, open_transactions=decisions)
    return _Start(_point(next_source_offset, source_epoch, log_end), open_transactions=decisions)


def _fenced_lookup(
    producers: Mapping[str, Producer], position: WriterPosition
) -> Steps[tuple[EndLookup, LogEnd, int | None] | None]:
    """Look up the end of the position's writer once its fence stands: its marker is in the log. None: it is lost.

    Also returns where the log ends that the position knows, if the target has lost records since.
    """
    fence: Producer | None = None
    if position.open_writer is not None:
        plain = producers[position.open_writer.plain]
        fence = plain if plain.producer_id == position.producer_id else None
    for _ in range(0, _MARKER_WAIT_MS, RETRY_MS):
        kept: int = UNKNOWN
        if position.target_epoch != UNKNOWN:
            kept = yield from send(
                ReadEpochEnd(position.topic_partition, position.target_epoch, on_target=True)
            )
        is_shorter = UNKNOWN < kept < position.target_end
        known = replace(position, target_end=kept) if is_shorter else position
        found, log_end = yield from look_up_end(EndLookup(position=known, fence=fence))
        if fence is None or found.is_fenced:
            return found, log_end, kept if is_shorter else None
        yield from send(Pause(RETRY_MS))
    return None


def _is_another(known: str, present: str) -> bool:
    return bool(known and present) and known != present


def _start_in_new_target(
    plan: FlowPlan, partition: TopicPartition, position: WriterPosition
) -> Steps[_Start]:
    """Start in a target topic that was created again: nothing that the last writer sent to the old one is in it."""
    source_start, log_end = yield (ReadSourceStart(partition), ReadEnd(partition))
    problem = PartitionProblem.TARGET_CREATED_AGAIN
    match plan.loss_policy:
        case LossPolicy.FAIL:
            return _Start(None, problem)
        case LossPolicy.ALERT:
            start, epoch = position.next_source_offset, position.source_epoch
        case LossPolicy.RESTART:
            start, epoch = source_start, UNKNOWN
    return _Start(
        _point(start, epoch, log_end), loss=SourceLoss(position.next_source_offset, start, problem.value)
    )


def _apply_loss_policy(
    plan: FlowPlan, partition: TopicPartition, loss: SourceLoss, source_epoch: int, log_end: LogEnd
) -> Steps[_Start]:
    """Return the start of a partition whose source has other records than before from `loss.found` on."""
    match plan.loss_policy:
        case LossPolicy.FAIL:
            return _Start(None, PartitionProblem.SOURCE_REWRITTEN, loss)
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


def _start_task(
    plan: FlowPlan,
    own: TaskProducers,
    assigned: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, _Start],
    now_ms: int,
) -> Steps[TaskStart | Refused]:
    """Store the positions that name the new epochs, before the first plain batch of the task."""
    points: dict[TopicPartition, WritePoint] = {}
    problems: dict[TopicPartition, PartitionProblem] = {}
    losses: dict[TopicPartition, SourceLoss] = {}
    for one in assigned:
        start = starts[one]
        if start.point is not None:
            points[one] = start.point
        if start.problem is not None:
            problems[one] = start.problem
        if start.loss is not None:
            losses[one] = start.loss
    positions = tuple(
        position_at(
            partition,
            point,
            own,
            form=Form.PLAIN,
            time_ms=now_ms,
            topic_ids=plan.topic_ids.get(partition.topic, TopicIds()),
        )
        for partition, point in points.items()
    )
    if positions:
        answer = yield from send(Transaction(own.transactional, positions=positions))
        if isinstance(answer, Refused):
            return answer
    return TaskStart(producers=own, points=points, problems=problems, losses=losses, topic_ids=plan.topic_ids)


def read_positions(barrier: Producer) -> Steps[DecidedRecords[WriterPosition]]:
    logs = yield from send(ReadPositions(barrier))
    found = [decided_records(log, WriterPosition) for log in logs]
    return DecidedRecords(
        tuple(record for part in found for record in part.committed),
        tuple(record for part in found for record in part.undecided),
    )

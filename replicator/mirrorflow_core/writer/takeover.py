"""Takes partitions over: fences their last writers, finds where those ended, and stores the new positions.

All functions are generators, see `broker_requests`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.writer.broker_requests import (
    Done,
    LeaderEpochEnd,
    LogEnd,
    Pause,
    Producer,
    ReadBatches,
    ReadEnd,
    ReadEpochEnd,
    ReadIdleLimit,
    ReadLastSequence,
    ReadPositions,
    ReadWallClock,
    Refused,
    ReportLoss,
    Steps,
    Transaction,
    Unavailable,
    each_available,
    send,
    side_by_side,
    until_unavailable,
)
from mirrorflow_core.writer.claim import RENEW_MS, Claim
from mirrorflow_core.writer.end_lookup import open_transactions
from mirrorflow_core.writer.flow_lock import LAST_EPOCH, RETRY_MS, holds_lock, read_claims, take_ids
from mirrorflow_core.writer.flow_plan import (
    FlowPlan,
    PartitionProblem,
    TaskProducers,
    TaskStart,
    TopicIds,
    WritePoint,
    start_position,
)
from mirrorflow_core.writer.partition_start import (
    MARKER_WAIT_MS,
    PartitionStart,
    deleted_offsets,
    start_of_partition,
)
from mirrorflow_core.writer.position import WriteMode, WriterPosition, newest_positions
from mirrorflow_core.writer.transaction_log import DecidedRecords, LogBatch, Marker, decided_records
from mirrorflow_core.writer.transactional_ids import WriterIds

_MARKER_STRIDE: Final = 16  # offsets; a marker is usually the next one
_CONNECTIONS_CLOSED_MS: Final = 60_000  # added to connections.max.idle.ms


def take_partitions(
    plan: FlowPlan,
    lock: Producer,
    producers: dict[str, Producer],
    wanted: Mapping[WriterIds, tuple[TopicPartition, ...]],
    acknowledged: Iterable[WriterPosition] = (),
    *,
    silent: set[int],
    renews_claim: bool = False,
) -> Steps[tuple[TaskStart, ...] | Refused]:
    """Fences the last writers of the partitions, finds where they ended, and stores the new positions.

    *acknowledged* has first what a task had stored, which counts where the offsets topic has lost it, then what it had no
    time to store. *silent* has the producer ids that need no fence; those that were waited for are added. *renews_claim*:
    nothing else renews it meanwhile. A partition that cannot be read or written at any step is left out from there on: its
    stored position still names its last writer, whom another start fences.
    """
    acknowledged = tuple(acknowledged)
    left_out = dict(plan.unavailable)
    assigned = [one for of_task in wanted.values() for one in of_task]
    partitions = [one for one in assigned if one not in left_out]
    known = yield from _decided_positions(lock, producers, partitions, acknowledged)
    if isinstance(known, Refused):
        return known
    stored = {one: position for one, position in known.items() if position.next_source_offset >= 0}
    positions = {one: stored[one] for one in partitions if one in stored}
    owners = _owners(plan, assigned, stored)
    newest = positions | (yield from _newer_positions(positions, acknowledged, left_out))
    remembered = yield from _remembered_sequences(newest.values(), left_out)
    refused, lost = yield from _fence(producers, positions.values(), left_out)
    if refused is None and (lost := lost - silent):
        refused = yield from _wait_for_closed_connections(lock, plan.claim if renews_claim else None)
        silent |= lost
    if refused is not None:
        return refused
    starts = yield from each_available(
        {
            one: start_of_partition(plan, producers, one, newest.get(one), remembered.get(one))
            for one in partitions
            if one not in owners and one not in left_out
        },
        left_out,
    )
    if any(start.has_unknown for start in starts.values()):
        more = yield from _take_ids_of_all_tasks(lock, producers)
        if isinstance(more, Refused):
            return more
        if more:
            producers |= more
            options: dict[str, Any] = {"silent": silent, "renews_claim": renews_claim}
            return (yield from take_partitions(plan, lock, producers, wanted, acknowledged, **options))
    refused = yield from _decide_open_transactions(starts, left_out)
    starts = {one: start for one, start in starts.items() if one not in left_out}
    if refused is not None or any(start.lacks_marker for start in starts.values()):
        return refused or Refused(UNKNOWN)
    newer = yield from _replace_used_up(lock, [producers[ids.plain] for ids in wanted])
    if isinstance(newer, Refused):
        return newer
    starts = {one: _revised(start, known.get(one)) for one, start in starts.items()}
    return (yield from _start_tasks(plan, producers | newer, wanted, starts, owners, left_out))


def _take_ids_of_all_tasks(
    lock: Producer, known: Mapping[str, Producer]
) -> Steps[dict[str, Producer] | Refused]:
    """Takes the ids of all tasks that claims name and that are not *known*; returns them.

    Transactions of unknown ids are not of the last owner of a partition, or its position would name them.
    """
    claims = yield from read_claims(lock)
    names = {name for one in (*claims.committed, *claims.undecided) for name in one.writer_ids}
    missing = sorted(names - known.keys())
    return (yield from take_ids(lock, missing)) if missing else {}


def _decided_positions(
    lock: Producer,
    producers: dict[str, Producer],
    partitions: Iterable[TopicPartition],
    acknowledged: Iterable[WriterPosition],
) -> Steps[dict[TopicPartition, WriterPosition] | Refused]:
    """Reads all positions until none of *partitions* is in an open transaction; adds producers that they name.

    Those that were deleted are in it, too. A partition without any record in the topic has its first one of *acknowledged*.

    They are read up to the high watermark: the open transaction of another task must not hide a committed one.
    """
    wanted = set(partitions)
    first = {one.topic_partition: one for one in reversed(tuple(acknowledged))}
    while True:
        found = yield from read_positions(lock)
        newest = first | {one.topic_partition: one for one in found.committed}
        ours = [one for partition, one in newest.items() if partition in wanted]
        undecided = [one for one in found.undecided if one.topic_partition in wanted]
        by_id = {one.producer_id: one for one in producers.values()}
        lost = {
            by_id.get(id_, Producer("", id_, UNKNOWN)): records
            if id_ in by_id
            else tuple(one for one in records if one.topic_partition in wanted)
            for id_, records in found.open_records.items()
        }
        named = (*ours, *undecided, *(one for records in lost.values() for one in records))
        open_ids = {name for one in named for name in one.writer or ()}
        if unknown := sorted(open_ids - producers.keys()):
            more = yield from take_ids(lock, unknown)
            if isinstance(more, Refused):
                return more
            producers |= more
        else:
            is_open = yield from _complete_positions(producers, lost)
            if isinstance(is_open, Refused):
                return is_open
            if not is_open:
                return newest
        yield from send(Pause(RETRY_MS))


def _complete_positions(
    producers: Mapping[str, Producer], lost: Mapping[Producer, tuple[WriterPosition, ...]]
) -> Steps[bool | Refused]:
    """Ends transactions whose markers the offsets topic lacks (KAFKA-20734); call it until it returns False.

    The data's markers show which positions were committed. Those are first stored again under the task's other id: a
    commit of the same id that is interrupted becomes an abort. Once they are committed, the transactions are aborted. That
    waits for data that cannot be read now. A producer without a transactional id is one that the coordinator has replaced,
    because it had forgotten the id, or all epochs were used up: its transaction stays open, and counts no more.
    """
    undecided = {
        (producer, one.topic_partition): one
        for producer, records in lost.items()
        for one in records
        # What was stored again is still undecided under the first id.
        if one.writer is not None and producer.transactional_id != one.writer.plain
    }
    judged = yield from side_by_side(
        {key: until_unavailable(_is_copied(one, key[0].producer_id)) for key, one in undecided.items()}
    )
    again: dict[Producer, list[WriterPosition]] = {}
    for key, one in undecided.items():
        if one.writer is not None and judged[key] is True:
            again.setdefault(producers[one.writer.plain], []).append(one)
    responses: tuple[Done | Refused, ...] = ()
    if again:
        responses = yield tuple(
            Transaction(producer, positions=tuple(found)) for producer, found in again.items()
        )
    elif not any(isinstance(one, Unavailable) for one in judged.values()):
        known = [producer for producer in lost if producer.transactional_id]
        if not known:
            # Java's own transactions end without us.
            return any(one.writer is None for records in lost.values() for one in records)
        responses = yield tuple(Transaction(producer, commit=False, is_barrier=True) for producer in known)
    return next((response for response in responses if isinstance(response, Refused)), True)


def _is_copied(position: WriterPosition, producer_id: int) -> Steps[bool]:
    """Returns whether the target has committed what *position* counts; *producer_id* wrote it in the same transaction.

    A position that counts no record of that transaction is as good as the one before it.
    """
    end = position.target_end
    if end <= 0:
        return True
    log_end: LogEnd = yield from send(ReadEnd(position.topic_partition))
    if log_end.end < end:
        return False
    lower, stride, is_counted = max(end - 1, log_end.start), _MARKER_STRIDE, False
    while lower < log_end.end:
        upper = min(lower + stride, log_end.end)
        batches: tuple[LogBatch, ...] = yield from send(ReadBatches(position.topic_partition, lower, upper))
        for batch in batches:
            if batch.producer_id != producer_id:
                continue
            if batch.marker is None:
                is_last = batch.base_offset < end <= batch.last_offset + 1
                is_counted |= is_last and batch.is_transactional
            elif batch.base_offset >= end:
                return not is_counted or batch.marker is Marker.COMMIT
        lower, stride = upper, stride * 2
    return not is_counted


def _owners(
    plan: FlowPlan, partitions: Iterable[TopicPartition], stored: Mapping[TopicPartition, WriterPosition]
) -> dict[TopicPartition, str]:
    """Returns the topics that were copied into the copies of *partitions* that were never copied themselves."""
    owners = {(one.target_topic, one.partition): one.topic for one in stored.values() if one.target_topic}
    found: dict[TopicPartition, str] = {}
    for one in sorted(set(partitions) - stored.keys()):
        copy = plan.topic_ids.get(one.topic, TopicIds()).copy
        if copy and owners.setdefault((copy, one.partition), one.topic) != one.topic:
            found[one] = owners[copy, one.partition]
    return found


def _fence(
    producers: Mapping[str, Producer],
    positions: Iterable[WriterPosition],
    left_out: dict[TopicPartition, MirrorFlowError],
) -> Steps[tuple[Refused | None, set[int]]]:
    """Ends the plain epochs that the positions name: an empty aborted transaction under each id's new epoch.

    Adds to *left_out* the partitions that cannot be part of it. Also returns the producer ids that cannot be fenced so: the
    coordinator has forgotten the id, and gave another one.
    """
    fences: dict[Producer, list[TopicPartition]] = {}
    lost: set[int] = set()
    for position in positions:
        if position.open_writer is None or position.topic_partition in left_out:
            continue
        producer = producers[position.open_writer.plain]
        if producer.producer_id == position.producer_id:
            fences.setdefault(producer, []).append(position.topic_partition)
        else:
            lost.add(position.producer_id)
    responses: tuple[Any, ...] = ()
    if fences:
        responses = yield tuple(
            Transaction(producer, commit=False, partitions=tuple(found)) for producer, found in fences.items()
        )
    return _note_left_out(responses, left_out), lost


def _note_left_out(
    responses: Iterable[Done | Refused], left_out: dict[TopicPartition, MirrorFlowError]
) -> Refused | None:
    """Adds to *left_out* the partitions that the transactions left out; returns the first refusal of a transaction."""
    refused: Refused | None = None
    for response in responses:
        match response:
            case Done(found):
                left_out |= found
            case Refused():
                refused = refused or response
    return refused


def _wait_for_closed_connections(lock: Producer, claim: Claim | None) -> Steps[Refused | None]:
    """Waits until what a writer sent that cannot be fenced meets a closed connection.

    It pauses for the whole time, because only the clock of another host shows how long that writer has been silent. *claim*
    is renewed, or a standby would take the flow and wait anew.
    """
    idle_ms: int = yield from send(ReadIdleLimit())
    for _ in range(0, idle_ms + _CONNECTIONS_CLOSED_MS, RENEW_MS):
        yield from send(Pause(RENEW_MS))
        if claim is not None:
            now_ms: int = yield from send(ReadWallClock())
            renewed = claim.renewed(now_ms, lock_id=lock.producer_id, lock_epoch=lock.epoch)
            response = yield from send(Transaction(lock, claim=renewed))
            if isinstance(response, Refused) and not (yield from holds_lock(lock)):
                return response
    return None


def _replace_used_up(lock: Producer, plain: Iterable[Producer]) -> Steps[dict[str, Producer] | Refused]:
    """Returns other producers for those in their last epoch, which the next start could not fence.

    Nothing was written in that epoch, and its fence stands in all partitions.
    """
    used_up = [one.transactional_id for one in plain if one.epoch >= LAST_EPOCH]
    return (yield from take_ids(lock, used_up)) if used_up else {}


def _remembered_sequences(
    positions: Iterable[WriterPosition], left_out: dict[TopicPartition, MirrorFlowError]
) -> Steps[dict[TopicPartition, int | None]]:
    """Returns the last sequences of plain writers whose batches the target may have deleted, as its leaders remember them.

    They forget them when the writers are fenced. What is written in the meantime is in the log. Only the leader that the
    writer had knows that it wrote nothing: another one may know the epoch by a marker alone.
    """
    open_ones = {
        one.topic_partition: _remembered_sequence(one)
        for one in positions
        if one.open_writer is not None and one.mode is WriteMode.PLAIN and one.topic_partition not in left_out
    }
    return (yield from each_available(open_ones, left_out))


def _remembered_sequence(position: WriterPosition) -> Steps[int | None]:
    log_end: LogEnd = yield from send(ReadEnd(position.topic_partition))
    if not deleted_offsets(position, log_end):
        return None
    writer = position.producer_id, position.producer_epoch
    found: int | None = yield from send(ReadLastSequence(position.topic_partition, *writer))
    return None if found == UNKNOWN and log_end.leader_epoch != position.target_epoch else found


def _newer_positions(
    stored: Mapping[TopicPartition, WriterPosition],
    acknowledged: Iterable[WriterPosition],
    left_out: dict[TopicPartition, MirrorFlowError],
) -> Steps[dict[TopicPartition, WriterPosition]]:
    known = {one.topic_partition: one for one in acknowledged if one.topic_partition in stored}
    newer = {key: _newer_position(stored[key], one) for key, one in known.items()}
    return (yield from each_available(newer, left_out))


def _newer_position(stored: WriterPosition, acknowledged: WriterPosition) -> Steps[WriterPosition]:
    """Returns *acknowledged* if it is of the same writer, newer than *stored*, and the target still has it.

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


def _decide_open_transactions(
    starts: Mapping[TopicPartition, PartitionStart], left_out: dict[TopicPartition, MirrorFlowError]
) -> Steps[Refused | None]:
    """Writes the markers that are missing (KAFKA-20734), and waits for them; adds to *left_out* where that is impossible."""
    missing: dict[tuple[Producer, bool], list[TopicPartition]] = {}
    for partition, start in starts.items():
        for producer, commit in start.open_transactions.items():
            missing.setdefault((producer, commit), []).append(partition)
    # One after the other: both decisions can belong to one id.
    for (producer, commit), partitions in missing.items():
        response = yield from send(Transaction(producer, commit=commit, partitions=tuple(partitions)))
        if (refused := _note_left_out((response,), left_out)) is not None:
            return refused
    decided = {
        one: _is_decided(one, start.open_transactions)
        for one, start in starts.items()
        if start.open_transactions and one not in left_out
    }
    are_decided = yield from each_available(decided, left_out)
    return None if all(are_decided.values()) else Refused(UNKNOWN)


def _is_decided(partition: TopicPartition, producers: Iterable[Producer]) -> Steps[bool]:
    """Returns whether the markers that were missing are in the log now; they can be lost again.

    Before that no position of another writer may be stored: it would not show which of the transactions to commit.
    """
    ids = {one.producer_id for one in producers}
    for _ in range(0, MARKER_WAIT_MS, RETRY_MS):
        log_end: LogEnd = yield from send(ReadEnd(partition))
        if ids.isdisjoint((yield from open_transactions(partition, log_end))):
            return True
        yield from send(Pause(RETRY_MS))
    return False


def _start_tasks(
    plan: FlowPlan,
    producers: Mapping[str, Producer],
    wanted: Mapping[WriterIds, tuple[TopicPartition, ...]],
    starts: Mapping[TopicPartition, PartitionStart],
    owners: Mapping[TopicPartition, str],
    left_out: Mapping[TopicPartition, MirrorFlowError],
) -> Steps[tuple[TaskStart, ...] | Refused]:
    now_ms: int = yield from send(ReadWallClock())
    found: list[TaskStart] = []
    for ids, assigned in wanted.items():
        own = TaskProducers(transactional=producers[ids.transactional], plain=producers[ids.plain])
        task = yield from _start_task(plan, own, assigned, starts, owners, left_out, now_ms)
        if isinstance(task, Refused):
            return task
        found.append(task)
    return tuple(found)


def _start_task(
    plan: FlowPlan,
    own: TaskProducers,
    assigned: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, PartitionStart],
    owners: Mapping[TopicPartition, str],
    left_out: Mapping[TopicPartition, MirrorFlowError],
    now_ms: int,
) -> Steps[TaskStart | Refused]:
    """Stores the positions that name the new epochs, before the first plain batch of the task.

    Losses are reported first: the next process starts at the stored position and does not see them.
    """
    task = _task_start(plan, own, assigned, starts, owners, left_out)
    if losses := {one: loss for one, loss in task.losses.items() if one in task.points}:
        yield tuple(
            ReportLoss(one, task.points[one].next_source_offset, loss.problem.value)
            for one, loss in losses.items()
        )
    positions = tuple(
        start_position(
            partition,
            point,
            own,
            time_ms=now_ms,
            topic_ids=plan.topic_ids.get(partition.topic, TopicIds()),
        )
        for partition, point in task.points.items()
    )
    if positions:
        response = yield from send(Transaction(own.transactional, positions=positions))
        if isinstance(response, Refused):
            return response
    return task


def _task_start(
    plan: FlowPlan,
    own: TaskProducers,
    assigned: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, PartitionStart],
    owners: Mapping[TopicPartition, str],
    left_out: Mapping[TopicPartition, MirrorFlowError],
    unfenced_why: str = "",
) -> TaskStart:
    taken = {one: owners[one] for one in assigned if one in owners}
    found = {one: starts[one] for one in assigned if one in starts}
    return TaskStart(
        producers=own,
        points={one: _counted(start.point, own) for one, start in found.items() if start.point is not None},
        problems=dict.fromkeys(taken, PartitionProblem.TARGET_TAKEN)
        | {one: start.problem for one, start in found.items() if start.problem is not None},
        waiting={one: left_out[one] for one in assigned if one in left_out and one not in taken},
        losses={one: start.loss for one, start in found.items() if start.loss is not None},
        topic_ids=plan.topic_ids,
        owners=taken,
        unfenced_why=unfenced_why,
    )


def _revised(start: PartitionStart, known: WriterPosition | None) -> PartitionStart:
    """Returns *start* with a revision for the position that is stored next; *known* is the newest one."""
    if start.point is None:
        return start
    revision = 1 + ((known and known.revision) or 0)
    return replace(start, point=replace(start.point, revision=revision))


def _counted(point: WritePoint, own: TaskProducers) -> WritePoint:
    """Returns *point* with a new count if the number of its records is unknown."""
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
    """Returns the start of a task beside writers that cannot be fenced: behind the positions that are stored.

    What was written behind them is written again. *producer* has no transactional id.
    """
    wanted, left_out = tuple(partitions), dict(plan.unavailable)
    starts = yield from each_available(
        {one: start_of_partition(plan, {}, one, positions.get(one)) for one in wanted if one not in left_out},
        left_out,
    )
    own = TaskProducers(transactional=producer, plain=producer)
    return _task_start(plan, own, wanted, starts, {}, left_out, why)


def read_positions(barrier: Producer) -> Steps[DecidedRecords[WriterPosition]]:
    """Reads all positions; of those that are committed, the newest one of each partition comes last."""
    logs = yield from send(ReadPositions(barrier))
    found = [decided_records(log, WriterPosition, key=lambda one: one.topic_partition) for log in logs]
    open_records: dict[int, tuple[WriterPosition, ...]] = {}
    for part in found:
        for producer_id, records in part.open_records.items():
            open_records[producer_id] = open_records.get(producer_id, ()) + records
    return DecidedRecords(
        (
            *(record for part in found for record in part.committed),
            *newest_positions(part.committed for part in found).values(),
        ),
        tuple(record for part in found for record in part.undecided),
        open_records,
    )

"""Takes partitions over: fences their last writers, finds where those ended, and stores the new positions.

All functions are generators, see `broker_requests`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.writer.broker_requests import (
    Done,
    LeaderEpochEnd,
    LogEnd,
    Pause,
    Producer,
    ReadEnd,
    ReadEpochEnd,
    ReadIdleLimit,
    ReadLastSequence,
    ReadWallClock,
    Refused,
    ReportLoss,
    Steps,
    Transaction,
    ask,
    each_available,
)
from mirrorflow_core.writer.claim import RENEW_MS, Claim
from mirrorflow_core.writer.end_lookup import open_transactions
from mirrorflow_core.writer.flow_lock import LAST_EPOCH, RETRY_MS, holds_lock, read_claims, take_ids
from mirrorflow_core.writer.flow_plan import (
    FlowPlan,
    PartitionProblem,
    SessionStart,
    TaskProducers,
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
from mirrorflow_core.writer.position import WriteMode, WriterPosition
from mirrorflow_core.writer.stored_positions import decided_positions, store_positions
from mirrorflow_core.writer.transactional_ids import WriterIds

T = TypeVar("T")

_CONNECTIONS_CLOSED_MS: Final = 60_000  # added to connections.max.idle.ms


def take_partitions(
    plan: FlowPlan,
    lock: Producer,
    producers: dict[str, Producer],
    wanted: Mapping[WriterIds, tuple[TopicPartition, ...]],
    acknowledged: tuple[WriterPosition, ...] = (),
    *,
    silent: set[int],
    renews_claim: bool = False,
) -> Steps[tuple[SessionStart, ...] | Refused]:
    """Fences the last writers of the partitions, finds where they ended, and stores the new positions.

    *acknowledged* has first what a task had stored, which counts where the offsets topic has lost it, then what it had no
    time to store. *silent* has producer ids that need no fence; those that were waited for are added. *renews_claim*: nothing
    else does. A partition that cannot be read or written is left out: its stored position still names its last writer.
    """
    left_out = dict(plan.unavailable)
    assigned = [partition for of_task in wanted.values() for partition in of_task]
    partitions = [partition for partition in assigned if partition not in left_out]
    decided = yield from decided_positions(lock, producers, partitions, acknowledged)
    if isinstance(decided, Refused):
        return decided
    left_out |= _of(partitions, decided.unavailable)
    stored = {key: position for key, position in decided.newest.items() if position.next_source_offset >= 0}
    positions = _of(partitions, stored)
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
            key: start_of_partition(plan, producers, key, newest.get(key), remembered.get(key))
            for key in partitions
            if key not in owners and key not in left_out
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
    starts = {
        key: _revised(start, decided.newest.get(key)) for key, start in starts.items() if key not in left_out
    }
    if refused is not None or any(start.lacks_marker for start in starts.values()):
        return refused or Refused()
    others = yield from _replacements(lock, producers, wanted, decided.held)
    if isinstance(others, Refused):
        return others
    return (yield from _start_tasks(plan, producers | others, wanted, starts, owners, left_out))


def _take_ids_of_all_tasks(
    lock: Producer, known: Mapping[str, Producer]
) -> Steps[dict[str, Producer] | Refused]:
    """Takes the ids of all tasks that claims name and that are not *known*; returns them.

    Transactions of unknown ids are not of the last owner of a partition, or its position would name them.
    """
    claims = yield from read_claims(lock)
    names = {name for claim in (*claims.committed, *claims.undecided) for name in claim.writer_ids}
    missing = sorted(names - known.keys())
    return (yield from take_ids(lock, missing)) if missing else {}


def _of(partitions: Iterable[TopicPartition], values: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
    """Returns the values of those of *partitions* that have one."""
    return {partition: values[partition] for partition in partitions if partition in values}


def _owners(
    plan: FlowPlan, partitions: Iterable[TopicPartition], stored: Mapping[TopicPartition, WriterPosition]
) -> dict[TopicPartition, str]:
    """Returns the topics that were copied into the copies of *partitions* that were never copied themselves."""
    owners = {
        (record.target_topic, record.partition): record.topic
        for record in stored.values()
        if record.target_topic
    }
    by_partition: dict[TopicPartition, str] = {}
    for partition in sorted(set(partitions) - stored.keys()):
        copy = plan.topic_ids.get(partition.topic, TopicIds()).copy
        if copy and owners.setdefault((copy, partition.partition), partition.topic) != partition.topic:
            by_partition[partition] = owners[copy, partition.partition]
    return by_partition


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
            Transaction(producer, commit=False, partitions=tuple(fenced))
            for producer, fenced in fences.items()
        )
    return _note_left_out(responses, left_out), lost


def _note_left_out(
    responses: Iterable[Done | Refused], left_out: dict[TopicPartition, MirrorFlowError]
) -> Refused | None:
    """Adds to *left_out* the partitions that the transactions left out; returns the first refusal of a transaction."""
    refused: Refused | None = None
    for response in responses:
        match response:
            case Done(unavailable):
                left_out |= unavailable
            case Refused():
                refused = refused or response
    return refused


def _wait_for_closed_connections(lock: Producer, claim: Claim | None) -> Steps[Refused | None]:
    """Waits until what a writer sent that cannot be fenced meets a closed connection.

    It pauses for the whole time, because only the clock of another host shows how long that writer has been silent. *claim*
    is renewed, or a standby would take the flow and wait anew.
    """
    idle_ms: int = yield from ask(ReadIdleLimit())
    for _ in range(0, idle_ms + _CONNECTIONS_CLOSED_MS, RENEW_MS):
        yield from ask(Pause(RENEW_MS))
        if claim is not None:
            now_ms: int = yield from ask(ReadWallClock())
            renewed = claim.renewed(now_ms, lock_id=lock.producer_id, lock_epoch=lock.epoch)
            response = yield from ask(Transaction(lock, claim=renewed))
            if isinstance(response, Refused) and not (yield from holds_lock(lock)):
                return response
    return None


def _replacements(
    lock: Producer, producers: Mapping[str, Producer], wanted: Iterable[WriterIds], held: frozenset[str]
) -> Steps[dict[str, Producer] | Refused]:
    """Returns what the tasks use in place of their producers, by the ids of those.

    A plain one in its last epoch could not be fenced by the next start. It gets another producer id: nothing was written in
    that epoch, and its fence stands in all partitions. A transactional id in *held* is replaced by its spare.
    """
    used_up = [ids.plain for ids in wanted if producers[ids.plain].epoch >= LAST_EPOCH]
    spares = {ids.transactional: ids.spare for ids in wanted if ids.transactional in held}
    if not held.isdisjoint(spares.values()):
        return Refused()
    missing = [*used_up, *(spare for spare in spares.values() if spare not in producers)]
    taken = (yield from take_ids(lock, missing)) if missing else {}
    if isinstance(taken, Refused):
        return taken
    known = {**producers, **taken}
    return {producer: known[producer] for producer in used_up} | {
        producer: known[spare] for producer, spare in spares.items()
    }


def _remembered_sequences(
    positions: Iterable[WriterPosition], left_out: dict[TopicPartition, MirrorFlowError]
) -> Steps[dict[TopicPartition, int | None]]:
    """Returns the last sequences of plain writers whose batches the target may have deleted, as its leaders remember them.

    They forget them when the writers are fenced. What is written in the meantime is in the log. Only the leader that the
    writer had knows that it wrote nothing: another one may know the epoch by a marker alone.
    """
    open_ones = {
        position.topic_partition: _remembered_sequence(position)
        for position in positions
        if position.open_writer is not None
        and position.mode is WriteMode.PLAIN
        and position.topic_partition not in left_out
    }
    return (yield from each_available(open_ones, left_out))


def _remembered_sequence(position: WriterPosition) -> Steps[int | None]:
    log_end: LogEnd = yield from ask(ReadEnd(position.topic_partition))
    if not deleted_offsets(position, log_end):
        return None
    writer = position.producer_id, position.producer_epoch
    sequence: int | None = yield from ask(ReadLastSequence(position.topic_partition, *writer))
    return None if sequence == UNKNOWN and log_end.leader_epoch != position.target_epoch else sequence


def _newer_positions(
    stored: Mapping[TopicPartition, WriterPosition],
    acknowledged: Iterable[WriterPosition],
    left_out: dict[TopicPartition, MirrorFlowError],
) -> Steps[dict[TopicPartition, WriterPosition]]:
    known = {
        position.topic_partition: position for position in acknowledged if position.topic_partition in stored
    }
    newer = {key: _newer_position(stored[key], position) for key, position in known.items()}
    return (yield from each_available(newer, left_out))


def _newer_position(stored: WriterPosition, acknowledged: WriterPosition) -> Steps[WriterPosition]:
    """Returns *acknowledged* if it is of the same writer, newer than *stored*, and the target still has it.

    The log may not show it any more, because retention has removed the records since. If nothing of the writer follows
    *acknowledged*, nothing follows a position that is not older: the log may have another producer's batch with its numbers.
    """
    writer = acknowledged.producer_id, acknowledged.producer_epoch
    if writer != (stored.producer_id, stored.producer_epoch):
        return stored
    if acknowledged.next_source_offset <= stored.next_source_offset:
        return replace(stored, left=stored.left or acknowledged.left)
    if acknowledged.target_epoch != UNKNOWN:
        end: LeaderEpochEnd = yield from ask(
            ReadEpochEnd(acknowledged.topic_partition, acknowledged.target_epoch, on_target=True)
        )
        if UNKNOWN < end.end < acknowledged.target_end:
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
        response = yield from ask(Transaction(producer, commit=commit, partitions=tuple(partitions)))
        if (refused := _note_left_out((response,), left_out)) is not None:
            return refused
    decided = {
        partition: _is_decided(partition, start.open_transactions)
        for partition, start in starts.items()
        if start.open_transactions and partition not in left_out
    }
    are_decided = yield from each_available(decided, left_out)
    return None if all(are_decided.values()) else Refused()


def _is_decided(partition: TopicPartition, producers: Iterable[Producer]) -> Steps[bool]:
    """Returns whether the markers that were missing are in the log now; they can be lost again.

    Before that no position of another writer may be stored: it would not show which of the transactions to commit.
    """
    ids = {producer.producer_id for producer in producers}
    for _ in range(0, MARKER_WAIT_MS, RETRY_MS):
        log_end: LogEnd = yield from ask(ReadEnd(partition))
        if ids.isdisjoint((yield from open_transactions(partition, log_end))):
            return True
        yield from ask(Pause(RETRY_MS))
    return False


def _start_tasks(
    plan: FlowPlan,
    producers: Mapping[str, Producer],
    wanted: Mapping[WriterIds, tuple[TopicPartition, ...]],
    starts: Mapping[TopicPartition, PartitionStart],
    owners: Mapping[TopicPartition, str],
    left_out: Mapping[TopicPartition, MirrorFlowError],
) -> Steps[tuple[SessionStart, ...] | Refused]:
    now_ms: int = yield from ask(ReadWallClock())
    tasks: list[SessionStart] = []
    for ids, assigned in wanted.items():
        own = TaskProducers(transactional=producers[ids.transactional], plain=producers[ids.plain])
        task = yield from _start_task(plan, own, assigned, starts, owners, left_out, now_ms)
        if isinstance(task, Refused):
            return task
        tasks.append(task)
    return tuple(tasks)


def _start_task(
    plan: FlowPlan,
    own: TaskProducers,
    assigned: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, PartitionStart],
    owners: Mapping[TopicPartition, str],
    left_out: Mapping[TopicPartition, MirrorFlowError],
    now_ms: int,
) -> Steps[SessionStart | Refused]:
    """Stores the positions that name the new epochs, before the first plain batch of the task.

    Losses are reported first: the next process starts at the stored position and does not see them.
    """
    task = _task_start(plan, own, assigned, starts, owners, left_out)
    if losses := {partition: loss for partition, loss in task.losses.items() if partition in task.points}:
        yield tuple(
            ReportLoss(partition, task.points[partition].next_source_offset, loss.problem.value)
            for partition, loss in losses.items()
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
    refused = yield from store_positions(own.transactional, positions)
    return task if refused is None else refused


def _task_start(
    plan: FlowPlan,
    own: TaskProducers,
    assigned: Iterable[TopicPartition],
    starts: Mapping[TopicPartition, PartitionStart],
    owners: Mapping[TopicPartition, str],
    left_out: Mapping[TopicPartition, MirrorFlowError],
    unfenced_reason: str | None = None,
) -> SessionStart:
    taken = _of(assigned, owners)
    assigned_starts = _of(assigned, starts)
    return SessionStart(
        producers=own,
        points={
            partition: _counted(start.point, own)
            for partition, start in assigned_starts.items()
            if start.point is not None
        },
        problems=dict.fromkeys(taken, PartitionProblem.TARGET_TAKEN)
        | {
            partition: start.problem
            for partition, start in assigned_starts.items()
            if start.problem is not None
        },
        waiting={
            partition: left_out[partition]
            for partition in assigned
            if partition in left_out and partition not in taken
        },
        losses={
            partition: start.loss for partition, start in assigned_starts.items() if start.loss is not None
        },
        topic_ids=plan.topic_ids,
        owners=taken,
        unfenced_reason=unfenced_reason,
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
    generation = (own.transactional.producer_id << 16) + own.transactional.epoch
    return replace(point, records=0, generation=generation, records_end=point.target_end)


def start_unfenced(
    plan: FlowPlan,
    producer: Producer,
    partitions: Iterable[TopicPartition],
    positions: Mapping[TopicPartition, WriterPosition],
    why: str,
) -> Steps[SessionStart]:
    """Returns the start of a session beside writers that cannot be fenced: after the positions that are stored.

    What was written after them is written again. *producer* has no transactional id.
    """
    wanted, left_out = tuple(partitions), dict(plan.unavailable)
    starts = yield from each_available(
        {
            partition: start_of_partition(plan, {}, partition, positions.get(partition))
            for partition in wanted
            if partition not in left_out
        },
        left_out,
    )
    own = TaskProducers(transactional=producer, plain=producer)
    return _task_start(plan, own, wanted, starts, {}, left_out, why)

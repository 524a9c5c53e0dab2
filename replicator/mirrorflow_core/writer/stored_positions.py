"""Stores positions, reads them, and decides those whose transactions have lost their markers.

All functions are generators, see `broker_requests`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.writer.broker_requests import (
    Done,
    LogEnd,
    Pause,
    Producer,
    ReadBatches,
    ReadEnd,
    ReadPositions,
    Refused,
    Steps,
    Transaction,
    Unavailable,
    ask,
    gather,
    until_unavailable,
)
from mirrorflow_core.writer.flow_lock import RETRY_MS, take_ids
from mirrorflow_core.writer.position import WriterPosition, newest_positions
from mirrorflow_core.writer.transaction_log import DecidedRecords, LogBatch, Marker, decided_records

# In one transaction, which must not take longer than its timeout: a position has about 1 KB.
POSITIONS_MAX: Final = 1_000
_MARKER_STRIDE: Final = 16  # offsets; a marker is usually the next one


def store_positions(producer: Producer, positions: Sequence[WriterPosition]) -> Steps[Refused | None]:
    """Stores *positions* in transactions of *producer*, not too many in each; returns the refusal of one, after which none follows.

    Those of earlier transactions are stored then: a position means the same without those of other partitions.
    """
    for first in range(0, len(positions), POSITIONS_MAX):
        part = tuple(positions[first : first + POSITIONS_MAX])
        response = yield from ask(Transaction(producer, positions=part))
        if isinstance(response, Refused):
            return response
    return None


def read_positions(barrier: Producer) -> Steps[DecidedRecords[WriterPosition]]:
    """Reads all positions; of those that are committed, the newest one of each partition comes last."""
    logs = yield from ask(ReadPositions(barrier))
    parts = [decided_records(log, WriterPosition, key=lambda record: record.topic_partition) for log in logs]
    open_records: dict[int, tuple[WriterPosition, ...]] = {}
    for part in parts:
        for producer_id, records in part.open_records.items():
            open_records[producer_id] = open_records.get(producer_id, ()) + records
    return DecidedRecords(
        (
            *(record for part in parts for record in part.committed),
            *newest_positions(part.committed for part in parts).values(),
        ),
        tuple(record for part in parts for record in part.undecided),
        open_records,
    )


class DecidedPositions(NamedTuple):
    """The newest positions, and what could not be decided because data cannot be read now."""

    newest: Mapping[TopicPartition, WriterPosition]
    unavailable: Mapping[TopicPartition, MirrorFlowError]  # their newest positions are unknown
    held: frozenset[
        str
    ]  # transactional ids: any marker of theirs in the offsets topic would decide open positions


def decided_positions(
    lock: Producer,
    producers: dict[str, Producer],
    partitions: Iterable[TopicPartition],
    acknowledged: Iterable[WriterPosition],
) -> Steps[DecidedPositions | Refused]:
    """Reads all positions until none of *partitions* is in a transaction that can be ended; adds producers that they name.

    Those that were deleted are in it, too. A partition without any record in the topic has its first one of *acknowledged*.

    They are read up to the high watermark: the open transaction of another task must not hide a committed one.
    """
    wanted = set(partitions)
    first = {position.topic_partition: position for position in reversed(tuple(acknowledged))}
    while True:
        stored = yield from read_positions(lock)
        newest = first | {record.topic_partition: record for record in stored.committed}
        ours = [position for partition, position in newest.items() if partition in wanted]
        undecided = [record for record in stored.undecided if record.topic_partition in wanted]
        by_id = {producer.producer_id: producer for producer in producers.values()}
        lost = {
            by_id.get(id_, Producer("", id_, UNKNOWN)): records
            if id_ in by_id
            else tuple(record for record in records if record.topic_partition in wanted)
            for id_, records in stored.open_records.items()
        }
        named = (*ours, *undecided, *(record for records in lost.values() for record in records))
        open_ids = {name for record in named for name in record.writer or ()}
        if unknown := sorted(open_ids - producers.keys()):
            more = yield from take_ids(lock, unknown)
            if isinstance(more, Refused):
                return more
            producers |= more
        else:
            waiting = yield from _complete_positions(producers, lost)
            if isinstance(waiting, Refused):
                return waiting
            if waiting is not None:
                unavailable = {partition: error for (_, partition), error in waiting.items()}
                held = frozenset(producer.transactional_id for producer, _ in waiting)
                return DecidedPositions(newest, unavailable, held)
        yield from ask(Pause(RETRY_MS))


def _complete_positions(
    producers: Mapping[str, Producer], lost: Mapping[Producer, tuple[WriterPosition, ...]]
) -> Steps[Mapping[tuple[Producer, TopicPartition], MirrorFlowError] | Refused | None]:
    """Ends transactions whose markers the offsets topic lacks (KAFKA-20734). None: read the topic again, and call it again.

    The data's markers show which positions were committed. Those are first stored again under the task's other id: a
    commit of the same id that is interrupted becomes an abort. Once they are committed, the transactions are aborted. Those
    stay open of which data cannot be read now: they are returned, with the reason. A producer without a transactional id is
    one that the coordinator has replaced, because it had forgotten the id, or all epochs were used up: its transaction
    stays open, and counts no more.
    """
    undecided = {
        (producer, record.topic_partition): record
        for producer, records in lost.items()
        for record in records
        # What was stored again is still undecided under the first id.
        if record.writer is not None and producer.transactional_id != record.writer.plain
    }
    judged = yield from gather(
        {key: until_unavailable(_is_copied(record, key[0].producer_id)) for key, record in undecided.items()}
    )
    again: dict[Producer, list[WriterPosition]] = {}
    for key, record in undecided.items():
        if record.writer is not None and judged[key] is True:
            again.setdefault(producers[record.writer.plain], []).append(record)
    waiting = {key: verdict.error for key, verdict in judged.items() if isinstance(verdict, Unavailable)}
    ended = lost.keys() - {producer for producer, _ in waiting}
    responses: tuple[Done | Refused, ...]
    if again:
        responses = yield tuple(
            Transaction(producer, positions=tuple(records)) for producer, records in again.items()
        )
    elif known := sorted(producer for producer in ended if producer.transactional_id):
        responses = yield tuple(Transaction(producer, commit=False, is_barrier=True) for producer in known)
    else:
        # Java's own transactions end without us.
        return (
            None if any(record.writer is None for producer in ended for record in lost[producer]) else waiting
        )
    return next((response for response in responses if isinstance(response, Refused)), None)


def _is_copied(position: WriterPosition, producer_id: int) -> Steps[bool]:
    """Returns whether the target has committed what *position* counts; *producer_id* wrote it in the same transaction.

    A position that counts no record of that transaction is as good as the one before it.
    """
    end = position.target_end
    if end <= 0:
        return True
    log_end: LogEnd = yield from ask(ReadEnd(position.topic_partition))
    if log_end.end < end:
        return False
    lower, stride, is_counted = max(end - 1, log_end.start), _MARKER_STRIDE, False
    while lower < log_end.end:
        upper = min(lower + stride, log_end.end)
        batches: tuple[LogBatch, ...] = yield from ask(ReadBatches(position.topic_partition, lower, upper))
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

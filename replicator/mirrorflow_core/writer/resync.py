"""What a living writer asks brokers about its own writing, when an answer was lost or a leader has changed."""

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import UNKNOWN
from mirrorflow_core.writer.broker_requests import (
    DescribeProducer,
    LogEnd,
    Pause,
    Producer,
    ProducerState,
    ReadEnd,
    ReadEpochEnd,
    Refused,
    Steps,
    send,
)
from mirrorflow_core.writer.end_lookup import EndLookup, look_up_end, open_transactions
from mirrorflow_core.writer.flow_lock import RETRY_MS, Fenced, holds_lock
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.write_window import WritePoint, WriteWindow


def resync(
    lock: Producer, plain: Producer, partition: TopicPartition, window: WriteWindow
) -> Steps[bool | Fenced]:
    """Continue after refused batches or lost answers; the window has nothing in flight.

    Returns whether the writer continues in its epoch; if not, it must recover the task. The lock is checked first:
    a process that slept may find its epoch alive although another owner writes, if the coordinator forgot the id.
    """
    if not (yield from holds_lock(lock)):
        return Fenced()
    point = window.acknowledged
    if (yield from has_lost_records(partition, point)):
        return False
    lookup = EndLookup(
        position=WriterPosition(
            topic=partition.topic,
            partition=partition.partition,
            next_source_offset=point.next_source_offset,
            target_end=max(point.target_end - 1, 0),
            producer_id=plain.producer_id,
            producer_epoch=plain.epoch,
            sequence=point.sequence,
        ),
        fence=None,
    )
    while True:
        state: ProducerState | Refused | None = yield from send(
            DescribeProducer(partition, plain.producer_id)
        )
        if not isinstance(state, ProducerState) or state.epoch != plain.epoch:
            return False
        found, log_end = yield from look_up_end(lookup)
        # The leader may remember batches that are not replicated. Only what a consumer can read is safe.
        readable = point.sequence if found.last_sequence is None else found.last_sequence
        if readable == state.last_sequence:
            return window.resume(readable, target_end=log_end.end, target_epoch=log_end.leader_epoch)
        if found.last_sequence is None and point.sequence != UNKNOWN:
            return False
        yield from send(Pause(RETRY_MS))


def missing_marker(partition: TopicPartition, producer: Producer) -> Steps[bool]:
    """Return whether the marker of the producer's last transaction is missing in the partition.

    To be asked when the partition's leader has changed since, before anything else is written there.
    """
    log_end: LogEnd = yield from send(ReadEnd(partition))
    found = yield from open_transactions(partition, log_end, (producer.producer_id,))
    return bool(found)


def has_lost_records(partition: TopicPartition, point: WritePoint) -> Steps[bool]:
    """Return whether the target no longer has all records before *point*; to be asked at each change of its leader."""
    kept: int = yield from send(ReadEpochEnd(partition, point.target_epoch, on_target=True))
    return UNKNOWN < kept < point.target_end

"""Finds where a fenced writer ended on the target, by reading a partition's log backwards from its end.

Plain batches after the stored position are counted by their sequence numbers: the position names the producer's
epoch and its last sequence then, and plain batches after a position have no gaps on the source (`write_mode`),
so the next source offset follows by addition. Nothing of the source is read and no record is compared.
"""

from collections.abc import Iterable
from dataclasses import replace

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.writer.broker_requests import (
    LogEnd,
    Producer,
    ReadAborted,
    ReadBatches,
    ReadEnd,
    Steps,
    ask,
)
from mirrorflow_core.writer.position import WriteMode, WriterPosition
from mirrorflow_core.writer.transaction_log import SEQUENCES, LogBatch

_FIRST_STRIDE = 16  # offsets; doubled until the position is reached


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLookup:
    """What has been found so far, from the end of the log backwards, about the writer of *position*.

    `fence` is the plain id's newer epoch, whose marker must be there; None if nothing was fenced. The fence stands
    when its marker is in the log, not when the coordinator has answered.
    """

    position: WriterPosition
    fence: Producer | None
    is_fenced: bool = False
    last_sequence: int | None = None
    records_end: int = UNKNOWN  # of the target, after the last batch

    @property
    def copied(self) -> int:
        """The number of records that the writer copied in plain batches since the position."""
        if self.last_sequence is None:
            return 0
        return (self.last_sequence - self.position.sequence) % SEQUENCES

    def read(self, newest_first: Iterable[LogBatch]) -> "EndLookup":
        """Returns the lookup after the next batches, in descending order of their offsets."""
        lookup = self
        position = self.position
        for batch in newest_first:
            if lookup.last_sequence is not None:
                break
            producer = batch.producer_id, batch.producer_epoch
            if batch.marker is not None:
                is_fence = self.fence is not None and producer == self.fence[1:]
                lookup = replace(lookup, is_fenced=lookup.is_fenced or is_fence)
            elif (
                not batch.is_transactional
                and producer == (position.producer_id, position.producer_epoch)
                and batch.last_offset >= position.target_end
            ):
                lookup = replace(lookup, last_sequence=batch.last_sequence, records_end=batch.last_offset + 1)
        return lookup


def look_up_end(lookup: EndLookup) -> Steps[tuple[EndLookup, LogEnd]]:
    """Reads backwards until the last batch is found or the position is reached; returns the log's end of then, too."""
    log_end: LogEnd = yield from ask(ReadEnd(lookup.position.topic_partition))
    upper, stride, current = log_end.end, _FIRST_STRIDE, lookup
    floor = max(lookup.position.target_end, log_end.start)
    while upper > floor and current.last_sequence is None:
        lower = max(floor, upper - stride)
        batches: tuple[LogBatch, ...] = yield from ask(
            ReadBatches(lookup.position.topic_partition, lower, upper)
        )
        current = current.read(reversed(batches))
        upper, stride = lower, stride * 2
    return current, log_end


def next_uncopied_offset(position: WriterPosition) -> Steps[int]:
    """Returns the next source offset to copy of a partition whose writer may run; it may have copied more meanwhile.

    Only transactions store a position with their records. What plain batches have copied since is counted on the target.
    """
    if position.open_writer is None or position.mode is not WriteMode.PLAIN:
        return position.next_source_offset
    lookup, _ = yield from look_up_end(EndLookup(position=position, fence=None))
    return position.next_source_offset + lookup.copied


def open_transactions(partition: TopicPartition, log_end: LogEnd) -> Steps[dict[int, int]]:
    """Returns where transactions without a marker begin, by producer id.

    Once an id was initialized, its transactions are decided. A marker that is missing then will never come: the
    partition had no leader when it was due (KAFKA-20734), or an unclean election has lost it.
    """
    if log_end.stable >= log_end.end:
        return {}
    batches: tuple[LogBatch, ...] = yield from ask(ReadBatches(partition, log_end.stable, log_end.end))
    begins: dict[int, int] = {}
    for batch in batches:
        if batch.marker is not None:
            begins.pop(batch.producer_id, None)
        elif batch.is_transactional:
            begins.setdefault(batch.producer_id, batch.base_offset)
    return begins


def aborted_after(partition: TopicPartition, offset: int, log_end: LogEnd) -> Steps[dict[int, int]]:
    """Returns where transactions begin that were open at *offset* and aborted since, by producer id.

    If what is before *offset* was committed, its marker is lost: in an unclean election, or because the partition had no
    leader when it was due (KAFKA-20734). The next marker of the same id, whatever that was for, has ended it then.
    """
    if not log_end.start < offset < log_end.stable:
        return {}
    aborted: dict[int, int] = yield from ask(ReadAborted(partition, offset))
    return aborted

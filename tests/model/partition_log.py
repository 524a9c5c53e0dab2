"""The log of one partition replica: batches, offsets, leader epochs; truncated, deleted from its beginning, compacted, read.

A model of Kafka's `UnifiedLog`, `LeaderEpochFileCache` and `LogCleaner`, as far as clients can see them.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from tests.model.batches import LoggedBatch, cleaned


class AbortedTransaction(NamedTuple):
    """An entry of the transaction index (AbortedTxn)."""

    producer_id: int
    first_offset: int
    last_offset: int  # of the marker


class EpochEnd(NamedTuple):
    """Where the records of a leader epoch end; -1 both where that is not known."""

    epoch: int
    end_offset: int


UNDEFINED = EpochEnd(-1, -1)


class PartitionLog:
    """A replicated log. `end` is the log end offset, `high_watermark` what is replicated."""

    def __init__(self) -> None:
        self.batches: list[LoggedBatch] = []
        self.start = 0
        self.end = 0
        self.high_watermark = 0
        self.epochs: list[tuple[int, int]] = []  # epoch, first offset; grows in both
        self.aborted: list[AbortedTransaction] = []
        # Transactions with a marker that may not be replicated yet: first offset, offset of the marker.
        self.completed: list[tuple[int, int]] = []

    def append(self, batch: LoggedBatch) -> None:
        """Take *batch*, whose offsets begin at `end`."""
        assert batch.base_offset == self.end, "offsets are given in order"
        self.batches.append(batch)
        self.end = batch.last_offset + 1

    def complete(self, producer_id: int, began: int, marker_offset: int, *, aborted: bool) -> None:
        """A transaction that has records here is ended by the marker at that offset."""
        self.completed.append((began, marker_offset))
        if aborted:
            self.aborted.append(AbortedTransaction(producer_id, began, marker_offset))

    # -- leader epochs

    def assign_epoch(self, epoch: int) -> None:
        """A leader begins (LeaderEpochFileCache.assign, Partition.makeLeader)."""
        while self.epochs and self.epochs[-1][1] >= self.end:
            self.epochs.pop()
        self.epochs.append((epoch, self.end))

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """LeaderEpochFileCache.endOffsetFor."""
        known = [one for one, _ in self.epochs]
        if epoch < 0 or not known:
            return UNDEFINED
        if epoch == known[-1]:
            return EpochEnd(epoch, self.end)
        above = [(one, start) for one, start in self.epochs if one > epoch]
        if not above:
            return UNDEFINED
        floor = [one for one in known if one <= epoch]
        return EpochEnd(floor[-1] if floor else epoch, above[0][1])

    # -- changes that are no appends

    def truncate(self, end: int) -> None:
        """Forget the batches that hold *end* or lie above it (UnifiedLog.truncateTo)."""
        gone = [batch for batch in self.batches if batch.last_offset >= end]
        if not gone:
            return
        self.batches = self.batches[: -len(gone)]
        self.end = gone[0].base_offset
        self.start = min(self.start, self.end)
        self.high_watermark = min(self.high_watermark, self.end)
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < self.end]
        self.aborted = [one for one in self.aborted if one.last_offset < self.end]
        self.completed = [one for one in self.completed if one[1] < self.end]

    def delete_before(self, offset: int) -> None:
        """Retention, or DeleteRecords (UnifiedLog.maybeIncrementLogStartOffset)."""
        offset = min(offset, self.high_watermark)
        if offset <= self.start:
            return
        self.start = offset
        self.batches = [batch for batch in self.batches if batch.last_offset >= offset]
        self.aborted = [one for one in self.aborted if one.last_offset >= offset]
        earlier = [one for one in self.epochs if one[1] <= offset]
        later = [one for one in self.epochs if one[1] > offset]
        self.epochs = [(earlier[-1][0], offset), *later] if earlier else later

    def compact(self, end: int, last_of_producers: Collection[int]) -> set[int]:
        """Clean what lies below *end*: of each key the last record stays; returns the offsets of those that went.

        *last_of_producers* are the last offsets of producers that are remembered: their batches stay, if only as a header
        (LogCleaner.checkBatchRetention, RETAIN_EMPTY). Aborted records and markers are left alone.
        """
        end = min(end, self.high_watermark)
        aborted = self.is_aborted
        newest: dict[bytes | None, int] = {}
        for batch in self.batches:
            if batch.last_offset < end and not batch.is_control:
                newest.update({record.key: record.offset for record in batch.records if not aborted(batch)})
        gone: set[int] = set()
        left: list[LoggedBatch] = []
        for batch in self.batches:
            if batch.last_offset >= end or batch.is_control:
                left.append(batch)
                continue
            kept = [record for record in batch.records if newest.get(record.key, -1) == record.offset]
            gone.update({record.offset for record in batch.records} - {record.offset for record in kept})
            if kept and len(kept) == batch.count:
                left.append(batch)
            elif kept or batch.last_offset in last_of_producers:
                left.append(cleaned(batch, kept))
        self.batches = left
        return gone

    # -- reading

    def last_stable_offset(self, ongoing: Iterable[int]) -> int:
        """UnifiedLog.lastStableOffset, *ongoing* being where open transactions began."""
        self.completed = [one for one in self.completed if one[1] >= self.high_watermark]
        return min([self.high_watermark, *ongoing, *(first for first, _ in self.completed)])

    def is_aborted(self, batch: LoggedBatch) -> bool:
        """Whether the records of *batch* were taken back."""
        return batch.is_transactional and any(
            one.producer_id == batch.producer_id and one.first_offset <= batch.base_offset <= one.last_offset
            for one in self.aborted
        )

"""The log of one partition replica with batches, offsets and leader epochs.

A model of what clients can observe of Kafka's `UnifiedLog`, `LeaderEpochFileCache` and `LogCleaner`.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from tests.model.batches import LoggedBatch, compacted


class AbortedTransaction(NamedTuple):
    """An entry of the transaction index (AbortedTxn)."""

    producer_id: int
    first_offset: int
    last_offset: int  # the offset of the marker


class EpochEnd(NamedTuple):
    """A leader epoch and its end offset. Both are -1 if unknown."""

    epoch: int
    end_offset: int


UNDEFINED = EpochEnd(-1, -1)


class PartitionLog:
    """A replicated log. `end` is the log end offset."""

    def __init__(self) -> None:
        self.batches: list[LoggedBatch] = []
        self.start = 0
        self.end = 0
        self.high_watermark = 0
        self.epochs: list[tuple[int, int]] = []  # pairs of epoch and first offset, both increasing
        self.aborted: list[AbortedTransaction] = []
        # Completed transactions whose marker may not be replicated yet, as pairs of first offset and marker offset.
        self.completed: list[tuple[int, int]] = []

    def append(self, batch: LoggedBatch) -> None:
        """Appends *batch*, whose offsets start at `end`."""
        assert batch.base_offset == self.end, "offsets are contiguous"
        self.batches.append(batch)
        self.end = batch.last_offset + 1

    def complete(self, producer_id: int, first_offset: int, marker_offset: int, *, aborted: bool) -> None:
        """Records that the marker at *marker_offset* has ended a transaction with records here."""
        self.completed.append((first_offset, marker_offset))
        if aborted:
            self.aborted.append(AbortedTransaction(producer_id, first_offset, marker_offset))

    # -- leader epochs

    def assign_epoch(self, epoch: int) -> None:
        """Starts a leader epoch (LeaderEpochFileCache.assign, Partition.makeLeader)."""
        while self.epochs and self.epochs[-1][1] >= self.end:
            self.epochs.pop()
        self.epochs.append((epoch, self.end))

    def end_of_epoch(self, epoch: int) -> EpochEnd:
        """As in LeaderEpochFileCache.endOffsetFor."""
        epochs = [known for known, _ in self.epochs]
        if epoch < 0 or not epochs:
            return UNDEFINED
        if epoch == epochs[-1]:
            return EpochEnd(epoch, self.end)
        above = [(known, start) for known, start in self.epochs if known > epoch]
        if not above:
            return UNDEFINED
        floor = [known for known in epochs if known <= epoch]
        return EpochEnd(floor[-1] if floor else epoch, above[0][1])

    # -- truncation, deletion and compaction

    def truncate(self, end: int) -> None:
        """Removes the batches that contain *end* or follow it (UnifiedLog.truncateTo)."""
        removed = [batch for batch in self.batches if batch.last_offset >= end]
        if not removed:
            return
        self.batches = self.batches[: -len(removed)]
        self.end = removed[0].base_offset
        self.start = min(self.start, self.end)
        self.high_watermark = min(self.high_watermark, self.end)
        self.epochs = [(epoch, start) for epoch, start in self.epochs if start < self.end]
        self.aborted = [aborted for aborted in self.aborted if aborted.last_offset < self.end]
        self.completed = [(first, marker) for first, marker in self.completed if marker < self.end]

    def delete_before(self, offset: int) -> None:
        """Deletes records like retention and DeleteRecords (UnifiedLog.maybeIncrementLogStartOffset)."""
        offset = min(offset, self.high_watermark)
        if offset <= self.start:
            return
        self.start = offset
        self.batches = [batch for batch in self.batches if batch.last_offset >= offset]
        self.aborted = [aborted for aborted in self.aborted if aborted.last_offset >= offset]
        earlier = [(epoch, start) for epoch, start in self.epochs if start <= offset]
        later = [(epoch, start) for epoch, start in self.epochs if start > offset]
        self.epochs = [(earlier[-1][0], offset), *later] if earlier else later

    def compact(self, end: int, last_of_producers: Collection[int]) -> set[int]:
        """Keeps only the last record of each key below *end*, and returns the offsets of the removed records.

        *last_of_producers* are the last offsets of all known producers. Their batches stay, at least as an empty batch
        (LogCleaner.checkBatchRetention, RETAIN_EMPTY). Aborted records and markers stay too.
        """
        end = min(end, self.high_watermark)
        aborted = self.is_aborted
        newest: dict[bytes | None, int] = {}
        for batch in self.batches:
            if batch.last_offset < end and not batch.is_control:
                newest.update({record.key: record.offset for record in batch.records if not aborted(batch)})
        removed: set[int] = set()
        kept_batches: list[LoggedBatch] = []
        for batch in self.batches:
            if batch.last_offset >= end or batch.is_control:
                kept_batches.append(batch)
                continue
            kept = [record for record in batch.records if newest.get(record.key, -1) == record.offset]
            removed.update({record.offset for record in batch.records} - {record.offset for record in kept})
            if kept and len(kept) == batch.count:
                kept_batches.append(batch)
            elif kept or batch.last_offset in last_of_producers:
                kept_batches.append(compacted(batch, kept))
        self.batches = kept_batches
        return removed

    # -- reading

    def last_stable_offset(self, ongoing: Iterable[int]) -> int:
        """As in UnifiedLog.lastStableOffset. *ongoing* has the first offsets of open transactions."""
        self.completed = [
            (first, marker) for first, marker in self.completed if marker >= self.high_watermark
        ]
        return min([self.high_watermark, *ongoing, *(first for first, _ in self.completed)])

    def is_aborted(self, batch: LoggedBatch) -> bool:
        """Returns whether the transaction of *batch* was aborted."""
        return batch.is_transactional and any(
            aborted.producer_id == batch.producer_id
            and aborted.first_offset <= batch.base_offset <= aborted.last_offset
            for aborted in self.aborted
        )

"""Target leaders without bytes, and source logs that can be truncated and compacted.

A target partition is a `tests.model.leader.PartitionLeader`, which decides about appends as Kafka does. Its batches
have values instead of bytes: record numbers in data partitions, claims and positions in internal topics.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from mirrorflow_core.partitions import UNKNOWN
from mirrorflow_core.wire.batch import CONTROL_BIT, Batch
from mirrorflow_core.writer.broker_requests import LeaderEpochEnd, SourceStart
from mirrorflow_core.writer.transaction_log import LogBatch, Marker
from tests.model.batches import LOG_APPEND_TIME, TRANSACTIONAL, LoggedBatch
from tests.model.errors import MESSAGE_TOO_LARGE, NOT_LEADER_OR_FOLLOWER, RefusedError
from tests.model.leader import PartitionLeader
from tests.model.producer_state import Rules


class ProducedBatch(NamedTuple):
    """A batch as a producer sends it."""

    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp: int
    is_transactional: bool
    values: tuple[object, ...]
    transactional_id: str = ""


class ModelLeader(PartitionLeader):
    """A partition leader of the target whose batches have values instead of bytes."""

    def __init__(self, rules: Rules, configs: dict[str, str], key_of: Callable[[Any], Hashable]) -> None:
        super().__init__(rules, configs)
        self.key_of = key_of
        self.is_online = True
        self.max_records = 1000  # in a batch, after recompression
        self.loses_replicas = False  # the ISR falls below min.insync.replicas after an append
        self._read: dict[int, tuple[LoggedBatch, LogBatch]] = {}
        self.cleaned: list[LoggedBatch] = []  # removed by compaction; the judge counts it as delivered
        # Base offsets and leader epochs of aborted batches, which may have lost the abort marker since.
        self.was_aborted: set[tuple[int, int]] = set()

    @property
    def is_writable(self) -> bool:
        """Returns whether the partition has a leader, and followers that replicate what it appends."""
        return self.is_online and self.replicates

    def _validated(self, batch: ProducedBatch, now_ms: int) -> LoggedBatch:  # type: ignore[override]
        if not self.is_online:
            raise RefusedError(NOT_LEADER_OR_FOLLOWER)
        if len(batch.values) > self.max_records:
            raise RefusedError(MESSAGE_TOO_LARGE)
        is_log_append_time = self.config("message.timestamp.type") == "LogAppendTime"
        base = self.log.end
        return LoggedBatch(
            base_offset=base,
            last_offset=base + len(batch.values) - 1,
            leader_epoch=self.epoch,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            max_timestamp=now_ms if is_log_append_time else batch.max_timestamp,
            attributes=TRANSACTIONAL * batch.is_transactional | LOG_APPEND_TIME * is_log_append_time,
            count=len(batch.values),
            data=b"",
            _records=[(base + index, value) for index, value in enumerate(batch.values)],  # type: ignore[misc]
        )

    def last_sequence(self, producer_id: int, producer_epoch: int) -> int | None:
        """DescribeProducers."""
        entry = self.producers.producers.get(producer_id)
        return entry.last_sequence if entry is not None and entry.epoch == producer_epoch else None

    @property
    def batches(self) -> list[LogBatch]:
        """The batches below the high watermark."""
        end = self.log.high_watermark
        return [self._cached_log_batch(batch) for batch in self.log.batches if batch.last_offset < end]

    def _cached_log_batch(self, batch: LoggedBatch) -> LogBatch:
        known = self._read.get(batch.base_offset)
        if known is None or known[0] is not batch:
            known = self._read[batch.base_offset] = batch, log_batch(batch)
        return known[1]

    def compact(self, end: int) -> set[int]:
        """Keeps only the last record of each key below *end*, and an empty last batch of each producer."""
        end = min(end, self.last_stable_offset)
        last = {entry.batches[-1].last_offset for entry in self.producers.producers.values() if entry.batches}
        newest = {
            self.key_of(value): offset
            for batch in self.log.batches
            if batch.last_offset < end and not batch.is_control and not self.log.is_aborted(batch)
            for offset, value in rows_of(batch)
        }
        kept_batches: list[LoggedBatch] = []
        removed_offsets: set[int] = set()
        for batch in self.log.batches:
            if batch.last_offset >= end or batch.is_control:
                kept_batches.append(batch)
                continue
            kept = [row for row in rows_of(batch) if newest.get(self.key_of(row[1])) == row[0]]
            removed = [row for row in rows_of(batch) if row not in kept]
            removed_offsets |= {row[0] for row in removed}
            if removed and not self.log.is_aborted(batch):
                self.cleaned.append(replace(batch, _records=cast("Any", removed)))
            if kept or batch.last_offset in last:
                kept_batches.append(replace(batch, count=len(kept), _records=cast("Any", kept)))
        self.log.batches = kept_batches
        return removed_offsets

    def delete_before(self, offset: int) -> None:
        """Deletes records, which the judge counts as delivered."""
        end = min(offset, self.last_stable_offset)
        self.cleaned += [
            batch
            for batch in self.log.batches
            if batch.last_offset < end and not batch.is_control and not self.log.is_aborted(batch)
        ]
        self.log.delete_before(end)

    def elect(self, end: int, *, is_restarted: bool = False) -> None:
        """Elects as `PartitionLeader` does, and truncates the compacted records too."""
        self.was_aborted |= {
            (batch.base_offset, batch.leader_epoch)
            for batch in self.log.batches
            if self.log.is_aborted(batch)
        }
        super().elect(end, is_restarted=is_restarted)
        self.cleaned = [batch for batch in self.cleaned if batch.last_offset < self.log.end]

    def revived(self) -> set[tuple[int, int]]:
        """Producer ids and record numbers of committed transactions whose earlier abort marker was lost."""
        return {
            (batch.producer_id, value)
            for batch in self.log.batches
            if (batch.base_offset, batch.leader_epoch) in self.was_aborted and not self.log.is_aborted(batch)
            for _, value in rows_of(batch)
        }

    def delivered(self, *, committed: bool = True) -> list[int]:
        """The record numbers that consumers have received, in order; foreign writers' negative numbers are excluded."""
        batches = [
            batch
            for batch in (*self.cleaned, *self.log.batches)
            if not batch.is_control and not (committed and self.log.is_aborted(batch))
        ]
        end = self.last_stable_offset if committed else self.log.high_watermark
        rows = sorted(
            (row for batch in batches for row in rows_of(batch) if row[0] < end), key=lambda row: row[0]
        )
        return [value for _, value in rows if value >= 0]


def rows_of(batch: LoggedBatch) -> list[tuple[int, Any]]:
    """The offsets and values of a batch of this model."""
    return cast("list[tuple[int, Any]]", batch.records)


def log_batch(batch: LoggedBatch) -> LogBatch:
    return LogBatch(
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
        marker=None if batch.marker is None else Marker(batch.marker),
        records=() if batch.is_control else tuple(rows_of(batch)),
    )


class SourceRecord(NamedTuple):
    """A record of the source. Numbers increase in the order in which records were written."""

    offset: int
    number: int
    timestamp: int
    leader_epoch: int
    batch: tuple[int, int]  # the start and end offset of its batch, which compaction keeps


class SkippedOffsets(NamedTuple):
    """Offsets before *next_offset* that have markers and aborted records."""

    next_offset: int
    leader_epoch: int


class SourceRecords(NamedTuple):
    """A fetched batch, with the offsets and numbers of its records."""

    batch: Batch
    offsets: tuple[int, ...]
    numbers: tuple[int, ...]

    def from_offset(self, offset: int, most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """At most *most* offsets and numbers from *offset* on."""
        index = bisect_left(self.offsets, offset)
        return self.offsets[index : index + most], self.numbers[index : index + most]


@dataclass
class SourceLog:
    """One partition of the source."""

    records: list[SourceRecord] = field(default_factory=list)
    skipped: list[tuple[int, SkippedOffsets]] = field(default_factory=list)  # with their first offsets
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # epoch, first offset
    epoch: int = 0
    end: int = 0
    numbers: int = 0
    truncations: int = 0
    lost_end: bool = False
    is_online: bool = True

    def append(self, count: int, timestamp: int) -> None:
        """Append one batch."""
        batch = self.end, self.end + count
        for _ in range(count):
            self.records.append(SourceRecord(self.end, self.numbers, timestamp, self.epoch, batch))
            self.end += 1
            self.numbers += 1

    def skip(self, count: int) -> None:
        """Append transaction markers and aborted records."""
        self.skipped.append((self.end, SkippedOffsets(self.end + count, self.epoch)))
        self.end += count

    def elect(self, end: int) -> None:
        """Elects a leader whose log ends at *end*."""
        self.truncations += end < self.end
        self.lost_end = end < self.end  # the last epoch has lost its end
        self.records = [
            record._replace(batch=(record.batch[0], min(record.batch[1], end)))
            for record in self.records
            if record.offset < end
        ]
        self.skipped = [
            (first, skipped._replace(next_offset=min(skipped.next_offset, end)))
            for first, skipped in self.skipped
            if first < end
        ]
        self.end = min(self.end, end)
        self.epoch += 1
        self.epochs = [
            *((epoch, start) for epoch, start in self.epochs if start < self.end),
            (self.epoch, self.end),
        ]

    def elect_earlier(self, count: int, timestamp: int) -> None:
        """Elects the leader of the previous epoch, with *count* records of that epoch that no other replica has."""
        if len(self.epochs) < 2 or self.lost_end:
            return  # its records would be the lost ones
        newest = self.epoch
        self.elect(self.epochs[-1][1])
        self.epochs.pop()
        self.epoch = self.epochs[-1][0]
        self.append(count, timestamp)
        self.epoch = newest + 1
        self.epochs.append((self.epoch, self.end))

    def compact(self, rng: random.Random) -> None:
        """Removes some records, but not the last one."""
        self.records = [record for record in self.records[:-1] if rng.random() < 0.7] + self.records[-1:]

    @property
    def start(self) -> SourceStart:
        """ListOffsets: the first offset and the leader epoch of its record."""
        return SourceStart(0, self.epochs[0][0] if self.end else UNKNOWN)

    def epoch_end(self, epoch: int) -> LeaderEpochEnd:
        """OffsetsForLeaderEpoch: the largest known epoch up to *epoch* and its end offset."""
        known = max((first for first, _ in self.epochs if first <= epoch), default=-1)
        return (
            LeaderEpochEnd(known, self.end_of_epoch(epoch)) if epoch <= self.epoch else LeaderEpochEnd(-1, -1)
        )

    def end_of_epoch(self, epoch: int) -> int:
        """OffsetsForLeaderEpoch: the end offset; -1 if the epoch is too new."""
        if epoch > self.epoch:
            return -1
        return next((start for later, start in self.epochs if later > epoch), self.end)

    def fetch(self, next_offset: int) -> SourceRecords | SkippedOffsets:
        """The first part of a fetch response at *next_offset*: a batch, or offsets that consumers never receive."""
        index = bisect_left(self.records, next_offset, key=lambda record: record.offset)
        first = self.records[index] if index < len(self.records) else None
        for begins, skipped in self.skipped:
            if skipped.next_offset > next_offset and (first is None or begins < first.offset):
                return skipped
        if first is None:
            return SkippedOffsets(self.end, self.epoch)
        records = [
            record for record in self.records[max(0, index - 20) : index + 20] if record.batch == first.batch
        ]
        base, end = first.batch
        batch = _batch(base, end, first.leader_epoch, timestamp=first.timestamp, count=len(records))
        return SourceRecords(
            batch, tuple(record.offset for record in records), tuple(record.number for record in records)
        )


def control_batch(offset: int, skipped: SkippedOffsets) -> Batch:
    """A control batch for offsets from *offset* on that consumers never receive."""
    return _batch(
        offset, skipped.next_offset, skipped.leader_epoch, timestamp=0, count=0, attributes=CONTROL_BIT
    )


def _batch(
    base: int, end: int, leader_epoch: int, *, timestamp: int, count: int, attributes: int = 0
) -> Batch:
    return Batch(
        base_offset=base,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=end - base - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=count,
        data=memoryview(b""),
        size_bytes=0,
    )

"""The partitions of the model: target leaders without bytes, and source logs that are truncated, compacted and re-created.

A target partition is `tests.model.leader.PartitionLeader`, whose decisions about appends are Kafka's. Its batches have
values instead of bytes: record numbers in data partitions, claims and positions in internal topics.
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
        self.max_records = 1000  # of a batch, after recompression
        self.loses_replicas = False  # the ISR falls below min.insync.replicas behind an append
        self._read: dict[int, tuple[LoggedBatch, LogBatch]] = {}
        self.cleaned: list[LoggedBatch] = []  # what compaction removed; the judge counts it as delivered
        self.was_aborted: set[tuple[int, int]] = (
            set()
        )  # base offsets and epochs of batches that have lost this marker

    @property
    def is_writable(self) -> bool:
        """Whether the partition has a leader, and followers that replicate what it appends."""
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
            _records=[(base + at, value) for at, value in enumerate(batch.values)],  # type: ignore[misc]
        )

    def last_sequence(self, producer_id: int, producer_epoch: int) -> int | None:
        """DescribeProducers."""
        entry = self.producers.producers.get(producer_id)
        return entry.last_sequence if entry is not None and entry.epoch == producer_epoch else None

    @property
    def batches(self) -> list[LogBatch]:
        """What a consumer reads below the high watermark."""
        end = self.log.high_watermark
        return [self._as_read(one) for one in self.log.batches if one.last_offset < end]

    def _as_read(self, batch: LoggedBatch) -> LogBatch:
        known = self._read.get(batch.base_offset)
        if known is None or known[0] is not batch:
            known = self._read[batch.base_offset] = batch, as_read(batch)
        return known[1]

    def compact(self, end: int) -> set[int]:
        """Keep the last record of each key below *end*, and the last batch of each producer if only as a header."""
        end = min(end, self.last_stable_offset)
        last = {one.batches[-1].last_offset for one in self.producers.producers.values() if one.batches}
        newest = {
            self.key_of(value): offset
            for batch in self.log.batches
            if batch.last_offset < end and not batch.is_control and not self.log.is_aborted(batch)
            for offset, value in rows_of(batch)
        }
        left: list[LoggedBatch] = []
        gone: set[int] = set()
        for batch in self.log.batches:
            if batch.last_offset >= end or batch.is_control:
                left.append(batch)
                continue
            kept = [row for row in rows_of(batch) if newest.get(self.key_of(row[1])) == row[0]]
            removed = [row for row in rows_of(batch) if row not in kept]
            gone |= {row[0] for row in removed}
            if removed and not self.log.is_aborted(batch):
                self.cleaned.append(replace(batch, _records=cast("Any", removed)))
            if kept or batch.last_offset in last:
                left.append(replace(batch, count=len(kept), _records=cast("Any", kept)))
        self.log.batches = left
        return gone

    def delete_before(self, offset: int) -> None:
        """DeleteRecords, or retention; the judge counts what is gone as delivered."""
        end = min(offset, self.last_stable_offset)
        self.cleaned += [
            one
            for one in self.log.batches
            if one.last_offset < end and not one.is_control and not self.log.is_aborted(one)
        ]
        self.log.delete_before(end)

    def elect(self, end: int, *, is_restarted: bool = False) -> None:
        """See `PartitionLeader.elect`; what was compacted and is now truncated is gone as well."""
        self.was_aborted |= {
            (one.base_offset, one.leader_epoch) for one in self.log.batches if self.log.is_aborted(one)
        }
        super().elect(end, is_restarted=is_restarted)
        self.cleaned = [one for one in self.cleaned if one.last_offset < self.log.end]

    def revived(self) -> set[tuple[int, int]]:
        """Producer ids and record numbers of transactions that were aborted, have lost that marker, and are committed."""
        return {
            (batch.producer_id, value)
            for batch in self.log.batches
            if (batch.base_offset, batch.leader_epoch) in self.was_aborted and not self.log.is_aborted(batch)
            for _, value in rows_of(batch)
        }

    def delivered(self, *, committed: bool = True) -> list[int]:
        """The record numbers that readers have seen, in order; without those of foreign writers, which are negative."""
        batches = [
            one
            for one in (*self.cleaned, *self.log.batches)
            if not one.is_control and not (committed and self.log.is_aborted(one))
        ]
        end = self.last_stable_offset if committed else self.log.high_watermark
        rows = sorted(
            (row for one in batches for row in rows_of(one) if row[0] < end), key=lambda row: row[0]
        )
        return [value for _, value in rows if value >= 0]


def rows_of(batch: LoggedBatch) -> list[tuple[int, Any]]:
    """The offsets and values of a batch of this model."""
    return cast("list[tuple[int, Any]]", batch.records)


def as_read(batch: LoggedBatch) -> LogBatch:
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
    """A record of the source. Numbers grow with the order in which records were written."""

    offset: int
    number: int
    timestamp: int
    leader_epoch: int
    batch: tuple[int, int]  # where its batch begins and ends; compaction leaves that as it was


class SkippedOffsets(NamedTuple):
    """Offsets before *next_offset* that hold markers and aborted records."""

    next_offset: int
    leader_epoch: int


class SourceRecords(NamedTuple):
    """A fetched batch, with the offsets and numbers of its records."""

    batch: Batch
    offsets: tuple[int, ...]
    numbers: tuple[int, ...]

    def from_offset(self, offset: int, most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The offsets and numbers from *offset* on, at most *most*."""
        at = bisect_left(self.offsets, offset)
        return self.offsets[at : at + most], self.numbers[at : at + most]


@dataclass
class SourceLog:
    """One partition of the source."""

    records: list[SourceRecord] = field(default_factory=list)
    skipped: list[tuple[int, SkippedOffsets]] = field(default_factory=list)  # with their first offset
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
        """Another leader, whose log ends at *end*."""
        self.truncations += end < self.end
        self.lost_end = end < self.end  # of the epoch before
        self.records = [
            one._replace(batch=(one.batch[0], min(one.batch[1], end)))
            for one in self.records
            if one.offset < end
        ]
        self.skipped = [
            (first, one._replace(next_offset=min(one.next_offset, end)))
            for first, one in self.skipped
            if first < end
        ]
        self.end = min(self.end, end)
        self.epoch += 1
        self.epochs = [*(one for one in self.epochs if one[1] < self.end), (self.epoch, self.end)]

    def elect_earlier(self, count: int, timestamp: int) -> None:
        """A leader of the epoch before returns, and has *count* records of it that no other replica has."""
        if len(self.epochs) < 2 or self.lost_end:
            return  # its records there would be those that were lost
        newest = self.epoch
        self.elect(self.epochs[-1][1])
        self.epochs.pop()
        self.epoch = self.epochs[-1][0]
        self.append(count, timestamp)
        self.epoch = newest + 1
        self.epochs.append((self.epoch, self.end))

    def compact(self, rng: random.Random) -> None:
        """Remove some records, not the last."""
        self.records = [one for one in self.records[:-1] if rng.random() < 0.7] + self.records[-1:]

    @property
    def start(self) -> SourceStart:
        """ListOffsets: the first offset, with the leader epoch of the record there."""
        return SourceStart(0, self.epochs[0][0] if self.end else UNKNOWN)

    def epoch_end(self, epoch: int) -> LeaderEpochEnd:
        """OffsetsForLeaderEpoch, with the epoch that it is about."""
        known = max((one for one, _ in self.epochs if one <= epoch), default=-1)
        return (
            LeaderEpochEnd(known, self.end_of_epoch(epoch)) if epoch <= self.epoch else LeaderEpochEnd(-1, -1)
        )

    def end_of_epoch(self, epoch: int) -> int:
        """OffsetsForLeaderEpoch."""
        if epoch > self.epoch:
            return -1
        return next((start for later, start in self.epochs if later > epoch), self.end)

    def fetch(self, next_offset: int) -> SourceRecords | SkippedOffsets:
        """What a fetch at *next_offset*, which is below the end, finds first: a batch, or what consumers never get."""
        at = bisect_left(self.records, next_offset, key=lambda record: record.offset)
        first = self.records[at] if at < len(self.records) else None
        for begins, skipped in self.skipped:
            if skipped.next_offset > next_offset and (first is None or begins < first.offset):
                return skipped
        if first is None:
            return SkippedOffsets(self.end, self.epoch)
        found = [one for one in self.records[max(0, at - 20) : at + 20] if one.batch == first.batch]
        base, end = first.batch
        batch = _batch(base, end, first.leader_epoch, timestamp=first.timestamp, count=len(found))
        return SourceRecords(batch, tuple(one.offset for one in found), tuple(one.number for one in found))


def control_batch(offset: int, skipped: SkippedOffsets) -> Batch:
    """Offsets from *offset* on that consumers never get."""
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

"""From fetched batches to batches that the target takes: raw where it can be, coalesced or re-encoded where it must be.

A `Packer` holds what was fetched of one partition and gives one batch at a time, with the span of the stream it carries.
It promises: every record once, in order; nothing whose source checksum fails with a checksum that holds; each path counted.
Which ordinals the records carry is `flow.stream`'s; which batches are no records of the stream at all (control, aborted)
was decided before they came here.
"""

from collections import deque
from contextlib import suppress
from itertools import islice, takewhile
from typing import NamedTuple

from mirrorflow_replicator.errors import (
    CorruptBatchError,
    CorruptRecordsError,
    PartitionError,
    RecordTooLargeError,
    UnsupportedBatchError,
)
from mirrorflow_replicator.flow.alignment import SEQUENCES, sequence_of
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.stream import Span, Stream, span_of
from mirrorflow_replicator.flow.transforms import NO_EDITS, HeaderEdits
from mirrorflow_replicator.wire.batch import (
    Batch,
    checksum_holds,
    raw_refusal,
    rewrite,
    set_transactional,
)
from mirrorflow_replicator.wire.coalesce import SMALL_BYTES, coalesce, worth_coalescing
from mirrorflow_replicator.wire.produce import Buffer
from mirrorflow_replicator.wire.records import Record, RecordOverLimitError, decode, encode_split

# What small batches are put together to: Kafka's default message.max.bytes.
MERGED_BYTES_MAX = 1_048_588
# Before the target has refused a batch for its size, its limit is not known, and all that comes is sent.
UNLIMITED_BYTES = 1 << 31
COALESCE_LOOK_AHEAD = 4_096  # batches looked at for merging: a full batch of the smallest records
NO_AGE_MS = -(1 << 63)  # no timestamp is below it: nothing is old
ANY_AGE_MS = 1 << 63  # all timestamps are


class _Encoded(NamedTuple):
    """A batch that was encoded again and is not sent yet."""

    data: bytearray
    span: Span
    oldest_ms: int


class Packer:
    """See the module."""

    __slots__ = (
        "_end",
        "_outbox",
        "_queue",
        "coalesced",
        "codecs_allowed",
        "header_edits",
        "identity",
        "max_bytes",
        "needs_pin",
        "old_before_ms",
        "partition",
        "queued_bytes",
        "raw",
        "reencoded",
        "target_topic",
        "topic",
        "transactional",
        "verifies",
    )

    def __init__(
        self, topic: str, partition: int, target_topic: str, header_edits: HeaderEdits = NO_EDITS
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.target_topic = target_topic
        self.identity: Identity | None = None
        self.max_bytes = UNLIMITED_BYTES
        self.codecs_allowed: frozenset[int] | None = None
        self.header_edits = header_edits
        self.queued_bytes = 0
        # A batch that goes as it is keeps its source's checksum, and the target checks it. Only when the target finds one
        # damaged it is checked here, to tell which.
        self.verifies = False
        self.raw = self.coalesced = self.reencoded = 0
        # Batches are made to go inside the open transaction. Without that, one with a timestamp before `old_before_ms` is
        # held back, and `needs_pin` says so.
        self.transactional = False
        self.old_before_ms = NO_AGE_MS
        self.needs_pin = False
        self._queue: deque[tuple[Batch, int]] = deque()  # with the source offset after it
        self._outbox: deque[_Encoded] = deque()
        self._end: PartitionError | None = None

    def __bool__(self) -> bool:
        return bool(self._queue or self._outbox or self._end)

    @property
    def is_old(self) -> bool:
        """Whether what comes next has to be pinned, as far as its header tells."""
        if self._outbox:
            return self._outbox[0].oldest_ms < self.old_before_ms
        if not self._queue:
            return False
        batch, _ = self._queue[0]
        return min(batch.max_timestamp, batch.base_timestamp) < self.old_before_ms

    @property
    def is_ended(self) -> bool:
        """Whether nothing can be added before `clear`."""
        return self._end is not None

    def end_with(self, error: PartitionError) -> None:
        """What follows what is here cannot be copied, for that reason."""
        self._end = error

    def add(self, batch: Batch) -> None:
        """The next batch of the source."""
        self._queue.append((batch, batch.next_offset))
        self.queued_bytes += batch.size_bytes

    def pass_over(self, next_offset: int, stream: Stream) -> None:
        """What follows up to *next_offset* is nothing for the stream."""
        if self._queue:
            self._queue[-1] = (self._queue[-1][0], next_offset)
        elif self._outbox:
            last = self._outbox.pop()
            self._outbox.append(last._replace(span=last.span._replace(next_offset=next_offset)))
        else:
            stream.pass_over(next_offset)

    def clear(self) -> None:
        """Forget all that was not sent."""
        self._queue.clear()
        self._outbox.clear()
        self._end = None
        self.queued_bytes = 0

    def next(self, stream: Stream) -> tuple[Buffer, Span] | None:
        """The next batch to send and its span; None if there is nothing. Raises PartitionError for what cannot be copied."""
        self.needs_pin = False
        while self._queue or self._outbox:
            packed = self._next_encoded() if self._outbox else self._pack(stream)
            if packed is not None or self.needs_pin:
                return packed
        if self._end is not None:
            raise self._end
        return None

    def _next_encoded(self) -> tuple[Buffer, Span] | None:
        data, span, oldest_ms = self._outbox[0]
        if oldest_ms < self.old_before_ms and not self.transactional:
            self.needs_pin = True
            return None
        self._outbox.popleft()
        # Pinned or not may have changed since it was encoded.
        set_transactional(data, transactional=self.transactional)
        return data, span

    def _pack(self, stream: Stream) -> tuple[Buffer, Span] | None:
        batch, next_offset = self._queue[0]
        refusal = raw_refusal(
            batch,
            from_offset=stream.next_offset,
            max_bytes=self.max_bytes,
            codecs_allowed=self.codecs_allowed,
        )
        if refusal is not None or self.header_edits:
            self._reencode(batch, next_offset, stream)
            self._take(1)
            return None
        old_before_ms = self.old_before_ms
        if (
            batch.max_timestamp < old_before_ms or batch.base_timestamp < old_before_ms
        ) and not self.transactional:
            self.needs_pin = True
            return None
        if batch.size_bytes <= SMALL_BYTES and len(self._queue) > 1:
            front = [one for one, _ in islice(self._queue, COALESCE_LOOK_AHEAD)]
            sound = list(takewhile(checksum_holds, front[: worth_coalescing(front)]))
            if len(sound) > 1:
                # What is wrong inside one of them must not stop the others: then each goes alone.
                with suppress(CorruptRecordsError):
                    return self._merge(sound, stream)
        if self.verifies:
            self._verify(batch)
        self._queue.popleft()
        size_bytes = batch.size_bytes
        self.queued_bytes -= size_bytes
        identity = self.identity
        assert identity is not None
        first = stream.next_ordinal
        data = rewrite(
            batch,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=first % SEQUENCES,
            transactional=self.transactional,
        )
        self.raw += 1
        return data, span_of(
            first, batch.count, batch.base_offset, next_offset, batch.max_timestamp, size_bytes
        )

    def _merge(self, batches: list[Batch], stream: Stream) -> tuple[Buffer, Span]:
        assert self.identity is not None
        first = stream.next_ordinal
        merged = coalesce(
            batches,
            max_bytes=min(self.max_bytes, MERGED_BYTES_MAX),
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=sequence_of(first),
            transactional=self.transactional,
        )
        next_offset = self._queue[merged.batches - 1][1]
        self._take(merged.batches)
        self.coalesced += merged.batches
        size = len(merged.data)
        return merged.data, Span(
            first, merged.records, merged.base_offset, next_offset, merged.max_timestamp, size
        )

    def _reencode(self, batch: Batch, next_offset: int, stream: Stream) -> None:
        records = self._records(batch, stream.next_offset)
        if not records:
            stream.pass_over(next_offset)
            return
        assert self.identity is not None
        first = stream.next_ordinal
        codec = batch.codec
        if self.codecs_allowed is not None and codec not in self.codecs_allowed:
            codec = min(self.codecs_allowed)
        try:
            parts = encode_split(
                records,
                max_bytes=self.max_bytes,
                codec=codec,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.producer_epoch,
                base_sequence=sequence_of(first),
            )
        except RecordOverLimitError as error:
            raise RecordTooLargeError(
                topic=self.topic,
                partition=self.partition,
                offset=records[error.index].offset,
                size_bytes=error.size_bytes,
                target_topic=self.target_topic,
            ) from error
        begin = 0
        for data, count in parts:
            part = records[begin : begin + count]
            begin += count
            after = next_offset if begin == len(records) else records[begin].offset
            times = [record.timestamp for record in part]
            offsets = None if part[-1].offset - part[0].offset == count - 1 else [r.offset for r in part]
            span = Span(first, count, part[0].offset, after, max(times), len(data), offsets)
            self._outbox.append(_Encoded(data, span, min(times)))
            first += count
        self.reencoded += 1

    def _records(self, batch: Batch, from_offset: int) -> list[Record]:
        self._verify(batch)
        try:
            records = [record for record in decode(batch) if record.offset >= from_offset]
        except CorruptRecordsError as error:
            raise self._corrupt(batch, error) from error
        except NotImplementedError as error:
            raise UnsupportedBatchError(
                topic=self.topic, partition=self.partition, offset=batch.base_offset, problem=str(error)
            ) from error
        edits = self.header_edits
        return [one._replace(headers=edits.edited(one.headers)) for one in records] if edits else records

    def _verify(self, batch: Batch) -> None:
        if not checksum_holds(batch):
            raise self._corrupt(batch, "its checksum does not hold")

    def _corrupt(self, batch: Batch, problem: object) -> CorruptBatchError:
        return CorruptBatchError(
            topic=self.topic, partition=self.partition, offset=batch.base_offset, problem=str(problem)
        )

    def _take(self, count: int) -> None:
        for _ in range(count):
            batch, _ = self._queue.popleft()
            self.queued_bytes -= batch.size_bytes

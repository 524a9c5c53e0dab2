"""Turns fetched batches into batches that the target accepts: unchanged, merged or re-encoded.

A `Packer` holds what was fetched of one partition and returns one batch at a time, with the span of the
stream it carries. A batch is sent unchanged where possible. Guarantees: every record once and in order; a
batch whose source checksum fails never gets a valid one; each path is counted. `writer.stream` numbers
the records. `read_cursor` has left out control and aborted batches; `client.broker_writer` puts the batches of
several partitions into one produce request.
"""

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Any, NamedTuple

from mirrorflow_core.errors import (
    CorruptBatchError,
    CorruptRecordsError,
    DecompressedSizeError,
    PartitionError,
    RecordTooLargeError,
    UnsupportedBatchError,
)
from mirrorflow_core.source_epochs import SourceEpochs
from mirrorflow_core.transforms import NO_EDITS, HeaderEdits
from mirrorflow_core.wire.batch import (
    Batch,
    BatchRefusal,
    checksum_holds,
    first_size_bytes,
    header_of,
    raw_refusal,
    rewrite,
    set_transactional,
    split,
)
from mirrorflow_core.wire.coalesce import (
    CLIENT_UNCOMPRESSED_BYTES_MAX,
    RECORDS_MAX,
    SMALL_BYTES,
    coalesce,
    worth_coalescing,
)
from mirrorflow_core.wire.produce import DEFAULT_BYTES, UNLIMITED, BatchLimit, Buffer, uncompressed_bytes
from mirrorflow_core.wire.records import Record, RecordOverLimitError, decode, encode_split
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.stream import Span, Stream, sequence_of, skip, span_of

MERGED_BYTES_MAX = DEFAULT_BYTES  # small batches are merged up to this size, on a slow link to less
# Batches with gaps are encoded again anyway, so that larger ones are merged: of the default size of Java's producers.
SMALL_BYTES_ACROSS_GAPS = 16_384
# A batch that expands to more is encoded again in pieces: clients can read each, and what waits uncompressed is bounded.
REENCODED_BYTES_MAX = CLIENT_UNCOMPRESSED_BYTES_MAX
_RECORD_OVERHEAD_BYTES = 36  # lengths, deltas and attributes of a record, at most
_HEADER_OVERHEAD_BYTES = 10  # the lengths of a header, at most
COALESCE_LOOK_AHEAD = 4_096  # batches examined for merging: a full batch of the smallest records
NO_AGE_MS = -(1 << 63)  # no timestamp is below it: no record is old
ANY_AGE_MS = 1 << 63  # all timestamps are below it: every record is old


_COUNTS = {"raw", "coalesced", "reencoded"}  # only reported
# What `Packer.next` did: its result, `needs_transaction`, how many batches are queued and encoded, and their bytes.
PackerOutcome = tuple[Span | PartitionError | None, bool, int, int, int]


class _Encoded(NamedTuple):
    """A re-encoded batch that is not sent yet."""

    data: bytearray
    span: Span
    oldest_ms: int


class Packer:
    """The queue of fetched batches of one partition, and the settings that decide how they are sent."""

    __slots__ = (
        "_end",
        "_outbox",
        "_queue",
        "coalesced",
        "codecs_allowed",
        "cut_at",
        "first_ordinal",
        "header_edits",
        "limit",
        "merged_bytes_max",
        "merges_across_gaps",
        "needs_transaction",
        "old_before_ms",
        "partition",
        "producer",
        "queued_bytes",
        "raw",
        "reencoded",
        "target_topic",
        "topic",
        "transactional",
        "verifies",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        target_topic: str,
        producer: Producer,
        header_edits: HeaderEdits = NO_EDITS,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.target_topic = target_topic
        self.producer = producer
        self.first_ordinal = 0  # the ordinal that sequence number 0 of the producer stands for
        self.limit: BatchLimit = UNLIMITED
        self.codecs_allowed: frozenset[int] | None = None
        self.header_edits = header_edits
        self.queued_bytes = 0
        self.cut_at = -1  # no batch holds records from both sides of this source offset
        # An unchanged batch keeps its source's checksum, which the target verifies. It is verified here only
        # after the target has refused one, to find out which.
        self.verifies = False
        # Merge more, also where source offsets are missing and records are old.
        self.merges_across_gaps = False
        self.raw = self.coalesced = self.reencoded = 0
        # Whether batches are made for the open transaction. If not, one with a timestamp before `old_before_ms`
        # is held back, and `needs_transaction` is set.
        self.transactional = False
        self.old_before_ms = NO_AGE_MS
        self.merged_bytes_max = MERGED_BYTES_MAX
        self.needs_transaction = False
        # Each with the next source offset after it, and `Span.skipped_epochs` of what is skipped before that.
        self._queue: deque[tuple[Batch, int, SourceEpochs]] = deque()
        self._outbox: deque[_Encoded] = deque()
        self._end: PartitionError | None = None

    def __bool__(self) -> bool:
        return bool(self._queue or self._outbox or self._end)

    def inherit(self, earlier: "Packer") -> None:
        """Continues the counts of *earlier*, and what it has learned of the target."""
        self.limit, self.codecs_allowed = earlier.limit, earlier.codecs_allowed
        self.raw, self.coalesced, self.reencoded = earlier.raw, earlier.coalesced, earlier.reencoded

    def number_by(self, producer: Producer, first_ordinal: int, *, merges_across_gaps: bool) -> None:
        """Writes as *producer*, with sequence number 0 for *first_ordinal*."""
        self.producer, self.first_ordinal = producer, first_ordinal
        self.merges_across_gaps = merges_across_gaps

    def set_transactional(self, *, transactional: bool) -> None:
        """Makes batches for the open transaction, or for none."""
        self.transactional = transactional

    def prepare(self, old_before_ms: int, merged_bytes_max: int) -> None:
        """Holds back batches with records before *old_before_ms*, unless they are for a transaction; merges up to *merged_bytes_max*."""
        self.old_before_ms = old_before_ms
        self.merged_bytes_max = min(MERGED_BYTES_MAX, merged_bytes_max)

    def limit_to(self, limit: BatchLimit) -> None:
        """Makes batches of at most that size from now on."""
        self.limit = limit

    def cut_before(self, source_offset: int) -> None:
        """Puts records from both sides of *source_offset* into different batches."""
        self.cut_at = source_offset

    def allow_codecs(self, codecs: frozenset[int]) -> None:
        """Encodes batches of other codecs anew."""
        self.codecs_allowed = codecs

    def verify(self) -> None:
        """Verifies the checksums of unchanged batches from now on."""
        self.verifies = True

    def verify_skipped(self, batch: Batch) -> None:
        """Raises CorruptBatchError if *batch*, which is not copied, is damaged: a flipped bit may be why it is not.

        Batches that are copied are verified by the target.
        """
        self._verify(batch)

    def split(self, records: memoryview) -> Sequence[Batch]:
        """Returns the batches in *records* of a fetch response. Raises CorruptRecordsError."""
        return split(records)

    def first_size_bytes(self, records: memoryview) -> int:
        """Returns the size of the first batch in *records*, which may be cut off."""
        return first_size_bytes(records)

    @property
    def front(self) -> Batch | None:
        """The fetched batch that is sent next; None if there is none, or it is partly sent."""
        return self._queue[0][0] if self._queue and not self._outbox else None

    @property
    def has_encoded(self) -> bool:
        """Whether batches are ready with the numbers of the current producer."""
        return bool(self._outbox)

    @property
    def is_ended(self) -> bool:
        """Returns whether nothing can be added before `clear`."""
        return self._end is not None

    def outcome(self, result: Span | PartitionError | None) -> PackerOutcome:
        """Returns what `next` did: *result*, and what is left."""
        return result, self.needs_transaction, len(self._queue), len(self._outbox), self.queued_bytes

    def state_values(self) -> dict[str, Any]:
        """Returns its state without payloads: of a fetched batch only the header, of an encoded one the span."""
        values = {slot: getattr(self, slot) for slot in Packer.__slots__ if slot not in _COUNTS}
        values["_queue"] = [(header_of(batch), *rest) for batch, *rest in self._queue]
        values["_outbox"] = [encoded.span for encoded in self._outbox]
        return values

    def end_with(self, error: PartitionError) -> None:
        """Ends the queue: what follows in the source cannot be copied because of *error*."""
        self._end = error

    def add(self, batch: Batch) -> None:
        """Queues the next batch of the source."""
        self._queue.append((batch, batch.next_offset, ()))
        self.queued_bytes += batch.size_bytes

    def pass_over(self, next_offset: int, source_epoch: int, stream: Stream) -> None:
        """Skips the source up to *next_offset*, where nothing belongs to the stream.

        *source_epoch* is the leader epoch of the last record skipped.
        """
        if self._queue:
            batch, skipped_from, skipped = self._queue[-1]
            skipped = skip(skipped, batch.leader_epoch, skipped_from, source_epoch)
            self._queue[-1] = (batch, next_offset, skipped)
        elif self._outbox:
            last = self._outbox.pop()
            self._outbox.append(last._replace(span=last.span.skip_to(next_offset, source_epoch)))
        else:
            stream.pass_over(next_offset, source_epoch)

    def clear(self) -> None:
        """Drops everything that was not sent."""
        self._queue.clear()
        self._outbox.clear()
        self._end = None
        self.queued_bytes = 0

    def next(self, stream: Stream) -> tuple[Buffer, Span] | None:
        """Returns the next batch to send and its span; None if there is none.

        Raises PartitionError if the next record cannot be copied.
        """
        self.needs_transaction = False
        while self._queue or self._outbox:
            packed = self._next_encoded() if self._outbox else self._pack(stream)
            if packed is not None or self.needs_transaction:
                return packed
        if self._end is not None:
            raise self._end
        return None

    def _next_encoded(self) -> tuple[Buffer, Span] | None:
        data, span, oldest_ms = self._outbox[0]
        if oldest_ms < self.old_before_ms and not self.transactional:
            self.needs_transaction = True
            return None
        self._outbox.popleft()
        self.queued_bytes -= len(data)
        # It may have been encoded before the transaction began or ended.
        set_transactional(data, transactional=self.transactional)
        return data, span

    def _pack(self, stream: Stream) -> tuple[Buffer, Span] | None:
        batch, next_offset, skipped = self._queue[0]
        limit = self.limit
        refusal = raw_refusal(
            batch,
            from_offset=stream.next_offset,
            max_bytes=limit.max_batch_bytes,
            codecs_allowed=self.codecs_allowed,
        )
        has_gaps = refusal is BatchRefusal.GAPS and self.merges_across_gaps
        is_cut = stream.next_offset < self.cut_at < batch.next_offset
        if (refusal is not None and not has_gaps) or self.header_edits or is_cut:
            self._reencode(batch, next_offset, skipped, stream)
            return None
        old_before_ms = self.old_before_ms
        if (
            batch.max_timestamp < old_before_ms or batch.base_timestamp < old_before_ms
        ) and not self.transactional:
            self.needs_transaction = True
            return None
        if limit is not UNLIMITED and not _fits(batch, limit):
            self._reencode(batch, next_offset, skipped, stream)
            return None
        merged = self._merge_small(stream) if self.cut_at <= stream.next_offset else None
        if merged is not None:
            return merged
        if has_gaps:
            self._reencode(batch, next_offset, skipped, stream)
            return None
        if self.verifies:
            self._verify(batch)
        self._queue.popleft()
        size_bytes = batch.size_bytes
        self.queued_bytes -= size_bytes
        producer = self.producer
        first = stream.next_ordinal
        data = rewrite(
            batch,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=sequence_of(first - self.first_ordinal),
            transactional=self.transactional,
        )
        self.raw += 1
        return data, span_of(
            first, batch.count, batch.base_offset, next_offset, batch.max_timestamp, size_bytes,
            batch.leader_epoch, skipped,
        )  # fmt: skip

    def _merge_small(self, stream: Stream) -> tuple[Buffer, Span] | None:
        """Merges the small batches at the front of the queue; None if the first must be sent alone."""
        small_bytes = SMALL_BYTES_ACROSS_GAPS if self.merges_across_gaps else SMALL_BYTES
        if len(self._queue) < 2 or self._queue[0][0].size_bytes > small_bytes:
            return None
        if self.codecs_allowed is not None and self._queue[0][0].codec not in self.codecs_allowed:
            return None  # merging keeps the codec
        candidates = [batch for batch, _, _ in islice(self._queue, COALESCE_LOOK_AHEAD)]
        front = _mergeable(candidates, NO_AGE_MS if self.merges_across_gaps else self.old_before_ms)
        if len(front) < 2:
            return None
        if self.merges_across_gaps:
            worth = worth_coalescing(
                front, across_gaps=True, small_bytes=small_bytes, small_records=RECORDS_MAX
            )
        else:
            worth = worth_coalescing(front)
        sound = list(takewhile(checksum_holds, front[:worth]))
        if len(sound) > 1:
            # A corrupt record in one of them must not stop the others: then each is sent alone. So is a first one that
            # expands too much.
            with suppress(CorruptRecordsError):
                return self._merge(sound, stream)
        return None

    def _merge(self, batches: list[Batch], stream: Stream) -> tuple[Buffer, Span] | None:
        """Merges as many of *batches* as fit; None if no two do: then the first is sent unchanged."""
        first, limit = stream.next_ordinal, self.limit
        is_kept = batches[0].codec in limit.kept_codecs
        merged = coalesce(
            batches,
            max_bytes=min(limit.max_batch_bytes, self.merged_bytes_max),
            max_uncompressed_bytes=None if is_kept else limit.max_uncompressed_bytes,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=sequence_of(first - self.first_ordinal),
            transactional=self.transactional,
            across_gaps=self.merges_across_gaps,
        )
        if merged.batches == 1:
            return None
        last, next_offset, skipped = self._queue[merged.batches - 1]
        self._take(merged.batches)
        self.coalesced += merged.batches
        return merged.data, Span(
            first,
            merged.records,
            merged.base_offset,
            next_offset,
            merged.max_timestamp,
            len(merged.data),
            merged.offsets,
            last.leader_epoch,
            skipped,
        )

    def _reencode(self, batch: Batch, next_offset: int, skipped: SourceEpochs, stream: Stream) -> None:
        """Re-encodes the first batch of the queue into as many batches as the limit requires.

        They are added to the outbox. Raises PartitionError. If one record alone is too large, the batch is to be
        cut, or it expands too much, the records before that place are encoded and the rest stays queued.
        """
        records = self._records(batch, stream.next_offset)
        if not records:
            epoch = batch.leader_epoch
            for later in skipped:
                stream.pass_over(later.first_offset, epoch)
                epoch = later.epoch
            stream.pass_over(next_offset, epoch)
            self._take(1)
            return
        first, codec = stream.next_ordinal, self._codec_for(batch.codec)
        whole = len(records)
        before_cut = [record for record in records if record.offset < self.cut_at]
        if 0 < len(before_cut) < whole:
            records, next_offset = before_cut, records[len(before_cut)].offset
            skipped = ()
        fitting = _count_within(records, REENCODED_BYTES_MAX)
        if fitting < len(records):
            records, next_offset = records[:fitting], records[fitting].offset
            skipped = ()
        try:
            parts = self._split_to_fit(records, codec, first)
        except RecordOverLimitError as error:
            too_large = records[error.index]
            if error.index == 0:
                raise self.too_large(too_large.offset, error.size_bytes) from error
            records, next_offset = records[: error.index], too_large.offset
            skipped = ()
            parts = self._split_to_fit(records, codec, first)
        if len(records) == whole:
            self._take(1)
            self.reencoded += 1
        begin = 0
        for data, count in parts:
            part = records[begin : begin + count]
            begin += count
            is_last = begin == len(records)
            after = next_offset if is_last else records[begin].offset
            times = [record.timestamp for record in part]
            offsets = None if part[-1].offset - part[0].offset == count - 1 else [r.offset for r in part]
            span = Span(
                first, count, part[0].offset, after, max(times), len(data), offsets,
                batch.leader_epoch, skipped if is_last else (),
            )  # fmt: skip
            self._outbox.append(_Encoded(data, span, min(times)))
            self.queued_bytes += len(data)
            first += count

    def _split_to_fit(self, records: list[Record], codec: int, first: int) -> list[tuple[bytearray, int]]:
        """Returns batches within the known limits, with their record counts. Raises RecordOverLimitError."""
        limit = self.limit
        return encode_split(
            records,
            max_bytes=limit.max_batch_bytes,
            max_uncompressed_bytes=None if codec in limit.kept_codecs else limit.max_uncompressed_bytes,
            codec=codec,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.epoch,
            base_sequence=sequence_of(first - self.first_ordinal),
        )

    def _codec_for(self, codec: int) -> int:
        """Returns the codec to encode records of *codec* with.

        If known, it is one that the target stores unchanged.
        """
        allowed, kept = self.codecs_allowed, self.limit.kept_codecs
        choices = kept if allowed is None else kept & allowed
        if codec in choices:
            return codec
        if choices:
            return min(choices)
        return codec if allowed is None or codec in allowed else min(allowed)

    def too_large(self, offset: int, size_bytes: int) -> RecordTooLargeError:
        """Returns the error for the record at source *offset*, which exceeds the target's limit.

        *size_bytes* is the size of the batch that holds it alone.
        """
        return RecordTooLargeError(
            topic=self.topic,
            partition=self.partition,
            offset=offset,
            size_bytes=size_bytes,
            target_topic=self.target_topic,
            then=self.limit.remedy(self.target_topic),
        )

    def _records(self, batch: Batch, from_offset: int) -> list[Record]:
        self._verify(batch)
        try:
            records = [record for record in decode(batch) if record.offset >= from_offset]
        except DecompressedSizeError as error:
            raise UnsupportedBatchError(
                topic=self.topic,
                partition=self.partition,
                offset=batch.base_offset,
                problem=f"it must be decoded here, but expands to more than {error.max_bytes} bytes",
            ) from error
        except CorruptRecordsError as error:
            raise self._corrupt(batch, error) from error
        except NotImplementedError as error:
            raise UnsupportedBatchError(
                topic=self.topic, partition=self.partition, offset=batch.base_offset, problem=str(error)
            ) from error
        edits = self.header_edits
        return (
            [record._replace(headers=edits.edited(record.headers)) for record in records]
            if edits
            else records
        )

    def _verify(self, batch: Batch) -> None:
        if not checksum_holds(batch):
            raise self._corrupt(batch, "its checksum does not hold")

    def _corrupt(self, batch: Batch, problem: object) -> CorruptBatchError:
        return CorruptBatchError(
            topic=self.topic, partition=self.partition, offset=batch.base_offset, problem=str(problem)
        )

    def _take(self, count: int) -> None:
        for _ in range(count):
            batch, _, _ = self._queue.popleft()
            self.queued_bytes -= batch.size_bytes


def _mergeable(batches: Sequence[Batch], old_before_ms: int) -> list[Batch]:
    """Returns the first *batches* as far as they have one leader epoch and no old record."""
    epoch = batches[0].leader_epoch
    return list(
        takewhile(
            lambda batch: (
                batch.leader_epoch == epoch
                and min(batch.max_timestamp, batch.base_timestamp) >= old_before_ms
            ),
            batches,
        )
    )


def _count_within(records: Sequence[Record], max_bytes: int) -> int:
    """Returns how many of the first *records* have at most *max_bytes* when encoded; at least 1."""
    room_bytes = max_bytes
    for index, (_, _, key, value, headers) in enumerate(records):
        room_bytes -= len(key or b"") + len(value or b"") + _RECORD_OVERHEAD_BYTES
        for name, content in headers:
            room_bytes -= len(name) + len(content or b"") + _HEADER_OVERHEAD_BYTES
        if room_bytes < 0 and index:
            return index
    return len(records)


def _fits(batch: Batch, limit: BatchLimit) -> bool:
    """Returns whether the target accepts *batch* unchanged, as far as *limit* shows.

    A corrupt batch does not fit.
    """
    if batch.codec in limit.kept_codecs:
        return True  # `raw_refusal` has compared its size
    if batch.count == 1 and not limit.is_known:
        return True  # nothing can be split: only the target can decide
    try:
        max_bytes = limit.max_uncompressed_bytes
        return uncompressed_bytes(batch, max_bytes=max_bytes) <= max_bytes
    except CorruptRecordsError:
        return False

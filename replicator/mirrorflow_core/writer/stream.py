"""Tracks the stream of one partition: ordinals, batches in flight and the last delivered record.

A `Stream` holds a few integers and a queue of spans; sends, acknowledgements, refusals, alignments and
markers change it. It guarantees that ordinals follow source order without a gap, that `delivered` never runs
ahead of an acknowledgement, and that an acknowledgement that does not continue the previous one is reported.

An *ordinal* counts the records of one session of a task from 0, without an upper limit.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mirrorflow_core.partitions import OffsetPair
from mirrorflow_core.source_epochs import SourceEpochs, followed_by, up_to
from mirrorflow_core.writer.transaction_log import SEQUENCES

_new = tuple.__new__


def sequence_of(ordinal: int) -> int:
    """Returns the sequence number on the wire for *ordinal* (KIP-98); never negative, because -1 means none."""
    return ordinal % SEQUENCES


def skip(skipped: SourceEpochs, record_epoch: int, offset: int, epoch: int) -> SourceEpochs:
    """Returns the epochs that begin in offsets skipped after records of *record_epoch*: *skipped*, and now *epoch* at *offset*."""
    return skipped if not skipped and epoch == record_epoch else followed_by(skipped, epoch, offset)


class Span(NamedTuple):
    """Consecutive records of the stream in one batch. A tuple for speed, because each batch has one."""

    first: int  # ordinal of the first record
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    base_offset: int  # source offset of the first record
    next_offset: int  # source offset after the last record, and after the offsets skipped there
    max_timestamp: int
    size_bytes: int
    offsets: Sequence[int] | None = None  # of each record, if they have gaps
    source_epoch: int = -1  # leader epoch of the records; -1 as in Kafka: unknown
    skipped_epochs: SourceEpochs = ()  # other epochs, of the offsets skipped after them

    @property
    def last(self) -> int:
        """The ordinal of the last record."""
        return self.first + self.count - 1

    def source_offset(self, ordinal: int) -> int:
        """Returns the source offset of the record with *ordinal*."""
        index = ordinal - self.first
        return self.base_offset + index if self.offsets is None else self.offsets[index]

    def skip_to(self, next_offset: int, source_epoch: int) -> "Span":
        """Returns the span with the offsets up to *next_offset*, of leader epoch *source_epoch*, skipped after it."""
        skipped = skip(self.skipped_epochs, self.source_epoch, self.next_offset, source_epoch)
        return self._replace(next_offset=next_offset, skipped_epochs=skipped)


def span_of(
    first: int,
    count: int,
    base_offset: int,
    next_offset: int,
    max_timestamp: int,
    size_bytes: int,
    source_epoch: int,
    skipped: SourceEpochs,
) -> Span:
    """Returns a span without gaps; twice as fast as calling the class."""
    return _new(
        Span, (first, count, base_offset, next_offset, max_timestamp, size_bytes, None, source_epoch, skipped)
    )


class Stream:
    """The mutable state of one partition's stream."""

    __slots__ = (
        "_next_offset", "delivered", "epochs", "expected_target", "has_fallen_back", "has_refusals", "in_flight", "is_suspect", "next_ordinal",
    )  # fmt: skip

    def __init__(self, delivered: OffsetPair, epochs: SourceEpochs = ()) -> None:
        self.epochs = up_to(
            epochs, delivered.source_epoch, delivered.source_offset + 1
        )  # of all that is delivered
        self.delivered = delivered
        self.next_ordinal = delivered.ordinal + 1
        # The target offset that the next acknowledgement must have; None: any.
        self.expected_target: int | None = None
        self.has_fallen_back = False  # an acknowledgement had a lower offset than expected: records are lost
        self.in_flight: deque[Span] = deque()
        self._next_offset = delivered.source_offset + 1
        self.has_refusals = False  # since the last alignment, a batch was refused or its response lost
        self.is_suspect = False  # since the last alignment, a response may be about another producer's batch

    @property
    def next_offset(self) -> int:
        """The next source offset to send."""
        return self._next_offset

    def pass_over(self, next_offset: int, source_epoch: int) -> None:
        """Skips the source offsets before *next_offset*, which hold no record of the stream.

        These are markers, aborted records and gaps.

        *source_epoch* is the leader epoch of the last of them; -1: unknown.
        """
        if next_offset < self._next_offset:
            return
        self._next_offset = next_offset
        if self.in_flight:
            self.in_flight[-1] = self.in_flight[-1].skip_to(next_offset, source_epoch)
        else:
            first = self.delivered.source_offset + 1
            self.delivered = self.delivered._replace(source_offset=next_offset - 1, source_epoch=source_epoch)
            self.epochs = followed_by(self.epochs, source_epoch, first)

    def take(self, span: Span) -> None:
        """Records that *span* was sent."""
        assert span.first == self.next_ordinal, "ordinals are given in order"
        self.in_flight.append(span)
        self.next_ordinal += span.count
        self._next_offset = span.next_offset

    def acknowledge(self, base_offset: int) -> tuple[Span, bool, bool]:
        """Records that the oldest span in flight was written at *base_offset*.

        Returns the span, whether it continues the previous one, and whether it is delivered. After a refused span, the offset must leave room
        for it; a leader that has forgotten the producer accepts any sequence number. After a suspect span, nothing
        counts.
        """
        span = self.in_flight.popleft()
        first, count, _, next_offset, _, _, _, epoch, skipped = span
        expected = self.expected_target
        continues = expected is None or expected == base_offset
        if expected is not None and not continues:
            self.has_fallen_back |= base_offset < expected
        end = base_offset + count
        is_delivered = (expected == base_offset or not self.has_refusals) and not self.is_suspect
        if is_delivered:
            if epoch != self.delivered.source_epoch:
                self.epochs = followed_by(self.epochs, epoch, self.delivered.source_offset + 1)
            for epoch, first_offset in skipped:
                self.epochs = followed_by(self.epochs, epoch, first_offset)
            self.delivered = _new(OffsetPair, (next_offset - 1, first + count - 1, end - 1, epoch))
        self.expected_target = end
        return span, continues, is_delivered

    def pass_markers(self, count: int) -> None:
        """Records that *count* markers of ours took the next target offsets."""
        if self.expected_target is not None:
            self.expected_target += count

    def refuse(self, *, is_absent: bool = False) -> Span:
        """Removes and returns the oldest span in flight, which was refused or whose response was lost.

        The target must be queried for it, unless *is_absent*: the request was refused before the leader
        checked the batch.
        """
        span = self.in_flight.popleft()
        self.has_refusals = True
        if self.expected_target is not None and not is_absent:
            self.expected_target += span.count
        return span

    def suspect(self) -> Span:
        """Removes and returns the oldest span in flight, whose response may be about another producer's batch."""
        self.is_suspect = True
        return self.refuse()

    def align(self, last: OffsetPair) -> None:
        """Restarts after *last*, the target's last record; everything after it is sent (again)."""
        assert not self.in_flight, "what is in flight is answered or lost before the stream is aligned"
        self.epochs = up_to(self.epochs, last.source_epoch, last.source_offset + 1)
        self.delivered = last
        self.has_refusals = self.is_suspect = False
        self.next_ordinal = last.ordinal + 1
        self._next_offset = last.source_offset + 1
        self.expected_target = last.target_offset + 1 if last.target_offset >= 0 else None

"""The stream of one partition: which ordinal each record carries, and what is on its way.

A `Stream` is the only mutable thing of the decisions: a few integers and a queue of spans, changed by five events
(taken, acknowledged, refused, aligned, reset). It promises that ordinals are given in source order without a gap, that
`delivered` never runs ahead of an acknowledgement, and that an acknowledgement that does not continue the one before is
reported, never absorbed (clause 5: then the target is asked).
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from mirrorflow_replicator.flow.alignment import GoOn, Pair

_new = tuple.__new__


class Span(NamedTuple):
    """Consecutive records of the stream in one batch. A tuple, because there is one for each batch."""

    first: int  # ordinal of the first record
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    base_offset: int  # source offset of the first record
    next_offset: int  # source offset after the last record, and after what was left out behind it
    max_timestamp: int
    size_bytes: int
    offsets: Sequence[int] | None = None  # of each record, where they have gaps

    @property
    def last(self) -> int:
        """Ordinal of the last record."""
        return self.first + self.count - 1

    def source_offset(self, ordinal: int) -> int:
        """The source offset of the record with *ordinal*."""
        index = ordinal - self.first
        if index == self.count - 1:
            return self.next_offset - 1
        return self.base_offset + index if self.offsets is None else self.offsets[index]


def span_of(
    first: int, count: int, base_offset: int, next_offset: int, max_timestamp: int, size_bytes: int
) -> Span:
    """A span without gaps, made in half the time that its class takes."""
    return _new(Span, (first, count, base_offset, next_offset, max_timestamp, size_bytes, None))


class Stream:
    """See the module."""

    __slots__ = (
        "_has_refusals", "_next_offset", "delivered", "expected_target", "has_strayed", "in_flight", "markers", "next_ordinal",
    )  # fmt: skip

    def __init__(self, delivered: Pair) -> None:
        self.delivered = delivered
        self.next_ordinal = delivered.ordinal + 1
        # The target offset that the next acknowledgement must name; -1: whatever it is.
        self.expected_target = -1
        self.has_strayed = False  # an acknowledgement since the last alignment was not where it had to be
        self.in_flight: deque[Span] = deque()
        self._next_offset = delivered.source_offset + 1
        self._has_refusals = False  # since the last alignment
        self.markers = 0  # of ours, behind what is delivered

    @property
    def next_offset(self) -> int:
        """The source offset to be taken next."""
        return self._next_offset

    @property
    def known_end(self) -> int:
        """Where the target ends if nobody but this copier has written since; -1 if something may have arrived unanswered."""
        if self.in_flight or self._has_refusals or self.has_strayed or self.delivered.target_offset < 0:
            return -1
        return self.delivered.target_offset + 1 + self.markers

    def pass_over(self, next_offset: int) -> None:
        """Source offsets up to *next_offset* hold nothing more for the stream (control records, aborted ones, gaps)."""
        self._next_offset = max(self._next_offset, next_offset)
        if self.in_flight:
            self.in_flight[-1] = self.in_flight[-1]._replace(next_offset=self._next_offset)
        else:
            self.delivered = self.delivered._replace(source_offset=self._next_offset - 1)

    def take(self, span: Span) -> None:
        """*span* is sent."""
        assert span.first == self.next_ordinal, "ordinals are given in order"
        self.in_flight.append(span)
        self.next_ordinal += span.count
        self._next_offset = span.next_offset

    def acknowledge(self, base_offset: int) -> tuple[Span, bool]:
        """The oldest span in flight lies at *base_offset* of the target; False: it does not follow the one before.

        Behind a refused one it is delivered only if there is room for that one before it: a leader that has forgotten us
        takes what follows a refused batch for the next, and then the target has a hole.
        """
        span = self.in_flight.popleft()
        first, count, _, next_offset, _, _, _ = span
        expected = self.expected_target
        continues = expected in (base_offset, -1)
        if not continues:
            self.has_strayed = True
        end = base_offset + count
        if not self._has_refusals or expected == base_offset:
            self.delivered = _new(Pair, (next_offset - 1, first + count - 1, end - 1))
        self.expected_target = end
        self.markers = 0
        return span, continues

    def pass_markers(self, count: int) -> None:
        """Markers of ours have taken the next offsets of the target."""
        self.markers += count
        if self.expected_target >= 0:
            self.expected_target += count

    def refuse(self, *, is_absent: bool = False) -> Span:
        """The oldest span in flight was refused, or its answer lost; whether it is there must be asked.

        *is_absent*: it is known not to be, because it was refused before the leader looked at it.
        """
        span = self.in_flight.popleft()
        self._has_refusals = True
        if self.expected_target >= 0 and not is_absent:
            self.expected_target += span.count
        return span

    def align(self, at: Pair) -> None:
        """The target has *at* last; everything after it is to be taken (again)."""
        assert not self.in_flight, "what is in flight is answered or lost before the target is asked"
        self.delivered = at
        self._has_refusals = self.has_strayed = False
        self.markers = 0
        self.next_ordinal = at.ordinal + 1
        self._next_offset = at.source_offset + 1
        self.expected_target = at.target_offset + 1 if at.target_offset >= 0 else -1


def known_pair(at: GoOn, unanswered: Sequence[Span]) -> Pair | None:
    """The pair of *at* without reading the source: it is known, or among the *unanswered* that this process has sent."""
    if at.walk_records == 0:
        return Pair(source_offset=at.known.source_offset, ordinal=at.ordinal, target_offset=at.target_offset)
    return pair_in(unanswered, at.ordinal, at.target_offset)


def pair_in(spans: Sequence[Span], ordinal: int, target_offset: int) -> Pair | None:
    """The pair of the record with *ordinal* if one of *spans* holds it."""
    for span in spans:
        if span.first <= ordinal <= span.last:
            return Pair(
                source_offset=span.source_offset(ordinal), ordinal=ordinal, target_offset=target_offset
            )
    return None

"""A stream has contiguous ordinals in source order, and delivers only acknowledged records."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorflow_core.partitions import OffsetPair
from mirrorflow_core.source_epochs import EpochStart
from mirrorflow_core.writer.stream import Span, Stream


def pair(source_offset, ordinal, target_offset):
    return OffsetPair(source_offset=source_offset, ordinal=ordinal, target_offset=target_offset)


def span(first, count, base_offset, next_offset=None, offsets=None):
    after = base_offset + count if next_offset is None else next_offset
    return Span(first, count, base_offset, after, 0, 100 * count, offsets)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(1, 5), st.integers(0, 3)),
        st.tuples(st.just("pass over"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("acknowledge"), st.just(0), st.just(0)),
        st.tuples(st.just("lose"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=2 * settings().max_examples)
@given(STEPS, st.integers(-1, 2**40), st.integers(-1, 2**40))
def test_no_record_is_skipped_or_counted_before_it_is_acknowledged(steps, ordinal, offset):
    """Acknowledged records are a prefix of the source. After a loss, the stream continues right after it."""
    stream = Stream(pair(offset, ordinal, 10))
    delivered = [ordinal, offset]  # the last delivered ordinal and source offset
    in_flight: deque[list[int]] = deque()
    end = 11
    for step, count, gap in steps:
        if step == "take":
            first, base = stream.next_ordinal, stream.next_offset
            assert [first, base] == [x + 1 for x in (in_flight[-1] if in_flight else delivered)]
            stream.take(span(first, count, base + gap))
            in_flight.append([first + count - 1, base + gap + count - 1])
        elif step == "pass over":
            stream.pass_over(stream.next_offset + count, -1)
            (in_flight[-1] if in_flight else delivered)[1] += count
        elif in_flight and step == "acknowledge":
            done, continues, _ = stream.acknowledge(end)
            delivered = in_flight.popleft()
            end += done.count
            assert continues
        elif in_flight:
            while stream.in_flight:
                stream.refuse()
            in_flight.clear()
            stream.align(pair(delivered[1], delivered[0], end - 1))
        assert delivered == [stream.delivered.ordinal, stream.delivered.source_offset]
        assert len(in_flight) == len(stream.in_flight)


def test_an_epoch_may_start_before_its_first_record_after_compaction():
    stream = Stream(pair(39, 39, 39)._replace(source_epoch=0), (EpochStart(0, 0),))
    stream.take(span(40, 1, 41)._replace(source_epoch=1))
    stream.acknowledge(40)

    assert stream.epochs == (EpochStart(0, 0), EpochStart(1, 40))


def test_no_record_after_a_suspect_response_is_delivered():
    """The response may belong to a batch of a different producer, so later responses prove nothing."""
    stream = Stream(pair(4, 4, 4))
    for first in (5, 7, 9):
        stream.take(span(first, 2, first))
    stream.suspect()

    stream.acknowledge(7)
    stream.acknowledge(9)

    assert pair(4, 4, 4) == stream.delivered
    stream.align(pair(10, 10, 10))
    stream.take(span(11, 1, 11))
    stream.acknowledge(11)
    assert pair(11, 11, 11) == stream.delivered


def test_an_acknowledgement_at_an_unexpected_offset_is_reported():
    """A different producer has written in between, so the target's log must be checked."""
    stream = Stream(pair(-1, -1, -1))
    stream.take(span(0, 5, 0))
    stream.take(span(5, 5, 5))

    assert [True, False] == [stream.acknowledge(100)[1], stream.acknowledge(107)[1]]
    assert not stream.has_fallen_back


def test_an_acknowledgement_below_the_known_end_shows_that_the_target_has_lost_records():
    stream = Stream(pair(-1, -1, -1))
    stream.take(span(0, 5, 0))
    stream.take(span(5, 5, 5))

    assert [True, False] == [stream.acknowledge(100)[1], stream.acknowledge(103)[1]]
    assert stream.has_fallen_back


def test_after_an_alignment_the_first_acknowledgement_must_have_the_expected_offset():
    """Any offset is accepted only if the target offset of the alignment is unknown."""
    stream = Stream(pair(-1, -1, -1))
    stream.align(pair(4, 4, 9))
    stream.take(span(5, 1, 5))
    unknown_target = Stream(pair(-1, -1, -1))
    unknown_target.align(pair(4, 4, -1))
    unknown_target.take(span(5, 1, 5))

    assert [False, True] == [stream.acknowledge(11)[1], unknown_target.acknowledge(11)[1]]


def test_a_marker_of_the_task_takes_the_next_target_offset():
    stream = Stream(pair(4, 4, 10))
    stream.take(span(5, 2, 5))
    stream.acknowledge(11)
    stream.pass_markers(1)
    stream.take(span(7, 1, 7))

    assert stream.acknowledge(14)[1]


def test_records_out_of_order_are_refused():
    """A gap in the ordinals would mean a lost record."""
    stream = Stream(pair(-1, -1, -1))

    with pytest.raises(AssertionError):
        stream.take(span(1, 1, 0))


def test_an_alignment_with_batches_in_flight_is_refused():
    """A late response would be attributed to a different batch."""
    stream = Stream(pair(-1, -1, -1))
    stream.take(span(0, 1, 0))

    with pytest.raises(AssertionError):
        stream.align(pair(-1, -1, -1))


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.integers(0, 99))
def test_each_record_of_a_span_has_its_source_offset(steps, first):
    """Offsets come from the list if there are gaps. Offsets that are skipped after the last record do not count."""
    offsets = [sum(steps[: i + 1]) for i in range(len(steps))]
    gapped = span(first, len(offsets), offsets[0], offsets[-1] + 1, offsets)
    dense = span(first, len(steps), 50)
    padded = span(first, len(steps), 50, 99)

    ordinals = range(first, first + len(steps))
    assert offsets == [gapped.source_offset(ordinal) for ordinal in ordinals]
    for ungapped in (dense, padded):
        assert [*range(50, 50 + len(steps))] == [ungapped.source_offset(ordinal) for ordinal in ordinals]


def test_a_batch_that_replaces_a_refused_one_is_not_delivered():
    """A leader that lost its producer state accepted the second batch although it had refused the first."""
    stream = Stream(pair(4, 4, 9))
    stream.align(pair(4, 4, 9))
    stream.take(span(5, 3, 5))
    stream.take(span(8, 2, 8))
    stream.refuse()

    assert not stream.acknowledge(10)[1]
    assert pair(4, 4, 9) == stream.delivered


def test_a_batch_after_a_refused_one_that_was_appended_delivers_both():
    """A batch that was not replicated in time (errors 7 and 20) is in the log. The next acknowledgement covers it."""
    stream = Stream(pair(4, 4, 9))
    stream.align(pair(4, 4, 9))
    stream.take(span(5, 3, 5))
    stream.take(span(8, 2, 8))
    stream.refuse()

    assert stream.acknowledge(13)[1]
    assert pair(9, 9, 14) == stream.delivered

"""Which records of the old side form the diverged tail, also after that side has lost or deleted some of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.diverged_tail import (
    TAIL_HEADER,
    CopiedEnd,
    DivergedTail,
    ReturnedLog,
    TailChoice,
    TailCount,
    TailProgress,
    TailState,
    cut_tail,
    decode_progress,
    encode_progress,
    encode_start,
    kept_topic,
    marked,
    remaining_tail,
)
from mirrorflow_core.wire.records import Record

PARTITION = TopicPartition("orders", 0)
OFFSETS = st.integers(min_value=0, max_value=60)
RECORDS = st.lists(
    st.builds(
        Record,
        offset=st.just(0),
        timestamp=st.integers(min_value=-1, max_value=10**13),
        key=st.none() | st.binary(max_size=3),
        value=st.none() | st.binary(max_size=3),
        headers=st.just(()),
    ),
    max_size=5,
)
PROGRESS = TailProgress(
    switchover="east-west-1",
    choice=TailChoice.KEEP,
    partition=PARTITION,
    next_offset=7,
    records=5,
    source_topic_id="old",
    target_topic_id="kept",
)


def log(*, start: int = 0, end: int, same_until: int | None = None, topic_id: str = "old") -> ReturnedLog:
    return ReturnedLog(topic_id=topic_id, start=start, end=end, last_stable=end, same_until=same_until)


def copied(next_offset: int, topic_id: str = "old") -> CopiedEnd:
    return CopiedEnd(next_offset=next_offset, topic_id=topic_id)


@given(OFFSETS, OFFSETS, OFFSETS, OFFSETS)
def test_the_tail_has_exactly_the_surviving_records_that_were_never_copied(
    crossed: int, truncated_to: int, written_since: int, log_start: int
):
    """A record is a pair of its offset and its writer. The old side may lose its last records and get others at their offsets."""
    first = [(offset, "before") for offset in range(crossed)]
    kept = first[:truncated_to]
    old_side = kept + [(len(kept) + number, "since") for number in range(written_since)]
    start = min(log_start, len(old_side))

    tail = cut_tail(PARTITION, copied(crossed), log(start=start, end=len(old_side), same_until=len(kept)))

    never_crossed = [offset for offset, writer in old_side[start:] if (offset, writer) not in first]
    assert list(range(tail.start, tail.end)) == never_crossed
    assert tail.lost == crossed - len(kept)


@given(OFFSETS, OFFSETS, st.none() | OFFSETS)
def test_lost_deleted_and_kept_offsets_add_up(crossed: int, end: int, same_until: int | None):
    tail = cut_tail(PARTITION, copied(crossed), log(end=end, same_until=same_until))

    assert 0 <= tail.start <= tail.end == end
    assert tail.start - tail.gone + tail.lost == crossed
    assert tail.is_empty == (tail.state in {TailState.CUT, TailState.LOST} and tail.start == end)


def test_the_tail_is_empty_if_the_old_side_has_lost_it():
    tail = cut_tail(PARTITION, copied(10), log(end=8))

    assert (TailState.LOST, 2, True) == (tail.state, tail.lost, tail.is_empty)


def test_records_written_at_lost_offsets_are_in_the_tail():
    """An unclean election has cut the log at 8, and applications have written five records since."""
    tail = cut_tail(PARTITION, copied(10), log(end=13, same_until=8))

    assert (TailState.REWRITTEN, 8, 13, 2) == (tail.state, tail.start, tail.end, tail.lost)


def test_tail_records_deleted_by_retention_are_counted():
    tail = cut_tail(PARTITION, copied(10), log(start=12, end=20))

    assert (TailState.CUT, 12, 20, 2) == (tail.state, tail.start, tail.end, tail.gone)


def test_the_tail_of_a_partition_that_was_never_copied_is_its_whole_log():
    tail = cut_tail(PARTITION, None, log(start=3, end=20))

    assert (TailState.NEVER_COPIED, 3, 20) == (tail.state, tail.start, tail.end)


@pytest.mark.parametrize(
    ("copied_end", "returned", "state"),
    [
        (copied(10, "old"), log(end=20, topic_id="new"), TailState.RECREATED),
        (CopiedEnd(next_offset=-1, is_exact=False), log(end=20), TailState.UNDECIDED),
        (copied(10), None, TailState.MISSING),
    ],
)
def test_a_partition_whose_offsets_cannot_be_compared_has_no_tail(
    copied_end: CopiedEnd, returned: ReturnedLog | None, state: TailState
):
    tail = cut_tail(PARTITION, copied_end, returned)

    assert state is tail.state
    assert tail.is_empty


def test_a_topic_without_a_known_id_is_compared_by_its_offsets():
    """Brokers before 2.8 have no topic ids."""
    assert TailState.CUT is cut_tail(PARTITION, copied(10, ""), log(end=20)).state


def test_an_open_transaction_leaves_the_tail_undecided():
    returned = ReturnedLog(topic_id="old", start=0, end=20, last_stable=15)

    assert cut_tail(PARTITION, copied(10), returned).is_open


@given(RECORDS, RECORDS)
def test_the_counts_of_two_parts_add_up_to_the_count_of_the_whole(first: list[Record], second: list[Record]):
    whole = TailCount().with_records(first, 1).with_records(second, 2)

    assert whole == TailCount().with_records(first, 1).joined(TailCount().with_records(second, 2))
    assert len(first) + len(second) == whole.records


def test_the_times_of_a_count_are_its_smallest_and_largest_timestamps():
    records = [Record(0, time, None, None, ()) for time in (5, -1, 3, 9, 4)]

    count = TailCount().with_records(records, -1)

    assert (3, 9, frozenset()) == (count.first_ms, count.last_ms, count.producer_ids)


def test_a_decoded_progress_equals_the_encoded_one():
    assert PROGRESS == decode_progress(*encode_progress(PROGRESS))
    assert decode_progress(*encode_start("east-west-1", TailChoice.KEEP, "token")) is None


def test_progress_of_a_newer_version_is_refused():
    key, value = encode_progress(PROGRESS)

    with pytest.raises(ValueError, match="newer version"):
        decode_progress(key, value.replace(b'"format":1', b'"format":2'))


@pytest.mark.parametrize(
    ("source_topic_id", "target_topic_id", "remaining"),
    [("old", "kept", (7, 5)), ("new", "kept", (2, 0)), ("old", "recreated", (2, 0))],
)
def test_stored_progress_is_ignored_for_a_recreated_topic(
    source_topic_id: str, target_topic_id: str, remaining: tuple[int, int]
):
    tail = DivergedTail(partition=PARTITION, state=TailState.CUT, start=2, end=9)

    assert remaining == remaining_tail(
        tail, PROGRESS, source_topic_id=source_topic_id, target_topic_id=target_topic_id
    )


def test_an_appended_record_keeps_its_headers_and_names_the_switchover():
    record = Record(4, 5, b"k", b"v", ((b"a", None),))

    assert ((b"a", None), (TAIL_HEADER, b"east-west-1")) == marked(record, "east-west-1").headers


def test_the_id_of_a_switchover_in_kubernetes_becomes_a_valid_topic_name():
    """The id has a slash between the names of the pair and of the Switchover."""
    assert kept_topic("orders", "east-west/lost-east") == "orders.diverged.east-west.lost-east"


def test_a_name_that_is_too_long_for_kafka_is_refused():
    assert kept_topic("orders", "east-west-1") == "orders.diverged.east-west-1"
    with pytest.raises(ValueError, match="249"):
        kept_topic("o" * 240, "east-west-1")

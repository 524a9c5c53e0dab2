"""Offset syncs are due as in Java, and a translation never lets a group miss a record.

offset_syncs_of_java.json was printed by Kafka 4.3.1's own OffsetSyncStore and OffsetSyncWriter.PartitionState, with
assertions on, for random histories: steps back, offsets near 2^62, reading to the end first or not.
"""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrorflow_core.offsets.offset_syncs import (
    PENDING_MAX,
    SLOTS,
    TOO_OLD,
    OffsetSyncStore,
    PartitionSyncs,
    Sync,
)
from mirrorflow_core.partitions import TopicPartition

JAVA = json.loads((Path(__file__).parent / "offset_syncs_of_java.json").read_text())
ORDERS = TopicPartition("orders", 0)


def store_of(syncs, *, must_read_to_end=False):
    store = OffsetSyncStore(must_read_to_end=must_read_to_end)
    store.mark_read_to_end()
    for sync in syncs:
        store.add(ORDERS, Sync(*sync))
    return store


def distinct(store):
    slots = store.partitions[ORDERS]
    return [[slot, *pair] for slot, pair in enumerate(slots) if slot == 0 or pair is not slots[slot - 1]]


# -- when a sync is due


@pytest.mark.parametrize("case", JAVA["writer"])
def test_the_same_syncs_are_due_as_in_java(case):
    syncs = PartitionSyncs(case["lag_max"])
    due: list[Sync] = []
    for upstream, downstream, count in case["runs"]:
        if syncs.delivered(upstream, downstream, count):
            due += syncs.take()

    assert case["due"] == [list(one) for one in due]


@pytest.mark.parametrize("case", JAVA["writer"])
def test_it_does_not_matter_how_records_are_grouped_into_batches(case):
    whole, single = PartitionSyncs(case["lag_max"]), PartitionSyncs(case["lag_max"])
    for upstream, downstream, count in case["runs"]:
        whole.delivered(upstream, downstream, count)
        due = list(whole.take())
        found: list[Sync] = []
        for at in range(count):
            if single.delivered(upstream + at, downstream + at, 1):
                found += single.take()

        assert due == found


def test_what_is_not_due_waits_for_the_flush_and_only_the_newest_of_it_is_written():
    """OffsetSyncWriterTest.testPromoteDelayedOffsetSyncs."""
    syncs = PartitionSyncs(50)
    assert syncs.delivered(0, 100, 1)
    assert not syncs.delivered(1, 101, 1)
    assert not syncs.delivered(2, 102, 1)
    assert syncs.take() == (Sync(0, 100),)

    assert syncs.promote()
    assert syncs.take() == (Sync(2, 102),)
    assert not syncs.promote(), "nothing is written twice"


def test_the_last_record_of_a_batch_that_is_due_does_not_wait():
    syncs = PartitionSyncs(2)
    syncs.delivered(0, 0, 4)

    assert syncs.take() == (Sync(0, 0), Sync(3, 3))
    assert not syncs.promote()


def test_records_with_gaps_between_them_are_each_the_end_of_one():
    syncs = PartitionSyncs(100)
    syncs.delivered(0, 0, 1)
    syncs.take()

    assert syncs.delivered_with_gaps([1, 2, 5, 6, 9], 1)
    assert syncs.take() == (Sync(5, 3), Sync(9, 5))
    assert not syncs.promote()


def test_records_without_a_gap_are_not_due_even_if_they_come_as_such():
    syncs = PartitionSyncs(100)
    syncs.delivered(0, 0, 1)
    syncs.take()

    assert not syncs.delivered_with_gaps([1, 2, 3], 1)


def test_of_a_huge_batch_the_first_and_ever_denser_ones_towards_its_end_are_written():
    syncs = PartitionSyncs(0)
    syncs.delivered(1_000, 0, 10_000)
    taken = syncs.take()

    assert taken[0] == Sync(1_000, 0)
    assert taken[-3:] == (Sync(10_997, 9_997), Sync(10_998, 9_998), Sync(10_999, 9_999))
    assert len(taken) <= PENDING_MAX
    assert all(one.upstream_offset - one.downstream_offset == 1_000 for one in taken)


def test_while_nothing_can_be_written_the_first_and_the_newest_are_kept_and_not_more_than_a_bound():
    syncs = PartitionSyncs(0)
    for at in range(0, 1_000, 10):
        syncs.delivered(at, at, 10)

    taken = syncs.take()
    assert len(taken) <= PENDING_MAX
    assert (taken[0], taken[-1]) == (Sync(0, 0), Sync(999, 999))
    assert all(one < other for one, other in pairwise(taken))


def test_a_step_back_voids_what_was_to_be_written():
    syncs = PartitionSyncs(0)
    syncs.delivered(100, 100, 50)

    syncs.delivered(120, 120, 1)
    assert syncs.take() == (Sync(120, 120),)


def test_what_could_not_be_written_is_written_later_in_order():
    syncs = PartitionSyncs(0)
    syncs.delivered(0, 0, 2)
    failed = syncs.take()
    syncs.delivered(2, 2, 1)
    syncs.give_back(failed)

    assert syncs.take() == (Sync(0, 0), Sync(1, 1), Sync(2, 2))


def test_what_could_not_be_written_before_a_step_back_is_dropped():
    syncs = PartitionSyncs(0)
    syncs.delivered(10, 10, 5)
    failed = syncs.take()
    syncs.delivered(10, 10, 1)
    syncs.give_back(failed)

    assert syncs.take() == (Sync(10, 10),)


# -- what an alignment gives


def test_a_copier_that_starts_writes_at_the_next_flush_where_the_target_is():
    """A predecessor that was killed may have left it unwritten, and nothing may come for days."""
    syncs = PartitionSyncs(100)

    assert not syncs.aligned(7, 70)
    assert syncs.promote()
    assert syncs.take() == (Sync(7, 70),)


def test_the_first_record_after_a_start_is_due_as_in_java():
    syncs = PartitionSyncs(100)
    syncs.aligned(7, 70)

    assert syncs.delivered(8, 71, 1)
    assert syncs.take() == (Sync(8, 71),)


def test_a_question_that_changes_nothing_writes_nothing():
    syncs = PartitionSyncs(100)
    syncs.delivered(0, 0, 10)
    syncs.promote()
    syncs.take()

    # Markers after the last record have moved the place in the source on, and no record was delivered.
    assert not syncs.aligned(11, 9)
    assert not syncs.promote()


def test_a_lost_answer_that_was_a_success_counts_from_the_next_flush_on():
    syncs = PartitionSyncs(100)
    syncs.delivered(0, 0, 10)
    syncs.promote()
    syncs.take()

    assert not syncs.aligned(19, 19)
    assert syncs.promote()
    assert syncs.take() == (Sync(19, 19),)


def test_a_target_that_lost_its_tail_makes_readers_forget_at_once():
    syncs = PartitionSyncs(100)
    syncs.delivered(0, 0, 1000)

    assert syncs.aligned(499, 499)
    assert syncs.take() == (Sync(499, 499),)


# -- the store


@pytest.mark.parametrize("case", JAVA["store"])
def test_store_keeps_and_returns_what_javas_does(case):
    store = OffsetSyncStore(must_read_to_end=case["must_read_to_end"])
    for number, sync in enumerate(case["syncs"]):
        if number >= case["before"]:
            store.mark_read_to_end()
        store.add(ORDERS, Sync(*sync))
    store.mark_read_to_end()

    assert case["slots"] == distinct(store)
    for upstream, downstream in case["translations"]:
        assert downstream == store.translate_downstream(ORDERS, upstream)


def test_translation():
    """OffsetSyncStoreTest.testOffsetTranslation."""
    store = store_of([(100, 200)])
    assert store.translate_downstream(ORDERS, 150) == 201
    store.add(ORDERS, Sync(150, 251))
    assert store.translate_downstream(ORDERS, 150) == 251
    assert store.translate_downstream(ORDERS, 5) == TOO_OLD
    store.add(ORDERS, Sync(200, 10))
    assert store.translate_downstream(ORDERS, 200) == 10
    store.add(ORDERS, Sync(20, 20))
    assert store.translate_downstream(ORDERS, 20) == 20


def test_nothing_is_translated_before_all_is_read():
    store = OffsetSyncStore(must_read_to_end=True)
    assert store.translate_downstream(ORDERS, 0) is None
    store.add(ORDERS, Sync(100, 200))
    assert store.translate_downstream(ORDERS, 100) is None
    store.mark_read_to_end()

    assert [store.translate_downstream(ORDERS, at) for at in (0, 100, 200)] == [TOO_OLD, 200, 201]


def test_partition_without_a_sync_is_not_translated():
    assert store_of([]).translate_downstream(ORDERS, 0) is None


def test_of_the_past_only_the_newest_counts_unless_the_checkpoints_of_that_life_are_known():
    past = [(100, 107), (200, 207), (300, 307)]
    reading = OffsetSyncStore(must_read_to_end=True)
    for sync in past:
        reading.add(ORDERS, Sync(*sync))
    reading.mark_read_to_end()

    told = [reading.translate_downstream(ORDERS, at) for at in (250, 300, 301)]
    assert told == [TOO_OLD, 307, 308]
    assert store_of(past).translate_downstream(ORDERS, 250) == 208


def test_a_copy_that_was_made_anew_voids_older_pairs():
    store = store_of([(100, 1_100), (200, 1_200), (300, 5)])

    assert store.translate_downstream(ORDERS, 250) == TOO_OLD
    assert store.translate_downstream(ORDERS, 301) == 6


STEPS = st.lists(
    st.tuples(
        st.integers(1, 300),  # records of a batch
        st.integers(0, 3),  # offsets without a record before it upstream: markers, compaction
        st.integers(0, 3),  # and downstream
        st.booleans(),  # a flush after it
        st.booleans(),  # written then
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=2 * settings().max_examples)
@given(STEPS, st.integers(-1, 200), st.integers(0, 2), st.lists(st.floats(0, 1), min_size=1, max_size=30))
# Another record, behind a gap, takes the very place of the one that was lost.
@example([(2, 0, 0, False, False), (1, 1, 0, False, False)], 0, 2, [0.0])
# And a marker that of the lost one, which the source has compacted away since: the copier cannot know.
@example([(2, 0, 0, False, False), (1, 1, 1, False, False)], 0, 2, [0.0, 0.5, 1.0])
def test_a_translation_never_skips_a_record_never_goes_beyond_the_copy_and_keeps_the_order(
    steps, lag_max, back, places
):
    """A model of copier, topic and store: batches, gaps on both sides, delayed writes, tails copied again."""
    syncs, store = PartitionSyncs(lag_max), store_of([])
    lies: dict[int, int] = {}  # upstream -> downstream, of all records that the copy holds
    upstream = downstream = 0
    for number, (count, gap, marker, flush, write) in enumerate(steps):
        if back and number == len(steps) // 2 and lies:
            # The target lost its last records, and they are copied again, perhaps elsewhere.
            kept = sorted(lies)[: -min(len(lies) - 1, 7 * back) or None]
            lies = {at: lies[at] for at in kept}
            upstream, downstream = kept[-1] + 1, lies[kept[-1]] + 1
            if back == 1:
                syncs.aligned(kept[-1], lies[kept[-1]])
        upstream, downstream = upstream + gap, downstream + marker
        syncs.delivered(upstream, downstream, count)
        lies |= {upstream + at: downstream + at for at in range(count)}
        upstream, downstream = upstream + count, downstream + count
        if flush:
            syncs.promote()
        if write:
            taken = syncs.take()
            for sync in taken:
                store.add(ORDERS, sync)
    syncs.promote()
    for sync in syncs.take():
        # The pair of a record that both sides have lost since leads to what follows it.
        follows = min((place for at, place in lies.items() if at > sync.upstream_offset), default=downstream)
        where = lies.get(sync.upstream_offset)
        assert where == sync.downstream_offset or (where is None and sync.downstream_offset < follows)
        store.add(ORDERS, sync)

    groups = sorted(int(place * (upstream + 5)) for place in places)
    told = [store.translate_downstream(ORDERS, group) for group in groups]
    for group, translated in zip(groups, told, strict=True):
        assert translated is not None
        assert translated <= downstream
        missing = [place for at, place in lies.items() if at >= group]
        assert translated <= min(missing, default=downstream), "no record is skipped"
    assert told == sorted(told)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=120))
def test_the_slots_keep_their_distances(steps):
    store, upstream = store_of([]), 0
    for step in steps:
        upstream += step
        store.add(ORDERS, Sync(upstream, upstream))
        slots = store.partitions[ORDERS]
        assert slots[0].upstream_offset == upstream
        assert slots[-1].upstream_offset == steps[0], "the oldest is never given up"
        for i in range(SLOTS):
            for j in range(i + 1, SLOTS):
                newer, older = slots[i].upstream_offset, slots[j].upstream_offset
                if newer != older:
                    assert newer <= older + 2**j - 2**i
                    assert newer >= older + 2 ** max(i - 2, 0)

"""Offset syncs are due as in Java, and a translation never makes a group miss a record.

offset_syncs_of_java.json is the output of Kafka 4.3.1's OffsetSyncStore and OffsetSyncWriter.PartitionState, with
assertions enabled. Its random histories contain resets and offsets near 2^62, and are read to the end first or not.
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


def distinct_slots(store):
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

    assert case["due"] == [list(sync) for sync in due]


@pytest.mark.parametrize("case", JAVA["writer"])
def test_the_grouping_of_records_into_batches_does_not_change_due_syncs(case):
    whole, single = PartitionSyncs(case["lag_max"]), PartitionSyncs(case["lag_max"])
    for upstream, downstream, count in case["runs"]:
        whole.delivered(upstream, downstream, count)
        due = list(whole.take())
        due_single: list[Sync] = []
        for index in range(count):
            if single.delivered(upstream + index, downstream + index, 1):
                due_single += single.take()

        assert due == due_single


def test_only_the_newest_delayed_sync_is_written_at_the_flush():
    """As in OffsetSyncWriterTest.testPromoteDelayedOffsetSyncs."""
    syncs = PartitionSyncs(50)
    assert syncs.delivered(0, 100, 1)
    assert not syncs.delivered(1, 101, 1)
    assert not syncs.delivered(2, 102, 1)
    assert syncs.take() == (Sync(0, 100),)

    assert syncs.promote()
    assert syncs.take() == (Sync(2, 102),)
    assert not syncs.promote(), "nothing is written twice"


def test_the_last_record_of_a_due_batch_is_not_delayed():
    syncs = PartitionSyncs(2)
    syncs.delivered(0, 0, 4)

    assert syncs.take() == (Sync(0, 0), Sync(3, 3))
    assert not syncs.promote()


def test_each_gap_between_records_makes_a_sync_due():
    syncs = PartitionSyncs(100)
    syncs.delivered(0, 0, 1)
    syncs.take()

    assert syncs.delivered_with_gaps([1, 2, 5, 6, 9], 1)
    assert syncs.take() == (Sync(5, 3), Sync(9, 5))
    assert not syncs.promote()


def test_records_with_explicit_offsets_but_without_gaps_make_no_sync_due():
    syncs = PartitionSyncs(100)
    syncs.delivered(0, 0, 1)
    syncs.take()

    assert not syncs.delivered_with_gaps([1, 2, 3], 1)


def test_syncs_of_a_large_batch_get_denser_towards_its_end():
    syncs = PartitionSyncs(0)
    syncs.delivered(1_000, 0, 10_000)
    taken = syncs.take()

    assert taken[0] == Sync(1_000, 0)
    assert taken[-3:] == (Sync(10_997, 9_997), Sync(10_998, 9_998), Sync(10_999, 9_999))
    assert len(taken) <= PENDING_MAX
    assert all(sync.upstream_offset - sync.downstream_offset == 1_000 for sync in taken)


def test_the_number_of_pending_syncs_is_limited_and_includes_the_first_and_newest():
    syncs = PartitionSyncs(0)
    for offset in range(0, 1_000, 10):
        syncs.delivered(offset, offset, 10)

    taken = syncs.take()
    assert len(taken) <= PENDING_MAX
    assert (taken[0], taken[-1]) == (Sync(0, 0), Sync(999, 999))
    assert all(earlier < later for earlier, later in pairwise(taken))


def test_a_lower_offset_drops_pending_syncs():
    syncs = PartitionSyncs(0)
    syncs.delivered(100, 100, 50)

    syncs.delivered(120, 120, 1)
    assert syncs.take() == (Sync(120, 120),)


def test_failed_syncs_are_written_later_in_order():
    syncs = PartitionSyncs(0)
    syncs.delivered(0, 0, 2)
    failed = syncs.take()
    syncs.delivered(2, 2, 1)
    syncs.put_back(failed)

    assert syncs.take() == (Sync(0, 0), Sync(1, 1), Sync(2, 2))


def test_failed_syncs_from_before_a_lower_offset_are_dropped():
    syncs = PartitionSyncs(0)
    syncs.delivered(10, 10, 5)
    failed = syncs.take()
    syncs.delivered(10, 10, 1)
    syncs.put_back(failed)

    assert syncs.take() == (Sync(10, 10),)


# -- alignment


def test_a_starting_copier_syncs_the_target_end_at_the_next_flush():
    """The killed predecessor may not have written it, and new records may be days away."""
    syncs = PartitionSyncs(100)

    assert not syncs.aligned(7, 70)
    assert syncs.promote()
    assert syncs.take() == (Sync(7, 70),)


def test_the_first_record_after_a_start_is_due_as_in_java():
    syncs = PartitionSyncs(100)
    syncs.aligned(7, 70)

    assert syncs.delivered(8, 71, 1)
    assert syncs.take() == (Sync(8, 71),)


def test_an_alignment_without_new_records_writes_nothing():
    syncs = PartitionSyncs(100)
    syncs.delivered(0, 0, 10)
    syncs.promote()
    syncs.take()

    # Markers after the last record have advanced the source offset, but no record was delivered.
    assert not syncs.aligned(11, 9)
    assert not syncs.promote()


def test_a_delivery_without_a_response_is_synced_at_the_next_flush():
    syncs = PartitionSyncs(100)
    syncs.delivered(0, 0, 10)
    syncs.promote()
    syncs.take()

    assert not syncs.aligned(19, 19)
    assert syncs.promote()
    assert syncs.take() == (Sync(19, 19),)


def test_a_target_that_lost_its_tail_makes_a_correcting_sync_due_at_once():
    syncs = PartitionSyncs(100)
    syncs.delivered(0, 0, 1000)

    assert syncs.aligned(499, 499)
    assert syncs.take() == (Sync(499, 499),)


# -- the store


@pytest.mark.parametrize("case", JAVA["store"])
def test_the_store_keeps_and_translates_as_in_java(case):
    store = OffsetSyncStore(must_read_to_end=case["must_read_to_end"])
    for number, sync in enumerate(case["syncs"]):
        if number >= case["before"]:
            store.mark_read_to_end()
        store.add(ORDERS, Sync(*sync))
    store.mark_read_to_end()

    assert case["slots"] == distinct_slots(store)
    for upstream, downstream in case["translations"]:
        assert downstream == store.translate_downstream(ORDERS, upstream)


def test_offsets_are_translated_by_the_closest_earlier_sync():
    """The values are those of OffsetSyncStoreTest.testOffsetTranslation."""
    store = store_of([(100, 200)])
    assert store.translate_downstream(ORDERS, 150) == 201
    store.add(ORDERS, Sync(150, 251))
    assert store.translate_downstream(ORDERS, 150) == 251
    assert store.translate_downstream(ORDERS, 5) == TOO_OLD
    store.add(ORDERS, Sync(200, 10))
    assert store.translate_downstream(ORDERS, 200) == 10
    store.add(ORDERS, Sync(20, 20))
    assert store.translate_downstream(ORDERS, 20) == 20


def test_nothing_is_translated_before_the_topic_is_read_to_its_end():
    store = OffsetSyncStore(must_read_to_end=True)
    assert store.translate_downstream(ORDERS, 0) is None
    store.add(ORDERS, Sync(100, 200))
    assert store.translate_downstream(ORDERS, 100) is None
    store.mark_read_to_end()

    assert [store.translate_downstream(ORDERS, offset) for offset in (0, 100, 200)] == [TOO_OLD, 200, 201]


def test_a_partition_without_a_sync_is_not_translated():
    assert store_of([]).translate_downstream(ORDERS, 0) is None


def test_after_a_restart_only_the_newest_earlier_sync_counts():
    past = [(100, 107), (200, 207), (300, 307)]
    reading = OffsetSyncStore(must_read_to_end=True)
    for sync in past:
        reading.add(ORDERS, Sync(*sync))
    reading.mark_read_to_end()

    translations = [reading.translate_downstream(ORDERS, offset) for offset in (250, 300, 301)]
    assert translations == [TOO_OLD, 307, 308]
    assert store_of(past).translate_downstream(ORDERS, 250) == 208


def test_a_recreated_copy_invalidates_older_syncs():
    store = store_of([(100, 1_100), (200, 1_200), (300, 5)])

    assert store.translate_downstream(ORDERS, 250) == TOO_OLD
    assert store.translate_downstream(ORDERS, 301) == 6


STEPS = st.lists(
    st.tuples(
        st.integers(1, 300),  # records in a batch
        st.integers(0, 3),  # source offsets without a record before the batch: markers, compaction
        st.integers(0, 3),  # the same on the target
        st.booleans(),  # whether a flush follows
        st.booleans(),  # whether pending syncs are written
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=2 * settings().max_examples)
@given(STEPS, st.integers(-1, 200), st.integers(0, 2), st.lists(st.floats(0, 1), min_size=1, max_size=30))
# After the loss, a different record that follows a gap gets the target offset of the lost one.
@example([(2, 0, 0, False, False), (1, 1, 0, False, False)], 0, 2, [0.0])
# A marker gets the target offset of the lost record. The source has compacted that record, so the copier cannot detect
# the loss.
@example([(2, 0, 0, False, False), (1, 1, 1, False, False)], 0, 2, [0.0, 0.5, 1.0])
def test_a_translation_never_skips_a_record_or_exceeds_the_copy_and_keeps_the_order(
    steps, lag_max, back, fractions
):
    """Batches have gaps on both sides, writes are delayed, and lost tails are copied again."""
    syncs, store = PartitionSyncs(lag_max), store_of([])
    target_offsets: dict[int, int] = {}  # all records in the copy, by source offset
    upstream = downstream = 0
    for number, (count, gap, marker, flush, write) in enumerate(steps):
        if back and number == len(steps) // 2 and target_offsets:
            # The target loses its last records. They are copied again, possibly to different offsets.
            kept = sorted(target_offsets)[: -min(len(target_offsets) - 1, 7 * back) or None]
            target_offsets = {offset: target_offsets[offset] for offset in kept}
            upstream, downstream = kept[-1] + 1, target_offsets[kept[-1]] + 1
            if back == 1:
                syncs.aligned(kept[-1], target_offsets[kept[-1]])
        upstream, downstream = upstream + gap, downstream + marker
        syncs.delivered(upstream, downstream, count)
        target_offsets |= {upstream + index: downstream + index for index in range(count)}
        upstream, downstream = upstream + count, downstream + count
        if flush:
            syncs.promote()
        if write:
            taken = syncs.take()
            for sync in taken:
                store.add(ORDERS, sync)
    syncs.promote()
    for sync in syncs.take():
        # A sync of a record that both sides have lost must not exceed the next record.
        following = min(
            (target for source, target in target_offsets.items() if source > sync.upstream_offset),
            default=downstream,
        )
        current = target_offsets.get(sync.upstream_offset)
        assert current == sync.downstream_offset or (current is None and sync.downstream_offset < following)
        store.add(ORDERS, sync)

    groups = sorted(int(fraction * (upstream + 5)) for fraction in fractions)
    translations = [store.translate_downstream(ORDERS, group) for group in groups]
    for group, translated in zip(groups, translations, strict=True):
        assert translated is not None
        assert translated <= downstream
        unread = [target for source, target in target_offsets.items() if source >= group]
        assert translated <= min(unread, default=downstream), "no record is skipped"
    assert translations == sorted(translations)


@given(st.lists(st.integers(0, 2**40), min_size=1, max_size=120))
def test_slots_keep_exponential_distances_as_in_java(steps):
    store, upstream = store_of([]), 0
    for step in steps:
        upstream += step
        store.add(ORDERS, Sync(upstream, upstream))
        slots = store.partitions[ORDERS]
        assert slots[0].upstream_offset == upstream
        assert slots[-1].upstream_offset == steps[0], "the oldest sync is never dropped"
        for i in range(SLOTS):
            for j in range(i + 1, SLOTS):
                newer, older = slots[i].upstream_offset, slots[j].upstream_offset
                if newer != older:
                    assert newer <= older + 2**j - 2**i
                    assert newer >= older + 2 ** max(i - 2, 0)

"""Translation uses the offset map first, then offset syncs. If they contradict each other, the lower offset applies."""

import random
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.offsets.offset_map import MappedOffset, MapStream, PartitionMap
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore, PartitionSyncs, Sync
from mirrorflow_core.offsets.offset_translation import Committed, Translator, translate_group
from mirrorflow_core.partitions import OffsetPair, TopicPartition

ORDERS = TopicPartition("orders", 0)


def map_of(begin, end, *, shift=0):
    """Returns the map of a copy of source offsets [begin, end)."""
    partition_map = PartitionMap(MapStream(1, "", ""), OffsetPair(begin - 1, -1, begin + shift - 1))
    partition_map.delivered(begin, begin + shift, end - begin, 0)
    return partition_map.kept(OffsetPair(end - 1, end - begin - 1, end + shift - 1))


def store(*syncs):
    syncs_store = OffsetSyncStore(must_read_to_end=False)
    syncs_store.mark_read_to_end()
    for sync in syncs:
        syncs_store.add(ORDERS, Sync(*sync))
    return syncs_store


def test_far_from_the_end_the_map_is_exact_and_offset_syncs_are_not():
    syncs = store(*((offset, offset) for offset in range(0, 1_000_001, 100)))
    translator = Translator(syncs, {ORDERS: map_of(0, 1_000_001)})

    by_syncs = Translator(syncs).translate(ORDERS, 500_000)
    assert by_syncs is not None
    assert by_syncs.at_least < 480_000
    assert translator.translate(ORDERS, 500_000) == MappedOffset(500_000, 500_000)


def test_offset_syncs_of_java_apply_before_the_start_of_the_map():
    translator = Translator(store((100, 50), (200, 150)), {ORDERS: map_of(300, 400)})

    assert translator.translate(ORDERS, 100) == MappedOffset(50, 50)
    assert translator.translate(ORDERS, 150) == MappedOffset(51, 150)
    assert translator.translate(ORDERS, 250) == MappedOffset(151, None)
    assert translator.translate(ORDERS, 300) == MappedOffset(300, 300)
    assert translator.translate(ORDERS, 99) is None


def test_newer_offset_syncs_apply_after_the_end_of_the_map():
    translator = Translator(store((0, 0), (450, 450)), {ORDERS: map_of(0, 400)})

    assert translator.translate(ORDERS, 460) == MappedOffset(451, None)
    assert translator.translate(ORDERS, 420) == MappedOffset(400, 450)
    assert Translator(store((0, 0)), {ORDERS: map_of(0, 400)}).translate(ORDERS, 420) == MappedOffset(
        400, None
    )


def test_the_lower_offset_applies_if_map_and_syncs_contradict_each_other():
    """The topic was copied again, and the map does not show it yet."""
    translator = Translator(store((420, 7), (500, 87)), {ORDERS: map_of(0, 400)})

    assert translator.translate(ORDERS, 450) == MappedOffset(8, 87)


def test_without_earlier_checkpoints_only_exact_offsets_are_returned():
    """A translation could otherwise be lower than a checkpoint of an earlier run that had a narrower bound."""
    partition_map = PartitionMap(MapStream(1, "", ""), OffsetPair(-1, -1, -1))
    partition_map.delivered(0, 0, 100, 0)
    partition_map.aligned(MapStream(1, "", ""), OffsetPair(209, 199, 199))
    syncs, maps = store((150, 145)), {ORDERS: partition_map.kept(OffsetPair(209, 199, 199))}
    with_history, without = Translator(syncs, maps), Translator(syncs, maps, has_history=False)

    assert [with_history.translate(ORDERS, group) for group in (50, 160)] == [
        MappedOffset(50, 50),
        MappedOffset(150, 160),
    ]
    assert [without.translate(ORDERS, group) for group in (50, 160)] == [
        MappedOffset(50, 50),
        MappedOffset(146, None),
    ]


def test_a_translated_offset_reports_how_many_records_may_be_read_again():
    offsets = {ORDERS: Committed(offset=150, metadata="m")}
    (translated,) = translate_group(
        offsets,
        selects=lambda _: True,
        rename=lambda topic_partition: topic_partition,
        syncs=Translator(store((100, 50), (200, 150))),
    ).values()

    assert (translated.downstream_offset, translated.at_most, translated.source) == (51, 150, ORDERS)


@given(st.integers(0, 2**32))
def test_translation_never_misses_a_record_and_never_decreases(seed):
    """The logs have gaps on both sides, the map ends at a random record, and readers of both sides are translated."""
    rng = random.Random(seed)
    syncs, sync_store = PartitionSyncs(rng.choice((0, 5, 100))), store()
    partition_map, kept = PartitionMap(MapStream(1, "", ""), OffsetPair(-1, -1, -1)), None
    records: list[tuple[int, int]] = []
    upstream = downstream = 0
    for _ in range(rng.randint(1, 60)):
        upstream += rng.choice((0, 0, 0, 1, 7))
        downstream += rng.choice((0, 0, 0, 1, 7))
        count = rng.randint(1, 30)
        partition_map.delivered(upstream, downstream, count, len(records))
        syncs.delivered(upstream, downstream, count)
        records += [(upstream + index, downstream + index) for index in range(count)]
        upstream, downstream = upstream + count, downstream + count
        if rng.random() < 0.2:  # a task starts again after markers that follow the last record
            upstream += rng.choice((0, 2))
            syncs.aligned(upstream - 1, downstream - 1)
            partition_map.aligned(
                MapStream(1, "", ""), OffsetPair(upstream - 1, len(records) - 1, downstream - 1)
            )
        if rng.random() < 0.1:
            syncs.promote()
        for sync in syncs.take():
            sync_store.add(ORDERS, sync)
        if rng.random() < 0.3:
            kept = partition_map.kept(OffsetPair(upstream - 1, len(records) - 1, downstream - 1))
    translator = Translator(sync_store, {} if kept is None else {ORDERS: kept})
    offsets, copies = (list(side) for side in zip(*records, strict=True))  # both increase

    last = 0
    for group in range(upstream + 2):
        translated = translator.translate(ORDERS, group)
        if translated is None:
            assert group < records[0][0] or kept is None
            assert last == 0
            continue
        assert translated.at_least >= last
        following = bisect_left(offsets, group)
        assert all(copy_offset >= translated.at_least for copy_offset in copies[following : following + 1])
        if translated.at_most is not None:
            repeated = copies[bisect_left(copies, translated.at_least) : following]
            assert all(copy_offset < translated.at_most for copy_offset in repeated[-1:])
        last = translated.at_least
    assert_back_is_safe(translator, records, downstream)


def assert_back_is_safe(translator, records, end):
    """Asserts that no reader of the copy skips a source record, and that all reread records lie before `at_most`."""
    offsets, copies = (list(side) for side in zip(*records, strict=True))
    last = 0
    for reader in range(end + 2):
        translated = translator.translate_back(ORDERS, reader)
        if translated is None:
            assert last == 0
            continue
        assert translated.at_least >= last
        following = bisect_left(copies, reader)
        assert all(offset >= translated.at_least for offset in offsets[following : following + 1])
        if translated.at_most is not None:
            repeated = offsets[bisect_left(offsets, translated.at_least) : following]
            assert all(offset < translated.at_most for offset in repeated[-1:])
        last = translated.at_least


def test_reverse_translation_uses_a_sync_only_after_its_record():
    """The source offset of a pair may be that of a marker after the record."""
    translator = Translator(store((100, 50), (207, 150)))

    assert translator.translate_back(ORDERS, 50) is None
    assert translator.translate_back(ORDERS, 51) == MappedOffset(101, 101)
    assert translator.translate_back(ORDERS, 150) == MappedOffset(101, 207)
    assert translator.translate_back(ORDERS, 151) == MappedOffset(208, 208)
    assert translator.translate_back(ORDERS, 160) == MappedOffset(208, None)


def test_reverse_translation_is_exact_inside_a_run_and_uses_syncs_before_the_map():
    translator = Translator(store((100, 50), (200, 150)), {ORDERS: map_of(300, 400, shift=-30)})

    assert [translator.translate_back(ORDERS, offset) for offset in (120, 270, 333, 370, 380)] == [
        MappedOffset(101, 200),
        MappedOffset(300, 300),
        MappedOffset(363, 363),
        MappedOffset(400, 400),
        MappedOffset(400, None),
    ]


def test_a_store_without_the_syncs_of_one_partition_keeps_those_of_others():
    other = TopicPartition("other", 0)
    syncs = store((100, 50))
    syncs.add(other, Sync(7, 7))
    without = Translator(syncs.without({ORDERS}))

    assert (without.translate(ORDERS, 100), without.translate(other, 7)) == (None, MappedOffset(7, 7))
    assert Translator(syncs).translate(ORDERS, 100) == MappedOffset(50, 50)


def test_the_known_range_covers_the_map_and_the_syncs():
    assert Translator(store()).extent(ORDERS) is None
    known = Translator(store((100, 50), (450, 420)), {ORDERS: map_of(300, 400, shift=-30)}).extent(ORDERS)
    assert known is not None
    assert known[:4] == (100, 50, 451, 421)
    contradictory = Translator(store((500, 87)), {ORDERS: map_of(0, 400)})
    assert contradictory.extent(ORDERS) is None


def opposite_map(*runs, upstream_end=0):
    """Returns the map of the opposite flow, which has copied to the source of this flow."""
    partition_map = PartitionMap(MapStream(1, "", ""), OffsetPair(-1, -1, -1))
    ordinal = 0
    for upstream, downstream, count in runs:
        partition_map.delivered(upstream, downstream, count, ordinal)
        ordinal += count
    return partition_map.kept(OffsetPair(upstream_end - 1, ordinal - 1, -1))


# The opposite flow has copied 40 records with a gap: [0, 30) to [0, 30), and [35, 45) to [30, 40). Its marker lies at
# 40. Since then this flow copies from 41 on to target offset 45.
OPPOSITE = opposite_map((0, 0, 30), (35, 30, 10), upstream_end=45)


def test_a_group_within_copies_of_the_opposite_flow_is_translated_by_the_map_of_that_flow():
    translator = Translator(store(), {ORDERS: map_of(41, 60, shift=4)}, opposite_maps={ORDERS: OPPOSITE})

    translated = [translator.translate(ORDERS, offset) for offset in (10, 30, 31, 40, 41, 50)]

    assert translated == [MappedOffset(offset, offset) for offset in (10, 35, 36, 45, 45, 54)]


def test_a_group_at_the_end_of_the_opposite_flow_is_translated_before_the_first_copied_record():
    """At offset 41 the group has passed the marker of the opposite flow, which the map of this flow lacks."""
    empty = PartitionMap(MapStream(1, "", ""), OffsetPair(40, -1, 44)).kept(OffsetPair(40, -1, 44))
    translator = Translator(store(), {ORDERS: empty}, opposite_maps={ORDERS: OPPOSITE})

    assert [translator.translate(ORDERS, offset) for offset in (40, 41)] == [
        MappedOffset(45, 45),
        MappedOffset(45, 45),
    ]
    assert Translator(store(), {ORDERS: empty}).translate(ORDERS, 40) is None


@given(st.integers(0, 40), st.integers(0, 60))
def test_translations_by_both_maps_never_decrease_when_the_group_advances(first: int, second: int):
    translator = Translator(store(), {ORDERS: map_of(41, 60, shift=4)}, opposite_maps={ORDERS: OPPOSITE})
    earlier, later = (translator.translate(ORDERS, offset) for offset in sorted((first, second)))

    assert earlier is not None
    assert later is not None
    assert earlier.at_least <= later.at_least


def test_no_record_is_skipped_after_the_target_has_lost_the_originals_of_the_opposite_flow():
    """After the loss, the target ends at 38. Copies of source offset 41 and later start there."""
    translator = Translator(store(), {ORDERS: map_of(41, 60, shift=-3)}, opposite_maps={ORDERS: OPPOSITE})

    translated = [translator.translate(ORDERS, offset) for offset in (20, 32, 36, 41, 42)]

    assert translated == [MappedOffset(offset, offset) for offset in (20, 37, 38, 38, 39)]

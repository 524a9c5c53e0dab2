"""The map of offsets is asked first, offset syncs are the net below it, and in doubt the older answer counts."""

import random
from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.offsets.offset_map import MappedOffset, MapStream, PartitionMap
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore, PartitionSyncs, Sync
from mirrorflow_core.offsets.offset_translation import Committed, Translator, translate_group
from mirrorflow_core.partitions import OffsetPair, TopicPartition

ORDERS = TopicPartition("orders", 0)


def mapped(begin, end, *, shift=0):
    """A map of a parallel copy of [begin, end)."""
    at = PartitionMap(MapStream(1, "", ""), OffsetPair(begin - 1, -1, begin + shift - 1))
    at.delivered(begin, begin + shift, end - begin, 0)
    return at.kept(OffsetPair(end - 1, end - begin - 1, end + shift - 1))


def store(*syncs):
    found = OffsetSyncStore(must_read_to_end=False)
    found.mark_read_to_end()
    for one in syncs:
        found.add(ORDERS, Sync(*one))
    return found


def test_far_behind_the_head_the_map_is_exact_where_syncs_are_not():
    syncs = store(*((at, at) for at in range(0, 1_000_001, 100)))
    translator = Translator(syncs, {ORDERS: mapped(0, 1_000_001)})

    by_syncs = Translator(syncs).translate(ORDERS, 500_000)
    assert by_syncs is not None
    assert by_syncs.at_least < 480_000
    assert translator.translate(ORDERS, 500_000) == MappedOffset(500_000, 500_000)


def test_before_the_map_syncs_of_java_are_asked():
    translator = Translator(store((100, 50), (200, 150)), {ORDERS: mapped(300, 400)})

    assert translator.translate(ORDERS, 100) == MappedOffset(50, 50)
    assert translator.translate(ORDERS, 150) == MappedOffset(51, 150)
    assert translator.translate(ORDERS, 250) == MappedOffset(151, None)
    assert translator.translate(ORDERS, 300) == MappedOffset(300, 300)
    assert translator.translate(ORDERS, 99) is None


def test_behind_the_end_of_the_map_newer_syncs_say_more():
    translator = Translator(store((0, 0), (450, 450)), {ORDERS: mapped(0, 400)})

    assert translator.translate(ORDERS, 460) == MappedOffset(451, None)
    assert translator.translate(ORDERS, 420) == MappedOffset(400, 450)
    assert Translator(store((0, 0)), {ORDERS: mapped(0, 400)}).translate(ORDERS, 420) == MappedOffset(
        400, None
    )


def test_where_both_contradict_each_other_the_older_counts():
    """The copy was made anew, and the map does not say so yet."""
    translator = Translator(store((420, 7), (500, 87)), {ORDERS: mapped(0, 400)})

    assert translator.translate(ORDERS, 450) == MappedOffset(8, 87)


def test_without_earlier_checkpoints_only_exact_offsets_are_returned():
    """Otherwise it could step back behind a checkpoint of an earlier run, whose bound was narrower."""
    at = PartitionMap(MapStream(1, "", ""), OffsetPair(-1, -1, -1))
    at.delivered(0, 0, 100, 0)
    at.aligned(MapStream(1, "", ""), OffsetPair(209, 199, 199))
    syncs, maps = store((150, 145)), {ORDERS: at.kept(OffsetPair(209, 199, 199))}
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
        rename=lambda at: at,
        syncs=Translator(store((100, 50), (200, 150))),
    ).values()

    assert (translated.downstream_offset, translated.at_most, translated.source) == (51, 150, ORDERS)


@given(st.integers(0, 2**32))
def test_translation_never_misses_a_record_and_never_goes_back(seed):
    """Gaps on both sides; syncs as they are written; a map that ends somewhere."""
    chance = random.Random(seed)
    syncs, found = PartitionSyncs(chance.choice((0, 5, 100))), store()
    at, kept = PartitionMap(MapStream(1, "", ""), OffsetPair(-1, -1, -1)), None
    records: list[tuple[int, int]] = []
    upstream = downstream = 0
    for _ in range(chance.randint(1, 60)):
        upstream += chance.choice((0, 0, 0, 1, 7))
        downstream += chance.choice((0, 0, 0, 1, 7))
        count = chance.randint(1, 30)
        at.delivered(upstream, downstream, count, len(records))
        syncs.delivered(upstream, downstream, count)
        records += [(upstream + one, downstream + one) for one in range(count)]
        upstream, downstream = upstream + count, downstream + count
        if chance.random() < 0.1:
            syncs.promote()
        for sync in syncs.take():
            found.add(ORDERS, sync)
        if chance.random() < 0.3:
            kept = at.kept(OffsetPair(upstream - 1, len(records) - 1, downstream - 1))
    translator = Translator(found, {} if kept is None else {ORDERS: kept})
    offsets, copies = (list(side) for side in zip(*records, strict=True))  # both rise

    last = 0
    for group in range(upstream + 2):
        place = translator.translate(ORDERS, group)
        if place is None:
            assert group < records[0][0] or kept is None
            assert last == 0
            continue
        assert place.at_least >= last
        following = bisect_left(offsets, group)
        assert all(lies >= place.at_least for lies in copies[following : following + 1])
        if place.at_most is not None:
            again = copies[bisect_left(copies, place.at_least) : following]
            assert all(lies < place.at_most for lies in again[-1:])
        last = place.at_least

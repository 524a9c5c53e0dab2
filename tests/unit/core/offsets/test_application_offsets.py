"""Offsets of applications are translated exactly, with a bound, or not at all with a reason.

No unread record is skipped.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.offsets.application_offsets import (
    NOTHING_KNOWN,
    ApplicationOffset,
    LogRange,
    TranslationFacts,
    translate_offset,
)
from mirrorflow_core.offsets.offset_map import MapStream, OffsetMap, PartitionMap
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore, Sync
from mirrorflow_core.offsets.offset_translation import Translator
from mirrorflow_core.partitions import OffsetPair, TopicPartition

ORDERS, COPY = TopicPartition("orders", 0), TopicPartition("A.orders", 0)
STREAM = MapStream(1, "", "")
NO_SYNCS = OffsetSyncStore(must_read_to_end=False)
LOG = LogRange(0, 1000)


def copied(*runs: tuple[int, int, int]) -> OffsetMap:
    """Returns the map of a copy with runs of (source offset, target offset, number of records)."""
    first = runs[0]
    growing = PartitionMap(STREAM, OffsetPair(first[0] - 1, -1, first[1] - 1))
    ordinal = 0
    for upstream, downstream, count in runs:
        growing.delivered(upstream, downstream, count, ordinal)
        ordinal += count
    last = runs[-1]
    return growing.kept(OffsetPair(last[0] + last[2] - 1, ordinal - 1, last[1] + last[2] - 1))


def translate(offset, translator, *, reverse=False, origin=LOG, destination=LOG, problem=None):
    extent = translator.extent(ORDERS)
    given_partition, other = (COPY, ORDERS) if reverse else (ORDERS, COPY)
    facts = TranslationFacts(
        origin="B" if reverse else "A",
        destination="A" if reverse else "B",
        partition=other,
        problem=problem,
        origin_log=origin,
        destination_log=destination,
        extent=extent.reversed() if extent and reverse else extent,
    )
    step = translator.translate_back if reverse else translator.translate
    return translate_offset(
        ApplicationOffset(topic=given_partition.topic, partition=0, offset=offset),
        step(ORDERS, offset),
        facts,
    )


def summary(translation):
    return translation.offset, translation.translation, translation.reread_max_records


GAPS = Translator(
    NO_SYNCS, {ORDERS: copied((10, 3, 90), (150, 100, 50))}
)  # source log ends at 200, target log at 150


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (10, (3, "exact", 0)),
        (60, (53, "exact", 0)),
        (120, (93, "exact", 0)),  # in the gap
        (199, (149, "exact", 0)),
        (200, (150, "exact", 0)),
        (230, (150, "bound", 30)),  # not copied yet
        (5, (0, "bound", 3)),  # before the map
    ],
)
def test_an_offset_of_the_source_is_translated(offset, expected):
    translation = translate(offset, GAPS)

    assert summary(translation) == expected
    assert (translation.topic, bool(translation.why)) == ("A.orders", expected[1] != "exact")


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (3, (10, "exact", 0)),
        (53, (60, "exact", 0)),
        (96, (100, "exact", 0)),  # in the gap of the target
        (150, (200, "exact", 0)),
        (170, (200, "bound", 20)),  # written by the flow or by others since the map was stored
        (1, (0, "bound", 10)),
    ],
)
def test_an_offset_of_the_copy_is_translated_back(offset, expected):
    translation = translate(offset, GAPS, reverse=True)

    assert summary(translation) == expected
    assert translation.topic == "orders"


def test_an_offset_past_the_end_of_its_log_is_unknown():
    past = translate(1001, GAPS)

    assert (summary(past), past.why) == (
        (None, "unknown", None),
        "the log of A ends at 1000, before this offset",
    )
    assert "the log of B ends at 1000" in translate(1001, GAPS, reverse=True).why
    assert summary(translate(1001, GAPS, origin=None)) == (150, "bound", 801)  # the source cannot be reached


def test_an_offset_with_deleted_copies_is_translated_to_the_log_start_and_is_never_exact():
    deleted = translate(20, GAPS, destination=LogRange(40, 1000))

    assert (summary(deleted), deleted.why) == (
        (40, "bound", 0),
        "the log of B begins at 40, earlier records are deleted",
    )
    assert summary(translate(2, GAPS, reverse=True, destination=LogRange(70, 1000))) == (70, "bound", 0)


def test_an_offset_before_the_map_is_exact_only_if_the_log_has_no_records_before_the_map():
    """Otherwise there may be records before it that were never copied."""
    begins_at_start = Translator(NO_SYNCS, {ORDERS: copied((10, 0, 90))})

    assert summary(translate(5, begins_at_start)) == (0, "bound", 0)
    assert summary(translate(5, begins_at_start, origin=None)) == (0, "bound", 0)
    assert summary(translate(5, begins_at_start, origin=LogRange(10, 1000))) == (0, "exact", 0)


def test_an_offset_below_the_log_start_of_its_own_cluster_is_translated_by_the_map():
    assert summary(translate(20, GAPS, origin=LogRange(120, 1000))) == (13, "exact", 0)


def test_an_offset_whose_records_the_other_cluster_has_lost_is_unknown():
    lost = translate(199, GAPS, destination=LogRange(0, 120))

    assert (lost.offset, lost.translation) == (None, "unknown")
    assert "ends at 120, before the translated offset 149" in lost.why


def test_an_offset_is_unknown_without_any_known_pair():
    nothing = translate(7, Translator(NO_SYNCS))

    assert (nothing.offset, nothing.why, nothing.topic) == (None, NOTHING_KNOWN, "A.orders")
    refused = translate(7, GAPS, problem="B has no topic A.orders")
    assert (refused.offset, refused.why) == (None, "B has no topic A.orders")


def test_a_log_that_cannot_be_read_makes_the_offset_unknown():
    unreadable = translate_offset(
        ApplicationOffset(topic="orders", partition=0, offset=60),
        GAPS.translate(ORDERS, 60),
        replace(facts_of(GAPS), destination_log=None),
    )

    assert (unreadable.offset, unreadable.why) == (None, "the log of B cannot be read")


def facts_of(translator):
    return TranslationFacts(
        origin="A",
        destination="B",
        partition=COPY,
        origin_log=LogRange(0, 1000),
        extent=translator.extent(ORDERS),
    )


def test_a_partition_without_copies_is_translated_to_the_start_of_the_copy():
    empty = Translator(
        NO_SYNCS, {ORDERS: PartitionMap(STREAM, OffsetPair(-1, -1, 4)).kept(OffsetPair(-1, -1, 4))}
    )

    assert summary(translate(0, empty)) == (5, "exact", 0)
    assert summary(translate(7, empty)) == (5, "bound", 7)
    assert summary(translate(5, empty, reverse=True)) == (0, "exact", 0)
    assert summary(translate(9, empty, reverse=True)) == (0, "bound", 4)


def test_an_offset_between_syncs_of_java_has_a_bound():
    syncs = OffsetSyncStore(must_read_to_end=False)
    syncs.mark_read_to_end()
    for sync in (Sync(100, 50), Sync(200, 150)):
        syncs.add(ORDERS, sync)
    translator = Translator(syncs)

    assert [summary(translate(offset, translator)) for offset in (100, 101, 150, 201, 260, 99)] == [
        (50, "exact", 0), (51, "exact", 0), (51, "bound", 99), (151, "exact", 0), (151, "bound", 59), (0, "bound", 50),
    ]  # fmt: skip
    assert [summary(translate(offset, translator, reverse=True)) for offset in (51, 100, 151, 160, 50)] == [
        (101, "exact", 0), (101, "bound", 99), (201, "exact", 0), (201, "bound", 9), (0, "bound", 100),
    ]  # fmt: skip


gaps = st.integers(0, 4)


@given(st.lists(st.tuples(gaps, gaps, st.integers(1, 40)), min_size=1, max_size=12), st.data())
def test_translation_in_both_directions_never_skips_a_record_and_is_exact_inside_a_run(steps, data):
    upstream = downstream = 0
    runs, records = [], []
    for source_gap, target_gap, count in steps:
        upstream, downstream = upstream + source_gap, downstream + target_gap
        runs.append((upstream, downstream, count))
        records += [(upstream + index, downstream + index) for index in range(count)]
        upstream, downstream = upstream + count, downstream + count
    translator = Translator(NO_SYNCS, {ORDERS: copied(*runs)})
    logs = {"origin": LogRange(0, upstream + 5), "destination": LogRange(0, downstream + 5)}
    back_logs = {"origin": logs["destination"], "destination": logs["origin"]}
    offset = data.draw(st.integers(0, upstream + 5))

    there = translate(offset, translator, **logs)
    assert there.offset is not None
    back = translate(there.offset, translator, reverse=True, **back_logs)
    assert back.offset is not None
    unread = [source for source, _ in records if source >= offset]
    assert not unread or back.offset <= unread[0]
    reread = [source for source, target in records if source < offset and target >= there.offset]
    assert len(reread) <= (there.reread_max_records or 0)
    if any(source == offset for source, _ in records):
        assert (there.is_exact, back.is_exact, back.offset) == (True, True, offset)

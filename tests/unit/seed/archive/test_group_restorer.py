"""Tests where a restored group continues: never after a record that it has yet to read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.offsets.offset_map import MapStream, PartitionMap
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore
from mirrorflow_core.offsets.offset_translation import (
    Committed,
    TranslatedOffset,
    Translator,
    translate_group,
)
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_seed.archive.group_restorer import (
    GroupResult,
    GroupsRestored,
    committed_offsets,
    position_on_target,
)
from mirrorflow_seed.archive.manifest import ArchivedGroup, ArchivedOffset

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("offset", "at_most", "expected"),
    [
        (40, 40, (40, True)),
        (40, 44, (40, False)),
        (None, None, (10, False)),  # before all that is restored
        (100, None, (100, True)),  # the group has read all of the archive
        (95, None, (95, False)),
        (120, 120, (100, True)),  # never after the end of the copy
    ],
)
def test_a_group_without_an_exact_offset_continues_at_the_earlier_one(
    offset: int | None, at_most: int | None, expected: tuple[int, bool]
) -> None:
    translated = TranslatedOffset(
        upstream_offset=7, downstream_offset=offset, metadata="m", at_most=at_most, source=ORDERS
    )

    restored = position_on_target(translated, start=10, end=100)

    assert (restored.point.downstream_offset, restored.is_exact) == expected
    assert (restored.point.upstream_offset, restored.point.metadata) == (7, "m")


def test_a_group_before_the_first_archived_record_is_moved_to_that_record() -> None:
    """The archive does not have earlier records. A partition that is not archived is left out."""
    group = ArchivedGroup(
        name="billing",
        offsets=(
            ArchivedOffset(topic="orders", partition=0, offset=3, metadata="m"),
            ArchivedOffset(topic="orders", partition=1, offset=70),
            ArchivedOffset(topic="orders", partition=2, offset=5),
        ),
    )
    begins = {TopicPartition("orders", number): 20 for number in range(2)}

    assert committed_offsets(group, begins) == {
        TopicPartition("orders", 0): Committed(20, "m"),
        TopicPartition("orders", 1): Committed(70),
    }


def test_a_group_in_an_empty_copy_is_exact() -> None:
    unknown = TranslatedOffset(upstream_offset=0, downstream_offset=None)

    assert position_on_target(unknown, start=0, end=0).is_exact


@given(
    gaps=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=40),
    offset=st.integers(0, 200),
)
def test_a_restored_group_skips_no_record(gaps: list[tuple[int, int]], offset: int) -> None:
    """For any gaps between the records of the source (compaction, markers) and of the copy (markers)."""
    mapped = PartitionMap(MapStream(0, "", ""), OffsetPair(-1, -1, -1))
    pairs: list[tuple[int, int]] = []
    source = target = 0
    for ordinal, (source_gap, target_gap) in enumerate(gaps):
        source, target = source + source_gap, target + target_gap
        mapped.delivered(source, target, 1, ordinal)
        pairs.append((source, target))
        source, target = source + 1, target + 1
    maps = {ORDERS: mapped.kept(OffsetPair(source - 1, len(gaps) - 1, target - 1))}
    translator = Translator(OffsetSyncStore(must_read_to_end=True), maps)

    [translated] = translate_group(
        {ORDERS: Committed(offset)},
        selects=lambda _: True,
        rename=lambda partition: partition,
        syncs=translator,
    ).values()
    restored = position_on_target(translated, start=0, end=target)

    unread = [copied for original, copied in pairs if original >= offset]
    position = restored.point.downstream_offset
    assert position <= (unread[0] if unread else target)
    if restored.is_exact:
        assert [copied for _, copied in pairs if copied >= position] == unread


def test_the_summary_counts_groups_without_their_names() -> None:
    restored = GroupsRestored(
        results={
            "billing": GroupResult(exact=2, bound=1),
            "reports": GroupResult(exact=1),
            "live": GroupResult(problem="they have members on the target"),
            "ahead": GroupResult(),
        }
    )

    assert restored.summary == (
        "The offsets of 2 groups are restored: 3 exactly, 1 to an earlier record, which is read again. "
        "1 groups are not restored: they have members on the target."
    )
    assert GroupsRestored(results={}).summary == ""

"""Tests the content of an archive, the plan of an export, and the checks of both."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import Tally
from mirrorflow_seed.archive.export_driver import groups_of, require_own_files
from mirrorflow_seed.archive.export_plan import OFFSETS_MIN, ExportRange, plan_ranges
from mirrorflow_seed.archive.manifest import (
    ArchivedConfig,
    ArchivedFile,
    ArchivedPartition,
    ArchivedTopic,
    Gap,
    Manifest,
    appended,
    as_json,
    differences,
    from_json,
)
from mirrorflow_seed.errors import ArchiveError
from mirrorflow_seed.verify.range_reader import OffsetRange

TALLY = Tally(records=2, bytes=10, sum="0a", chain="0b")
FOLDER = "topic=orders/partition=0"


def manifest() -> Manifest:
    file = ArchivedFile(
        path=f"{FOLDER}/part-00000-a.parquet", size_bytes=7, start=5, end=9, codec=3, tally=TALLY
    )
    return Manifest(
        archive_id="abc",
        flow="f",
        source_alias="east",
        source_cluster_id="id",
        isolation="read_uncommitted",
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:01:00+00:00",
        topics=(
            ArchivedTopic(
                name="orders",
                topic_id="",
                configs=(ArchivedConfig(name="cleanup.policy", value="compact", source=1),),
                partitions=(
                    ArchivedPartition(number=0, start=5, end=9, files=(file,), gaps=(Gap(start=5, end=6),)),
                ),
            ),
        ),
    )


def test_content_round_trips() -> None:
    assert from_json(json.loads(json.dumps(as_json(manifest())))) == manifest()


def increment(start: int, end: int, *, topic: str = "orders", number: int = 0) -> Manifest:
    """Returns an increment of one partition."""
    file = ArchivedFile(
        path=f"topic={topic}/partition={number}/part-{start}",
        size_bytes=3,
        start=start,
        end=end,
        codec=0,
        tally=TALLY,
    )
    partition = ArchivedPartition(number=number, start=start, end=end, files=(file,))
    return replace(
        manifest(),
        finished="later",
        topics=(ArchivedTopic(name=topic, topic_id="", configs=(), partitions=(partition,)),),
    )


def test_an_increment_continues_each_partition_and_adds_new_ones() -> None:
    content = appended(manifest(), increment(9, 20))
    content = appended(content, increment(0, 4, number=1))
    content = appended(content, increment(0, 7, topic="a"))

    assert [topic.name for topic in content.topics] == ["a", "orders"]
    assert {tuple(key): (found.start, found.end) for key, found in content.partitions.items()} == {
        ("a", 0): (0, 7),
        ("orders", 0): (5, 20),
        ("orders", 1): (0, 4),
    }
    assert [file.start for file in content.partitions[TopicPartition("orders", 0)].files] == [5, 9]
    assert content.gap_records == 1
    assert content.finished == "later"
    assert content.topics[1].configs == ()  # those of the last increment


@pytest.mark.parametrize("start", [8, 10])
def test_an_increment_with_a_hole_or_an_overlap_is_refused(start: int) -> None:
    with pytest.raises(ValueError, match="orders-0 ends at 9"):
        appended(manifest(), increment(start, 20))


def test_missing_and_truncated_files_are_named() -> None:
    path = manifest().files[0].path

    # What a running export has written is not part of the archive yet.
    assert list(differences(manifest(), {path: 7, "x": 1})) == []
    assert list(differences(manifest(), {})) == [f"{path} is missing"]
    assert list(differences(manifest(), {path: 6})) == [f"{path} has 6 bytes, not 7"]


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 3)),
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(
            lambda pair: OffsetRange(pair[0], sum(pair))
        ),
    ),
    st.floats(1, 10**6),
    st.integers(1, 10**9),
)
def test_ranges_cover_each_offset_once_and_have_a_minimum_size(
    extents: dict[TopicPartition, OffsetRange], density: float, file_bytes: int
) -> None:
    ranges = plan_ranges(extents, dict.fromkeys(extents, density), file_bytes=file_bytes)

    assert [archive_range.index for archive_range in ranges] == list(range(len(ranges)))
    for key, extent in extents.items():
        of_partition = sorted(
            (archive_range.start, archive_range.end)
            for archive_range in ranges
            if (archive_range.topic, archive_range.partition) == key
        )
        bounds = [extent.start, *(end for _, end in of_partition)]
        assert [start for start, _ in of_partition] == bounds[:-1]
        assert bounds[-1] == extent.end
        if len(of_partition) > 1:
            assert all(2 * (end - start) >= OFFSETS_MIN for start, end in of_partition)


def test_export_requires_the_files_of_its_tasks() -> None:
    files = manifest().files

    require_own_files({files[0].path: 7, "x": 1}, files, location="here")
    for present in ({}, {files[0].path: 6}):
        with pytest.raises(ArchiveError):
            require_own_files(present, files, location="here")


def range_of(index: int, size_bytes: int) -> ExportRange:
    return ExportRange(index=index, topic="orders", partition=index, start=0, end=10, size_bytes=size_bytes)


def test_small_ranges_share_a_task_and_each_slot_has_several_tasks() -> None:
    ranges = [range_of(0, 1_000), *(range_of(index, 10) for index in range(1, 101))]
    groups = [[part.index for part in group.ranges] for group in groups_of(ranges, 2, None)]

    assert groups[0] == [0]
    assert [index for group in groups for index in group] == list(range(101))
    assert 4 <= len(groups) <= 9
    assert {group.bytes_per_second for group in groups_of(ranges, 2, None)} == {None}
    assert groups_of([], 2, None) == groups_of([], 2, 1_000) == []


def test_with_a_rate_each_slot_has_one_task() -> None:
    groups = groups_of([range_of(index, 10) for index in range(5)], 2, 1_000)

    assert [[part.index for part in group.ranges] for group in groups] == [[0, 2, 4], [1, 3]]
    assert 990 <= sum(group.bytes_per_second or 0 for group in groups) <= 1_000

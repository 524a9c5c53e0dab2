"""Tests the content of an archive, the plan of an export, and the checks of both."""

import functools
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_seed.archive.export_checks import require_own_files
from mirrorflow_seed.archive.export_driver import groups_of
from mirrorflow_seed.archive.export_plan import OFFSETS_MIN, ExportRange, plan_ranges
from mirrorflow_seed.archive.manifest import (
    ArchivedConfig,
    ArchivedFile,
    ArchivedGroup,
    ArchivedOffset,
    ArchivedPartition,
    ArchivedTopic,
    Gap,
    Manifest,
    TimeBounds,
    appended,
    as_json,
    differences,
    folder_of,
    from_json,
    part_of,
)
from mirrorflow_seed.archive.record_tally import Tally
from mirrorflow_seed.errors import ArchiveError
from mirrorflow_seed.record_columns import TIMESTAMP_MS_MAX
from mirrorflow_seed.verify.range_reader import OffsetRange

TALLY = Tally(records=2, bytes=10, digest="0b")
FOLDER = "topic=orders/partition=0"


def manifest() -> Manifest:
    file = ArchivedFile(
        path=f"{FOLDER}/part-00000-a.parquet",
        size_bytes=7,
        start=5,
        end=9,
        codec=3,
        tally=TALLY,
        times=TimeBounds(first_ms=3, last_ms=9),
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


def test_a_manifest_is_unchanged_by_a_round_trip() -> None:
    acl = AclBinding(
        resource_type=2,
        resource_name="orders",
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    )
    group = ArchivedGroup(name="billing", offsets=(ArchivedOffset(topic="orders", partition=0, offset=7),))
    full = replace(manifest(), groups=(group,), groups_read_ms=5, acls=(acl,))

    for content in (manifest(), full):
        assert from_json(json.loads(json.dumps(as_json(content)))) == content


def test_groups_and_acls_come_from_the_last_increment_that_could_read_them() -> None:
    group = ArchivedGroup(name="billing", offsets=(ArchivedOffset(topic="orders", partition=0, offset=7),))
    content = appended(manifest(), replace(increment(9, 20), groups=(group,), groups_read_ms=5, acls=()))

    assert (content.groups, content.groups_read_ms, content.acls) == ((group,), 5, ())
    unread = appended(content, increment(20, 30))
    assert (unread.groups, unread.groups_read_ms, unread.acls) == ((group,), 5, ())
    without = appended(content, replace(increment(20, 30), groups_read_ms=6))
    assert (without.groups, without.groups_read_ms) == ((), 6)


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
    assert {
        tuple(key): (partition.start, partition.end) for key, partition in content.partitions.items()
    } == {
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


def test_a_task_gets_only_its_own_partition() -> None:
    group = ArchivedGroup(name="billing", offsets=())
    content = appended(manifest(), increment(0, 4, topic="a"))
    partition = content.partitions[TopicPartition("orders", 0)]

    part = part_of(replace(content, groups=(group,), groups_read_ms=5, acls=()), "orders", partition)

    assert part == replace(manifest(), finished="later")


def test_the_error_names_missing_and_truncated_files() -> None:
    path = manifest().files[0].path

    # What a running export has written is not part of the archive yet.
    assert list(differences(manifest(), {path: 7, "x": 1})) == []
    assert list(differences(manifest(), {})) == [f"{path} is missing"]
    assert list(differences(manifest(), {path: 6})) == [f"{path} has 6 bytes, not 7"]


@pytest.mark.parametrize(
    ("first_ms", "last_ms", "folder"),
    [
        (0, 3_599_999, "first_hour=1970-01-01T00/last_hour=1970-01-01T00"),
        (1_795_352_400_000, 1_795_356_000_000, "first_hour=2026-11-22T13/last_hour=2026-11-22T14"),
        (5, TIMESTAMP_MS_MAX, "first_hour=1970-01-01T00/last_hour=9999-12-31T23"),
        (None, None, "first_hour=none/last_hour=none"),
    ],
)
def test_the_folder_of_a_file_has_the_hours_of_its_records(
    first_ms: int | None, last_ms: int | None, folder: str
) -> None:
    times = TimeBounds(first_ms=first_ms, last_ms=last_ms)

    assert folder_of(TopicPartition("orders", 3), times) == f"topic=orders/partition=3/{folder}"


times_ms = st.integers(0, TIMESTAMP_MS_MAX)


@given(st.lists(times_ms, min_size=1), times_ms)
def test_the_hours_of_a_file_include_the_hour_of_each_record(record_times: list[int], other_ms: int) -> None:
    """Hours are compared as text, as engines compare folder names. The records of a file may be in any order of time."""
    bounds = functools.reduce(
        TimeBounds.joined, (TimeBounds(first_ms=time_ms, last_ms=time_ms) for time_ms in record_times)
    )
    first, last = hours_of(bounds)

    for time_ms in record_times:
        hour, _ = hours_of(TimeBounds(first_ms=time_ms, last_ms=time_ms))
        assert first <= hour <= last
    none, _ = hours_of(TimeBounds())
    assert none > hours_of(TimeBounds(first_ms=other_ms, last_ms=other_ms))[0]


def hours_of(times: TimeBounds) -> tuple[str, str]:
    """Returns the columns first_hour and last_hour of a file."""
    _, _, first, last = folder_of(TopicPartition("orders", 0), times).split("/")
    return first.removeprefix("first_hour="), last.removeprefix("last_hour=")


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

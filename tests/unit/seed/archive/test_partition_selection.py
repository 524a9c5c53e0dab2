"""Tests the selection of partitions of an archive, and of ranges of their offsets."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.manifest import (
    ArchivedGroup,
    ArchivedOffset,
    ArchivedPartition,
    ArchivedTopic,
    Manifest,
)
from mirrorflow_seed.archive.partition_selection import (
    PARTITIONS_KEY,
    require_copied,
    select_partitions,
    selected_partitions,
)
from mirrorflow_seed.archive.restore_point import cut_file, cut_manifest, cut_tasks
from mirrorflow_seed.errors import JobSettingError
from mirrorflow_seed.storage_folder import StorageFolder
from tests.unit.seed.archive.test_archive_manifest import manifest
from tests.unit.seed.archive.test_restore_point import archived, tally_of

pytest.importorskip("pyarrow")


def select(content: Manifest, text: str) -> Manifest:
    selected = selected_partitions({PARTITIONS_KEY: text})
    assert selected is not None
    return select_partitions(content, selected)


@given(
    file_times=st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=5), min_size=1, max_size=4),
    begin=st.integers(0, 20),
    length=st.integers(1, 40),
    until_ms=st.none() | st.integers(0, 20),
)
def test_a_range_ends_before_its_first_record_after_the_point_in_time(
    tmp_path_factory: pytest.TempPathFactory,
    file_times: list[list[int]],
    begin: int,
    length: int,
    until_ms: int | None,
) -> None:
    """Files are cut at both ends of the range. Records before the range do not decide where it ends."""
    folder = StorageFolder(str(tmp_path_factory.mktemp("archive")))
    content = archived(folder, *file_times)
    times = [time_ms for times in file_times for time_ms in times]
    if begin >= 2 * len(times):
        with pytest.raises(JobSettingError, match="none of the range"):
            select(content, f"orders-0:{begin}:{begin + length}")
        return
    narrowed = select(content, f"orders-0:{begin}:{begin + length}")
    cuts = [cut_file(task) for task in cut_tasks(narrowed, until_ms, folder.address)]
    [partition] = cut_manifest(narrowed, cuts).partitions.values()

    log = [Record(2 * index, time_ms, None, b"v") for index, time_ms in enumerate(times)]
    expected = [record for record in log if begin <= record.offset < begin + length]
    later = [
        index for index, record in enumerate(expected) if until_ms is not None and record.timestamp > until_ms
    ]
    expected = expected[: later[0]] if later else expected
    assert not any(cut.is_damaged for cut in cuts)
    assert partition.records == len(expected)
    position = 0
    for file in partition.files:
        part = expected[position : position + file.tally.records]
        assert file.tally == tally_of(part)
        assert file.start <= part[0].offset
        assert part[-1].offset < file.end <= partition.end
        position += len(part)


def test_only_files_at_the_ends_of_a_range_are_read(tmp_path: Path) -> None:
    content = archived(StorageFolder(str(tmp_path)), [1, 1], [1, 1], [1, 1], [1, 1])

    tasks = cut_tasks(select(content, "orders-0:2:10"), None, "")
    assert [task.file.path for task in tasks] == ["topic=orders/0", "topic=orders/2"]
    assert cut_tasks(select(content, "orders-0:4:12"), None, "") == []


def test_partitions_that_are_not_selected_stay_empty_and_their_groups_have_no_offsets() -> None:
    content = archived_with_two_partitions()

    selected = select(content, "orders-1::")

    assert ["orders"] == [topic.name for topic in selected.topics]
    first, second = selected.topics[0].partitions
    assert (0, 0, ()) == (first.start, first.end, first.files)
    assert second == content.topics[0].partitions[1]
    assert [1] == [offset.partition for offset in selected.groups[0].offsets]


def archived_with_two_partitions() -> Manifest:
    partitions = tuple(ArchivedPartition(number=number, start=0, end=50) for number in (0, 1))
    topics = tuple(
        ArchivedTopic(name=name, topic_id="", configs=(), partitions=partitions)
        for name in ("orders", "other")
    )
    offsets = tuple(ArchivedOffset(topic="orders", partition=number, offset=7) for number in (0, 1))
    return replace(manifest(), topics=topics, groups=(ArchivedGroup(name="g", offsets=offsets),))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("orders", "is not a partition"),
        ("orders-0:5", "is not a partition"),
        ("orders-0:a:b", "is not a partition"),
        ("", "is not a partition"),
        ("orders-0,orders-0:1:2", "is there twice"),
        ("orders-9", "the archive has no orders-9"),
        ("orders-0:50:60", "none of the range"),
        ("orders-0:20:10", "none of the range"),
    ],
)
def test_a_selection_that_the_archive_does_not_have_is_refused(text: str, problem: str) -> None:
    with pytest.raises(JobSettingError, match=problem):
        select(archived_with_two_partitions(), text)


def test_names_of_topics_may_end_with_numbers() -> None:
    [selected] = selected_partitions({PARTITIONS_KEY: " a-1.b-2:3: "}) or ()

    assert ("a-1.b", 2, 3, None) == (*selected.partition, selected.start, selected.end)
    assert selected_partitions({}) is None


def test_a_partition_of_a_topic_that_the_flow_does_not_copy_is_refused() -> None:
    """Otherwise the restore would end well without it."""
    selected = selected_partitions({PARTITIONS_KEY: "orders-0,other-1"}) or ()

    require_copied(selected, ["orders", "other"])
    with pytest.raises(JobSettingError, match="does not copy other"):
        require_copied(selected, ["orders"])

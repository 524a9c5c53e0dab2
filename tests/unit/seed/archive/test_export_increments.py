"""Tests what an export adds to an archive, which plan of a killed export it continues, and how large its files are."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.topic_configs import ConfigEntry
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.commit_log import ArchiveState
from mirrorflow_seed.archive.export_checks import require_empty_or_archive, require_fit
from mirrorflow_seed.archive.export_driver import IncrementResult, archived_bytes_per_offset_of
from mirrorflow_seed.archive.export_plan import (
    FILE_BYTES,
    FILE_GROWTH_MAX,
    Increment,
    SourceSnapshot,
    adds_nothing,
    archived_bytes_per_offset,
    plan_increment,
    plan_ranges,
)
from mirrorflow_seed.archive.export_progress import ExportProgress
from mirrorflow_seed.archive.manifest import ArchivedGroup, ArchivedOffset, Gap, Manifest, appended
from mirrorflow_seed.archive.pending_export import continues
from mirrorflow_seed.errors import ArchiveOccupiedError, ArchiveUnfitError
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.storage_folder import StorageFolder
from mirrorflow_seed.verify.range_reader import OffsetRange
from tests.unit.core.wire.strategies import batch_of

pytest.importorskip("pyarrow")

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)
SOURCE = """name=MirrorSourceConnector
connector.class=MirrorSourceConnector
source.cluster.alias=east
target.cluster.alias=west
source.cluster.bootstrap.servers=east:9092
target.cluster.bootstrap.servers=west:9092
topics=orders
"""


@pytest.fixture
def settings(tmp_path: Path) -> SourceSettings:
    worker, source = tmp_path / "worker.properties", tmp_path / "source.properties"
    worker.write_text("bootstrap.servers=west:9092\n")
    source.write_text(SOURCE)
    return FlowFiles(worker=str(worker), source=str(source)).load()


def snapshot(extents: Mapping[TopicPartition, tuple[int, int]], **topic_ids: str) -> SourceSnapshot:
    return SourceSnapshot(
        cluster_id="cluster",
        topic_ids={key.topic: topic_ids.get(key.topic, "first") for key in extents},
        configs={
            "orders": (
                ConfigEntry(name="retention.ms", value="5"),
                ConfigEntry(name="secret", value=None, sensitive=True),
            )
        },
        extents={key: OffsetRange(*extent) for key, extent in extents.items()},
    )


def planned(
    settings: SourceSettings,
    archived: Manifest | None,
    extents: Mapping[TopicPartition, tuple[int, int]],
    **topic_ids: str,
) -> Increment:
    return plan_increment(settings, snapshot(extents, **topic_ids), archived, archive_id="id", started="now")


def test_an_increment_begins_where_the_archive_ends(settings: SourceSettings) -> None:
    archived = planned(settings, None, {ORDERS: (0, 100)}).content
    later = planned(settings, archived, {ORDERS: (0, 150), PAYMENTS: (7, 9)})

    assert later.extents == {ORDERS: OffsetRange(100, 150), PAYMENTS: OffsetRange(7, 9)}
    assert later.unfit == ()
    content = appended(archived, later.content)
    assert {key: (part.start, part.end) for key, part in content.partitions.items()} == {
        ORDERS: (0, 150),
        PAYMENTS: (7, 9),
    }
    assert [config.name for config in content.topics[0].configs] == ["retention.ms"]


def test_records_deleted_by_retention_between_increments_are_a_gap(settings: SourceSettings) -> None:
    archived = planned(settings, None, {ORDERS: (0, 100)}).content
    later = planned(settings, archived, {ORDERS: (130, 150)})

    assert later.extents == {ORDERS: OffsetRange(130, 150)}
    assert later.content.partitions[ORDERS].gaps == (Gap(start=100, end=130),)
    assert later.content.partitions[ORDERS].start == 100
    all_gone = planned(settings, archived, {ORDERS: (150, 150)})
    assert all_gone.content.gap_records == 50


@pytest.mark.parametrize(
    ("end", "topic_id", "message"),
    [
        (300, "second", "orders was deleted and created again"),
        (90, "first", "orders-0 ends at 90 on the source"),
    ],
)
def test_a_recreated_or_truncated_topic_is_left_out(
    settings: SourceSettings, end: int, topic_id: str, message: str
) -> None:
    archived = planned(settings, None, {ORDERS: (0, 100), PAYMENTS: (0, 10)}).content
    later = planned(settings, archived, {ORDERS: (0, end), PAYMENTS: (0, 20)}, orders=topic_id)

    assert [topic.name for topic in later.content.topics] == ["payments"]
    assert later.extents.keys() == {PAYMENTS}
    [sentence] = later.unfit
    assert message in sentence
    assert appended(archived, later.content).partitions[ORDERS].end == 100


def test_an_increment_without_new_offsets_partitions_or_settings_adds_nothing(
    settings: SourceSettings,
) -> None:
    archived = planned(settings, None, {ORDERS: (0, 100)}).content

    assert adds_nothing(planned(settings, archived, {ORDERS: (40, 100)}).content, archived)
    for extents in ({ORDERS: (0, 101)}, {ORDERS: (0, 100), TopicPartition("orders", 1): (0, 0)}):
        assert not adds_nothing(planned(settings, archived, extents).content, archived)
    group = ArchivedGroup(name="billing", offsets=(ArchivedOffset(topic="orders", partition=0, offset=7),))
    moved = replace(
        planned(settings, archived, {ORDERS: (0, 100)}).content, groups=(group,), groups_read_ms=5
    )
    assert not adds_nothing(moved, archived)
    assert adds_nothing(replace(moved, groups_read_ms=9), appended(archived, moved))
    [topic] = archived.topics
    changed = replace(archived, topics=(replace(topic, configs=()),))
    assert not adds_nothing(planned(settings, changed, {ORDERS: (0, 100)}).content, changed)


def test_settings_that_cannot_be_read_are_unchanged_and_cause_a_warning(settings: SourceSettings) -> None:
    archived = planned(settings, None, {ORDERS: (0, 100)}).content
    unread = replace(snapshot({ORDERS: (0, 150)}), configs=None, warnings=("not read",))

    later = plan_increment(settings, unread, archived, archive_id="id", started="now")

    assert later.content.topics[0].configs == archived.topics[0].configs != ()
    assert later.warnings == ("not read",)


def test_a_plan_is_continued_while_the_source_has_all_planned_records(settings: SourceSettings) -> None:
    plan = planned(settings, None, {ORDERS: (0, 100)}).content

    assert continues(plan, planned(settings, None, {ORDERS: (50, 170), PAYMENTS: (0, 1)}).content)
    assert not continues(plan, planned(settings, None, {ORDERS: (0, 99)}).content)
    assert not continues(plan, planned(settings, None, {PAYMENTS: (0, 1)}).content)
    assert not continues(plan, planned(settings, None, {ORDERS: (0, 170)}, orders="second").content)


def test_an_archive_of_a_different_flow_or_isolation_level_is_refused(settings: SourceSettings) -> None:
    archived = planned(settings, None, {ORDERS: (0, 100)}).content

    require_fit(archived, settings, "here")
    for other in (replace(archived, flow="x"), replace(archived, isolation="read_committed")):
        with pytest.raises(ArchiveUnfitError, match="export into a new folder"):
            require_fit(other, settings, "here")


def test_a_folder_with_other_content_is_refused(tmp_path: Path) -> None:
    folder = StorageFolder(str(tmp_path / "a"))
    require_empty_or_archive(folder)
    folder.write("mine", b"")
    with pytest.raises(ArchiveOccupiedError):
        require_empty_or_archive(folder)
    folder.write("_pending/00000001/plan.json", b"")
    require_empty_or_archive(folder)


def test_files_have_128_to_512_mib_by_default() -> None:
    """For any partition that has as much, also if an estimate is wrong by a factor of two."""
    for gib in (0.2, 1, 7.3, 1_000):
        offsets = int(gib * 2**30 / 100)
        sizes = [
            part.size_bytes
            for part in plan_ranges(
                {ORDERS: OffsetRange(5, 5 + offsets)}, {ORDERS: 100.0}, file_bytes=FILE_BYTES
            )
        ]
        assert min(sizes) >= 127 << 20
        assert max(sizes) < 256 << 20
    assert FILE_BYTES * FILE_GROWTH_MAX == 512 << 20


def test_the_estimated_size_per_offset_is_that_of_the_file_and_not_of_the_log() -> None:
    records = [Record(0, 1_700_000_000_000, b"k", b"x" * 1_000) for _ in range(200)]
    batches = [batch_of(records, base_offset=0), batch_of(records, base_offset=200)]

    assert 0 < archived_bytes_per_offset(batches) < 50
    assert archived_bytes_per_offset([]) == 1.0


def test_the_estimated_size_per_offset_of_an_archive_is_that_of_its_largest_file(
    settings: SourceSettings,
) -> None:
    from tests.unit.seed.archive.test_archive_manifest import increment

    content = appended(increment(0, 10), increment(10, 40))

    assert archived_bytes_per_offset_of(content) == {ORDERS: 3 / 30}
    assert archived_bytes_per_offset_of(planned(settings, None, {ORDERS: (0, 5)}).content) == {}


def test_the_message_of_a_result_has_counts_warnings_and_topics_that_cannot_be_continued(
    settings: SourceSettings,
) -> None:
    content = planned(settings, None, {ORDERS: (0, 100)}).content
    state = ArchiveState(number=3, commit_id="x", manifest=content)
    result = IncrementResult(state=state, increment=content, exported=(), read_time="now", unfit=())

    assert result.message == "0 records of 1 topics are archived (commit 3)."
    assert replace(result, increment=None).message.startswith("Nothing is new")
    group = ArchivedGroup(name="billing", offsets=())
    with_groups = replace(result, increment=replace(content, groups=(group,)), warnings=("No ACLs.",))
    assert with_groups.message.endswith("The offsets of 1 groups are archived. No ACLs.")
    assert "Not archived: a; b. Export into a new folder." in replace(result, unfit=("a", "b")).message


def test_the_result_of_a_continued_export_has_what_is_new_as_well(settings: SourceSettings) -> None:
    first = planned(settings, None, {ORDERS: (0, 100)}).content
    later = planned(settings, first, {ORDERS: (0, 150)}).content
    states = [
        ArchiveState(number=number, commit_id="id", manifest=content)
        for number, content in ((1, first), (2, appended(first, later)))
    ]
    continued, new = (
        IncrementResult(state=state, increment=content, exported=(), read_time="now", unfit=())
        for state, content in zip(states, (first, later), strict=True)
    )

    both = continued.followed_by(new)

    assert both.state.number == 2
    assert both.increment is not None
    assert both.increment.partitions[ORDERS].end == 150
    assert continued.followed_by(replace(new, increment=None)).increment == first


def test_a_partition_is_done_when_all_its_ranges_are() -> None:
    class Reports:
        last: Mapping[str, object] = {}

        def running(self, **changes: object) -> None:
            self.last = changes

    ranges = plan_ranges({ORDERS: OffsetRange(0, 9_000)}, {ORDERS: 1.0}, file_bytes=3_000)
    progress, reports = ExportProgress(), Reports()
    progress.begin(ranges, ranges[1:])
    message = b'{"range": %d, "start": %d, "records": 5, "bytes": 7, "is_last": %s}'
    for index, start, is_last, done in (
        (1, 0, b"false", 0),
        (1, 9, b"true", 0),
        (1, 9, b"true", 0),
        (2, 0, b"true", 1),
    ):
        progress.take(message % (index, start, is_last))
        progress.publish(reports, "")  # type: ignore[arg-type]  # only this of a reporter is used
        assert reports.last["done"] == done
    assert (reports.last["records"], reports.last["bytes"]) == (15, 21)

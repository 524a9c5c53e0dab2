"""Tests an export from its plan to its commit, with a source that other jobs and applications change meanwhile."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.switchover.diverged_tail import DivergedTail, TailCount, TailState
from mirrorflow_core.wire.records import Record
from mirrorflow_replicator.switchover.diverged_tail import CountedTail, TailSurvey
from mirrorflow_seed.archive import export_driver, export_task, tail_archive
from mirrorflow_seed.archive.commit_log import CommitLog, read_archive
from mirrorflow_seed.archive.export_driver import ExportJob
from mirrorflow_seed.archive.export_plan import FILE_BYTES, OFFSETS_MIN, SourceSnapshot
from mirrorflow_seed.archive.export_progress import ExportProgress
from mirrorflow_seed.archive.manifest import Manifest
from mirrorflow_seed.archive.parquet_files import read_records
from mirrorflow_seed.archive.pending_export import ExportPlan, PendingExport
from mirrorflow_seed.archive.tail_archive import archive_tails
from mirrorflow_seed.errors import EXIT_DONE, ArchiveConflictError, ArchiveOccupiedError, ArchiveUnfitError
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of
from mirrorflow_seed.settings import FlowFiles, JobSettings
from mirrorflow_seed.storage_folder import StorageFolder
from mirrorflow_seed.verify.range_reader import OffsetRange

pytest.importorskip("pyarrow")

ORDERS = TopicPartition("orders", 0)
SOURCE = """name=MirrorSourceConnector
connector.class=MirrorSourceConnector
source.cluster.alias=east
target.cluster.alias=west
source.cluster.bootstrap.servers=east:9092
target.cluster.bootstrap.servers=west:9092
topics=orders
"""


class Source:
    """A source with one partition, whose topic may be created again; its records name the topic they were written to."""

    def __init__(self) -> None:
        self.topic_id = "first"
        self.end = 100
        self.bytes_per_offset = 1.0
        self.after_range: Callable[[], None] = lambda: None

    async def read(self, settings: SourceSettings, groups: object = None) -> SourceSnapshot:
        return SourceSnapshot(
            cluster_id="cluster",
            topic_ids={"orders": self.topic_id},
            configs=None,
            extents={ORDERS: OffsetRange(0, self.end)},
        )

    async def sizes(
        self, settings: SourceSettings, extents: Mapping[TopicPartition, OffsetRange]
    ) -> Mapping[TopicPartition, float]:
        return dict.fromkeys(extents, self.bytes_per_offset)

    def reader(
        self, client: object, partition: TopicPartition, offsets: OffsetRange, **_: object
    ) -> "Reader":
        return Reader(self, offsets)


class Reader:
    """Reads a range of the topic that has the name now."""

    def __init__(self, source: Source, offsets: OffsetRange) -> None:
        self._source, self._offsets = source, offsets
        self.next_offset = offsets.start
        self.gaps: Sequence[Any] = ()
        self.bytes_read = 0
        self.codec = 0

    def columns(self) -> Iterator[Any]:
        records = [
            Record(offset, 1_700_000_000_000, b"k", self._source.topic_id.encode())
            for offset in range(self._offsets.start, self._offsets.end)
        ]
        self.next_offset = self._offsets.end
        yield columns_of(records, CREATE_TIME)
        self._source.after_range()


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    source = Source()
    monkeypatch.setattr(export_driver, "read_source", source.read)
    monkeypatch.setattr(tail_archive, "read_source", source.read)
    monkeypatch.setattr(export_driver, "read_bytes_per_offset", source.sizes)
    monkeypatch.setattr(export_task, "TopicRangeReader", source.reader)
    monkeypatch.setattr(export_driver, "SparkTasks", lambda _: SimpleNamespace(slots=1))
    monkeypatch.setattr(export_driver, "share_files", lambda _, files, **__: files)
    monkeypatch.setattr(export_driver, "driver_address", lambda _: ("localhost", None))
    monkeypatch.setattr(
        export_driver, "run_watched", lambda _tasks, work, groups, _watch: [work(group) for group in groups]
    )
    return source


@pytest.fixture
def files(tmp_path: Path) -> FlowFiles:
    worker, source = tmp_path / "worker.properties", tmp_path / "source.properties"
    worker.write_text("bootstrap.servers=west:9092\n")
    source.write_text(SOURCE)
    return FlowFiles(worker=str(worker), source=str(source))


@pytest.fixture
def folder(tmp_path: Path) -> StorageFolder:
    return StorageFolder(str(tmp_path / "archive"))


def job_of(files: FlowFiles, folder: StorageFolder) -> ExportJob:
    reporter: Any = SimpleNamespace(running=lambda **_: None, url_for_tasks=lambda *_: None)
    spark: Any = None
    job = JobSettings(run_id="1", archive=folder.address, extra={})
    return ExportJob(files, job, files.load(), spark, reporter, ExportProgress())


def values_of(folder: StorageFolder, archived: Manifest) -> Counter[bytes | None]:
    """Returns how many records of the archive have each value."""
    return Counter(
        record.value
        for file in archived.files
        for records in read_records(folder.reading(file.path))
        for record in records
    )


def let_another_export_be_first(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    """Stores the plan of an export with *changes* after an export has looked for one, and before it stores its own."""
    store = PendingExport.store

    def store_second(pending: PendingExport, plan: ExportPlan) -> ExportPlan:
        fields: dict[str, Any] = dict(changes)
        store(pending, replace(plan, plan_id="other", content=replace(plan.content, **fields)))
        return store(pending, plan)

    monkeypatch.setattr(PendingExport, "store", store_second)


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize(
    ("changes", "error", "problem"),
    [
        ({"flow": "another"}, ArchiveOccupiedError, "an export of flow another has not finished there"),
        (
            {"source_cluster_id": "another"},
            ArchiveConflictError,
            "has planned there what this one cannot continue",
        ),
    ],
    ids=["flow", "cluster"],
)
def test_an_export_does_not_work_on_the_plan_of_another_flow_or_cluster_that_was_stored_first(
    monkeypatch: pytest.MonkeyPatch,
    files: FlowFiles,
    folder: StorageFolder,
    changes: dict[str, str],
    error: type[Exception],
    problem: str,
) -> None:
    let_another_export_be_first(monkeypatch, **changes)

    with pytest.raises(error, match=problem):
        job_of(files, folder).add_increment()

    assert CommitLog(folder).read() is None


@pytest.mark.usefixtures("source")
def test_the_second_of_two_exports_of_a_flow_continues_the_plan_of_the_first(
    monkeypatch: pytest.MonkeyPatch, files: FlowFiles, folder: StorageFolder
) -> None:
    let_another_export_be_first(monkeypatch, archive_id="first")

    job_of(files, folder).add_increment()

    assert (read_archive(folder).archive_id, read_archive(folder).records) == ("first", 100)


@pytest.mark.usefixtures("source")
def test_the_archive_of_a_tail_does_not_work_on_a_plan_that_another_flow_stored_first(
    monkeypatch: pytest.MonkeyPatch, files: FlowFiles, folder: StorageFolder
) -> None:
    let_another_export_be_first(monkeypatch, flow="another")

    with pytest.raises(ArchiveOccupiedError, match="an export of flow another has not finished there"):
        archive_tails(files.load(), survey_of("first"), folder.address, cluster_id="cluster")

    assert CommitLog(folder).read() is None


def survey_of(topic_id: str) -> TailSurvey:
    """Returns the tail of a topic with this ID: all of its records."""
    tail = DivergedTail(partition=ORDERS, state=TailState.CUT, start=0, end=100)
    counted = CountedTail(tail=tail, count=TailCount(records=100), topic_id=topic_id)
    return TailSurvey(switchover="east-west-1", tails=(counted,))


def test_the_archive_of_a_tail_has_no_records_of_a_topic_that_was_created_again_meanwhile(
    source: Source, files: FlowFiles, folder: StorageFolder
) -> None:
    def create_again() -> None:
        source.topic_id = "second"

    source.after_range = create_again

    with pytest.raises(ArchiveUnfitError, match="created again"):
        archive_tails(files.load(), survey_of("first"), folder.address, cluster_id="cluster")

    assert read_archive(folder).files == ()
    assert folder.data() == {}
    archived = archive_tails(files.load(), survey_of("second"), folder.address, cluster_id="cluster")
    assert values_of(folder, archived) == {b"second": 100}


def test_an_export_commits_no_records_of_a_topic_that_was_created_again_meanwhile(
    source: Source, files: FlowFiles, folder: StorageFolder
) -> None:
    """Tasks read a topic by its name: the second range is read from the new topic."""
    source.end, source.bytes_per_offset = 2 * OFFSETS_MIN, FILE_BYTES / OFFSETS_MIN  # two ranges

    def create_again() -> None:
        source.topic_id = "second"

    source.after_range = create_again

    result = job_of(files, folder).add_increment()

    archived = read_archive(folder)
    assert values_of(folder, archived) == {b"second": source.end}
    assert [topic.topic_id for topic in archived.topics] == ["second"]
    assert result.state.number == 2
    assert set(folder.data()) == {file.path for file in archived.files}


def test_a_topic_that_was_created_again_during_a_later_increment_is_left_out(
    source: Source, files: FlowFiles, folder: StorageFolder
) -> None:
    job = job_of(files, folder)
    job.add_increment()
    source.end = 150

    def create_again() -> None:
        source.topic_id = "second"

    source.after_range = create_again

    result = job.add_increment()

    assert result.unfit == ("orders was deleted and created again on the source",)
    assert values_of(folder, read_archive(folder)) == {b"first": 100}


def test_all_is_archived_up_to_the_time_when_the_ends_of_the_source_were_read(
    monkeypatch: pytest.MonkeyPatch, source: Source, files: FlowFiles, folder: StorageFolder
) -> None:
    """Records that are written while an increment reads are not in it, so its end says nothing about them."""
    hours = iter(range(10, 24))
    monkeypatch.setattr(export_driver, "_now", lambda: f"2026-01-01T{next(hours)}:00:00+00:00")
    reported: list[Mapping[str, Any]] = []
    reporter = SimpleNamespace(
        running=lambda **changes: reported.append(changes),
        succeeded=lambda **_: None,
        url_for_tasks=lambda *_: None,
    )
    monkeypatch.setattr(export_driver, "JobReporter", lambda *_, **__: nullcontext(reporter))
    monkeypatch.setattr(export_driver, "spark_session", lambda *_: nullcontext())
    read, began = source.read, []

    async def read_source(settings: SourceSettings, groups: object = None) -> SourceSnapshot:
        began.append(next(hours))
        return await read(settings, groups)

    monkeypatch.setattr(export_driver, "read_source", read_source)
    job = JobSettings(run_id="1", archive=folder.address, extra={})

    for what in ("new records", "nothing new"):
        began.clear()
        assert export_driver.run(files, job) == EXIT_DONE
        [archived] = [changes["archived_time"] for changes in reported if "archived_time" in changes]
        reported.clear()
        assert archived < f"2026-01-01T{began[0]}:00:00+00:00", what

"""Archives on real Spark and real brokers: restored records equal the archived ones.

A Java consumer compares the original with what was restored from the archive.
"""

import contextlib
import json
import time
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mirrorflow_core.wire.codecs import ZSTD
from mirrorflow_core.wire.records import Record as WireRecord
from mirrorflow_seed.archive import export_driver, restore_driver
from mirrorflow_seed.archive.commit_log import read_archive
from mirrorflow_seed.archive.manifest import as_json
from mirrorflow_seed.errors import (
    ArchiveDamagedError,
    ArchiveIncompleteError,
    ArchiveOccupiedError,
    ArchiveUnfitError,
    ForeignRecordsError,
    IncompleteExportError,
    SeedError,
)
from mirrorflow_seed.job_report import ArchiveReport
from mirrorflow_seed.settings import FlowFiles, JobSettings, job_of
from mirrorflow_seed.storage_folder import StorageFolder
from mirrorflow_seed.verify import verify_driver
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load, records
from tests.integration.kafka.flows import DAY_MS, Flow, padded, write_batches
from tests.integration.kafka.seeding import CORES, SeedProcess, files_of
from tests.integration.kafka.verifying import plain, verify, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytest.importorskip("pyspark")

Names = Callable[[], str]
KEPT = {"retention.ms": "864000000", "segment.ms": "360000000"}
SMALL_FILES = {"archive.file.bytes": "10000"}  # several files for each partition


def archive(files: FlowFiles, spark: "SparkSession", folder: Path, **job: str) -> ArchiveReport:
    """Exports to *folder*, and returns the last report."""
    reports: list[object] = []
    assert export_driver.run(files, _job(folder, job), display=reports.append, spark=spark) == 0
    assert isinstance(reports[-1], ArchiveReport)
    return reports[-1]


def restore(files: FlowFiles, spark: "SparkSession", folder: Path, **job: str) -> ArchiveReport:
    """Restores from *folder*, and returns the last report."""
    reports: list[object] = []
    assert restore_driver.run(files, _job(folder, job), display=reports.append, spark=spark) == 0, reports[-1]
    assert isinstance(reports[-1], ArchiveReport)
    return reports[-1]


def _job(folder: Path, job: dict[str, str]) -> JobSettings:
    properties = {key.replace("_", "."): value for key, value in job.items()}
    return job_of({"archive": folder.as_uri(), "master": f"local[{CORES}]", **SMALL_FILES, **properties})


def test_merged_batches_of_padding_are_verified_and_archived(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """The batches are small but expand a lot. Both the copy and the topic restored from its archive can be decoded."""
    topic = flow.source.create_topic(unique_topic())
    write_batches(flow.source, topic, padded(1_500, padding_bytes=200 << 10), codec=ZSTD)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.stop()

    assert 0 == verify(files_of(flow, topic), spark, tmp_path / "verified").status
    back = Flow.new(flow.target, flow.source, tmp_path / "back")
    files = files_of(back, flow.remote(topic))
    assert 1_500 == archive(files, spark, tmp_path / "archive").records
    restore(files, spark, tmp_path / "archive")
    back.assert_exact(flow.remote(topic))
    assert 0 == verify(files, spark, tmp_path / "verified-again").status


def test_all_parts_of_a_record_are_restored(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """These are tombstones, null keys, empty values, repeated and null headers, names that are not UTF-8, and all kinds
    of timestamps.
    """
    stem = unique_topic()
    special, plain, stamped = f"{stem}-odd..name", f"{stem}-007", f"{stem}-stamped"
    now = time.time_ns() // 1_000_000
    flow.source.create_topic(special, partitions=3)
    flow.source.create_topic(plain, partitions=2, config=KEPT)
    flow.source.create_topic(stamped, partitions=1, config={"message.timestamp.type": "LogAppendTime"})
    headers = ((b"a", b"1"), (b"a", None), (b"", b""), ("é☃".encode(), b"\0\xff"))
    write_batches(
        flow.source,
        special,
        [
            [
                WireRecord(0, -1, None, None),
                WireRecord(0, 0, b"", b""),
                WireRecord(0, now, b"k", None, headers),
            ],
            [
                WireRecord(
                    0, now - 400 * DAY_MS, None, b"v" * 300_000, ((b"\xff\xfe", b"x"), (b"\xff\xfe", None))
                )
            ],
        ],
        partition=1,
    )
    load(flow.source, plain, 6_000, size_bytes=100, keys=50, headers=2, codec="lz4")
    load(flow.source, stamped, 1_000, size_bytes=50)
    files = files_of(flow, f"{stem}-.*")

    exported = archive(files, spark, tmp_path / "archive")
    restored = restore(files, spark, tmp_path / "archive")

    assert exported.records == 7_004
    assert (restored.done, restored.partitions) == (6, 6)
    for topic in (special, plain, stamped):
        flow.assert_exact(topic)
    # The tool compares payloads as text. Therefore the bytes are compared here, including old timestamps.
    [original, copied] = (
        [
            (record.timestamp, record.key, record.value, record.headers)
            for record in records(cluster, name)
            if record.partition == 1
        ]
        for cluster, name in ((flow.source, special), (flow.target, flow.remote(special)))
    )
    assert original == copied
    assert len(original) == 4
    archive_uri = (tmp_path / "archive").as_uri()
    verified = verify(files, spark, tmp_path / "verified", archive=archive_uri)
    assert [] == verified.not_equal
    assert (0, 7_004, 7_004) == (
        verified.status,
        verified.report.source_records,
        verified.report.target_records,
    )
    config = flow.target.topic_config(flow.remote(plain))
    assert (config["retention.ms"], config["segment.ms"]) == ("864000000", "360000000")
    paths = [
        file["path"]
        for topic in manifest_of(tmp_path)["topics"]
        for part in topic["partitions"]
        for file in part["files"]
    ]
    assert len(paths) > 4
    assert any(path.startswith(f"topic={plain}/partition=1/") for path in paths)

    # Plain Spark reads the archive, with the folder names as columns.
    frame = spark.read.parquet((tmp_path / "archive").as_uri())
    assert frame.where(frame.topic == plain).count() == 6_000

    # The live connector continues where the archive ends.
    load(flow.source, plain, 500, size_bytes=100)
    with flow.replicator(f"{stem}-.*") as replicator:
        replicator.wait_until_caught_up()
        replicator.stop()  # stopped gracefully, so that the offset map is written
    flow.assert_exact(plain)
    # Records copied since then are no difference, because they are after the archive's end.
    later = verify(files, spark, tmp_path / "later", archive=archive_uri, sample="0.999")
    assert [] == later.not_equal
    assert (0, 7_004) == (later.status, later.report.target_records)


def test_verifications_with_an_archive_and_with_the_source_have_equal_results(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """Windows, outcomes and first differing records are equal, also for a compacted topic and after the source was
    deleted.
    """
    stem = unique_topic()
    topic, compacted = f"{stem}-a", f"{stem}-b"
    for name, policy in ((topic, "delete"), (compacted, "compact")):
        config = {"cleanup.policy": policy}
        flow.source.create_topic(name, partitions=2, config=config)
        copy = flow.target.create_topic(flow.remote(name), partitions=2, config=config)
        for partition in range(2):
            topic_records = plain(2_500, partition)
            write(flow.source, name, topic_records)
            number, timestamp, key, _, headers = topic_records[1_234]
            topic_records[1_234] = (number, timestamp, key, b"other", headers)
            del topic_records[1_999]
            write(flow.target, copy, topic_records if partition else topic_records[: 1_999 - 999])
    files, small = files_of(flow, f"{stem}-.*"), {"window_offsets": "1000", "split_windows": "1"}
    archive(files, spark, tmp_path / "archive", archive_file_bytes="6000")

    by_source = verify(files, spark, tmp_path / "source", **small)
    flow.source.delete_topic(topic)
    by_archive = verify(files, spark, tmp_path / "out", archive=(tmp_path / "archive").as_uri(), **small)

    assert 1 == by_source.status == by_archive.status
    assert [("changed", 1_234, 1_234), ("missing", 1_999, -1)] == by_archive.differences(1)[:2]
    assert by_source.not_equal == by_archive.not_equal
    assert (by_source.folder / "report.html").exists()


def test_records_deleted_during_an_export_are_reported_as_a_gap(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """The gap is in the report, its last message and the commit. Records read before it are restored."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 8_000, size_bytes=500)
    files, folder = files_of(flow, topic), tmp_path / "archive"
    reports: list[ArchiveReport] = []

    def delete_after_the_first_files(report: object) -> None:
        assert isinstance(report, ArchiveReport)
        if report.records and not any(earlier.records for earlier in reports):
            flow.source.delete_records(topic, {0: 7_500})
        reports.append(report)

    job = {"archive_file_bytes": "30000", "bytes_per_second": "4000000"}
    assert export_driver.run(files, _job(folder, job), display=delete_after_the_first_files, spark=spark) == 0

    [part] = manifest_of(tmp_path)["topics"][0]["partitions"]
    lost = sum(gap["end"] - gap["start"] for gap in part["gaps"])
    assert lost > 0
    assert lost == reports[-1].gap_records == 8_000 - reports[-1].records
    assert f"{lost}" in reports[-1].message.replace(",", "")
    assert {0, 8_000} >= {part["start"], part["end"]}
    files_of_gaps = [(gap["start"], gap["end"]) for gap in part["gaps"]]
    assert files_of_gaps == sorted(files_of_gaps)
    restore(files, spark, folder)
    assert count(flow, topic) >= 8_000 - lost
    assert verify(files, spark, tmp_path / "out", archive=folder.as_uri()).status == 0


def test_an_archive_of_committed_records_has_no_aborted_ones(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """The flow's isolation level decides. A flow with a different level counts different records, and is refused."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 2_000, keys=True, transactional_id=topic, abort_every=3, transaction_records=50)
    files = files_of(flow, topic, {"source.consumer.isolation.level": "read_committed"})

    exported = archive(files, spark, tmp_path / "archive")
    with pytest.raises(ArchiveUnfitError, match="read_committed"):
        restore(files_of(flow, topic), spark, tmp_path / "archive")
    restore(files, spark, tmp_path / "archive")

    assert exported.records < 2_000
    flow.assert_exact(topic, isolation="read_committed")


def test_incomplete_and_damaged_archives_and_occupied_folders_are_refused(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """The causes are a truncated or changed file, no commit, and a folder or target in use. No record is written."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 3_000, size_bytes=100)
    files, folder = files_of(flow, topic), tmp_path / "archive"
    with pytest.raises(ArchiveIncompleteError):
        restore(files, spark, folder)
    archive(files, spark, folder)
    with pytest.raises(ArchiveUnfitError, match="read_committed"):
        archive(files_of(flow, topic, {"source.consumer.isolation.level": "read_committed"}), spark, folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(ArchiveOccupiedError):
        archive(files, spark, tmp_path / "full")

    [first, *_] = sorted(folder.glob("topic=*/partition=0/**/*.parquet"))
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    with pytest.raises(ArchiveDamagedError, match="bytes"):
        restore(files, spark, folder)
    # The file is replaced by one of a different archive with the same size. It is valid Parquet with different records.
    first.write_bytes(whole)
    path = folder / "_commits" / "00000001.json"
    kept = path.read_bytes()
    commit = json.loads(kept)
    commit["manifest"]["topics"][0]["partitions"][0]["files"][0]["tally"]["digest"] = "0" * 32
    path.write_text(json.dumps(commit))
    with pytest.raises(ArchiveDamagedError, match="records"):
        restore(files, spark, folder)
    assert records(flow.target, flow.remote(topic)) == []

    path.write_bytes(kept)
    write_batches(flow.target, flow.remote(topic), [[WireRecord(0, 1, None, b"foreign")]])
    with pytest.raises(ForeignRecordsError):
        restore(files, spark, folder)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("ftp://host/archive", "no file system for ftp://; write a path"),
        ("other://bucket/archive", "no file system for other://"),
    ],
)
def test_an_unusable_archive_address_is_refused_with_one_message(
    flow: Flow, spark: "SparkSession", unique_topic: Names, address: str, message: str
) -> None:
    """Export, restore and a verification's output refuse it before they read anything.

    A folder that cannot be written is refused too.
    """
    files = files_of(flow, unique_topic())
    given = {"archive": address, "output": address, "master": f"local[{CORES}]"}
    for run in (export_driver.run, restore_driver.run, verify_driver.run):
        with pytest.raises(SeedError, match=message) as refused:
            run(files, job_of(given), spark=spark)
        assert "\n" not in str(refused.value)
    reports: list[Any] = []
    for run in (export_driver.run, verify_driver.run):
        with pytest.raises(SeedError, match="the file system reports"):
            run(
                files,
                job_of(given | {"archive": "/proc/any", "output": "/proc/any"}),
                spark=spark,
                display=reports.append,
            )
        # In a cluster, the message is also in the flow's status.
        assert "the file system reports" in reports[-1].message


def test_an_export_continues_where_the_previous_one_ended(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """New records, partitions and topics are added.

    Nothing is read again. A restore reads all commits as one archive.
    """
    stem = unique_topic()
    first, second = f"{stem}-a", f"{stem}-b"
    flow.source.create_topic(first, partitions=2)
    files, folder = files_of(flow, f"{stem}-.*"), tmp_path / "archive"
    load(flow.source, first, 3_000, size_bytes=300)
    assert archive(files, spark, folder).records == 3_000
    before = {path: path.read_bytes() for path in folder.glob("topic=*/**/*.parquet")}

    unchanged = archive(files, spark, folder)
    assert (unchanged.records, unchanged.message.split(":")[0]) == (0, "Nothing is new")
    assert len(list((folder / "_commits").iterdir())) == 1

    load(flow.source, first, 500, size_bytes=300)
    flow.source.add_partitions(first, 3)
    flow.source.create_topic(second)
    load(flow.source, second, 200, size_bytes=300)
    added = archive(files, spark, folder)

    assert (unchanged.commit, unchanged.archived_records) == (1, 3_000)
    assert (added.records, added.commit, added.archived_records) == (700, 2, 3_700)
    assert datetime.fromisoformat(unchanged.archived_time) <= datetime.fromisoformat(added.archived_time)
    assert added.cost.bytes_read < 1_000_000
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(offsets_of(spark, folder)) == sorted(
        (topic, record.partition, record.offset)
        for topic in (first, second)
        for record in records(flow.source, topic)
    )
    restore(files, spark, folder)
    assert verify(files, spark, tmp_path / "out", archive=folder.as_uri()).status == 0
    flow.assert_exact(first)
    flow.assert_exact(second)


def test_a_recreated_topic_is_not_continued_while_others_are(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """The same offsets of the new topic are different records.

    The job names the topic and fails after the other topics are archived.
    """
    stem = unique_topic()
    again, other = f"{stem}-a", f"{stem}-b"
    for name in (again, other):
        flow.source.create_topic(name)
        load(flow.source, name, 100)
    files, folder = files_of(flow, f"{stem}-.*"), tmp_path / "archive"
    archive(files, spark, folder)
    flow.source.delete_topic(again)
    flow.source.create_topic(again)
    load(flow.source, again, 300)
    load(flow.source, other, 50)

    with pytest.raises(IncompleteExportError, match=f"{again} was deleted and created again"):
        archive(files, spark, folder)

    assert count_by_topic(spark, folder) == {again: 100, other: 150}


def test_a_killed_export_continues_with_the_files_that_are_complete(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """The driver is killed with kill -9 before there is an archive.

    The next export writes only the missing and the new records.
    """
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, 8_000, size_bytes=500)
    files, folder = files_of(flow, topic), tmp_path / "archive"
    slow = {"archive": folder.as_uri(), "bytes.per.second": "400000", **SMALL_FILES}
    process = SeedProcess(files=files, folder=tmp_path, job=slow, command="export").start()
    try:
        wait_until(
            "some ranges are written, or the process ends",
            lambda: len(list(folder.glob("_pending/*/*/*.json"))) > 1 or not process.running.running,
        )
        assert process.running.running, process.running.tail()
        process.kill()
        wait_until("the JVM has ended", lambda: not writes_below(folder))
    finally:
        process.close()

    with pytest.raises(ArchiveIncompleteError, match="not finished"):
        restore(files, spark, folder)
    kept = {result["path"].rpartition("/")[2]: result["size_bytes"] for result in results_of(folder)}
    load(flow.source, topic, 100, size_bytes=500)
    continued = archive(files, spark, folder, archive_compact="false")
    assert continued.records == 8_100
    assert continued.commit >= 2  # the export that was killed ends at its planned end
    sizes = {path.name: path.stat().st_size for path in folder.glob("topic=*/**/*.parquet")}
    assert kept.items() <= sizes.items()
    assert continued.cost.bytes_written == sum(sizes.values()) - sum(kept.values())
    assert not list(folder.glob("_temporary/*"))
    assert not list(folder.glob("_pending/*"))
    assert archive(files, spark, folder).records == 0
    restore(files, spark, folder)
    flow.assert_exact(topic)


def results_of(folder: Path) -> list[dict[str, Any]]:
    """Returns what tasks have exported for a commit that does not exist yet."""
    return [json.loads(path.read_text()) for path in folder.glob("_pending/*/*/*.json")]


def offsets_of(spark: "SparkSession", folder: Path) -> list[tuple[str, int, int]]:
    """Returns (topic, partition, offset) of each archived record, by SQL."""
    return [tuple(row) for row in table_of(spark, folder).select("topic", "partition", "offset").collect()]


def count_by_topic(spark: "SparkSession", folder: Path) -> dict[str, int]:
    return {row["topic"]: row["count"] for row in table_of(spark, folder).groupBy("topic").count().collect()}


def table_of(spark: "SparkSession", folder: Path) -> "DataFrame":
    """Returns the archive as plain Spark reads it."""
    return spark.read.option("basePath", folder.as_uri()).parquet(f"{folder.as_uri()}/topic=*/*")


def test_a_killed_restore_continues_at_the_end_of_the_copy(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """It is killed twice with kill -9 while it restores records that are ten days old.

    Then it runs to the end, and no record is lost or repeated.
    """
    topic = flow.source.create_topic(unique_topic(), partitions=2, config=FOREVER)
    ten_days_ago = time.time_ns() // 1_000_000 - 10 * DAY_MS
    load(flow.source, topic, 12_000, size_bytes=500, timestamp_ms=ten_days_ago)
    files, folder = files_of(flow, topic), tmp_path / "archive"
    archive(files, spark, folder, archive_file_bytes="50000")
    slow = {"archive": folder.as_uri(), "bytes.per.second": "600000", **SMALL_FILES}
    copied = 0
    for _ in range(2):
        process = SeedProcess(files=files, folder=tmp_path, job=slow, command="restore").start()
        try:
            wait_until(
                "more records are restored, or the process ends",
                partial(_has_more, flow, topic, copied, process),
            )
            assert process.running.running, process.running.tail()
            process.kill()
        finally:
            process.close()
        copied = count(flow, topic)
    assert copied < 12_000

    restore(files, spark, folder)

    flow.assert_exact(topic)


def manifest_of(folder: Path) -> dict[str, Any]:
    """Returns the content of the archive in the test's folder, as JSON."""
    content: dict[str, Any] = json.loads(
        json.dumps(as_json(read_archive(StorageFolder(str(folder / "archive")))))
    )
    return content


def _has_more(flow: Flow, topic: str, before: int, process: SeedProcess) -> bool:
    return count(flow, topic) > before or not process.running.running


def count(flow: Flow, topic: str) -> int:
    """Returns the sum of the copy's end offsets."""
    name = flow.remote(topic)
    return flow.target.total_end_offset(name)


def writes_below(folder: Path) -> bool:
    """Returns whether a process has an open file below *folder*."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(str(folder)):
                return True
    return False

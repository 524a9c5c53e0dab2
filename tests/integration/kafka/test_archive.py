"""Archives on real Spark and real brokers: what comes back is, record by record, what was there.

The verdict is a Java consumer's, of the original and of what was restored from the archive.
"""

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mirrorflow_core.wire.codecs import ZSTD
from mirrorflow_core.wire.records import Record as WireRecord
from mirrorflow_seed.archive import export_driver, restore_driver
from mirrorflow_seed.errors import (
    ArchiveDamagedError,
    ArchiveIncompleteError,
    ArchiveOccupiedError,
    ArchiveUnfitError,
    ForeignRecordsError,
    SeedError,
)
from mirrorflow_seed.job_report import ArchiveReport
from mirrorflow_seed.settings import FlowFiles, JobSettings, job_of
from mirrorflow_seed.verify import verify_driver
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load, records
from tests.integration.kafka.flows import DAY_MS, Flow, padded, write_batches
from tests.integration.kafka.seeding import CORES, SeedProcess, files_of
from tests.integration.kafka.verifying import plain, verify, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

Names = Callable[[], str]
KEPT = {"retention.ms": "864000000", "segment.ms": "360000000"}
SMALL_FILES = {"archive.file.bytes": "100000"}  # several of each partition


def archive(files: FlowFiles, spark: "SparkSession", folder: Path, **job: str) -> ArchiveReport:
    """Export to *folder*; the last report."""
    said: list[object] = []
    assert export_driver.run(files, _job(folder, job), display=said.append, spark=spark) == 0
    assert isinstance(said[-1], ArchiveReport)
    return said[-1]


def bring_back(files: FlowFiles, spark: "SparkSession", folder: Path, **job: str) -> ArchiveReport:
    """Restore from *folder*; the last report."""
    said: list[object] = []
    assert restore_driver.run(files, _job(folder, job), display=said.append, spark=spark) == 0, said[-1]
    assert isinstance(said[-1], ArchiveReport)
    return said[-1]


def _job(folder: Path, job: dict[str, str]) -> JobSettings:
    given = {key.replace("_", "."): value for key, value in job.items()}
    return job_of({"archive": folder.as_uri(), "master": f"local[{CORES}]", **SMALL_FILES, **given})


def test_merged_batches_of_padding_are_verified_and_archived(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """Small batches that expand much: the copy can be decoded again, and so can what is restored from its archive."""
    topic = flow.source.create_topic(unique_topic())
    write_batches(flow.source, topic, padded(1_500, padding_bytes=200 << 10), codec=ZSTD)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.stop()

    assert 0 == verify(files_of(flow, topic), spark, tmp_path / "verified").status
    back = Flow.new(flow.target, flow.source, tmp_path / "back")
    files = files_of(back, flow.remote(topic))
    assert 1_500 == archive(files, spark, tmp_path / "archive").records
    bring_back(files, spark, tmp_path / "archive")
    back.assert_exact(flow.remote(topic))
    assert 0 == verify(files, spark, tmp_path / "verified-again").status


def test_everything_that_a_record_is_comes_back(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """Tombstones, null keys, empty values, repeated and null headers, names that are no UTF-8, timestamps of any kind."""
    stem = unique_topic()
    odd, plain, stamped = f"{stem}-odd..name", f"{stem}-007", f"{stem}-stamped"
    now = time.time_ns() // 1_000_000
    flow.source.create_topic(odd, partitions=3)
    flow.source.create_topic(plain, partitions=2, config=KEPT)
    flow.source.create_topic(stamped, partitions=1, config={"message.timestamp.type": "LogAppendTime"})
    headers = ((b"a", b"1"), (b"a", None), (b"", b""), ("é☃".encode(), b"\0\xff"))
    write_batches(
        flow.source,
        odd,
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

    said = archive(files, spark, tmp_path / "archive")
    back = bring_back(files, spark, tmp_path / "archive")

    assert said.records == 7_004
    assert (back.done, back.partitions) == (6, 6)
    for topic in (odd, plain, stamped):
        flow.assert_exact(topic)
    # What the tool compares payloads by is text: here the bytes themselves, old timestamps among them.
    [one, other] = (
        [(r.timestamp, r.key, r.value, r.headers) for r in records(cluster, name) if r.partition == 1]
        for cluster, name in ((flow.source, odd), (flow.target, flow.remote(odd)))
    )
    assert one == other
    assert len(one) == 4
    kept_in = (tmp_path / "archive").as_uri()
    verified = verify(files, spark, tmp_path / "verified", archive=kept_in)
    assert [] == verified.not_equal
    assert (0, 7_004, 7_004) == (
        verified.status,
        verified.report.source_records,
        verified.report.target_records,
    )
    kept = flow.target.topic_config(flow.remote(plain))
    assert (kept["retention.ms"], kept["segment.ms"]) == ("864000000", "360000000")
    paths = [
        one["path"]
        for topic in manifest_of(tmp_path)["topics"]
        for part in topic["partitions"]
        for one in part["files"]
    ]
    assert len(paths) > 4
    assert any(path.startswith(f"topic={plain}/partition=1/") for path in paths)

    # Plain Spark reads it, with the names of the folders as columns.
    found = spark.read.parquet((tmp_path / "archive").as_uri())
    assert found.where(found.topic == plain).count() == 6_000

    # The live connector continues where the archive ends.
    load(flow.source, plain, 500, size_bytes=100)
    with flow.replicator(f"{stem}-.*") as replicator:
        replicator.wait_until_caught_up()
        replicator.stop()  # in order, so that the map of offsets is written
    flow.assert_exact(plain)
    # What was copied since is no difference: it is behind the archive's end.
    later = verify(files, spark, tmp_path / "later", archive=kept_in, sample="0.999")
    assert [] == later.not_equal
    assert (0, 7_004) == (later.status, later.report.target_records)


def test_a_verification_by_an_archive_finds_what_one_by_the_source_finds(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """The same windows, outcomes and first differing records; of a compacted topic, and with the source gone, too."""
    stem = unique_topic()
    topic, newest = f"{stem}-a", f"{stem}-b"
    for name, policy in ((topic, "delete"), (newest, "compact")):
        config = {"cleanup.policy": policy}
        flow.source.create_topic(name, partitions=2, config=config)
        copy = flow.target.create_topic(flow.remote(name), partitions=2, config=config)
        for partition in range(2):
            sent = plain(2_500, partition)
            write(flow.source, name, sent)
            number, timestamp, key, _, headers = sent[1_234]
            sent[1_234] = (number, timestamp, key, b"other", headers)
            del sent[1_999]
            write(flow.target, copy, sent if partition else sent[: 1_999 - 999])
    files, small = files_of(flow, f"{stem}-.*"), {"window_offsets": "1000", "split_windows": "1"}
    archive(files, spark, tmp_path / "archive", archive_file_bytes="60000")

    by_source = verify(files, spark, tmp_path / "source", **small)
    flow.source.delete_topic(topic)
    by_archive = verify(files, spark, tmp_path / "out", archive=(tmp_path / "archive").as_uri(), **small)

    assert 1 == by_source.status == by_archive.status
    assert [("changed", 1_234, 1_234), ("missing", 1_999, -1)] == by_archive.differences(1)[:2]
    assert by_source.not_equal == by_archive.not_equal
    assert (by_source.folder / "report.html").exists()


def test_what_retention_takes_during_an_export_is_reported_as_a_gap(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """In the report, its last sentence and the manifest; what was read before is there, and comes back."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 8_000, size_bytes=500)
    files, folder = files_of(flow, topic), tmp_path / "archive"
    said: list[ArchiveReport] = []

    def delete_behind_the_first_files(report: object) -> None:
        assert isinstance(report, ArchiveReport)
        if report.records and not any(one.records for one in said):
            flow.source.delete_records(topic, {0: 7_500})
        said.append(report)

    job = {"archive_file_bytes": "300000", "bytes_per_second": "4000000"}
    assert (
        export_driver.run(files, _job(folder, job), display=delete_behind_the_first_files, spark=spark) == 0
    )

    [part] = manifest_of(tmp_path)["topics"][0]["partitions"]
    lost = sum(one["end"] - one["start"] for one in part["gaps"])
    assert lost > 0
    assert lost == said[-1].gap_records == 8_000 - said[-1].records
    assert f"{lost}" in said[-1].message.replace(",", "")
    assert {0, 8_000} >= {part["start"], part["end"]}
    files_of_gaps = [(one["start"], one["end"]) for one in part["gaps"]]
    assert files_of_gaps == sorted(files_of_gaps)
    bring_back(files, spark, folder)
    assert count(flow, topic) >= 8_000 - lost
    assert verify(files, spark, tmp_path / "out", archive=folder.as_uri()).status == 0


def test_an_archive_of_committed_records_holds_no_aborted_ones(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """By the flow's own isolation level; a flow with another one would count other records, and is refused."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 2_000, keys=True, transactional_id=topic, abort_every=3, transaction_records=50)
    files = files_of(flow, topic, {"source.consumer.isolation.level": "read_committed"})

    said = archive(files, spark, tmp_path / "archive")
    with pytest.raises(ArchiveUnfitError, match="read_committed"):
        bring_back(files_of(flow, topic), spark, tmp_path / "archive")
    bring_back(files, spark, tmp_path / "archive")

    assert said.records < 2_000
    flow.assert_exact(topic, isolation="read_committed")


def test_what_is_not_whole_or_not_free_is_refused(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """A file cut or changed, no manifest, a folder or a target in use; and not one record is written."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 3_000, size_bytes=100)
    files, folder = files_of(flow, topic), tmp_path / "archive"
    with pytest.raises(ArchiveIncompleteError):
        bring_back(files, spark, folder)
    archive(files, spark, folder)
    with pytest.raises(ArchiveOccupiedError):
        archive(files, spark, folder)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    with pytest.raises(ArchiveOccupiedError):
        archive(files, spark, tmp_path / "full")

    [first, *_] = sorted(folder.glob("topic=*/partition=0/*.parquet"))
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    with pytest.raises(ArchiveDamagedError, match="bytes"):
        bring_back(files, spark, folder)
    # Another archive's file of the same size, so to say: whole Parquet, other records.
    first.write_bytes(whole)
    manifest = manifest_of(tmp_path)
    manifest["topics"][0]["partitions"][0]["files"][0]["tally"]["sum"] = "0" * 32
    kept = (folder / "_manifest.json").read_bytes()
    (folder / "_manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArchiveDamagedError, match="records"):
        bring_back(files, spark, folder)
    assert records(flow.target, flow.remote(topic)) == []

    (folder / "_manifest.json").write_bytes(kept)
    write_batches(flow.target, flow.remote(topic), [[WireRecord(0, 1, None, b"foreign")]])
    with pytest.raises(ForeignRecordsError):
        bring_back(files, spark, folder)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("ftp://host/archive", "no file system for ftp://; write a path"),
        ("other://bucket/archive", "no file system for other://"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_in_one_sentence(
    flow: Flow, spark: "SparkSession", unique_topic: Names, address: str, said: str
) -> None:
    """Before anything is read: by an export, a restore, and a verification's output. So is a folder that cannot be written."""
    files = files_of(flow, unique_topic())
    given = {"archive": address, "output": address, "master": f"local[{CORES}]"}
    for run in (export_driver.run, restore_driver.run, verify_driver.run):
        with pytest.raises(SeedError, match=said) as refused:
            run(files, job_of(given), spark=spark)
        assert "\n" not in str(refused.value)
    told: list[Any] = []
    for run in (export_driver.run, verify_driver.run):
        with pytest.raises(SeedError, match="the file system reports"):
            run(
                files,
                job_of(given | {"archive": "/proc/any", "output": "/proc/any"}),
                spark=spark,
                display=told.append,
            )
        # In a cluster it is in the flow's status, too.
        assert "the file system reports" in told[-1].message


def test_an_export_that_was_killed_is_no_archive_and_begins_anew(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """kill -9 of the driver in the middle: what is there cannot be restored; the same run starts again, clean."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, 8_000, size_bytes=500)
    files, folder = files_of(flow, topic), tmp_path / "archive"
    slow = {"archive": folder.as_uri(), "bytes.per.second": "400000", **SMALL_FILES}
    process = SeedProcess(files=files, folder=tmp_path, job=slow, command="export").start()
    try:
        # A file has its name once it is whole.
        wait_until(
            "some ranges are written",
            lambda: any(folder.glob("_temporary/*/*.parquet")),
        )
        process.kill()
        wait_until("its JVM is gone", lambda: not writes_below(folder))
    finally:
        process.close()

    with pytest.raises(ArchiveIncompleteError, match="not finished"):
        bring_back(files, spark, folder)
    with pytest.raises(ArchiveOccupiedError):
        archive(files, spark, folder, run_id="another")
    assert archive(files, spark, folder).records == 8_000
    assert not (folder / "_temporary").exists()
    bring_back(files, spark, folder)
    flow.assert_exact(topic)


def test_a_restore_that_was_killed_continues_where_the_target_stands(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """kill -9 in the middle of records ten days old, twice; then again to the end: nothing is lost, nothing is there twice."""
    topic = flow.source.create_topic(unique_topic(), partitions=2, config=FOREVER)
    ten_days_ago = time.time_ns() // 1_000_000 - 10 * DAY_MS
    load(flow.source, topic, 12_000, size_bytes=500, timestamp_ms=ten_days_ago)
    files, folder = files_of(flow, topic), tmp_path / "archive"
    archive(files, spark, folder, archive_file_bytes="1000000")
    slow = {"archive": folder.as_uri(), "bytes.per.second": "600000", **SMALL_FILES}
    copied = 0
    for _ in range(2):
        process = SeedProcess(files=files, folder=tmp_path, job=slow, command="restore").start()
        try:
            wait_until(
                "more records arrive, or it ends",
                partial(_has_more, flow, topic, copied, process),
            )
            assert process.running.running, process.running.tail()
            process.kill()
        finally:
            process.close()
        copied = count(flow, topic)
    assert copied < 12_000

    bring_back(files, spark, folder)

    flow.assert_exact(topic)


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of the archive in the test's folder."""
    found: dict[str, Any] = json.loads((folder / "archive" / "_manifest.json").read_text())
    return found


def _has_more(flow: Flow, topic: str, before: int, process: SeedProcess) -> bool:
    return count(flow, topic) > before or not process.running.running


def count(flow: Flow, topic: str) -> int:
    """Offsets of the copy."""
    name = flow.remote(topic)
    return flow.target.total_end_offset(name)


def writes_below(folder: Path) -> bool:
    """Whether a process has a file below *folder* open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(str(folder)):
                return True
    return False

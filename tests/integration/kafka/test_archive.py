"""Archives on real Spark and real brokers: what comes back is, record by record, what was there.

The verdict is a Java consumer's, of the original and of what was restored from the archive.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirrorflow_replicator.wire.records import Record as WireRecord
from mirrorflow_seed.archive.exporting import export
from mirrorflow_seed.archive.restoring import restore
from mirrorflow_seed.report import ArchiveReport
from mirrorflow_seed.settings import FlowFiles, job_of
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import DAY_MS, Flow, write_batches
from tests.integration.kafka.seeding import CORES, files_of, session

if TYPE_CHECKING:
    from pyspark import SparkContext

pytest.importorskip("pyspark")

Names = Callable[[], str]
SMALL_FILES = {"archive.file.bytes": "100000"}  # several of each partition


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkContext]":
    with session() as context:
        yield context


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, west, tmp_path)


def archive(files: FlowFiles, spark: "SparkContext", folder: Path, **job: str) -> ArchiveReport:
    """Export to *folder*; the last report."""
    said: list[object] = []
    assert export(files, _job(folder, job), display=said.append, spark=spark) == 0
    assert isinstance(said[-1], ArchiveReport)
    return said[-1]


def bring_back(files: FlowFiles, spark: "SparkContext", folder: Path, **job: str) -> ArchiveReport:
    """Restore from *folder*; the last report."""
    said: list[object] = []
    assert restore(files, _job(folder, job), display=said.append, spark=spark) == 0, said[-1]
    assert isinstance(said[-1], ArchiveReport)
    return said[-1]


def _job(folder: Path, job: dict[str, str]):
    given = {key.replace("_", "."): value for key, value in job.items()}
    return job_of({"archive": folder.as_uri(), "master": f"local[{CORES}]", **SMALL_FILES, **given})


def test_everything_that_a_record_is_comes_back(
    flow: Flow, spark: "SparkContext", unique_topic: Names, tmp_path: Path
) -> None:
    """Tombstones, null keys, empty values, repeated and null headers, names that are no UTF-8, timestamps of any kind."""
    stem = unique_topic()
    odd, plain, stamped = f"{stem}-odd..name", f"{stem}-007", f"{stem}-stamped"
    now = time.time_ns() // 1_000_000
    flow.source.create_topic(odd, partitions=3)
    flow.source.create_topic(plain, partitions=2)
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
    assert len(records(flow.target, flow.remote(odd))) == 4
    manifest = json.loads((tmp_path / "archive" / "_manifest.json").read_text())
    assert sum(len(one["files"]) for topic in manifest["topics"] for one in topic["partitions"]) > 4

"""An archive has each record once even if its exports are killed repeatedly, and little work is repeated."""

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import SeedProcess, files_of
from tests.integration.kafka.test_archive import archive, offsets_of, restore, results_of, writes_below

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

Names = Callable[[], str]
KILLS = 20
# The records of each load between kills, and of a range. Two tasks run at once, so a kill repeats at most two ranges.
LOADED = 20_000
RANGE_RECORDS = 1_000
REPEATED_MAX = 0.05


@pytest.mark.faults
@pytest.mark.timeout(2_400)
def test_exports_that_are_killed_at_random_archive_each_record_once(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    """The driver and its JVM are killed with kill -9, at random moments of 20 exports that follow the source."""
    topic = flow.source.create_topic(unique_topic(), partitions=3)
    files, folder = files_of(flow, topic), tmp_path / "archive"
    job = {
        "archive": folder.as_uri(),
        "archive.file.bytes": "1000",
        "archive.follow": "true",
        "archive.interval.ms": "200",
        "bytes.per.second": "2000000",
    }
    chance, written = random.Random(43), Written(folder)
    for _ in range(KILLS):
        load(flow.source, topic, LOADED, size_bytes=100)
        before = written.look()
        process = SeedProcess(files=files, folder=tmp_path, job=job, command="export").start()
        try:
            # Starting takes most of a run. The random time begins when the export begins to work.
            wait_until("a file is written", partial(written.is_more_than, before, process))
            assert process.running.running, process.running.tail()
            end = time.monotonic() + chance.uniform(0, 3)
            wait_until("a random time is over", partial(_is_over, written, end))
        finally:
            process.close()
        wait_until("its tasks have ended", lambda: not writes_below(folder))
        written.look()
        assert no_repeats(spark, folder)

    archive(files, spark, folder)
    written.look()

    expected = sorted((topic, record.partition, record.offset) for record in records(flow.source, topic))
    assert len(expected) == KILLS * LOADED
    assert sorted(offsets_of(spark, folder)) == expected
    repeated = written.records - len(expected)
    print(
        f"{repeated:,} of {len(expected):,} records were written again, in {len(list(folder.glob('_commits/*')))} commits"
    )
    assert 0 <= repeated <= REPEATED_MAX * len(expected)
    assert not list(folder.glob("_pending/*"))
    restore(files, spark, folder)
    flow.assert_exact(topic)


class Written:
    """The files that all attempts have written, including those without a commit."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: dict[str, int] = {}  # number of records by the name of the file

    def look(self) -> int:
        """Records the files that exist now, and returns how many were ever recorded."""
        from pyarrow import parquet

        for path in self._folder.rglob("part-*.parquet"):
            if path.name not in self._records:
                try:
                    self._records[path.name] = parquet.read_metadata(path).num_rows
                except FileNotFoundError:  # moved in the meantime: the next call finds it in its final folder
                    continue
        return len(self._records)

    @property
    def records(self) -> int:
        return sum(self._records.values())

    def is_more_than(self, before: int, process: SeedProcess) -> bool:
        return self.look() > before or not process.running.running


def _is_over(written: Written, end_s: float) -> bool:
    written.look()
    return time.monotonic() >= end_s


def no_repeats(spark: "SparkSession", folder: Path) -> bool:
    """Returns whether plain SQL finds each record at most once, right after a kill."""
    offsets = offsets_of(spark, folder) if list(folder.glob("topic=*")) else []
    return len(offsets) == len(set(offsets))


def test_a_hundred_increments_are_restored_like_one(
    flow: Flow, spark: "SparkSession", unique_topic: Names, tmp_path: Path
) -> None:
    topic = flow.source.create_topic(unique_topic())
    files, folder = files_of(flow, topic), tmp_path / "archive"
    for _ in range(100):
        load(flow.source, topic, 20, size_bytes=100)
        archive(files, spark, folder, run_id="follow")

    assert len(list((folder / "_commits").iterdir())) >= 100
    assert len(list(folder.glob("topic=*/**/*.parquet"))) < 20
    assert len(offsets_of(spark, folder)) == 2_000
    restore(files, spark, folder)
    flow.assert_exact(topic)
    assert not results_of(folder)

"""A diverged tail is kept in an archive without Spark. A restore with Spark reads it like any other archive."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirrorflow_seed.archive import restore_driver
from mirrorflow_seed.archive.commit_log import read_archive
from mirrorflow_seed.archive.parquet_files import read_records
from mirrorflow_seed.archive.record_tally import TallyBuilder
from mirrorflow_seed.settings import job_of
from mirrorflow_seed.storage_folder import StorageFolder
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.diverging import DivergedPair, copied_pair, output, tail_of
from tests.integration.kafka.flows import Flow, by_partition
from tests.integration.kafka.seeding import CORES, files_of
from tests.integration.kafka.verifying import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pyspark = pytest.importorskip("pyspark")  # pyarrow as well, because both belong to the extra `seed`
TAIL = 500


@pytest.fixture
def topic(east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    """A topic on both clusters."""
    name = east.create_topic(unique_topic(), partitions=3)
    return west.create_topic(name, partitions=3)


@pytest.fixture
def pair(east: KafkaCluster, west: KafkaCluster, topic: str, tmp_path: Path) -> DivergedPair:
    """A pair whose flow has ended, and whose old side has a tail with aborted transactions."""
    diverged = copied_pair(east, west, topic, tmp_path)
    load(east, topic, TAIL, keys=True, first=1_000, transactional_id=topic, abort_every=3)
    return diverged


def test_an_archive_has_the_committed_records_of_the_tail(pair: DivergedPair, topic: str):
    """The same command continues the archive, and other commands can read it."""
    ended = pair.end()
    folder = pair.folder / "archive"
    tail = tail_of(pair, topic)

    kept = output(pair.command("keep", "--archive", folder, "--json"))
    again = output(pair.command("keep", "--archive", folder, "--json"))

    assert len(tail) == kept["archive"]["records"] == again["archive"]["records"]
    assert kept["archive"]["files"] == again["archive"]["files"]
    assert not pair.new.has_topic(pair.kept(topic))
    manifest = read_archive(StorageFolder(str(folder)))
    for key, partition in manifest.partitions.items():
        assert partition.start == ended.positions[key].next_source_offset
        archived = []
        for file in partition.files:
            tally = TallyBuilder(manifest.archive_id, key.partition)
            for some in read_records(str(folder / file.path)):
                tally.extend(some)
                archived += some
            assert file.tally == tally.tally
        assert [record.offset for record in tail if record.partition == key.partition] == [
            record.offset for record in archived
        ]
    assert pair.command("recreate", "--archive", folder).returncode == 0


def test_the_archive_of_a_tail_can_be_restored_and_verified(
    pair: DivergedPair, topic: str, spark: "SparkSession", tmp_path: Path
):
    """The flow has copied nothing, and its copies have a different name. The verification reads no record of the source."""
    pair.end()
    folder = tmp_path / "archive"
    output(pair.command("keep", "--archive", folder, "--json"))
    fresh = Flow.new(pair.old, pair.new, tmp_path / "fresh")
    committed = {"source.consumer.isolation.level": "read_committed", "name": ""}
    files = files_of(fresh, topic, {key: value for key, value in committed.items() if value})
    job = job_of({"archive": folder.as_uri(), "master": f"local[{CORES}]"})

    assert restore_driver.run(files, job, display=lambda _: None, spark=spark) == 0

    assert by_partition(tail_of(pair, topic)) == by_partition(
        records(fresh.target, fresh.remote(topic), isolation="read_committed")
    )
    verified = verify(files, spark, tmp_path / "verified", archive=folder.as_uri())
    assert (0, []) == (verified.status, verified.not_equal)
    assert len(tail_of(pair, topic)) == verified.report.source_records == verified.report.target_records


def test_the_seed_of_the_reverse_flow_fills_a_recreated_topic(pair: DivergedPair, topic: str):
    """The test runs the printed commands for `recreate`.

    The settings are those of the file, and copying of another topic continues.
    """
    whole = pair.new.create_topic(pair.old.create_topic(f"{topic}-whole", partitions=1), partitions=1)
    load(pair.old, whole, 100)
    pair.copy(whole, 100)
    pair.end()
    load(pair.new, topic, 200, keys=True, first=10_000)
    load(pair.new, whole, 50, first=100)
    assert pair.command("keep").returncode == 0
    pair.old.delete_topic(topic)
    assert pair.command("start-back").returncode == 0

    seeded = pair.mirrorflow("seed", "-f", pair.flow_file(back=True), "--foreign-records", "accept")

    assert seeded.returncode == 0, seeded.stdout + seeded.stderr
    for name in (topic, whole):
        assert by_partition(records(pair.new, name)) == by_partition(
            records(pair.old, name, isolation="read_committed")
        )

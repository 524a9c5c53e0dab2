"""Verification on real Spark between real brokers: what is equal is called so, and what is not is found where it is."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import files_of, session
from tests.integration.kafka.verifying import plain, verify, write

if TYPE_CHECKING:
    from pyspark import SparkContext

pytest.importorskip("pyspark")

Names = Callable[[], str]
SMALL = {"window_offsets": "1000", "split_windows": "2"}  # so that partitions are cut inside


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkContext]":
    with session() as context:
        yield context


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, west, tmp_path)


def test_what_the_connector_has_copied_is_equal(
    flow: Flow, spark: "SparkContext", unique_topic: Names, tmp_path: Path
):
    """Splits inside partitions meet; batches that came as they were are not decoded; so it is with records that go on."""
    topic = flow.source.create_topic(unique_topic(), partitions=3)
    load(flow.source, topic, 30_000, size_bytes=200, keys=100, headers=2, codec="lz4")
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=3)
    files = files_of(flow, topic)

    found = verify(files, spark, tmp_path / "whole", **SMALL)

    assert [] == found.not_equal
    assert 0 == found.status, found.report
    assert (30_000, 30_000) == (found.report.source_records, found.report.target_records)
    assert found.report.windows.total == found.report.windows.equal >= 30
    rows = spark_rows(spark, found.folder)
    assert sum(row.source_count for row in rows) == 30_000
    assert sum(row.digested_count for row in rows) < 15_000
    assert {"a run/1"} == {row.run_id for row in rows}

    again = verify(files, spark, tmp_path / "sample", sample="0.3", run_id="2", **SMALL)
    assert 0 == again.status
    assert 0 < again.report.windows.equal < found.report.windows.equal

    load(flow.source, topic, 500)
    behind = verify(files, spark, tmp_path / "behind", **SMALL)
    assert (0, 500) == (behind.status, behind.summary["behindRecords"])


def spark_rows(spark: "SparkContext", folder: Path) -> list[Any]:
    from pyspark.sql import SparkSession

    rows: list[Any] = SparkSession(spark).read.parquet(str(folder / "windows")).collect()
    return rows


def test_each_kind_of_difference_is_found_at_its_offsets(
    flow: Flow, spark: "SparkContext", unique_topic: Names, tmp_path: Path
):
    """A partition for each kind; the last one is equal, though in other batches."""
    topic = flow.source.create_topic(unique_topic(), partitions=9)
    copy = flow.target.create_topic(flow.remote(topic), partitions=9)
    for partition in range(9):
        sent = plain(2_500, partition)
        write(flow.source, topic, sent)
        number, timestamp, key, value, headers = sent[1_234]
        match partition:
            case 0:
                sent[1_234] = (number, timestamp, key, b"other", headers)
            case 1:
                del sent[1_234]
            case 2:
                sent.insert(1_235, sent[1_234])
            case 3:
                sent[1_234], sent[1_235] = sent[1_235], sent[1_234]
            case 4:
                sent[1_234] = (number, timestamp, key, value, headers[::-1])
            case 5:
                sent[1_234] = (number, timestamp + 1, key, value, headers)
            case 6:
                sent[1_234] = (number, timestamp, None, value, headers)
            case 7:
                del sent[0]
        write(flow.target, copy, sent)

    found = verify(files_of(flow, topic), spark, tmp_path / "out", **SMALL)

    assert 1 == found.status
    place = [("changed", 1_234, 1_234)]
    assert (
        place == found.differences(0) == found.differences(4) == found.differences(5) == found.differences(6)
    )
    assert [("missing", 1_234, -1)] == found.differences(1)
    assert [("extra", -1, 1_235)] == found.differences(2)
    assert [("moved", 1_234, 1_235), ("moved", 1_235, 1_234)] == found.differences(3)
    assert [("missing", 0, -1)] == found.differences(7)
    assert [] == found.differences(8)
    assert (7, 1) == (found.report.windows.different, found.report.windows.reordered)
    assert {(1_000, 2_000)} == {
        (one["fromOffset"], one["toOffset"]) for one in found.not_equal if one["partition"] != 7
    }
    assert b"other" not in (found.folder / "report.html").read_bytes()

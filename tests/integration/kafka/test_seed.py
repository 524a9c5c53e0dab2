"""Bulk seeding on real Spark, in a local session of two cores, between real brokers.

The verdict is a Java consumer's: what it reads on the target is, record by record, what it reads on the source.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirrorflow_seed.report import JobPhase
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import files_of, seed, session

if TYPE_CHECKING:
    from pyspark import SparkContext

pytest.importorskip("pyspark")


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkContext]":
    with session() as context:
        yield context


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, west, tmp_path)


def test_each_record_arrives_once_with_all_that_it_is(
    flow: Flow, spark: "SparkContext", unique_topic: Callable[[], str]
):
    """Keys, headers, timestamps, partitions; several topics, one of them empty; then the connector goes on."""
    stem = unique_topic()
    for number in range(3):
        flow.source.create_topic(f"{stem}-{number}", partitions=3)
    for number in range(2):
        load(flow.source, f"{stem}-{number}", 20_000, size_bytes=200, keys=100, headers=2)

    status, report = seed(files_of(flow, f"{stem}-.*"), spark)

    assert (status, report.phase, report.done, report.partitions) == (0, JobPhase.SUCCEEDED, 9, 9)
    assert report.records == 40_000
    for number in range(3):
        flow.assert_exact(f"{stem}-{number}")
    load(flow.source, f"{stem}-0", 1_000, size_bytes=200)
    with flow.replicator(f"{stem}-.*") as replicator:
        replicator.wait_until_caught_up()
    flow.assert_exact(f"{stem}-0")

"""The rate of a job is the sum over all its tasks, however unequal they are."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import files_of, seed, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.timing, pytest.mark.timeout(300)]

TASKS = 8
RATE = 2_000_000
# Records of 1 kB by partition; one partition has more than half of all.
SIZES = (24_000, 4_000, *[2_000] * 6)


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkSession]":
    """A session with as many slots as a cluster of several executors has."""
    with session(f"local[{TASKS}]") as context:
        yield context


def test_eight_unequal_tasks_keep_the_rate_of_the_job(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """With equal shares, the largest partition would finish last, at an eighth of the rate."""
    topic = flow.source.create_topic(unique_topic(), partitions=TASKS)
    for partition, records in enumerate(SIZES):
        load(flow.source, topic, records, size_bytes=1_000, batch_bytes=65_536, partition=partition)
    seen: list[tuple[float, int]] = []

    status, _ = seed(
        files_of(flow, topic),
        spark,
        watch=lambda report: seen.append((time.monotonic(), report.bytes)),
        bytes_per_second=str(RATE),
    )

    # The time is counted from the first to the last report with progress. Before and after it, the job prepares and
    # completes its work.
    advanced = [later for earlier, later in itertools.pairwise(seen) if later[1] > earlier[1]]
    (first_s, first_bytes), (last_s, last_bytes) = advanced[0], advanced[-1]
    assert status == 0
    assert 0.9 * RATE <= (last_bytes - first_bytes) / (last_s - first_s) <= 1.1 * RATE

"""With a fetch quota, a throttled response has no partitions, and everything that reads a log waits and continues.

A broker responds to a throttled fetch with a throttle time and without records. This file has its own clusters, because
the default quota applies to all clients and would slow other tests down.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirrorflow_seed.archive import export_driver, restore_driver
from mirrorflow_seed.settings import JobSettings, job_of
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.quotas import client_quota, throttle_ms
from tests.integration.kafka.seeding import CORES, files_of
from tests.integration.kafka.verifying import verify

pytestmark = pytest.mark.timing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

Names = Callable[[], str]
SLOW_BYTES_PER_S = 20_000.0
# A job reads everything, 0.9 MB from each cluster, so it has a larger quota. A broker allows the bytes of ten seconds
# at once.
JOB_BYTES_PER_S = 50_000.0


@pytest.fixture(scope="module")
def source() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="throttled-east") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="throttled-west") as cluster:
        yield cluster


@pytest.fixture
def throttled(source: KafkaCluster, target: KafkaCluster, tmp_path: Path) -> Flow:
    """A flow between the two clusters of this file."""
    return Flow.new(source, target, tmp_path)


@contextmanager
def fetch_quota(flow: Flow, bytes_per_s: float) -> Iterator[None]:
    """Sets the quota on both clusters for every client."""
    with ExitStack() as stack:
        for cluster in (flow.source, flow.target):
            stack.enter_context(client_quota(cluster, consumer_byte_rate=bytes_per_s))
        yield


def test_a_connector_resumes_with_a_fetch_quota(throttled: Flow, unique_topic: Names) -> None:
    """The flow is killed with kill -9 while it copies.

    Both clusters throttle the reads that find the offsets for resuming, and the remaining copy.
    """
    topic = throttled.source.create_topic(unique_topic(), partitions=2)
    load(throttled.source, topic, 400, size_bytes=400, content="random", batch_bytes=8_000)
    with throttled.replicator(topic) as first:
        first.wait_until_caught_up(partitions=2)
        load(throttled.source, topic, 400, size_bytes=400, content="random", batch_bytes=8_000)
        first.wait_for_copy(throttled.target, throttled.remote(topic), 500)
        first.kill()
    # More than the quota allows at once, because it is an average over ten seconds.
    load(throttled.source, topic, 1_500, size_bytes=400, content="random", batch_bytes=8_000)

    with fetch_quota(throttled, SLOW_BYTES_PER_S), throttled.replicator(topic) as second:
        second.wait_until_caught_up(partitions=2)
        waited_ms = throttle_ms(second)

    assert waited_ms > 0
    throttled.assert_exact(topic)


def test_a_verification_reads_both_sides_with_a_fetch_quota(
    throttled: Flow, unique_topic: Names, spark: "SparkSession", tmp_path: Path
) -> None:
    """Every window is compared. A throttled response is neither an error nor the end of the log."""
    topic = throttled.source.create_topic(unique_topic(), partitions=2)
    load(throttled.source, topic, 2_000, size_bytes=400, content="random")
    with throttled.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=2)
        replicator.stop()
    files = files_of(throttled, topic)

    with fetch_quota(throttled, JOB_BYTES_PER_S):
        outcome = verify(files, spark, tmp_path / "throttled", window_offsets="500", split_windows="2")

    assert (0, []) == (outcome.status, outcome.not_equal)
    assert (2_000, 2_000) == (outcome.report.source_records, outcome.report.target_records)


def test_an_archive_is_exported_restored_and_verified_with_a_fetch_quota(
    throttled: Flow, unique_topic: Names, spark: "SparkSession", tmp_path: Path
) -> None:
    """An export reads the source, a restore reads the target's log ends, and a verification reads the whole target."""
    topic = throttled.source.create_topic(unique_topic(), partitions=2)
    load(throttled.source, topic, 2_000, size_bytes=400, content="random")
    files = files_of(throttled, topic)
    folder = (tmp_path / "archive").as_uri()

    with fetch_quota(throttled, JOB_BYTES_PER_S):
        assert 0 == export_driver.run(files, archive_job(folder), display=lambda _: None, spark=spark)
        assert 0 == restore_driver.run(files, archive_job(folder), display=lambda _: None, spark=spark)
        outcome = verify(files, spark, tmp_path / "verified", archive=folder)

    assert (0, []) == (outcome.status, outcome.not_equal)
    throttled.assert_exact(topic)


def archive_job(folder: str) -> JobSettings:
    """Returns a job with an archive in *folder*, with several files for each partition."""
    return job_of({"archive": folder, "master": f"local[{CORES}]", "archive.file.bytes": "10000"})

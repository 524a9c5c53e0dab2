"""Seeds whose clusters lose a broker, run out of disk space or refuse records.

Each flow has a topic with recent records and one with records of ten days ago. In every case, a reader receives each
record once, and the job reports the cause of the delay.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirrorflow_replicator.process import now_ms
from mirrorflow_seed.errors import StalledError
from mirrorflow_seed.job_report import JobPhase, SeedReport
from mirrorflow_seed.seed import claimed_flow, retention_holder
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import FOREVER, digest, load
from tests.integration.kafka.disks import small_disk
from tests.integration.kafka.flows import DAY_MS, Flow
from tests.integration.kafka.seeding import files_of, seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

RECORDS = 5_000
RECORD_BYTES = 1_000
SLOW = "2500000"  # bytes per second of the whole job, so that a seed of both topics takes four seconds
FORGETFUL = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}


@pytest.fixture(scope="module")
def trio() -> Iterator[KafkaCluster]:
    """Three brokers. A test may stop one of them temporarily."""
    with KafkaCluster(name="trio", brokers=3, config={"min.insync.replicas": "2"} | FORGETFUL) as cluster:
        yield cluster


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_broker_lost_during_a_seed_loses_and_repeats_nothing(
    side: str,
    east: KafkaCluster,
    trio: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
):
    """A broker that leads partitions of the seed is killed with kill -9, and the other brokers take over."""
    source, target = (trio, east) if side == "source" else (east, trio)
    flow = Flow.new(
        source,
        target,
        tmp_path,
        connector={"replication.factor": "3" if target is trio else "1"},
        worker={"offset.storage.replication.factor": "3" if target is trio else "1"},
    )
    topics = fresh_and_old(flow.source, unique_topic(), replication_factor=3 if source is trio else 1)
    killed: list[int] = []

    def watch(report: SeedReport) -> None:
        if report.records > RECORDS // 4 and not killed:
            led_topic = topics[0] if source is trio else flow.remote(topics[0])
            killed.append(trio.leader(led_topic, 0))
            trio.broker(killed[0]).kill()

    stem = topics[0].removesuffix("-fresh")
    try:
        status, report = seed(files_of(flow, f"{stem}-.*"), spark, watch=watch, bytes_per_second=SLOW)
    finally:
        for number in killed:
            trio.broker(number).start()

    assert killed
    assert (status, report.phase) == (0, JobPhase.SUCCEEDED)
    assert_once(flow, topics)


def test_refused_records_fail_the_job_and_are_copied_once_accepted(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str], caplog: pytest.LogCaptureFixture
):
    """The records are too large, or too old for the topic's policy.

    The job fails within seconds, and other topics are seeded.
    """
    stem = unique_topic()
    large, early, plain = (f"{stem}-{name}" for name in ("large", "early", "plain"))
    for topic in (large, early, plain):
        flow.source.create_topic(topic, config=FOREVER)
    load(flow.source, plain, 500)
    load(flow.source, large, 20, size_bytes=200_000, content="random", batch_bytes=300_000)
    load(flow.source, early, 500, timestamp_ms=now_ms() - 10 * DAY_MS)
    flow.target.create_topic(flow.remote(large), config={"max.message.bytes": "100000"})
    week = {"message.timestamp.before.max.ms": str(7 * DAY_MS), **FOREVER}
    flow.target.create_topic(flow.remote(early), config=week)
    files = files_of(flow, f"{stem}-.*", {"sync.topic.configs.enabled": "false"})

    status, report = seed(files, spark)
    flow.target.alter_topic(flow.remote(large), {"max.message.bytes": "1000000"})
    flow.target.alter_topic(flow.remote(early), {"message.timestamp.before.max.ms": str(70 * DAY_MS)})
    second_status, second_report = seed(files, spark)

    assert (status, report.phase, report.lost) == (1, JobPhase.FAILED, 2)
    assert report.message == "1 partition has stopped: BatchRefused; 1 partition has stopped: RecordTooLarge"
    assert f"raise max.message.bytes of {flow.remote(large)}" in caplog.text
    assert f"target topic {flow.remote(early)} refuses the record" in caplog.text
    assert (second_status, second_report.phase) == (0, JobPhase.SUCCEEDED)
    for topic in (large, early, plain):
        flow.assert_exact(topic)


def test_a_full_target_fails_the_job_and_the_next_job_finishes_on_a_larger_disk(
    east: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    """The broker stops with a truncated batch at the end of its log. The job reports what it waits for, and fails.

    The waits for fencing and for restoring retention (20 and 30 seconds) are shorter here.
    """
    monkeypatch.setattr(claimed_flow, "FENCE_S", 3.0)
    monkeypatch.setattr(retention_holder, "RESTORE_S", 2.0)
    messages: list[str] = []

    def watch(report: SeedReport) -> None:
        messages.append(report.message)

    with (
        small_disk(tmp_path / "disk", 20) as disk,
        KafkaCluster(name="narrow", config=disk.config) as narrow,
    ):
        flow = Flow.new(east, narrow, tmp_path)
        topics = fresh_and_old(east, unique_topic(), records=14_000)
        files = files_of(flow, f"{topics[0].removesuffix('-fresh')}-.*")
        with pytest.raises(StalledError, match=r"No progress for \d+ s: .*Unreachable"):
            seed(files, spark, watch=watch, stalled_ms="20000")
        assert not narrow.broker(1).running
        disk.grow()
        narrow.broker(1).start()
        status, report = seed(files, spark)

        assert any("held up: " in message for message in messages)
        assert "tasks are held up: Cluster" in caplog.text
        assert (status, report.phase) == (0, JobPhase.SUCCEEDED)
        assert_once(flow, topics)


def fresh_and_old(
    source: KafkaCluster, stem: str, *, replication_factor: int = 1, records: int = RECORDS
) -> tuple[str, str]:
    """Creates two topics of two partitions each, one with recent and one with old records."""
    ages = {f"{stem}-fresh": now_ms(), f"{stem}-old": now_ms() - 10 * DAY_MS}
    for topic, timestamp_ms in ages.items():
        source.create_topic(topic, partitions=2, replication_factor=replication_factor, config=FOREVER)
        load(
            source,
            topic,
            records,
            size_bytes=RECORD_BYTES,
            batch_bytes=65_536,
            headers=1,
            content="random",
            timestamp_ms=timestamp_ms,
        )
    return f"{stem}-fresh", f"{stem}-old"


def assert_once(flow: Flow, topics: tuple[str, str]) -> None:
    """Asserts that readers of committed records receive each record once.

    A transaction that a lost broker has interrupted is aborted.
    """
    for topic in topics:
        copied = digest(flow.target, flow.remote(topic), isolation="read_committed")
        assert copied == digest(flow.source, topic), topic

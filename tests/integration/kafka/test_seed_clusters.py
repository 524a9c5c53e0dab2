"""What befalls the clusters under a seed: brokers that are lost, disks that are full, records that are refused.

One topic of each flow is fresh, one ten days old. Whatever happens, a reader finds each record once, and the job says what
held it up.
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
SLOW = "2500000"  # bytes per second of the whole job: a seed of both topics takes four seconds
FORGETFUL = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}


@pytest.fixture(scope="module")
def trio() -> Iterator[KafkaCluster]:
    """Three brokers, of which a test may lose one for a while."""
    with KafkaCluster(name="trio", brokers=3, config={"min.insync.replicas": "2"} | FORGETFUL) as cluster:
        yield cluster


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_broker_that_is_lost_for_good_costs_time_alone(
    side: str,
    east: KafkaCluster,
    trio: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
):
    """kill -9 of a broker that leads partitions which are being seeded; the others take over."""
    source, target = (trio, east) if side == "source" else (east, trio)
    flow = Flow.new(
        source,
        target,
        tmp_path,
        connector={"replication.factor": "3" if target is trio else "1"},
        worker={"offset.storage.replication.factor": "3" if target is trio else "1"},
    )
    topics = fresh_and_old(flow.source, unique_topic(), replication_factor=3 if source is trio else 1)
    lost: list[int] = []

    def watch(report: SeedReport) -> None:
        if report.records > RECORDS // 4 and not lost:
            led = topics[0] if source is trio else flow.remote(topics[0])
            lost.append(trio.leader(led, 0))
            trio.broker(lost[0]).kill()

    stem = topics[0].removesuffix("-fresh")
    try:
        status, report = seed(files_of(flow, f"{stem}-.*"), spark, watch=watch, bytes_per_second=SLOW)
    finally:
        for number in lost:
            trio.broker(number).start()

    assert lost
    assert (status, report.phase) == (0, JobPhase.SUCCEEDED)
    assert_once(flow, topics)


def test_what_the_target_refuses_is_named_and_continues_when_it_is_taken(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str], caplog: pytest.LogCaptureFixture
):
    """Too large, or too old by the topic's own policy: the job fails within seconds, the other topics are seeded."""
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
    again, ended = seed(files, spark)

    assert (status, report.phase, report.lost) == (1, JobPhase.FAILED, 2)
    assert report.message == "1 partition has stopped: BatchRefused; 1 partition has stopped: RecordTooLarge"
    assert f"raise max.message.bytes of {flow.remote(large)}" in caplog.text
    assert f"target topic {flow.remote(early)} refuses the record" in caplog.text
    assert (again, ended.phase) == (0, JobPhase.SUCCEEDED)
    for topic in (large, early, plain):
        flow.assert_exact(topic)


def test_a_full_target_ends_the_job_and_the_next_one_finishes_when_there_is_room(
    east: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    """The broker gives up with a torn batch at its end; the job says meanwhile what it waits for, and ends.

    What would take it 20 and 30 seconds then, for tasks to be fenced and for retention to be given back, is shorter here.
    """
    monkeypatch.setattr(claimed_flow, "FENCE_S", 3.0)
    monkeypatch.setattr(retention_holder, "RESTORE_S", 2.0)
    said: list[str] = []

    def watch(report: SeedReport) -> None:
        said.append(report.message)

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

        assert any("held up: " in message for message in said)
        assert "tasks are held up: Cluster" in caplog.text
        assert (status, report.phase) == (0, JobPhase.SUCCEEDED)
        assert_once(flow, topics)


def fresh_and_old(
    source: KafkaCluster, stem: str, *, replication_factor: int = 1, records: int = RECORDS
) -> tuple[str, str]:
    """Two topics of two partitions each, by the age of their records."""
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
    """Each record once, for readers of committed records: a transaction that a broker's loss cut off is aborted."""
    for topic in topics:
        copied = digest(flow.target, flow.remote(topic), isolation="read_committed")
        assert copied == digest(flow.source, topic), topic

"""Bulk seeding on real Spark between real brokers, in a local session with two cores that the tests share.

A Java consumer compares the target with the source record by record. `test_seed_failures` kills drivers and executors.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.identity_topic import HoldLog
from mirrorflow_replicator.connectors.retention_writer import RetentionWriter
from mirrorflow_replicator.process import now_ms
from mirrorflow_seed.errors import ForeignRecordsError, JobFailedError
from mirrorflow_seed.job_report import JobPhase, SeedReport
from mirrorflow_seed.seed import retention_holder
from mirrorflow_seed.seed.claimed_flow import ClaimedFlow
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load
from tests.integration.kafka.flows import DAY_MS, Flow, call_cluster, heartbeats_on
from tests.integration.kafka.seeding import SeedProcess, files_of, seed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

OWN_RETENTION = {"config.properties.exclude": "retention\\..*"}  # the copy keeps its own retention
SLOW = "300000"  # bytes per second, for a thousand records of about 200 bytes
MARKERS_MAX = 10  # markers that a start writes before its records


@pytest.fixture(scope="module")
def quick_retention() -> Iterator[KafkaCluster]:
    """A target that deletes old records and expires producers within seconds.

    By default, brokers check every five minutes.
    """
    config = {"log.retention.check.interval.ms": "300", "log.initial.task.delay.ms": "300"}
    config |= {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}
    with KafkaCluster(name="eager", config=config) as cluster:
        yield cluster


def test_each_record_is_copied_once_and_unchanged(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """Keys, headers, timestamps and partitions of several topics are unchanged, and one topic is empty.

    Afterwards the connector continues.
    """
    stem = unique_topic()
    for number in range(3):
        flow.source.create_topic(f"{stem}-{number}", partitions=3)
    for number in range(2):
        load(flow.source, f"{stem}-{number}", 20_000, size_bytes=200, keys=100, headers=2)

    status, report = seed(files_of(flow, f"{stem}-.*"), spark)

    assert (status, report.phase, report.done, report.partitions) == (0, JobPhase.SUCCEEDED, 9, 9)
    assert report.records == 40_000
    assert report.remaining_records == report.gap_records == 0
    for number in range(3):
        flow.assert_exact(f"{stem}-{number}")
    # This happens to a flow that was deleted and is created again from Git.
    status, report = seed(files_of(flow, f"{stem}-.*"), spark)
    assert (status, report.phase, report.records) == (0, JobPhase.SUCCEEDED, 0)
    assert report.message == "Nothing was left: an earlier run or the connector had copied everything."
    load(flow.source, f"{stem}-0", 1_000, size_bytes=200)
    with flow.replicator(f"{stem}-.*") as replicator:
        replicator.wait_until_caught_up()
    flow.assert_exact(f"{stem}-0")


def test_a_seed_fails_if_a_topic_is_mistyped(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """It fails even though heartbeats of the source would be copied."""
    topic = flow.source.create_topic(unique_topic())

    with heartbeats_on(flow.source), pytest.raises(JobFailedError, match=f"is {topic} meant?"):
        seed(files_of(flow, topic[:-1]), spark)


def test_records_written_during_the_seed_are_copied_by_further_waves(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """The first wave ends at the source offsets that were planned."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, 2_000, size_bytes=200)
    loads: list[object] = []

    def watch(report: SeedReport) -> None:
        if report.phase is JobPhase.RUNNING and not loads:
            loads.append(load(flow.source, topic, 3_000, size_bytes=200))

    status, report = seed(files_of(flow, topic), spark, watch=watch, bytes_per_second=SLOW)

    assert (status, report.records) == (0, 5_000)
    flow.assert_exact(topic)


def test_a_task_that_reaches_its_time_limit_is_continued_by_a_later_wave(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """Several waves have the same end. None waits for fencing, because the previous one left gracefully."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, 4_000, size_bytes=200)

    status, report = seed(files_of(flow, topic), spark, wave_ms="1000", bytes_per_second=SLOW)

    assert (status, report.records) == (0, 4_000)
    flow.assert_exact(topic)


def test_a_copy_with_foreign_records_is_refused_unless_accepted(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """No record is written to it before it is accepted."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 500)
    copy = flow.target.create_topic(flow.remote(topic))
    load(flow.target, copy, 7)

    with pytest.raises(ForeignRecordsError, match=copy):
        seed(files_of(flow, topic), spark)
    untouched = flow.target.end_offsets(copy)
    status, _ = seed(files_of(flow, topic), spark, foreign_records="accept")

    assert untouched == {0: 7}
    assert status == 0
    assert flow.target.end_offsets(copy)[0] >= 507
    # Its own records do not count as foreign afterwards.
    assert seed(files_of(flow, topic), spark)[0] == 0


@pytest.mark.parametrize(("policy", "status"), [("fail", 1), ("alert", 0)])
def test_records_deleted_before_they_were_copied_are_counted(
    policy: str, status: int, flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """With `fail` the partition stops, and with `alert` it continues after the gap. Both report the size of the gap."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 30_000, size_bytes=1_000)
    deleted: list[int] = []

    def watch(report: SeedReport) -> None:
        if report.records and not deleted:
            flow.source.delete_records(topic, {0: 29_000})
            deleted.append(report.records)

    exit_status, report = seed(
        files_of(flow, topic, {"mirrorflow.source.loss.policy": policy}),
        spark,
        watch=watch,
        bytes_per_second="1000000",
    )

    assert (exit_status, report.lost) == (status, status)
    assert 0 < report.gap_records < 29_000
    if policy == "alert":
        assert report.records + report.gap_records == 30_000


def test_records_deleted_before_a_partition_was_started_are_counted_as_lost(
    flow: Flow,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """The start of a partition is stored before its task begins. The task stops until the loss policy changes."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, 2_000)
    store_starts = ClaimedFlow.store_starts

    async def store_and_delete(self: ClaimedFlow, *args: Any) -> None:
        await store_starts(self, *args)
        flow.source.delete_records(topic, {0: 300})

    with monkeypatch.context() as patch:
        patch.setattr(ClaimedFlow, "store_starts", store_and_delete)
        failed = seed(files_of(flow, topic), spark)
    repeated = seed(files_of(flow, topic), spark)
    copied = flow.target.end_offsets(flow.remote(topic))
    alerted = seed(files_of(flow, topic, {"mirrorflow.source.loss.policy": "alert"}), spark)

    for status, report in (failed, repeated):
        assert (status, report.phase, report.lost, report.gap_records) == (1, JobPhase.FAILED, 1, 300)
        assert report.message == "1 partition has stopped: SourceDataLost"
    assert f"{topic}-0: 300 offsets were deleted on the source" in caplog.text
    assert copied == {0: 0, 1: 1_000}
    assert (alerted[0], alerted[1].gap_records, alerted[1].records) == (0, 300, 700)
    flow.assert_exact(topic)


def test_retention_of_the_target_is_held_until_all_records_are_copied(
    east: KafkaCluster,
    quick_retention: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
):
    """Records are ten days old, and the target keeps seven days. Afterwards its retention is restored."""
    flow = Flow.new(east, quick_retention, tmp_path)
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    load(flow.source, topic, 6_000, size_bytes=200, timestamp_ms=now_ms() - 10 * DAY_MS)
    copy = flow.remote(topic)
    observed: list[tuple[str, int]] = []

    def watch(report: SeedReport) -> None:
        if report.phase is JobPhase.RUNNING and report.remaining_records:
            observed.append(
                (flow.target.topic_config(copy)["retention.ms"], flow.target.start_offsets(copy)[0])
            )

    status, report = seed(files_of(flow, topic, OWN_RETENTION), spark, watch=watch, bytes_per_second=SLOW)

    assert (status, report.records) == (0, 6_000)
    assert set(observed) == {("-1", 0)}
    assert flow.target.topic_config(copy)["retention.ms"] == str(7 * DAY_MS)
    wait_until("the target deletes old records again", lambda: flow.target.start_offsets(copy)[0] > 0)


def test_a_retention_that_is_set_during_a_hold_applies_at_the_end(
    east: KafkaCluster,
    quick_retention: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """It is set on the copy, or on the source and then synced.

    No record that the new retention keeps is ever deleted.
    """
    monkeypatch.setattr(retention_holder, "RENEW_EVERY_S", 0.3)
    flow, stem = Flow.new(east, quick_retention, tmp_path), unique_topic()
    own, synced = f"{stem}-own", f"{stem}-led"
    for topic in (own, synced):
        flow.source.create_topic(topic, config={"retention.ms": str(20 * DAY_MS)})
        load(flow.source, topic, 2_000, size_bytes=200, timestamp_ms=now_ms() - 10 * DAY_MS)
    for topic in (own, synced):
        flow.target.create_topic(flow.remote(topic), config={"retention.ms": str(7 * DAY_MS)})
    changes: list[str] = []

    def watch(report: SeedReport) -> None:
        if report.phase is JobPhase.RUNNING and not changes:
            flow.target.alter_topic(flow.remote(own), {"retention.ms": str(30 * DAY_MS)})
            flow.source.alter_topic(synced, {"retention.ms": str(40 * DAY_MS)})
            changes.append("set")

    excluded = {"mirrorflow.config.properties.exclude.by.topic": f"{own}:retention\\..*"}
    status, _ = seed(files_of(flow, f"{stem}-.*", excluded), spark, watch=watch, bytes_per_second=SLOW)

    assert (status, changes) == (0, ["set"])
    for topic, days in ((own, 30), (synced, 40)):
        assert flow.target.topic_config(flow.remote(topic))["retention.ms"] == str(days * DAY_MS)
        assert flow.target.start_offsets(flow.remote(topic)) == {0: 0}


def test_a_paused_seed_continues_after_copies_that_the_target_deleted(
    east: KafkaCluster,
    quick_retention: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
):
    """All copies and markers are deleted, and the leader has expired all producers, as after weeks."""
    flow = Flow.new(east, quick_retention, tmp_path)
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    load(flow.source, topic, 8_000, size_bytes=1_000, timestamp_ms=now_ms() - 10 * DAY_MS)
    copy, files = flow.remote(topic), files_of(flow, topic, OWN_RETENTION)

    first = SeedProcess(files=files, folder=tmp_path, job={"bytes.per.second": "1000000"}).start()
    try:
        wait_until(
            "a transaction with records is committed",
            lambda: (
                flow.target.has_topic(copy)
                and sum(flow.target.end_offsets(copy, isolation="read_committed").values()) > MARKERS_MAX
            ),
        )
        os.kill(first.running.pid, signal.SIGTERM)
        paused = first.wait()
    finally:
        first.close()
    flow.target.delete_records(copy, flow.target.end_offsets(copy))
    wait_until("all producers have expired", lambda: not producers(flow, copy))
    exit_status, report = seed(files, spark)

    assert (paused["status"], paused["phase"]) == (3, JobPhase.PAUSED.value)
    # It stopped inside transactions. Their records are not counted, and are copied again.
    assert 0 < paused["records"] <= 8_000 - report.records < 8_000
    assert (exit_status, report.records) == (0, paused["remainingRecords"]), report.message


def test_the_connector_keeps_a_held_retention_and_restores_it_after_the_hold(
    flow: Flow, unique_topic: Callable[[], str]
):
    """A job may end without being able to restore the settings of its topics."""
    topic = flow.source.create_topic(unique_topic(), config={"retention.ms": "86400000"})
    load(flow.source, topic, 10)
    copy = flow.remote(topic)
    quick = {"sync.topic.configs.interval.seconds": "1", "refresh.topics.interval.seconds": "1"}
    with flow.replicator(topic, quick) as replicator:
        replicator.wait_until_caught_up()
        _hold(flow, copy)
        flow.source.alter_topic(topic, {"max.message.bytes": "2000000", "retention.ms": "99999999"})
        wait_until(
            "other settings are synced",
            lambda: flow.target.topic_config(copy)["max.message.bytes"] == "2000000",
        )
        held = flow.target.topic_config(copy)["retention.ms"]
        _hold(flow, copy, is_over=True)
        wait_until(
            "retention is synced again", lambda: flow.target.topic_config(copy)["retention.ms"] == "99999999"
        )

    assert held == "-1"


def producers(flow: Flow, copy: str) -> int:
    """Returns the number of producers in the state of the leader of the copy's first partition (KIP-664)."""
    first = TopicPartition(copy, 0)

    async def describe(cluster: Cluster) -> int:
        await cluster.refresh([copy])
        return len((await admin.describe_producers(cluster, [first]))[first].producers)

    return call_cluster(flow.target, describe)


def _hold(flow: Flow, copy: str, *, is_over: bool = False) -> None:
    """Holds the retention like the first step of a job, or releases it like the last step."""

    async def use(cluster: Cluster) -> None:
        log = HoldLog(cluster, flow.alias, replication_factor=1)
        retention = RetentionWriter(cluster, log, now_ms=now_ms)
        if is_over:
            await retention.give_up(["job"])
        else:
            await retention.hold("job", {copy: {"retention.ms": "86400000"}})

    call_cluster(flow.target, use)

"""Bulk seeding on real Spark, in a local session of two cores that the tests share, between real brokers.

The verdict is a Java consumer's: what it reads on the target is, record by record, what it reads on the source. What kills
drivers and executors is in `test_seed_failures`.
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
from mirrorflow_replicator.connectors.topic_sync import RetentionWriter
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

OWN_RETENTION = {"config.properties.exclude": "retention\\..*"}  # the copy keeps the target's own
SLOW = "300000"  # bytes per second: a thousand records of 200 bytes or so


@pytest.fixture(scope="module")
def eager() -> Iterator[KafkaCluster]:
    """Deletes what is too old at once, where a broker as it comes looks every five minutes; and forgets producers as soon."""
    config = {"log.retention.check.interval.ms": "300", "log.initial.task.delay.ms": "300"}
    config |= {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}
    with KafkaCluster(name="eager", config=config) as cluster:
        yield cluster


def test_each_record_arrives_once_with_all_that_it_is(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """Keys, headers, timestamps, partitions; several topics, one of them empty; then the connector continues."""
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
    # As of a flow that was deleted and is created again from Git.
    status, report = seed(files_of(flow, f"{stem}-.*"), spark)
    assert (status, report.phase, report.records) == (0, JobPhase.SUCCEEDED, 0)
    assert report.message == "Nothing was left: an earlier run or the connector had copied everything."
    load(flow.source, f"{stem}-0", 1_000, size_bytes=200)
    with flow.replicator(f"{stem}-.*") as replicator:
        replicator.wait_until_caught_up()
    flow.assert_exact(f"{stem}-0")


def test_a_mistyped_topic_is_a_failure_that_names_it(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """Though heartbeats of the source would be copied."""
    topic = flow.source.create_topic(unique_topic())

    with heartbeats_on(flow.source), pytest.raises(JobFailedError, match=f"is {topic} meant?"):
        seed(files_of(flow, topic[:-1]), spark)


def test_what_is_written_meanwhile_is_taken_by_further_waves(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """The first wave ends where the source ended when it was planned."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, 2_000, size_bytes=200)
    more: list[object] = []

    def watch(report: SeedReport) -> None:
        if report.phase is JobPhase.RUNNING and not more:
            more.append(load(flow.source, topic, 3_000, size_bytes=200))

    status, report = seed(files_of(flow, topic), spark, watch=watch, bytes_per_second=SLOW)

    assert (status, report.records) == (0, 5_000)
    flow.assert_exact(topic)


def test_a_task_whose_time_is_over_gives_its_place_and_another_continues(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """Several waves for one end; none waits for the one before, which has left in order."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, 4_000, size_bytes=200)

    status, report = seed(files_of(flow, topic), spark, wave_ms="1000", bytes_per_second=SLOW)

    assert (status, report.records) == (0, 4_000)
    flow.assert_exact(topic)


def test_a_topic_that_strangers_have_filled_is_refused_unless_asked_for(
    flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """Nothing is written to it before it is asked for."""
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
    # Its own records are no strangers' afterwards.
    assert seed(files_of(flow, topic), spark)[0] == 0


@pytest.mark.parametrize(("policy", "status"), [("fail", 1), ("alert", 0)])
def test_what_the_source_deletes_before_it_was_copied_is_counted(
    policy: str, status: int, flow: Flow, spark: "SparkSession", unique_topic: Callable[[], str]
):
    """Never silently: `fail` stops the partition, `alert` continues behind the gap; both say how large it is."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 30_000, size_bytes=1_000)
    deleted: list[int] = []

    def watch(report: SeedReport) -> None:
        if report.records and not deleted:
            flow.source.delete_records(topic, {0: 29_000})
            deleted.append(report.records)

    ended, report = seed(
        files_of(flow, topic, {"mirrorflow.source.loss.policy": policy}),
        spark,
        watch=watch,
        bytes_per_second="1000000",
    )

    assert (ended, report.lost) == (status, status)
    assert 0 < report.gap_records < 29_000
    if policy == "alert":
        assert report.records + report.gap_records == 30_000


def test_what_the_source_deletes_before_a_partition_was_begun_is_a_loss_as_well(
    flow: Flow,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """The start of the partition is stored before its task begins, which then stops until the loss policy is another one."""
    topic = flow.source.create_topic(unique_topic(), partitions=2)
    load(flow.source, topic, 2_000)
    store_starts = ClaimedFlow.store_starts

    async def overtaken(self: ClaimedFlow, *args: Any) -> None:
        await store_starts(self, *args)
        flow.source.delete_records(topic, {0: 300})

    with monkeypatch.context() as patch:
        patch.setattr(ClaimedFlow, "store_starts", overtaken)
        failed = seed(files_of(flow, topic), spark)
    again = seed(files_of(flow, topic), spark)
    copied = flow.target.end_offsets(flow.remote(topic))
    ended = seed(files_of(flow, topic, {"mirrorflow.source.loss.policy": "alert"}), spark)

    for status, report in (failed, again):
        assert (status, report.phase, report.lost, report.gap_records) == (1, JobPhase.FAILED, 1, 300)
        assert report.message == "1 partition has stopped: SourceDataLost"
    assert f"{topic}-0: 300 offsets were deleted on the source" in caplog.text
    assert copied == {0: 0, 1: 1_000}
    assert (ended[0], ended[1].gap_records, ended[1].records) == (0, 300, 700)
    flow.assert_exact(topic)


def test_records_that_the_target_would_delete_are_kept_until_all_are_there(
    east: KafkaCluster,
    eager: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
):
    """Ten days old, on a target that keeps seven and looks all the time; then its retention is as it was."""
    flow = Flow.new(east, eager, tmp_path)
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    load(flow.source, topic, 6_000, size_bytes=200, timestamp_ms=now_ms() - 10 * DAY_MS)
    copy = flow.remote(topic)
    seen: list[tuple[str, int]] = []

    def watch(report: SeedReport) -> None:
        if report.phase is JobPhase.RUNNING and report.remaining_records:
            seen.append((flow.target.topic_config(copy)["retention.ms"], flow.target.start_offsets(copy)[0]))

    status, report = seed(files_of(flow, topic, OWN_RETENTION), spark, watch=watch, bytes_per_second=SLOW)

    assert (status, report.records) == (0, 6_000)
    assert set(seen) == {("-1", 0)}
    assert flow.target.topic_config(copy)["retention.ms"] == str(7 * DAY_MS)
    wait_until("the target deletes what is too old again", lambda: flow.target.start_offsets(copy)[0] > 0)


def test_who_sets_a_retention_while_it_is_held_finds_it_so_at_the_end(
    east: KafkaCluster,
    eager: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """On the copy, or on the source, which the copy follows: no record is deleted that the new one keeps, not for a moment."""
    monkeypatch.setattr(retention_holder, "RENEW_EVERY_S", 0.3)
    flow, stem = Flow.new(east, eager, tmp_path), unique_topic()
    own, led = f"{stem}-own", f"{stem}-led"
    for topic in (own, led):
        flow.source.create_topic(topic, config={"retention.ms": str(20 * DAY_MS)})
        load(flow.source, topic, 2_000, size_bytes=200, timestamp_ms=now_ms() - 10 * DAY_MS)
    for topic in (own, led):
        flow.target.create_topic(flow.remote(topic), config={"retention.ms": str(7 * DAY_MS)})
    seen: list[str] = []

    def watch(report: SeedReport) -> None:
        if report.phase is JobPhase.RUNNING and not seen:
            flow.target.alter_topic(flow.remote(own), {"retention.ms": str(30 * DAY_MS)})
            flow.source.alter_topic(led, {"retention.ms": str(40 * DAY_MS)})
            seen.append("set")

    excluded = {"mirrorflow.config.properties.exclude.by.topic": f"{own}:retention\\..*"}
    status, _ = seed(files_of(flow, f"{stem}-.*", excluded), spark, watch=watch, bytes_per_second=SLOW)

    assert (status, seen) == (0, ["set"])
    for topic, days in ((own, 30), (led, 40)):
        assert flow.target.topic_config(flow.remote(topic))["retention.ms"] == str(days * DAY_MS)
        assert flow.target.start_offsets(flow.remote(topic)) == {0: 0}


def test_a_seed_continues_behind_what_the_target_has_deleted_while_it_was_paused(
    east: KafkaCluster,
    eager: KafkaCluster,
    spark: "SparkSession",
    unique_topic: Callable[[], str],
    tmp_path: Path,
):
    """All of it, with the markers of its transactions, and its leader has forgotten all producers, as after weeks."""
    flow = Flow.new(east, eager, tmp_path)
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    load(flow.source, topic, 8_000, size_bytes=1_000, timestamp_ms=now_ms() - 10 * DAY_MS)
    copy, files = flow.remote(topic), files_of(flow, topic, OWN_RETENTION)

    first = SeedProcess(files=files, folder=tmp_path, job={"bytes.per.second": "1000000"}).start()
    try:
        wait_until(
            "some records are copied",
            lambda: flow.target.total_end_offset(copy) > 0,
        )
        os.kill(first.running.pid, signal.SIGTERM)
        paused = first.wait()
    finally:
        first.close()
    flow.target.delete_records(copy, flow.target.end_offsets(copy))
    wait_until("all producers are forgotten", lambda: not producers(flow, copy))
    ended, report = seed(files, spark)

    assert (paused["status"], paused["phase"]) == (3, JobPhase.PAUSED.value)
    # It was stopped within transactions: what these held is not counted, and copied again.
    assert 0 < paused["records"] <= 8_000 - report.records < 8_000
    assert (ended, report.records) == (0, paused["remainingRecords"]), report.message


def test_the_connector_leaves_held_retention_alone_and_gives_it_back_when_the_hold_is_over(
    flow: Flow, unique_topic: Callable[[], str]
):
    """As after a job that has ended while the settings of its topics could not be altered."""
    topic = flow.source.create_topic(unique_topic(), config={"retention.ms": "86400000"})
    load(flow.source, topic, 10)
    copy = flow.remote(topic)
    quick = {"sync.topic.configs.interval.seconds": "1", "refresh.topics.interval.seconds": "1"}
    with flow.replicator(topic, quick) as replicator:
        replicator.wait_until_caught_up()
        _hold(flow, copy)
        flow.source.alter_topic(topic, {"max.message.bytes": "2000000", "retention.ms": "99999999"})
        wait_until(
            "other settings follow", lambda: flow.target.topic_config(copy)["max.message.bytes"] == "2000000"
        )
        held = flow.target.topic_config(copy)["retention.ms"]
        _hold(flow, copy, is_over=True)
        wait_until(
            "retention follows again", lambda: flow.target.topic_config(copy)["retention.ms"] == "99999999"
        )

    assert held == "-1"


def producers(flow: Flow, copy: str) -> int:
    """How many producers the leader of the copy's first partition remembers (KIP-664)."""
    first = TopicPartition(copy, 0)

    async def ask(cluster: Cluster) -> int:
        await cluster.refresh([copy])
        return len((await admin.describe_producers(cluster, [first]))[first].producers)

    return call_cluster(flow.target, ask)


def _hold(flow: Flow, copy: str, *, is_over: bool = False) -> None:
    """What a job does first, or last."""

    async def use(cluster: Cluster) -> None:
        log = HoldLog(cluster, flow.alias, replication_factor=1)
        retention = RetentionWriter(cluster, log, now_ms=now_ms)
        if is_over:
            await retention.give_up(["job"])
        else:
            await retention.hold("job", {copy: {"retention.ms": "86400000"}})

    call_cluster(flow.target, use)

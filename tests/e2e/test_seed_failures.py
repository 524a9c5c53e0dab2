"""A seed copies each record once even if its pods are killed, frozen or duplicated, or its Job is deleted."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.e2e.story import condition_of, copied_records
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, digest, load
from tests.harness.kubernetes.seeds import POLL_S, SEED_WAIT_S, SeedPods, frozen_java, job
from tests.harness.kubernetes.stage import Stage

# Two executors get one task each, of unequal length, so that one ends first. Both recent and old records are copied.
FRESH_PARTITIONS, OLD_PARTITIONS = 3, 2
PARTITIONS = FRESH_PARTITIONS + OLD_PARTITIONS
RECORDS, SIZE_BYTES = 60_000, 1_000  # number of records of each topic
TEN_DAYS_MS = 10 * 86_400_000  # brokers expire the producer id of a record before this age
RATE = 4_000_000  # bytes per second of all tasks, for half a minute of work, in which the failure happens
BEGUN_RECORDS = 5_000
EXECUTORS = {"resources": {"requests": {"cpu": "100m"}}}
# Spark gives an executor up after this time. MirrorFlow's default is a minute. Settings derived from it keep their
# defaults.
SHORT_TIMEOUTS = {
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.rpc.askTimeout": "60s",
}
# The first test also starts a node, two Kafka clusters and Spark, which takes minutes on a busy machine.
pytestmark = pytest.mark.timeout(900)


def _topics(stage: Stage, name: str) -> dict[str, str]:
    """Creates a topic with recent records and one with old records.

    Returns the isolation level for the comparison of each.
    """
    fresh, old = f"ledger-{name}-fresh", f"ledger-{name}-old"
    for topic, partitions, age_ms in ((fresh, FRESH_PARTITIONS, 0), (old, OLD_PARTITIONS, TEN_DAYS_MS)):
        stage.east.create_topic(topic, partitions=partitions, config=FOREVER)
        timestamp_ms = time.time_ns() // 1_000_000 - age_ms
        load(
            stage.east,
            topic,
            RECORDS,
            size_bytes=SIZE_BYTES,
            batch_bytes=65_536,
            headers=1,
            timestamp_ms=timestamp_ms,
        )
    # Old records are in transactions. read_uncommitted consumers would also receive a transaction that was aborted
    # after a failure.
    return {fresh: "read_uncommitted", old: "read_committed"}


def _wait_for_more(stage: Stage, topics: dict[str, str], alias: str, count: int = BEGUN_RECORDS) -> None:
    def copied() -> int:
        return sum(copied_records(stage, f"{alias}.{topic}") for topic in topics)

    expected = copied() + count
    wait_until(
        f"{expected} records are copied", lambda: copied() >= expected, timeout_s=SEED_WAIT_S, poll_s=0.2
    )


def _assert_same(stage: Stage, topics: dict[str, str], alias: str) -> None:
    for topic, isolation in topics.items():
        copied = digest(stage.west, f"{alias}.{topic}", isolation=isolation)
        assert copied == digest(stage.east, topic), topic


def _visible_records(stage: Stage, topic: str, isolation: str) -> int:
    return sum(count for count, _ in digest(stage.west, topic, isolation=isolation).values())


def test_a_seed_survives_the_loss_of_its_job_driver_and_executor_and_reports_the_losses(
    stage: Stage, seed_image: str, make_flow: Callable[..., str]
):
    """The Job is deleted, the driver of the next Job is killed with -9, and then the busy executors of the third driver
    are killed.
    """
    assert seed_image
    topics = _topics(stage, "killed")
    spec = {"runId": "1", "bytesPerSecond": str(RATE), "executors": {"max": 2, **EXECUTORS}}
    flow = make_flow("killed", ["ledger-killed-.*"], seed=spec)
    seed = SeedPods(stage=stage, flow=flow)

    first = seed.wait_for_driver()
    _wait_for_more(stage, topics, flow)
    stage.kubectl(
        "delete", "job", first["metadata"]["labels"]["batch.kubernetes.io/job-name"], "--wait=false"
    )
    second = seed.wait_for_driver(besides=[first])
    _wait_for_more(stage, topics, flow)
    stage.kill(second)
    third = seed.wait_for_driver(besides=[first, second])
    _wait_for_more(stage, topics, flow)
    for executor in seed.wait_for_work(third):
        stage.kill(executor)
    stage.wait_for(flow, "Seeded", timeout_s=SEED_WAIT_S)

    resource = stage.resource(flow)
    status, total = resource["status"]["seed"], PARTITIONS + 1  # including the partition of heartbeats
    assert status["phase"] == "Succeeded"
    assert status["partitions"] == {"total": total, "done": total, "lost": 0}
    assert (status["gapRecords"], status["guarantee"]) == (0, "exactly-once")
    for report in (status["message"], condition_of(resource, "Seeded")[2]):
        assert "It continued in another Job" in report
        assert "It took 2 drivers" in report
        assert "cut off; others finished their work" in report
    wait_until("no executor is left", lambda: not seed.executors(), timeout_s=SEED_WAIT_S, poll_s=POLL_S)
    wait_until(  # the connector copies the last records
        "all records are copied",
        lambda: all(_visible_records(stage, f"{flow}.{topic}", topics[topic]) >= RECORDS for topic in topics),
        timeout_s=SEED_WAIT_S,
        poll_s=POLL_S,
    )
    _assert_same(stage, topics, flow)


def test_two_jobs_and_a_frozen_executor_write_each_record_once(stage: Stage, seed_image: str):
    """A JVM is frozen until Spark gives it up, while its Python process continues.

    Other tasks copy the same partitions.
    """
    topics, flow = _topics(stage, "frozen"), "frozen"

    def seed(run_id: str, executors: int, **settings: str) -> AbstractContextManager[SeedPods]:
        spec = {"bytesPerSecond": str(RATE), "executors": {"max": executors, **EXECUTORS}}
        return job(
            stage,
            seed_image,
            flow,
            ["ledger-frozen-.*"],
            run_id=run_id,
            settings={"lag.max": "0"} | settings,
            **spec,
        )

    with seed("1", 2, **SHORT_TIMEOUTS) as first_seed:
        driver = first_seed.wait_for_driver()
        first_executors = first_seed.wait_for_work(driver, 2)
        first_uids = {pod["metadata"]["uid"] for pod in first_executors}
        _wait_for_more(stage, topics, flow)
        with seed("2", 1) as second_seed:
            with frozen_java(first_executors[0]):
                wait_until(
                    "Spark has replaced the frozen executor",
                    lambda: {pod["metadata"]["uid"] for pod in first_seed.executors(driver)} - first_uids,
                    timeout_s=SEED_WAIT_S,
                    poll_s=POLL_S,
                )
            reports = [first_seed.wait_for_report(), second_seed.wait_for_report()]

    for report in reports:
        assert (report["phase"], report["partitions"]["lost"]) == ("Succeeded", 0)
        assert report["partitions"]["done"] == report["partitions"]["total"] >= PARTITIONS
        assert (report["remainingRecords"], report["gapRecords"], report["guarantee"]) == (
            0,
            0,
            "exactly-once",
        )
    _assert_same(stage, topics, flow)

"""What befalls a seed in the cluster: pods killed, frozen and doubled, its Job deleted. Each record arrives once, fresh or ten days old."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.e2e.story import arrived, reason
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, digest, load
from tests.harness.kubernetes.seeds import POLL_S, SEED_WAIT_S, SeedPods, frozen_java, job
from tests.harness.kubernetes.stage import Stage

# A task for each of two executors, with fresh and old records, one half as long again as the other: so one ends first.
FRESH_PARTITIONS, OLD_PARTITIONS = 3, 2
PARTITIONS = FRESH_PARTITIONS + OLD_PARTITIONS
RECORDS, SIZE_BYTES = 60_000, 1_000  # of each topic
TEN_DAYS_MS = 10 * 86_400_000  # a broker does not remember for so long who wrote a record
RATE = 4_000_000  # bytes a second of all tasks together: half a minute of work, in the middle of which it happens
BEGUN = 5_000
EXECUTORS = {"resources": {"requests": {"cpu": "100m"}}}
# Spark gives an executor up after this; a minute is ours. Only that is to be short, not what else is derived from it.
IMPATIENT = {
    "spark.network.timeout": "10s",
    "spark.network.timeoutInterval": "1s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.rpc.askTimeout": "60s",
}
# A node, two Kafka clusters and the image of Spark start within the first; on a machine that does much else they take minutes.
pytestmark = pytest.mark.timeout(900)


def _topics(stage: Stage, name: str) -> dict[str, str]:
    """Records of now and of ten days ago: topics, and whom their copies are the same for."""
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
    # Old ones are in transactions: a transaction that could not be committed is aborted, and read_uncommitted consumers see its records, too.
    return {fresh: "read_uncommitted", old: "read_committed"}


def _wait_for_more(stage: Stage, topics: dict[str, str], alias: str, count: int = BEGUN) -> None:
    def copied() -> int:
        return sum(arrived(stage, f"{alias}.{topic}") for topic in topics)

    wanted = copied() + count
    wait_until(f"{wanted} records are copied", lambda: copied() >= wanted, timeout_s=SEED_WAIT_S, poll_s=0.2)


def _assert_same(stage: Stage, topics: dict[str, str], alias: str) -> None:
    for topic, isolation in topics.items():
        copied = digest(stage.west, f"{alias}.{topic}", isolation=isolation)
        assert copied == digest(stage.east, topic), topic


def _arrived_for(stage: Stage, topic: str, isolation: str) -> int:
    return sum(count for count, _ in digest(stage.west, topic, isolation=isolation).values())


def test_a_seed_survives_the_loss_of_its_job_driver_and_executor_and_reports_it(
    stage: Stage, seed_image: str, make_flow: Callable[..., str]
):
    """`kubectl delete job`, then the next one's driver by kill -9, then the executors at work of the driver after that."""
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

    found = stage.resource(flow)
    status, total = found["status"]["seed"], PARTITIONS + 1  # with the partition of heartbeats
    assert status["phase"] == "Succeeded"
    assert status["partitions"] == {"total": total, "done": total, "lost": 0}
    assert (status["gapRecords"], status["guarantee"]) == (0, "exactly-once")
    for told in (status["message"], reason(found, "Seeded")[2]):
        assert "It continued in another Job" in told
        assert "It took 2 drivers" in told
        assert "cut off; others finished their work" in told
    wait_until("no executor is left", lambda: not seed.executors(), timeout_s=SEED_WAIT_S, poll_s=POLL_S)
    wait_until(  # the last of them are the connector's
        "all have arrived",
        lambda: all(_arrived_for(stage, f"{flow}.{one}", topics[one]) >= RECORDS for one in topics),
        timeout_s=SEED_WAIT_S,
        poll_s=POLL_S,
    )
    _assert_same(stage, topics, flow)


def test_two_jobs_and_an_executor_that_was_frozen_write_each_record_once(stage: Stage, seed_image: str):
    """A JVM is frozen until Spark gives it up, while its Python process continues; other tasks copy the same; then it is thawed."""
    topics, flow = _topics(stage, "frozen"), "frozen"

    def seed(run_id: str, executors: int, **more: str) -> AbstractContextManager[SeedPods]:
        spec = {"bytesPerSecond": str(RATE), "executors": {"max": executors, **EXECUTORS}}
        return job(
            stage, seed_image, flow, ["ledger-frozen-.*"], run_id=run_id, more={"lag.max": "0"} | more, **spec
        )

    with seed("1", 2, **IMPATIENT) as one:
        driver = one.wait_for_driver()
        before = one.wait_for_work(driver, 2)
        known = {pod["metadata"]["uid"] for pod in before}
        _wait_for_more(stage, topics, flow)
        with seed("2", 1) as other:
            with frozen_java(before[0]):
                wait_until(
                    "Spark has given the frozen one up, and another is in its place",
                    lambda: {pod["metadata"]["uid"] for pod in one.executors(driver)} - known,
                    timeout_s=SEED_WAIT_S,
                    poll_s=POLL_S,
                )
            reports = [one.wait_for_report(), other.wait_for_report()]

    for report in reports:
        assert (report["phase"], report["partitions"]["lost"]) == ("Succeeded", 0)
        assert report["partitions"]["done"] == report["partitions"]["total"] >= PARTITIONS
        assert (report["remainingRecords"], report["gapRecords"], report["guarantee"]) == (
            0,
            0,
            "exactly-once",
        )
    _assert_same(stage, topics, flow)

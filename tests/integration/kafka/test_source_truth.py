"""Reports of lost source data are true.

Real losses are reported and handled by the policy, and nothing else raises an alarm.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Producer

from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow, call_cluster, contents
from tests.integration.kafka.test_changed_source import freeze, start, stop, thaw

pytestmark = pytest.mark.more

# The copy keeps records that the source deletes, so that both can be compared.
ALONE = {"sync.topic.configs.enabled": "false"}
BUSY_KEYS = 20
Names = Callable[[], str]


@pytest.fixture(scope="module")
def quick_cleanup() -> Iterator[KafkaCluster]:
    """A source that rolls, deletes and cleans at once. By default, brokers do so within five minutes."""
    config = {
        "log.retention.check.interval.ms": "300",
        "log.initial.task.delay.ms": "100",
        "log.cleaner.backoff.ms": "200",
    }
    with KafkaCluster(name="hasty", config=config) as cluster:
        yield cluster


@pytest.fixture
def flow(quick_cleanup: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(quick_cleanup, west, tmp_path, connector=ALONE)


def configure(cluster: KafkaCluster, topic: str, **settings: str) -> None:
    """Changes settings of *topic*. Underscores stand for dots."""
    changes = [
        admin.ConfigChange(name=name.replace("_", "."), value=value) for name, value in settings.items()
    ]

    async def change(connected: Cluster) -> None:
        errors = await admin.alter_topic_configs(connected, {topic: changes})
        assert not any(errors.values()), errors

    call_cluster(cluster, change)


def assert_no_alarm(replicator: Replicator, topic: str) -> None:
    """Asserts that the replicator copies and reports no loss in status, progress, metrics or log."""
    replicator.wait_until_caught_up()
    status, progress = replicator.partition(topic), replicator.progress()
    assert ("copying", "", "") == (status["phase"], status["reason"], status["message"])
    assert (0, 0, []) == (progress["lostRecords"], progress["losses"], progress["reasons"])
    assert "Lost" not in replicator.metrics()
    assert "were deleted" not in replicator.log_text()


@pytest.mark.faults
@pytest.mark.parametrize("when", ["while-stopped", "while-running", "unnoticed"])
def test_a_log_that_retention_emptied_after_it_was_copied_is_no_loss(
    flow: Flow, unique_topic: Names, when: str
) -> None:
    """Every segment is deleted, and the log then begins where the copy ended.

    This also holds for a process that never stopped.
    """
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    load(flow.source, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        if when != "unnoticed":
            (freeze if when == "while-running" else stop)(replicator, flow.source)
        before = contents(records(flow.source, topic))
        configure(flow.source, topic, retention_ms="1")
        wait_until(
            "retention has deleted all records",
            lambda: flow.source.start_offsets(topic) == flow.source.end_offsets(topic),
        )
        configure(flow.source, topic, retention_ms="-1")
        if when != "unnoticed":
            (thaw if when == "while-running" else start)(replicator)
        load(flow.source, topic, 300, first=1_000)
        assert_no_alarm(replicator, topic)
        flow.wait_until_committed(topic)

    new = contents(records(flow.source, topic))
    assert (1_000, 300) == (len(before), len(new))
    copied = records(flow.target, flow.remote(topic), isolation="read_committed")
    assert before + new == contents(copied)


@pytest.mark.parametrize("policy", ["fail", "alert"])
def test_retention_that_overtakes_a_slow_reader_is_reported_with_its_offsets(
    flow: Flow, unique_topic: Names, policy: str
) -> None:
    """The process never pauses, but the copy is slower than retention."""
    topic = flow.source.create_topic(
        unique_topic(), config={"segment.bytes": "1048576", "retention.bytes": "1048576"}
    )
    slow = {"mirrorflow.bytes.per.second": "64Ki", "mirrorflow.source.loss.policy": policy}
    load(flow.source, topic, 800, size_bytes=1_000)
    with flow.replicator(topic, slow) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 50)
        load(flow.source, topic, 8_000, first=800, size_bytes=1_000)
        if policy == "fail":
            status = replicator.wait_for_phase("stopped", topic)
            assert "SourceDataLost" == status["reason"]
            assert "source records were deleted before they were copied" in status["message"]
            assert 'reason="SourceDataLost"' in replicator.metrics()
            assert "SourceDataLost" == replicator.progress()["replicating"]
            copied = records(flow.target, flow.remote(topic))
        else:
            replicator.wait_until_caught_up(partitions=1)
            lost = replicator.progress()["lostRecords"]
            copied = records(flow.target, flow.remote(topic))
            assert len(copied) + lost == 8_800
    # Copied records are in order and not repeated, with or without a gap.

    assert len(set(contents(copied))) == len(copied)


@pytest.mark.parametrize("policy", ["fail", "alert"])
def test_a_loss_before_the_first_record_of_a_changed_isolation_level_is_reported(
    flow: Flow, unique_topic: Names, policy: str
) -> None:
    """Records are deleted while the isolation level is changed."""
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    load(flow.source, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
    load(flow.source, topic, 1_000, first=1_000)
    flow.source.delete_records(topic, {0: 1_500})
    changed = {
        "source.consumer.isolation.level": "read_committed",
        "mirrorflow.source.loss.policy": policy,
    }
    with flow.replicator(topic, changed) as replicator:
        if policy == "fail":
            status = replicator.wait_for_phase("stopped", topic)
            assert "SourceDataLost" == status["reason"]
        else:
            replicator.wait_until_caught_up()
            progress = replicator.progress()
            assert (500, 1) == (progress["lostRecords"], progress["losses"])


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_compaction_of_transactions_is_no_loss(flow: Flow, unique_topic: Names, isolation: str) -> None:
    """Aborted records, markers and segments are removed while the flow copies, is killed and continues. There is no
    alarm and no repeat.

    At the end, every key has the value that a reader of the source receives.
    """
    topic = flow.source.create_topic(
        unique_topic(),
        config={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "500",
            "delete.retention.ms": "0",
            "segment.ms": "500",
        },
    )
    flow.target.create_topic(flow.remote(topic))
    lines = {"source.consumer.isolation.level": isolation, "offset.flush.interval.ms": "3600000"}
    begun = flow.source.end_offsets(topic)[0]
    with transactions(flow.source, topic) as writer, flow.replicator(topic, lines) as replicator:
        for _ in range(3):
            replicator.wait_for_copy(
                flow.target, flow.remote(topic), flow.target.end_offsets(flow.remote(topic))[0] + 1_000
            )
            replicator.kill()
            wait_until(
                "the cleaner has removed records",
                lambda: len(records(flow.source, topic)) < (flow.source.end_offsets(topic)[0] - begun) // 2,
                poll_s=0.5,
            )
            replicator.start()
        writer.stop()
        replicator.wait_until_caught_up()
        assert_no_alarm(replicator, topic)
        flow.wait_until_committed(topic)

    copied = contents(records(flow.target, flow.remote(topic), isolation="read_committed"))
    assert len(set(copied)) == len(copied)
    assert latest_values(copied) == latest_values(contents(records(flow.source, topic, isolation=isolation)))


def latest_values(topic_contents: list[tuple[object, ...]]) -> dict[object, object]:
    """Returns the last value of each key."""
    return {key: value for _, key, value, _ in topic_contents}


class transactions(threading.Thread):  # noqa: N801  used as a context
    """Writes transactions of ten records with few keys until stopped. Every third transaction is aborted."""

    def __init__(self, cluster: KafkaCluster, topic: str) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.internal_bootstrap,
                "transactional.id": f"writer-{topic}",
                "linger.ms": 0,
                "log_level": 2,
            }
        )
        self._topic = topic
        self._ended = threading.Event()
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._producer.init_transactions(60)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops after a complete transaction."""
        self._ended.set()
        self.join(60)
        assert self.failure is None, self.failure

    def run(self) -> None:
        """Writes and commits or aborts transactions until stopped."""
        try:
            number = 0
            while not self._ended.is_set():
                self._producer.begin_transaction()
                for _ in range(10):
                    number += 1
                    key = b"key-%d" % (number % BUSY_KEYS)
                    self._producer.produce(self._topic, b"%08d" % number, key, partition=0)
                self._producer.flush(60)
                if number % 30:
                    self._producer.commit_transaction(60)
                else:
                    self._producer.abort_transaction(60)
                time.sleep(0.005)
        except BaseException as error:
            self.failure = error
            raise

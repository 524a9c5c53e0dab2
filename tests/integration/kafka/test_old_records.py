"""Old records are written in transactions, because leaders expire a producer by the age of its records.

In these tests, leaders expire producers within seconds. By default it takes a day, checked every ten minutes. Readers
of committed records must receive exactly the source's records from the target.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka.protocol.admin import ListTransactionsRequest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record as WireRecord
from mirrorflow_core.wire.records import encode
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import OLD_VERSION
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, digest, load
from tests.integration.kafka.flows import (
    DAY_MS,
    STAGE_RECORDS,
    Flow,
    call_cluster,
    large,
    now_ms,
    numbered,
    producers,
    wait_until_ready,
    write_batches,
)

pytestmark = pytest.mark.more

SLOW = {"mirrorflow.bytes.per.second": "1Mi"}  # so that a stage needs several commits
ROLLED = 40_000  # fifteen seconds at 256 KiB a second


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaCluster]:
    """A target that expires producers after four seconds, and checks every second."""
    config = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}
    with KafkaCluster(name="oblivious", config=config) as cluster:
        yield cluster


@pytest.fixture
def older() -> Iterator[KafkaCluster]:
    """A target like *forgetful* with Kafka 3.9, whose transactions precede KIP-890."""
    config = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}
    with KafkaCluster(name="older", version=OLD_VERSION, config=config) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def brisk() -> Iterator[KafkaCluster]:
    """A target that expires unused transactional ids and aborts late transactions within a second of their timeout."""
    config = {
        "connections.max.idle.ms": "30000",
        "producer.id.expiration.check.interval.ms": "1000",
        "transactional.id.expiration.ms": "10000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    }
    with KafkaCluster(name="brisk", config=config) as cluster:
        yield cluster


@pytest.fixture
def flow(east: KafkaCluster, forgetful: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, forgetful, tmp_path)


def test_old_records_are_copied_once_during_many_expiration_checks(
    flow: Flow, unique_topic: Callable[[], str]
):
    """The timestamps are forty days old, 0 or absent. The flow is killed twice."""
    stem = unique_topic()
    ages = {f"{stem}-days": now_ms() - 40 * DAY_MS, f"{stem}-zero": 0, f"{stem}-none": -1}
    for topic in ages:
        flow.source.create_topic(topic, config=FOREVER)
    with flow.replicator(f"{stem}-.*", SLOW) as replicator:
        for stage in range(3):
            for topic, timestamp in ages.items():
                write_batches(flow.source, topic, large(stage, timestamp=timestamp))
            for topic in ages:
                replicator.wait_for_copy(flow.target, flow.remote(topic), (stage + 1) * STAGE_RECORDS - 500)
            guarantees = {replicator.partition(topic)["guarantee"] for topic in ages}
            if stage == 0:
                replicator.kill_task()
            if stage == 1:
                replicator.kill()
                replicator.start()
        replicator.wait_until_caught_up()
        for topic in ages:
            flow.assert_committed(topic)

    assert {"exactly-once"} == guarantees


def test_old_records_are_copied_once_to_kafka_3_9(
    east: KafkaCluster, older: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Meanwhile, the leader checks several times for expired producers, and the flow is killed with kill -9 inside a
    transaction.
    """
    flow, topic = Flow.new(east, older, tmp_path), unique_topic()
    east.create_topic(topic, config=FOREVER)
    with flow.replicator(topic, SLOW) as replicator:
        for stage in range(2):
            write_batches(east, topic, large(stage, timestamp=now_ms() - 40 * DAY_MS))
            replicator.wait_for_copy(older, flow.remote(topic), (stage + 1) * STAGE_RECORDS - 500)
            if stage == 0:
                replicator.kill()
                replicator.start()
        replicator.wait_until_caught_up()
        flow.assert_committed(topic)
        guarantee = replicator.partition(topic)["guarantee"]

    assert guarantee == "exactly-once"


def test_uncommitted_records_are_copied_again(flow: Flow, unique_topic: Callable[[], str]):
    """The coordinator aborts the transaction and increases the epoch, as after a transaction timeout."""
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    write_batches(flow.source, topic, large(0, timestamp=now_ms() - 40 * DAY_MS))
    with flow.replicator(topic, SLOW) as replicator:
        for count in (1_000, 2_500):
            replicator.wait_for_copy(flow.target, flow.remote(topic), count)
            call_cluster(flow.target, lambda cluster: raise_epoch(cluster, flow))
        replicator.wait_for_copy(flow.target, flow.remote(topic), STAGE_RECORDS)
        write_batches(flow.source, topic, [numbered(0, 10, timestamp=now_ms())])
        replicator.wait_until_caught_up()
        flow.assert_committed(topic)


def test_a_rollout_while_old_records_are_copied_repeats_nothing(flow: Flow, unique_topic: Callable[[], str]):
    """As with `maxSurge: 1`, the new process waits until the old one has stopped while it copies a backlog."""
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    load(flow.source, topic, ROLLED, size_bytes=100, timestamp_ms=now_ms() - 40 * DAY_MS, timestamp_step_ms=1)
    slow = {"mirrorflow.bytes.per.second": "256Ki"}
    with flow.replicator(topic, slow) as old:
        old.wait_for_copy(flow.target, flow.remote(topic), ROLLED // 20)
        with flow.replicator(topic, {"consumer.isolation.level": "read_committed"}) as new:
            wait_until_ready(new)
            assert old.stop() == 0
            new.wait_until_caught_up()
            flow.assert_committed(topic)

    flow.assert_exact(topic)


@pytest.mark.faults
def test_records_of_a_timed_out_transaction_are_copied_again(
    east: KafkaCluster, brisk: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The process is frozen inside a transaction for longer than `transaction.timeout.ms`.

    Then readers may continue, and no record is lost.
    """
    flow = Flow.new(east, brisk, tmp_path, connector={"producer.override.transaction.timeout.ms": "5000"})
    topic = east.create_topic(unique_topic(), config=FOREVER)
    write_batches(east, topic, large(0, timestamp=now_ms() - 40 * DAY_MS))

    def is_open() -> bool:
        committed = brisk.end_offsets(flow.remote(topic), isolation="read_committed")
        return committed != brisk.end_offsets(flow.remote(topic))

    with flow.replicator(topic, SLOW) as replicator:
        replicator.wait_for_copy(brisk, flow.remote(topic), 1_000)

        def is_frozen_inside() -> bool:
            replicator.freeze()
            if not is_open():
                replicator.thaw()
            return is_open()

        wait_until("the process is frozen inside a transaction", is_frozen_inside)
        wait_until("the coordinator has aborted the transaction", lambda: not is_open())
        replicator.thaw()
        wait_until(
            "readers of committed records get all records",
            lambda: digest(brisk, flow.remote(topic), isolation="read_committed") == digest(east, topic),
            poll_s=1.0,
        )


@pytest.mark.faults
def test_a_process_continues_after_its_transactional_ids_have_expired(
    east: KafkaCluster, brisk: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The process was frozen for longer than the coordinator keeps unused ids."""
    flow, topic = Flow.new(east, brisk, tmp_path), unique_topic()
    east.create_topic(topic, config=FOREVER)
    write_batches(east, topic, [numbered(0, 10, timestamp=now_ms())])
    prefix = TransactionalIds(flow.alias).prefix
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.freeze()
        wait_until(
            "the transactional ids have expired",
            lambda: (
                not any(
                    transactional_id.startswith(prefix)
                    for transactional_id in call_cluster(brisk, transactions)
                )
            ),
        )
        write_batches(east, topic, large(1, timestamp=now_ms() - 40 * DAY_MS))
        replicator.thaw()
        replicator.wait_until_caught_up()
        guarantee = replicator.partition(topic)["guarantee"]
        flow.assert_committed(topic)

    assert guarantee == "exactly-once"


def test_the_open_transaction_of_a_killed_process_is_ended(flow: Flow, unique_topic: Callable[[], str]):
    """The next process has no more records to copy, but the copied records must become readable."""
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    write_batches(flow.source, topic, large(0, timestamp=now_ms() - 40 * DAY_MS))
    with flow.replicator(topic) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), STAGE_RECORDS)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up()
        flow.assert_committed(topic)


def test_alternating_old_and_new_records_are_copied_once(flow: Flow, unique_topic: Callable[[], str]):
    """Transactional and plain batches alternate. The oldest record of a batch decides."""
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    now = now_ms()
    mixed = [WireRecord(0, now - 40 * DAY_MS * (i % 2), None, b"%0200d" % i) for i in range(50)]
    for stage in range(4):
        old = [numbered(stage * 4_000 + number * 10, 10, timestamp=now - 10 * DAY_MS) for number in range(20)]
        new = [numbered(stage * 4_000 + 200 + number * 10, 10, timestamp=now) for number in range(200)]
        write_batches(flow.source, topic, [*old, mixed, *new])
    with flow.replicator(topic, {"mirrorflow.bytes.per.second": "64Ki"}) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up()
        flow.assert_committed(topic)


def wait_until_forgotten(flow: Flow, old_ms: int) -> None:
    """Waits until the leader has expired the producer of an old record that is written now.

    By then it would have expired the flow's producer, too.
    """

    async def write(cluster: Cluster) -> int:
        await cluster.refresh([flow.remote("witness")])
        producer_id, epoch = await admin.init_producer_id(cluster, None, timeout_ms=60_000)
        data = encode(
            numbered(0, 1, timestamp=old_ms),
            codec=0,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
        )
        error_codes = await admin.produce(
            cluster, {TopicPartition(flow.remote("witness"), 0): data}, timeout_ms=30_000
        )
        assert not any(error_codes.values()), error_codes
        return producer_id

    flow.target.create_topic(flow.remote("witness"), config=FOREVER)
    probe_id = call_cluster(flow.target, write)
    wait_until(
        "the producer of an old record has expired",
        lambda: probe_id not in producers(flow.target, flow.remote("witness")),
    )


async def raise_epoch(cluster: Cluster, flow: Flow) -> None:
    await admin.init_producer_id(
        cluster, TransactionalIds(flow.alias).task(0).transactional, timeout_ms=60_000
    )


async def transactions(cluster: Cluster) -> set[str]:
    """Returns the transactional ids of a cluster with one broker."""
    response = await cluster.call(
        ListTransactionsRequest(state_filters=[], producer_id_filters=[], max_version=0), timeout_s=30
    )
    return {transaction.transactional_id for transaction in response.transaction_states}

"""Old records on targets whose leaders forget a producer by the age of its records: they are written in transactions.

Such a leader drops what it remembers of a producer within seconds here, where a broker as it comes takes a day and looks every
ten minutes. What a reader of committed records sees on the target must be the source, record by record.
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

SLOW = {"mirrorflow.bytes.per.second": "1Mi"}  # so that a stage lasts over several commits
ROLLED = 40_000  # at 256 KiB a second they last for some fifteen seconds


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaCluster]:
    """Forgets within four seconds, and looks every second."""
    config = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}
    with KafkaCluster(name="oblivious", config=config) as cluster:
        yield cluster


@pytest.fixture
def older() -> Iterator[KafkaCluster]:
    """As forgetful, of Kafka 3.9: its transactions are those before KIP-890."""
    config = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}
    with KafkaCluster(name="older", version=OLD_VERSION, config=config) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def brisk() -> Iterator[KafkaCluster]:
    """Its coordinator forgets a transactional id that is not used, and aborts what is late, within a second of the time."""
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


def test_old_records_are_copied_once_over_many_checks(flow: Flow, unique_topic: Callable[[], str]):
    """Forty days old, timestamp 0 and none at all; killed twice in between."""
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
            said = {replicator.partition(topic)["guarantee"] for topic in ages}
            if stage == 0:
                replicator.kill_task()
            if stage == 1:
                replicator.kill()
                replicator.start()
        replicator.wait_until_caught_up()
        for topic in ages:
            flow.assert_committed(topic)

    assert {"exactly-once"} == said


def test_old_records_are_copied_once_to_kafka_3_9(
    east: KafkaCluster, older: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Over several checks of its leader, and a kill -9 inside a transaction."""
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
        said = replicator.partition(topic)["guarantee"]

    assert said == "exactly-once"


def test_what_was_not_committed_is_copied_again(flow: Flow, unique_topic: Callable[[], str]):
    """The coordinator aborts and raises the epoch, as it does when nothing is committed in time."""
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


def test_settings_rolled_while_old_records_are_copied_repeat_nothing(
    flow: Flow, unique_topic: Callable[[], str]
):
    """A rollout with `maxSurge: 1`: the new process waits until the old one is stopped, in the middle of a backlog."""
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
def test_what_the_coordinator_aborts_by_itself_is_copied_again(
    east: KafkaCluster, brisk: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """Frozen inside a transaction for longer than `transaction.timeout.ms`: its readers are let go on, and nothing is lost."""
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

        wait_until("it is frozen inside a transaction", is_frozen_inside)
        wait_until("the coordinator has aborted it", lambda: not is_open())
        replicator.thaw()
        wait_until(
            "all is there to be read",
            lambda: digest(brisk, flow.remote(topic), isolation="read_committed") == digest(east, topic),
            poll_s=1.0,
        )


@pytest.mark.faults
def test_a_process_whose_transactional_ids_were_forgotten_continues(
    east: KafkaCluster, brisk: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """It was frozen for so long that it could not keep them."""
    flow, topic = Flow.new(east, brisk, tmp_path), unique_topic()
    east.create_topic(topic, config=FOREVER)
    write_batches(east, topic, [numbered(0, 10, timestamp=now_ms())])
    prefix = TransactionalIds(flow.alias).prefix
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.freeze()
        wait_until(
            "the ids are forgotten",
            lambda: not any(one.startswith(prefix) for one in call_cluster(brisk, transactions)),
        )
        write_batches(east, topic, large(1, timestamp=now_ms() - 40 * DAY_MS))
        replicator.thaw()
        replicator.wait_until_caught_up()
        said = replicator.partition(topic)["guarantee"]
        flow.assert_committed(topic)

    assert said == "exactly-once"


def test_a_transaction_that_a_dead_process_left_open_is_ended(flow: Flow, unique_topic: Callable[[], str]):
    """Its successor has nothing more to copy, and what was copied is to be read all the same."""
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    write_batches(flow.source, topic, large(0, timestamp=now_ms() - 40 * DAY_MS))
    with flow.replicator(topic) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), STAGE_RECORDS)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up()
        flow.assert_committed(topic)


def test_old_and_new_records_in_turn_are_copied_once(flow: Flow, unique_topic: Callable[[], str]):
    """In transactions and outside of them in turn; the oldest record of a batch decides."""
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    now = now_ms()
    mixed = [WireRecord(0, now - 40 * DAY_MS * (i % 2), None, b"%0200d" % i) for i in range(50)]
    for turn in range(4):
        old = [numbered(turn * 4_000 + at * 10, 10, timestamp=now - 10 * DAY_MS) for at in range(20)]
        new = [numbered(turn * 4_000 + 200 + at * 10, 10, timestamp=now) for at in range(200)]
        write_batches(flow.source, topic, [*old, mixed, *new])
    with flow.replicator(topic, {"mirrorflow.bytes.per.second": "64Ki"}) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up()
        flow.assert_committed(topic)


def wait_until_forgotten(flow: Flow, old_ms: int) -> None:
    """Until the leader has dropped a producer that wrote an old record just now: then it would have dropped the flow's, too."""

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
        answers = await admin.produce(
            cluster, {TopicPartition(flow.remote("witness"), 0): data}, timeout_ms=30_000
        )
        assert not any(answers.values()), answers
        return producer_id

    flow.target.create_topic(flow.remote("witness"), config=FOREVER)
    witness = call_cluster(flow.target, write)
    wait_until(
        "an old record's producer is forgotten",
        lambda: witness not in producers(flow.target, flow.remote("witness")),
    )


async def raise_epoch(cluster: Cluster, flow: Flow) -> None:
    await admin.init_producer_id(
        cluster, TransactionalIds(flow.alias).task(0).transactional, timeout_ms=60_000
    )


async def transactions(cluster: Cluster) -> set[str]:
    """The transactional ids that the cluster of one broker remembers."""
    answer = await cluster.call(
        ListTransactionsRequest(state_filters=[], producer_id_filters=[], max_version=0), timeout_s=30
    )
    return {one.transactional_id for one in answer.transaction_states}

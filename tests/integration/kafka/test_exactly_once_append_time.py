"""Targets that replace timestamps (`message.timestamp.type=LogAppendTime`): a record is not known by its time."""

from collections.abc import Callable

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import FOREVER, load, records
from tests.integration.kafka.flows import DAY_MS, Flow, call_cluster, now_ms, numbered, write_batches

pytestmark = pytest.mark.more

NEVER = {"offset.flush.interval.ms": "3600000"}
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
CREATE_TIME = {"message.timestamp.type": "CreateTime"}
Content = tuple[object, ...]


def without_times(cluster: KafkaCluster, topic: str, *, isolation: str = "read_uncommitted") -> list[Content]:
    return [(one.key, one.value, one.headers) for one in records(cluster, topic, isolation=isolation)]


def in_transactions(cluster: KafkaCluster, topic: str, *, first: int) -> list[Content]:
    """Write 1,000 records in transactions of ten, each third aborted: what a reader of uncommitted records sees of them."""
    load(
        cluster,
        topic,
        1_000,
        first=first,
        keys=True,
        transactional_id=f"gaps-{topic}",
        transaction_records=10,
        abort_every=3,
    )
    return without_times(cluster, topic)[-1_000:]


def test_a_copy_with_times_of_its_own_is_resumed_without_a_repeat(
    flow: Flow, unique_topic: Callable[[], str]
):
    """kill -9. One source is compacted, of one retention took the beginning; markers of transactions take offsets."""
    stem = unique_topic()
    compacted = flow.source.create_topic(f"{stem}-compacted", config={"cleanup.policy": "compact"})
    shortened = flow.source.create_topic(f"{stem}-shortened")
    sent = {topic: in_transactions(flow.source, topic, first=0) for topic in (compacted, shortened)}
    for topic in sent:
        flow.target.create_topic(flow.remote(topic), config=APPEND_TIME)
    with flow.replicator(f"{stem}-.*", NEVER) as replicator:
        replicator.wait_until_caught_up(partitions=2)
        replicator.kill()
        flow.source.delete_records(shortened, {0: 500})
        for topic in sent:
            sent[topic] += in_transactions(flow.source, topic, first=1_000)
        replicator.start()
        replicator.wait_until_caught_up(partitions=2)
        flow.wait_until_committed(*sent)

    found = {
        topic: without_times(flow.target, flow.remote(topic), isolation="read_committed") for topic in sent
    }
    assert {topic: len(one) for topic, one in sent.items()} == {
        topic: len(one) for topic, one in found.items()
    }
    assert sent == found


def plain_batches(cluster: KafkaCluster, topic: str) -> int:
    """The number of data batches in partition 0 that are not in a transaction."""

    async def count(connected: Cluster) -> int:
        await connected.refresh([topic])
        found = batches_between(connected, TopicPartition(topic, 0), 0, cluster.end_offsets(topic)[0])
        return len([one async for one, _ in found if not one.is_control and not one.is_transactional])

    return call_cluster(cluster, count)


def test_old_records_are_in_transactions_whether_or_not_the_target_sets_timestamps(
    flow: Flow, unique_topic: Callable[[], str]
):
    """The setting changes while the flow copies. A leader of a topic with CreateTime expires a producer by its records."""
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    remote = flow.target.create_topic(flow.remote(topic), config=APPEND_TIME)
    with flow.replicator(topic) as replicator:
        write_batches(flow.source, topic, [numbered(0, 10, timestamp=now_ms())])
        replicator.wait_until_caught_up()
        young = plain_batches(flow.target, remote)
        for stage, settings in enumerate((APPEND_TIME, CREATE_TIME), start=1):
            flow.target.alter_topic(remote, settings)
            write_batches(
                flow.source,
                topic,
                [numbered(10 * stage, 10, timestamp=now_ms() - 2 * DAY_MS) for _ in range(5)],
            )
            replicator.wait_until_caught_up()

    assert young
    assert plain_batches(flow.target, remote) == young
    assert without_times(flow.target, remote, isolation="read_committed") == without_times(flow.source, topic)

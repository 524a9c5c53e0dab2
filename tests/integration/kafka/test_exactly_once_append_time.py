"""Targets with `message.timestamp.type=LogAppendTime` replace timestamps, so that records cannot be matched by
timestamp.
"""

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
    return [
        (record.key, record.value, record.headers) for record in records(cluster, topic, isolation=isolation)
    ]


def load_in_transactions(cluster: KafkaCluster, topic: str, *, first: int) -> list[Content]:
    """Writes 1,000 records in transactions of ten, of which a third is aborted.

    Returns them as a read_uncommitted reader receives them.
    """
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


def test_a_copy_with_append_times_is_resumed_without_repeats(flow: Flow, unique_topic: Callable[[], str]):
    """The flow is killed with kill -9.

    One source is compacted, and the other has lost its first records to retention. Transaction markers take offsets.
    """
    stem = unique_topic()
    compacted = flow.source.create_topic(f"{stem}-compacted", config={"cleanup.policy": "compact"})
    shortened = flow.source.create_topic(f"{stem}-shortened")
    sent = {topic: load_in_transactions(flow.source, topic, first=0) for topic in (compacted, shortened)}
    for topic in sent:
        flow.target.create_topic(flow.remote(topic), config=APPEND_TIME)
    with flow.replicator(f"{stem}-.*", NEVER) as replicator:
        replicator.wait_until_caught_up(partitions=2)
        replicator.kill()
        flow.source.delete_records(shortened, {0: 500})
        for topic in sent:
            sent[topic] += load_in_transactions(flow.source, topic, first=1_000)
        replicator.start()
        replicator.wait_until_caught_up(partitions=2)
        flow.wait_until_committed(*sent)

    copied = {
        topic: without_times(flow.target, flow.remote(topic), isolation="read_committed") for topic in sent
    }
    assert {topic: len(topic_contents) for topic, topic_contents in sent.items()} == {
        topic: len(topic_contents) for topic, topic_contents in copied.items()
    }
    assert sent == copied


def plain_batch_count(cluster: KafkaCluster, topic: str) -> int:
    """Returns the number of data batches in partition 0 that are not transactional."""

    async def count(connected: Cluster) -> int:
        await connected.refresh([topic])
        batches = batches_between(connected, TopicPartition(topic, 0), 0, cluster.end_offsets(topic)[0])
        return len(
            [batch async for batch, _ in batches if not batch.is_control and not batch.is_transactional]
        )

    return call_cluster(cluster, count)


def test_old_records_are_copied_in_transactions_for_any_timestamp_type(
    flow: Flow, unique_topic: Callable[[], str]
):
    """The setting changes while the flow copies.

    For a CreateTime topic, a leader expires producers by record timestamps.
    """
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    remote = flow.target.create_topic(flow.remote(topic), config=APPEND_TIME)
    with flow.replicator(topic) as replicator:
        write_batches(flow.source, topic, [numbered(0, 10, timestamp=now_ms())])
        replicator.wait_until_caught_up()
        young_batches = plain_batch_count(flow.target, remote)
        for stage, settings in enumerate((APPEND_TIME, CREATE_TIME), start=1):
            flow.target.alter_topic(remote, settings)
            write_batches(
                flow.source,
                topic,
                [numbered(10 * stage, 10, timestamp=now_ms() - 2 * DAY_MS) for _ in range(5)],
            )
            replicator.wait_until_caught_up()

    assert young_batches
    assert plain_batch_count(flow.target, remote) == young_batches
    assert without_times(flow.target, remote, isolation="read_committed") == without_times(flow.source, topic)

"""Targets that replace timestamps (`message.timestamp.type=LogAppendTime`): a record is not known by its time."""

from collections.abc import Callable

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import Flow

pytestmark = pytest.mark.more

NEVER = {"offset.flush.interval.ms": "3600000"}
APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
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

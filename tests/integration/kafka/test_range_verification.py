"""The newest records of a source and its copy are compared on real logs, with markers and aborted records between them."""

from collections.abc import Callable, Mapping

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover.range_verification import (
    Comparison,
    compare_newest,
    read_source_tails,
)
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow, now_ms, numbered, write_batches
from tests.integration.kafka.switching import call_clusters, settings_of

RECORDS = 100
PARTITIONS = 2
COMMITTED = {"source.consumer.isolation.level": "read_committed"}


@pytest.fixture
def topic(east: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    return east.create_topic(unique_topic(), partitions=PARTITIONS)


def compare(flow: Flow, process: Replicator, topic: str) -> Mapping[TopicPartition, Comparison]:
    settings = settings_of(process)
    ends = {TopicPartition(topic, number): end for number, end in flow.source.end_offsets(topic).items()}

    async def read_and_compare(source: Cluster, target: Cluster) -> Mapping[TopicPartition, Comparison]:
        sent = await read_source_tails(settings, source, target, ends, key="seal", records=RECORDS)
        sealed = sent.digests().partitions
        assert {digest.records for digest in sealed.values()} == {RECORDS}
        return await compare_newest(settings, target, sent, sealed=sealed, records=RECORDS)

    return call_clusters(flow.source, flow.target, read_and_compare)


def test_a_verification_reports_a_record_that_only_the_copy_has(flow: Flow, topic: str):
    """Aborted records and the flow's own markers are no differences, and the copies have the digests of the seal."""
    load(
        flow.source,
        topic,
        3_000,
        transactional_id=f"application-{flow.alias}",
        abort_every=3,
        transaction_records=50,
    )
    with flow.replicator(topic, COMMITTED) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 1)
        flow.assert_committed(topic, isolation="read_committed")
        equal = compare(flow, replicator, topic)
        foreign = numbered(0, 1, timestamp=now_ms())
        write_batches(flow.target, flow.remote(topic), [foreign], partition=1)
        different = compare(flow, replicator, topic)

    first, second = (TopicPartition(topic, number) for number in range(PARTITIONS))
    assert equal == dict.fromkeys((first, second), Comparison(records=RECORDS, has_sealed_digest=True))
    assert different[first] == equal[first]
    assert not different[second].has_sealed_digest
    assert different[second].difference.startswith(f"{second}: the record at offset ")

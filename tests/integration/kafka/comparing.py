"""Compares whole topics as consumers see them, and produces records with unusual contents."""

from collections.abc import Iterable, Mapping

from confluent_kafka import Producer

from tests.harness.kafka import tools
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import Record

Content = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def contents(topic_records: Iterable[Record]) -> list[Content]:
    """Returns partition, timestamp, key, value and headers of each record, which is everything but the offset and the
    timestamp type.
    """
    return [
        (record.partition, record.timestamp, record.key, record.value, record.headers)
        for record in topic_records
    ]


def assert_copied(
    source: KafkaCluster,
    topic: str,
    target: KafkaCluster,
    copy: str,
    *,
    count: int | None = None,
    isolation: str = "read_uncommitted",
) -> None:
    """Asserts that the copy has the records of *topic* in order and no others; if *count* is given, also their number.

    *isolation* is the isolation level with which the source is read.
    """
    expected = tools.digest(source, topic, isolation=isolation)
    actual = tools.digest(target, copy)
    if expected != actual:
        left = contents(tools.records(source, topic, isolation=isolation, payload="sha256"))
        right = contents(tools.records(target, copy, payload="sha256"))
        assert left == right
    assert expected == actual
    if count is not None:
        assert sum(records for records, _ in expected.values()) == count


def produce(
    cluster: KafkaCluster,
    topic: str,
    records: Iterable[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]],
    properties: Mapping[str, str] | None = None,
) -> None:
    """Writes (partition, timestamp in ms, key, value, headers) with librdkafka, and returns when all are acknowledged."""
    producer = Producer(
        {"bootstrap.servers": cluster.internal_bootstrap, "log_level": 2, **dict(properties or {})}
    )
    failures = []
    for partition, timestamp, key, value, headers in records:
        producer.produce(
            topic,
            value,
            key,
            partition=partition,
            timestamp=timestamp,
            headers=headers,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failures == []

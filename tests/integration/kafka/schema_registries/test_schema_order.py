"""Records wait for their schemas. A consumer of the copy never reads an id that the target's registry lacks."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator
from tests.harness.schema_registry.registry_process import SchemaRegistry
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.schemas import properties_of, record, schema_process

SCHEMAS = 10
RECORDS_PER_SCHEMA = 5
CONSUME_S = 1.0
FLUSH_S = 60.0
SHORT_WAIT_MS = "500"


@pytest.fixture
def topic(east: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    return east.create_topic(unique_topic())


def waiting(
    flow: Flow, topics: str, source: SchemaRegistry, target: SchemaRegistry, **more: str
) -> Replicator:
    """Returns a process of *flow* that lets records of *topics* wait for their schemas."""
    registries = {
        key: value for key, value in properties_of(source, target).items() if ".schema.registry." in key
    }
    wait = {f"mirrorflow.schemas.wait.{key}": value for key, value in ({"topics": topics} | more).items()}
    return flow.replicator(topics, registries | wait)


def produce(cluster: KafkaCluster, topic: str, registry: SchemaRegistry, number: int) -> None:
    """Registers schema *number* of the topic, and immediately writes records with it."""
    fields = [f"field{index}" for index in range(number + 1)]
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    with SchemaRegistryClient({"url": registry.url}) as client:
        serialize = AvroSerializer(client, record("Order", *fields))
        context = SerializationContext(topic, MessageField.VALUE)
        for _ in range(RECORDS_PER_SCHEMA):
            producer.produce(topic, serialize(dict.fromkeys(fields, "x"), context))
    assert producer.flush(FLUSH_S) == 0


def test_a_consumer_of_the_copy_never_reads_an_unknown_schema(
    east: KafkaCluster,
    west: KafkaCluster,
    flow: Flow,
    topic: str,
    source: SchemaRegistry,
    target: SchemaRegistry,
    tmp_path: Path,
) -> None:
    """Each record is decoded with the copied registry as soon as it can be read, and no attempt is repeated."""
    read: list[int] = []
    consumer = Consumer(
        {"bootstrap.servers": west.bootstrap, "group.id": topic, "isolation.level": "read_committed"}
    )
    produce(east, topic, source, 0)
    with (
        waiting(flow, topic, source, target) as replicator,
        schema_process(west, properties_of(source, target), tmp_path),
        SchemaRegistryClient({"url": target.url}) as client,
    ):
        replicator.wait_until_caught_up()
        consumer.assign([TopicPartition(flow.remote(topic), 0, 0)])
        decode = AvroDeserializer(client)

        def take(number: int) -> bool:
            # Consumes one record at a time. A call for several would return after their schemas have had time to
            # arrive.
            while (message := consumer.poll(CONSUME_S)) is not None:
                decoded = decode(message.value(), SerializationContext(topic, MessageField.VALUE))
                read.append(len(decoded))
            return len(read) == (number + 1) * RECORDS_PER_SCHEMA

        for number in range(SCHEMAS):
            if number:
                produce(east, topic, source, number)
            wait_until("the records are decoded", partial(take, number))
    consumer.close()

    assert read == [number + 1 for number in range(SCHEMAS) for _ in range(RECORDS_PER_SCHEMA)]
    flow.assert_exact(topic)


def test_only_partitions_whose_schemas_are_missing_wait(
    east: KafkaCluster,
    west: KafkaCluster,
    flow: Flow,
    unique_topic: Callable[[], str],
    source: SchemaRegistry,
    target: SchemaRegistry,
    tmp_path: Path,
) -> None:
    name = unique_topic()
    first, second = east.create_topic(f"{name}-first"), east.create_topic(f"{name}-second")
    produce(east, first, source, 0)
    with schema_process(west, properties_of(source, target), tmp_path):
        wait_until("the first schema has arrived", lambda: source.export() == target.export())
    with waiting(flow, f"{name}.*", source, target) as replicator:
        wait_until("the first topic is copied", lambda: flow.copied(first) == RECORDS_PER_SCHEMA)
        produce(east, second, source, 1)
        wait_until("records wait", lambda: "lacks the schemas of ids 2" in str(replicator.progress()))
        produce(east, first, source, 0)
        wait_until("the other topic is copied", lambda: flow.copied(first) == 2 * RECORDS_PER_SCHEMA)
        assert flow.copied(second) == 0

        with schema_process(west, properties_of(source, target), tmp_path):
            wait_until("all is copied", lambda: flow.copied(second) == RECORDS_PER_SCHEMA)
        flow.assert_exact(first)
        flow.assert_exact(second)


def test_an_unavailable_registry_stops_no_record(
    east: KafkaCluster, flow: Flow, topic: str, source: SchemaRegistry, target: SchemaRegistry
) -> None:
    """Records wait only for the limit. The error is counted."""
    produce(east, topic, source, 0)
    target.kill()
    with waiting(flow, topic, source, target, **{"max.ms": SHORT_WAIT_MS}) as replicator:
        wait_until("the records are copied", lambda: flow.copied(topic) == RECORDS_PER_SCHEMA)
        wait_until("the error is counted", lambda: 'reason="SchemaMissing"' in replicator.metrics())
        assert "Records do not wait for their schemas" in str(replicator.progress())

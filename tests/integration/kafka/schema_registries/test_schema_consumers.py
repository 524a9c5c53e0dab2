"""Consumers decode the copies with the target's registry.

They use Confluent's deserializers, with copied schemas and with a copied topic `_schemas`.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.struct_pb2 import Value

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator
from tests.harness.schema_registry.registry_process import SchemaRegistry
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.schemas import properties_of, record, registry_of, schema_process

WAIT_S = 60.0
JSON_SCHEMA = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "string"}}})
ORDERS = [{"id": str(number)} for number in range(20)]


@pytest.fixture
def topic(east: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    return east.create_topic(unique_topic())


def produce(cluster: KafkaCluster, topic: str, registry: SchemaRegistry) -> None:
    """Writes the orders as Avro, as JSON Schema and as Protobuf.

    Other ids are assigned before, so that the ids differ.
    """
    registry.register("unrelated", '"int"')
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    with SchemaRegistryClient({"url": registry.url}) as client:
        serializers: list[tuple[str, Callable[..., bytes], Callable[[dict[str, str]], Any]]] = [
            ("avro", AvroSerializer(client, record("Order", "id")), dict),
            ("json", JSONSerializer(JSON_SCHEMA, client), dict),
            (
                "protobuf",
                ProtobufSerializer(Value, client, {"use.deprecated.format": False}),
                lambda order: Value(string_value=order["id"]),
            ),
        ]
        for name, serialize, made in serializers:
            for order in ORDERS:
                # Each format has its own subject, because all are in one topic.
                context = SerializationContext(f"{topic}-{name}", MessageField.VALUE)
                producer.produce(topic, serialize(made(order), context), key=name.encode())
    assert producer.flush(WAIT_S) == 0


def consumed(cluster: KafkaCluster, topic: str, registry: SchemaRegistry) -> Mapping[str, list[Any]]:
    """Returns the orders in *topic*, decoded with *registry* alone."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: dict[str, list[Any]] = {"avro": [], "json": [], "protobuf": []}
    with SchemaRegistryClient({"url": registry.url}) as client:
        deserializers: dict[str, Callable[..., Any]] = {
            "avro": AvroDeserializer(client),
            "json": JSONDeserializer(None, schema_registry_client=client),
            "protobuf": ProtobufDeserializer(Value, {"use.deprecated.format": False}),
        }

        def take() -> bool:
            for message in consumer.consume(100, timeout=1.0):
                name = message.key().decode()
                decoded = deserializers[name](
                    message.value(), SerializationContext(topic, MessageField.VALUE)
                )
                values[name].append({"id": decoded.string_value} if name == "protobuf" else decoded)
            return sum(map(len, values.values())) == 3 * len(ORDERS)

        wait_until("all orders are decoded", take)
    consumer.close()
    return values


def test_consumers_decode_copied_records_with_copied_schemas(
    east: KafkaCluster, west: KafkaCluster, flow: Flow, topic: str, source: SchemaRegistry, tmp_path: Path
) -> None:
    produce(east, topic, source)
    with (
        registry_of(west, source.topic, tmp_path) as target,
        schema_process(west, properties_of(source, target), tmp_path),
        flow.replicator(topic),
    ):
        wait_until("the schemas have arrived", lambda: target.export() == source.export())
        assert consumed(west, flow.remote(topic), target) == dict.fromkeys(
            ("avro", "json", "protobuf"), ORDERS
        )


def test_consumers_decode_copied_records_with_a_registry_on_a_copied_schemas_topic(
    east: KafkaCluster, west: KafkaCluster, flow: Flow, topic: str, source: SchemaRegistry, tmp_path: Path
) -> None:
    """As in docs/schemas.md, there is no schema connector, and the second registry never becomes the leader."""
    produce(east, topic, source)
    source.request("DELETE", "/subjects/unrelated")
    with flow.replicator(f"{topic},{source.topic}") as replicator:
        replicator.wait_until_caught_up(partitions=2)
        with registry_of(west, flow.remote(source.topic), tmp_path, "--follower") as target:
            wait_until("the copy is read", lambda: target.export() == source.export())
            assert consumed(west, flow.remote(topic), target) == dict.fromkeys(
                ("avro", "json", "protobuf"), ORDERS
            )
            later = source.register("later-value", '"bytes"')
            wait_until(
                "a later schema is known",
                lambda: target.request("GET", "/subjects") == source.request("GET", "/subjects"),
            )
            assert later == source.request("GET", "/subjects/later-value/versions/1")["id"]
            _switch_over(replicator, target, flow, tmp_path, highest=later)


def _switch_over(
    replicator: Replicator, follower: SchemaRegistry, flow: Flow, folder: Path, *, highest: int
) -> None:
    """Once the flow has stopped, the copied topic belongs to an independent registry, which assigns higher ids."""
    replicator.stop()
    follower.kill()
    with registry_of(flow.target, follower.topic, folder) as leader:
        assert leader.register("own-value", '"double"') == highest + 1

"""A process with only a schema connector, between two test registries on real brokers."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator
from tests.harness.schema_registry.registry_model import RegistryModel
from tests.harness.schema_registry.registry_process import SchemaRegistry
from tests.harness.schema_registry.schemas_topic import SchemasTopic

NAME = "MirrorSchemaConnector"


def registry_of(cluster: KafkaCluster, topic: str, folder: Path, *arguments: str) -> SchemaRegistry:
    return SchemaRegistry(
        folder=folder,
        bootstrap=cluster.bootstrap,
        topic=topic,
        name=f"registry-{cluster.name}",
        arguments=arguments,
    )


def properties_of(source: SchemaRegistry, target: SchemaRegistry, **more: str) -> dict[str, str]:
    return {
        "name": NAME,
        "connector.class": NAME,
        "source.cluster.alias": "east",
        "target.cluster.alias": "west",
        "source.cluster.schema.registry.url": source.url,
        "target.cluster.schema.registry.url": target.url,
    } | more


def schema_process(target: KafkaCluster, properties: Mapping[str, str], folder: Path) -> Replicator:
    """Returns a process with a MirrorSchemaConnector only."""
    worker = {"bootstrap.servers": target.bootstrap, "mirrorflow.http.listeners": "http://127.0.0.1:0"}
    return Replicator(form="standalone", files=(worker, dict(properties)), folder=folder, name="schemas")


def schemas_of(replicator: Replicator) -> dict[str, Any]:
    """Returns the connector's report of its last pass."""
    return dict(replicator.progress().get("schemas", {}))


def wait_until_equal(source: SchemaRegistry, target: SchemaRegistry) -> None:
    wait_until("both registries export the same", lambda: source.export() == target.export())


def fill(cluster: KafkaCluster, topic: str, models: Iterable[RegistryModel]) -> None:
    """Writes the records of *models* into the topic of a registry that does not run."""
    store = SchemasTopic(cluster.bootstrap, topic)
    store.create()
    for model in models:
        store.append(model.log)


def record(name: str, *fields: str) -> str:
    """Returns an Avro schema of a record with text fields."""
    return json.dumps(
        {"type": "record", "name": name, "fields": [{"name": field, "type": "string"} for field in fields]}
    )

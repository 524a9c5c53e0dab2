from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.schema_registry.registry_process import SchemaRegistry
from tests.integration.kafka.schemas import registry_of


@pytest.fixture
def store(unique_topic: Callable[[], str]) -> str:
    """Returns the name of the topic in which each registry stores its schemas."""
    return f"{unique_topic()}-schemas"


@pytest.fixture
def source(east: KafkaCluster, store: str, tmp_path: Path) -> Iterator[SchemaRegistry]:
    with registry_of(east, store, tmp_path) as registry:
        yield registry


@pytest.fixture
def target(west: KafkaCluster, store: str, tmp_path: Path) -> Iterator[SchemaRegistry]:
    with registry_of(west, store, tmp_path) as registry:
        yield registry

"""Two plain brokers that most tests share. A test that kills, freezes or configures brokers starts its own cluster."""

import re
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.harness.kafka.cluster import KafkaCluster

# The shared clusters that are running.
_SHARED: list[KafkaCluster] = []


@pytest.fixture(scope="module", autouse=True)
def _topics_of_one_file() -> Iterator[None]:
    """Deletes the topics of a file after its last test, so that listings and metadata stay short."""
    yield
    for cluster in _SHARED:
        cluster.delete_topics()


@pytest.fixture(scope="session")
def east() -> Iterator[KafkaCluster]:
    """The shared source, one 4.3.1 broker with PLAINTEXT. Use only topics of `unique_topic`."""
    with KafkaCluster(name="east") as cluster:
        _SHARED.append(cluster)
        yield cluster


@pytest.fixture(scope="session")
def west() -> Iterator[KafkaCluster]:
    """The shared target, one 4.3.1 broker with PLAINTEXT."""
    with KafkaCluster(name="west") as cluster:
        _SHARED.append(cluster)
        yield cluster


@pytest.fixture
def unique_topic(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Returns a function that creates unique topic names, which begin with the name of the test."""
    stem = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name.removeprefix("test_"))[:40].strip("-")
    return lambda: f"{stem}-{uuid.uuid4().hex[:8]}"

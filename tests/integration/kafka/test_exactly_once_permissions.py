"""A flow that has only Read and Describe on the source is exactly-once."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.listeners import User
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow

pytestmark = pytest.mark.more

READER = User(name="reader", password="secret")
NEVER = {"offset.flush.interval.ms": "3600000"}


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    """A source with the permissions that the documentation requires."""
    with KafkaCluster(
        name="guarded", authorizer=True, listeners=("SASL_PLAINTEXT",), users=(READER,)
    ) as cluster:
        for operation in ("READ", "DESCRIBE"):
            cluster.allow(operation, "TOPIC", "*", user=READER.name)
        yield cluster


def client_of(cluster: KafkaCluster, user: User, *, side: str = "") -> Mapping[str, str]:
    return {side + key: value for key, value in cluster.java_client("SASL_PLAINTEXT", user=user).items()}


def test_read_and_describe_on_the_source_suffice_to_resume_after_kill_9(
    secured: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The topic's settings may not be read."""
    connector = client_of(secured, READER, side="source.cluster.")
    flow = Flow.new(secured, west, tmp_path, connector={**connector, **NEVER})
    topic = secured.create_topic(unique_topic())
    load(secured, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        replicator.kill()
        load(secured, topic, 500, first=1_000)
        replicator.start()
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)

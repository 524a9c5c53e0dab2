"""Makes a log lose its tail by an unclean election, at a moment that a test chooses.

        topic = fragile_topic(trio, "orders")
        load(trio, topic, 1_000)
        with tail_lost(trio, topic):
            load(trio, topic, 500, first=1_000)  # lost: only the broker that is killed after the block has these records
        load(trio, topic, 300, first=5_000)  # at the offsets of the lost records
        trio.broker(LEADER).start()

The cluster has three nodes, so that two controllers are a quorum while one node is down.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from tests.harness.kafka.broker import METADATA_WAIT_S
from tests.harness.kafka.cluster import ADMIN_WAIT_S, KafkaCluster
from tests.harness.kafka.processes import wait_until

LEADER, FOLLOWER = 1, 2
FRAGILE = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
# With this setting, the controller detects a dead broker within two seconds instead of nine.
QUICK_ELECTIONS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}


def fragile_topic(
    cluster: KafkaCluster, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
) -> str:
    """Creates a topic with leader LEADER and replica FOLLOWER that allows unclean elections, and returns its name."""
    replicas = [[LEADER, FOLLOWER]] * partitions
    topic = NewTopic(name, partitions, replica_assignment=replicas, config={**FRAGILE, **(config or {})})
    cluster.admin.create_topics([topic])[name].result(ADMIN_WAIT_S)
    _wait_for(cluster, (name,), leader=LEADER, in_sync=2)
    return name


@contextmanager
def tail_lost(
    cluster: KafkaCluster, *topics: str, leader: int = LEADER, follower: int = FOLLOWER
) -> Iterator[None]:
    """Loses the records that the block writes to *topics*, which must be fragile. Afterwards *follower* leads them.

    *leader* is down and may be started again.
    """
    cluster.broker(follower).stop()
    _wait_for(cluster, topics, leader=leader, in_sync=1)
    yield
    elected_again(cluster, *topics, leader=follower, instead_of=leader)


def elected_again(cluster: KafkaCluster, *topics: str, leader: int, instead_of: int) -> None:
    """Starts *leader* with its old log, makes it lead *topics*, and kills *instead_of*."""
    cluster.broker(instead_of).kill()
    cluster.broker(leader).start()
    _wait_for(cluster, topics, leader=leader, in_sync=1)


def _wait_for(cluster: KafkaCluster, topics: tuple[str, ...], *, leader: int, in_sync: int) -> None:
    def elected() -> bool:
        try:
            metadata = cluster.admin.list_topics(timeout=METADATA_WAIT_S).topics
        except KafkaException:
            return False
        parts = [
            part for topic in topics if topic in metadata for part in metadata[topic].partitions.values()
        ]
        return set(topics) <= metadata.keys() and all(
            part.leader == leader and len(part.isrs) == in_sync for part in parts
        )

    names = ", ".join(topics)
    wait_until(f"{leader} leads {names}, {in_sync} in sync", elected, poll_s=0.1)

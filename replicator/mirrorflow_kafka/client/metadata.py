"""Immutable cluster metadata (brokers, topics, leaders), and how a new response is merged into it."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

NO_TOPIC_ID = uuid.UUID(int=0)
NO_LEADER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker with its advertised address for this client."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMetadata:
    """One partition; `leader` is -1 while there is none."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """One topic; `error` is the broker's error code for it (3: it does not exist)."""

    name: str
    topic_id: uuid.UUID = NO_TOPIC_ID  # zero on brokers before 2.8
    error: int = 0
    is_internal: bool = False
    partitions: Mapping[int, PartitionMetadata] = field(default_factory=dict)
    # AclOperation codes this client has, if they were requested; otherwise None.
    authorized_operations: frozenset[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """A snapshot of the metadata. Topics that were never requested are absent."""

    cluster_id: str | None  # None: not read yet, or the brokers report none
    controller_id: int
    brokers: Mapping[int, Broker]
    topics: Mapping[str, TopicMetadata]

    def topic_id(self, topic: str) -> str:
        """Returns the topic id as text; "" if the brokers have no topic ids or the topic is unknown."""
        known = self.topics.get(topic)
        return "" if known is None or known.topic_id == NO_TOPIC_ID else str(known.topic_id)

    def leader(self, topic: str, partition: int) -> int | None:
        """Returns the leader's node id; None if unknown or there is none."""
        known = self.topics.get(topic)
        entry = known.partitions.get(partition) if known else None
        return entry.leader if entry and entry.leader != NO_LEADER else None

    def leader_epoch(self, topic: str, partition: int) -> int:
        """Returns the leader epoch; -1 if unknown or the brokers have none."""
        known = self.topics.get(topic)
        entry = known.partitions.get(partition) if known else None
        return entry.leader_epoch if entry else -1


EMPTY = Metadata(cluster_id=None, controller_id=-1, brokers={}, topics={})


def topic_from(response: Any) -> TopicMetadata:
    """Returns the metadata of one topic from a decoded MetadataResponse."""
    operations = getattr(response, "authorized_operations", None)
    return TopicMetadata(
        name=response.name or "",
        topic_id=response.topic_id or NO_TOPIC_ID,
        error=response.error_code,
        is_internal=bool(response.is_internal),
        partitions={
            partition.partition_index: PartitionMetadata(
                leader=partition.leader_id,
                # Absent before version 7.
                leader_epoch=partition.leader_epoch if partition.leader_epoch is not None else -1,
                replicas=tuple(partition.replica_nodes),
                isr=tuple(partition.isr_nodes),
                error=partition.error_code,
            )
            for partition in response.partitions
        },
        authorized_operations=frozenset(operations) if operations else None,
    )


def merged(old: Metadata, response: Any, *, requested: Iterable[str] | None) -> Metadata:
    """Returns *old* updated with a decoded MetadataResponse; *requested* None means that it lists all topics.

    A broker with outdated metadata returns an older leader epoch, or fewer partitions; that part of the response is ignored
    (the former as in Java's MetadataCache), or the client would return to a leader that has already refused it. One that has just
    started with ZooKeeper knows neither brokers nor topics yet; its response is ignored, or all topics would seem deleted.
    """
    if not response.brokers:
        return old
    answered = {
        topic.name: _newer(old.topics.get(topic.name), topic_from(topic)) for topic in response.topics
    }
    topics = answered if requested is None else {**old.topics, **answered}
    brokers = {
        broker.node_id: Broker(node_id=broker.node_id, host=broker.host, port=broker.port, rack=broker.rack)
        for broker in response.brokers
    }
    return Metadata(
        cluster_id=response.cluster_id or old.cluster_id,
        controller_id=response.controller_id,
        brokers=brokers,
        topics=topics,
    )


def _newer(old: TopicMetadata | None, new: TopicMetadata) -> TopicMetadata:
    if old is None or old.topic_id != new.topic_id:
        return new
    kept = {
        index: before
        for index, before in old.partitions.items()
        if (now := new.partitions.get(index)) is None or now.leader_epoch < before.leader_epoch
    }
    return (
        replace(new, partitions={**new.partitions, **kept}) if kept and new.topic_id != NO_TOPIC_ID else new
    )

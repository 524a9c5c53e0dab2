"""Lists and creates topics and adds partitions, in requests of bounded size; changes go to the controller."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_kafka.client import error_codes
from mirrorflow_kafka.client.cluster import Cluster, chunks
from mirrorflow_kafka.client.error_codes import BrokerRefusal
from mirrorflow_kafka.client.metadata import TopicMetadata, topic_from

# The controller writes one record per partition and handles a request as a whole; the KIP-599 quota counts
# them too.
TOPICS_MAX = 100
CONTROLLER_TIMEOUT_MS = 30_000
CREATED_TIMEOUT_S = 30.0  # until every partition of a new topic has a known leader
CREATED_POLL_S = 0.1
_DEFAULT_REPLICATION_SINCE = 4  # the first version that accepts -1 (KIP-464, Kafka 2.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create; `replication_factor` -1 means the brokers' default."""

    name: str
    partitions: int
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


async def list_topics(cluster: Cluster) -> Mapping[str, TopicMetadata]:
    """Refresh the metadata and return all topics this client may describe. Raises ClusterError."""
    await cluster.refresh(None)
    return cluster.metadata.topics


async def create_topics(
    cluster: Cluster,
    topics: Iterable[NewTopic],
    validate_only: bool = False,  # noqa: FBT001, FBT002 as the request has it
) -> dict[str, BrokerRefusal | None]:
    """Create *topics*; return None for each topic that now exists, otherwise the refusal. Raises ClusterError."""
    answers: dict[str, BrokerRefusal | None] = {}
    for chunk in chunks(list(topics), TOPICS_MAX):
        needs_default = any(topic.replication_factor == -1 for topic in chunk)
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in chunk],
            timeout_ms=CONTROLLER_TIMEOUT_MS,
            validate_only=validate_only,
            min_version=_DEFAULT_REPLICATION_SINCE if needs_default else 1,
        )
        answer = await cluster.call(request, controller=True)
        for one in answer.topics:
            code = error_codes.NONE if one.error_code == error_codes.TOPIC_ALREADY_EXISTS else one.error_code
            answers[one.name] = BrokerRefusal.of(code, one.error_message)
    return answers


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    topic_class = CreateTopicsRequest.CreatableTopic
    configs = [topic_class.CreatableTopicConfig(*pair) for pair in topic.configs.items()]
    return topic_class(topic.name, topic.partitions, topic.replication_factor, [], configs)


async def create_topic_and_wait(
    cluster: Cluster, topic: NewTopic, *, timeout_s: float = CREATED_TIMEOUT_S
) -> None:
    """Create *topic* if it is missing, and wait until all of its partitions have leaders.

    Raises NotAuthorizedError, BrokerError, UnreachableError (no leader in time).
    """
    refusal = (await create_topics(cluster, [topic]))[topic.name]
    if refusal is not None:
        cluster.raise_for(refusal.code, "CreateTopics", topic.name, message=refusal.message)
    try:
        async with asyncio.timeout(timeout_s):
            while not _has_leaders(cluster, topic.name):
                await cluster.refresh([topic.name])
                if not _has_leaders(cluster, topic.name):
                    await asyncio.sleep(CREATED_POLL_S)
    except TimeoutError:
        problem = f"topic {topic.name} was created but has no leaders after {timeout_s:g} s"
        raise UnreachableError(cluster=cluster.alias, addresses="its brokers", problem=problem) from None


def _has_leaders(cluster: Cluster, name: str) -> bool:
    topic = cluster.metadata.topics.get(name)
    return (
        topic is not None
        and bool(topic.partitions)
        and all(cluster.leader(name, number) is not None for number in topic.partitions)
    )


async def create_partitions(cluster: Cluster, totals: Mapping[str, int]) -> dict[str, BrokerRefusal | None]:
    """Increase topics to *totals* partitions; return None for each topic that was changed.

    Raises ClusterError.

    A topic that already has that many partitions is refused with INVALID_PARTITIONS (37).
    """
    answers: dict[str, BrokerRefusal | None] = {}
    topic_class = CreatePartitionsRequest.CreatePartitionsTopic
    for chunk in chunks(list(totals.items()), TOPICS_MAX):
        topics = [topic_class(name, total, None) for name, total in chunk]
        request = CreatePartitionsRequest(
            topics=topics, timeout_ms=CONTROLLER_TIMEOUT_MS, validate_only=False
        )
        answer = await cluster.call(request, controller=True)
        answers |= {one.name: BrokerRefusal.of(one.error_code, one.error_message) for one in answer.results}
    return answers


async def topic_operations(
    cluster: Cluster, topics: Sequence[str], *, node_id: int | None = None
) -> dict[str, frozenset[int]]:
    """Return the AclOperation codes this client has on each topic (KIP-430), whether or not the topic exists.

    The set is empty without DESCRIBE. Topics without a result from the broker are absent. *node_id* is the
    broker to ask, None any. Raises ClusterError; UnsupportedBrokerError before Kafka 2.3.
    """
    found: dict[str, frozenset[int]] = {}
    for chunk in chunks(topics, TOPICS_MAX):
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in chunk],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
            min_version=8,
        )
        for answer in (await cluster.call(request, node_id=node_id)).topics:
            topic = topic_from(answer)
            if topic.error == error_codes.TOPIC_AUTHORIZATION_FAILED:
                found[topic.name] = frozenset()
            elif topic.authorized_operations is not None:
                found[topic.name] = topic.authorized_operations
    return found

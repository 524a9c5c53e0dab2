"""Lists and creates topics and adds partitions. Requests have a bounded size; changes go to the controller."""

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from weakref import WeakKeyDictionary

from kafka.protocol.admin.topics import CreatePartitionsRequest, CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.errors import BrokerError, InternalTopicUnavailableError
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.error_codes import LEADER_NOT_AVAILABLE, BrokerRefusal
from mirrorflow_kafka.client.cluster import ANY_BROKER_TIMEOUT_S, Cluster, chunks
from mirrorflow_kafka.client.metadata import TopicMetadata, topic_from
from mirrorflow_kafka.client.pool import retrieve_error

# The controller writes one record per partition and handles a request as a whole; the KIP-599 quota counts
# them too. A topic has about 30 config entries (3 kB), so a response stays below 0.5 MB.
TOPICS_MAX = 100
CONTROLLER_TIMEOUT_MS = 30_000
CREATED_TIMEOUT_S = 30.0  # until every partition of a new topic has a known leader
CREATED_POLL_MIN_S, CREATED_POLL_MAX_S = 0.01, 0.05  # brokers learn of a new topic within some 10 ms
CREATED_TOGETHER_S = (
    0.02  # the topics of a start are wanted within some 10 ms, and a controller takes 30 ms for a request
)
_DEFAULT_REPLICATION_SINCE = 4  # the first version that accepts -1 (KIP-464, Kafka 2.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create; `replication_factor` -1 means the brokers' default."""

    name: str
    partitions: int
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


async def list_topics(cluster: Cluster) -> Mapping[str, TopicMetadata]:
    """Refreshes the metadata and returns all topics this client may describe. Raises ClusterError."""
    await cluster.refresh(None)
    return cluster.metadata.topics


class _Creation:
    """A request that is sent soon, and shared by all callers that come before."""

    def __init__(self, cluster: Cluster) -> None:
        self.topics: dict[str, NewTopic] = {}
        self.is_sent = False
        self.responses = asyncio.create_task(self._send(cluster))
        self.responses.add_done_callback(retrieve_error)

    async def _send(self, cluster: Cluster) -> dict[str, BrokerRefusal | None]:
        await asyncio.sleep(CREATED_TOGETHER_S)
        self.is_sent = True
        return await _create(cluster, self.topics.values(), validate_only=False)


# The newest of each cluster, and of requests that need the brokers' default replication factor, which old ones do not have.
_creations: WeakKeyDictionary[Cluster, dict[bool, _Creation]] = WeakKeyDictionary()


async def create_topics(
    cluster: Cluster,
    topics: Iterable[NewTopic],
    validate_only: bool = False,  # noqa: FBT001, FBT002 as the request has it
) -> dict[str, BrokerRefusal | None]:
    """Creates *topics*; returns None for each topic that now exists, otherwise the refusal. Raises ClusterError.

    Concurrent callers share a request: a controller takes as long for one topic as for many.
    """
    wanted = {topic.name: topic for topic in topics}
    if validate_only or len(wanted) > TOPICS_MAX:
        return await _create(cluster, wanted.values(), validate_only=validate_only)
    newest = _creations.setdefault(cluster, {})
    needs_default = any(topic.replication_factor == -1 for topic in wanted.values())
    creation = newest.get(needs_default)
    if creation is None or creation.is_sent or len(creation.topics) + len(wanted) > TOPICS_MAX:
        creation = newest[needs_default] = _Creation(cluster)
    creation.topics |= wanted
    responses = await asyncio.shield(creation.responses)
    return {name: responses[name] for name in wanted}


async def _create(
    cluster: Cluster, topics: Iterable[NewTopic], *, validate_only: bool
) -> dict[str, BrokerRefusal | None]:
    responses: dict[str, BrokerRefusal | None] = {}
    for chunk in chunks(list(topics), TOPICS_MAX):
        needs_default = any(topic.replication_factor == -1 for topic in chunk)
        request = CreateTopicsRequest(
            topics=[_creatable(topic) for topic in chunk],
            timeout_ms=CONTROLLER_TIMEOUT_MS,
            validate_only=validate_only,
            min_version=_DEFAULT_REPLICATION_SINCE if needs_default else 1,
        )
        response = await cluster.call(request, controller=True)
        for result in response.topics:
            code = (
                error_codes.NONE
                if result.error_code == error_codes.TOPIC_ALREADY_EXISTS
                else result.error_code
            )
            responses[result.name] = BrokerRefusal.of(code, result.error_message)
    return responses


def _creatable(topic: NewTopic) -> CreateTopicsRequest.CreatableTopic:
    topic_class = CreateTopicsRequest.CreatableTopic
    configs = [topic_class.CreatableTopicConfig(*pair) for pair in topic.configs.items()]
    return topic_class(topic.name, topic.partitions, topic.replication_factor, [], configs)


async def create_topic_and_wait(
    cluster: Cluster, topic: NewTopic, *, timeout_s: float = CREATED_TIMEOUT_S
) -> None:
    """Creates *topic*, one of the flow's own, if it is missing, and waits until all of its partitions have leaders.

    Raises NotAuthorizedError, BrokerError, InternalTopicUnavailableError (no leader in time).
    """
    refusal = (await create_topics(cluster, [topic]))[topic.name]
    if refusal is not None:
        cluster.raise_for(refusal.code, "CreateTopics", topic.name, message=refusal.message)
    await wait_for_leaders(cluster, topic.name, timeout_s=timeout_s)


async def wait_for_leaders(cluster: Cluster, name: str, *, timeout_s: float = CREATED_TIMEOUT_S) -> None:
    """Waits until all partitions of topic *name*, one of the flow's own, have leaders. Raises InternalTopicUnavailableError, ClusterError."""
    try:
        async with asyncio.timeout(timeout_s):
            polls = Backoff(min_s=CREATED_POLL_MIN_S, max_s=CREATED_POLL_MAX_S)
            while _leaderless(cluster, name) is not None:
                await anext(polls)
                await cluster.refresh([name])
    except TimeoutError:
        raise InternalTopicUnavailableError(
            cluster=cluster.alias, topic=name, leaderless=_leaderless(cluster, name) or 0
        ) from None


def _leaderless(cluster: Cluster, name: str) -> int | None:
    """Returns the first partition of topic *name* that has no leader; 0 for a topic that is not known yet; None if all have one."""
    topic = cluster.metadata.topics.get(name)
    numbers = sorted(topic.partitions) if topic is not None and topic.partitions else [0]
    return next((number for number in numbers if cluster.leader(name, number) is None), None)


@contextlib.contextmanager
def naming_leaderless(cluster: Cluster, topic: str) -> Iterator[None]:
    """Raises InternalTopicUnavailableError where a request about *topic*, one of the flow's own, found a partition without a leader."""
    try:
        yield
    except BrokerError as error:
        number = _leaderless(cluster, topic) if error.code == LEADER_NOT_AVAILABLE else None
        if number is None:
            raise
        raise InternalTopicUnavailableError(cluster=cluster.alias, topic=topic, leaderless=number) from error


async def create_partitions(cluster: Cluster, totals: Mapping[str, int]) -> dict[str, BrokerRefusal | None]:
    """Increases topics to *totals* partitions; returns None for each topic that was changed.

    Raises ClusterError.

    A topic that already has that many partitions is refused with INVALID_PARTITIONS (37).
    """
    responses: dict[str, BrokerRefusal | None] = {}
    topic_class = CreatePartitionsRequest.CreatePartitionsTopic
    for chunk in chunks(list(totals.items()), TOPICS_MAX):
        topics = [topic_class(name, total, None) for name, total in chunk]
        request = CreatePartitionsRequest(
            topics=topics, timeout_ms=CONTROLLER_TIMEOUT_MS, validate_only=False
        )
        response = await cluster.call(request, controller=True)
        responses |= {
            result.name: BrokerRefusal.of(result.error_code, result.error_message)
            for result in response.results
        }
    return responses


async def topic_operations(
    cluster: Cluster, topics: Sequence[str], *, node_id: int | None = None
) -> dict[str, frozenset[int]]:
    """Returns the AclOperation codes this client has on each topic (KIP-430), whether or not the topic exists.

    The set is empty without DESCRIBE. Topics without a result from the broker are absent. *node_id* is the
    broker to ask, None any. Raises ClusterError; UnsupportedBrokerError before Kafka 2.3.
    """
    operations: dict[str, frozenset[int]] = {}
    for chunk in chunks(topics, TOPICS_MAX):
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in chunk],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
            min_version=8,
        )
        response = await cluster.call(request, node_id=node_id, attempt_s=ANY_BROKER_TIMEOUT_S)
        for metadata in response.topics:
            topic = topic_from(metadata)
            if topic.error == error_codes.TOPIC_AUTHORIZATION_FAILED:
                operations[topic.name] = frozenset()
            elif topic.authorized_operations is not None:
                operations[topic.name] = topic.authorized_operations
    return operations

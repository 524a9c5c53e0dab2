"""Lists and creates topics, adds partitions, and reads and alters the settings of topics and brokers.

Requests have a bounded size; changes go to the controller. A broker applies all settings of a topic or none. So settings that are
refused together are validated one by one, which changes nothing, and those that are accepted are then applied together. Each
refused one is named.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from kafka.protocol.admin.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from kafka.protocol.admin.topics import CreatePartitionsRequest, CreateTopicsRequest
from kafka.protocol.metadata import MetadataRequest

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.errors import (
    BrokerError,
    ClusterError,
    InternalTopicUnavailableError,
    UnreachableError,
)
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry, ConfigSource
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.error_codes import (
    INVALID_CONFIG,
    INVALID_REQUEST,
    LEADER_NOT_AVAILABLE,
    POLICY_VIOLATION,
    BrokerRefusal,
)
from mirrorflow_kafka.client.cluster import ANY_BROKER_TIMEOUT_S, CALL_TIMEOUT_S, Cluster, chunks
from mirrorflow_kafka.client.metadata import TopicMetadata, topic_from
from mirrorflow_kafka.client.pool import retrieve_error

# The controller writes one record per partition and handles a request as a whole; the KIP-599 quota counts
# them too. A topic has about 30 config entries (3 kB), so a response stays below 0.5 MB.
TOPICS_MAX = 100
CONTROLLER_TIMEOUT_MS = 30_000
CREATED_TIMEOUT_S = 30.0  # until every partition of a new topic has a known leader
CREATED_POLL_MIN_S, CREATED_POLL_MAX_S = 0.01, 0.05  # brokers learn of a new topic within some 10 ms
BROKER_RESPONSE_S = 5.0  # for the settings of one of several brokers; a dead one is in the metadata for 9 s
CREATED_TOGETHER_S = (
    0.02  # the topics of a start are wanted within some 10 ms, and a controller takes 30 ms for a request
)
_DEFAULT_REPLICATION_SINCE = 4  # the first version that accepts -1 (KIP-464, Kafka 2.4)
_TOPIC: Final = 2  # ConfigResource.Type
_BROKER: Final = 4
_SET: Final = 0  # AlterConfigOp.OpType
_DELETE: Final = 1
_SOURCES: Final = frozenset(ConfigSource)
Changes = tuple[ConfigChange, ...]
Refusals = Mapping[str, BrokerRefusal | None]
Validate = Callable[[Mapping[str, Changes]], Awaitable[Refusals]]
# Codes that may be about a single setting; POLICY_VIOLATION is that of create.topic.policy and
# alter.config.policy.
_OF_A_SETTING = frozenset({INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION})


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


class DescribedConfigs(NamedTuple):
    """All configs of topics with their sources. `refused`: why others are not described; `unknown`: topics that a broker does not know."""

    configs: dict[str, tuple[ConfigEntry, ...]]
    refused: dict[str, ClusterError]
    unknown: frozenset[str] = frozenset()


async def try_describe_topic_configs(cluster: Cluster, topics: Iterable[str]) -> DescribedConfigs:
    """Returns the configs of *topics*; a topic that is refused does not affect the others. Raises ClusterError of a whole cluster."""
    configs: dict[str, tuple[ConfigEntry, ...]] = {}
    refused: dict[str, ClusterError] = {}
    unknown = set()
    for chunk in chunks(list(topics), TOPICS_MAX):
        response = await cluster.call(_describe(_TOPIC, chunk, None))
        for result in response.results:
            if result.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                unknown.add(result.resource_name)
                continue
            try:
                configs[result.resource_name] = _entries(cluster, result)
            except ClusterError as error:
                refused[result.resource_name] = error
    return DescribedConfigs(configs, refused, frozenset(unknown))


async def describe_topic_configs(
    cluster: Cluster, topics: Iterable[str]
) -> dict[str, tuple[ConfigEntry, ...]]:
    """Returns all configs of each topic with their sources; topics that do not exist are absent.

    Raises NotAuthorizedError (needs DESCRIBE_CONFIGS), ClusterError.
    """
    described = await try_describe_topic_configs(cluster, topics)
    for error in described.refused.values():
        raise error
    return described.configs


async def describe_topic_setting(cluster: Cluster, topics: Sequence[str], name: str) -> dict[str, str | None]:
    """Returns one setting of each topic; None without DESCRIBE_CONFIGS, or if the cluster does not report it.

    Topics that do not exist are absent. Raises ClusterError.
    """
    values: dict[str, str | None] = {}
    for chunk in chunks(topics, TOPICS_MAX):
        response = await cluster.call(_describe(_TOPIC, chunk, [name]))
        for result in response.results:
            if result.error_code == error_codes.TOPIC_AUTHORIZATION_FAILED:
                values[result.resource_name] = None
            elif result.error_code != error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                shown = (entry.value or "" for entry in _entries(cluster, result))
                values[result.resource_name] = next(shown, None)
    return values


async def describe_broker_configs(
    cluster: Cluster,
    node_id: int,
    names: Sequence[str] | None = None,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> dict[str, ConfigEntry]:
    """Returns configs of one broker by name; *names* None means all. Raises NotAuthorizedError, ClusterError."""
    request = _describe(_BROKER, [str(node_id)], names)
    response = await cluster.call(request, node_id=node_id, timeout_s=timeout_s)
    return {entry.name: entry for result in response.results for entry in _entries(cluster, result)}


async def describe_brokers(cluster: Cluster, names: Sequence[str]) -> dict[int, dict[str, int]]:
    """Returns numbers among the configs of all brokers that answer, by node id and name.

    Raises NotAuthorizedError, and UnreachableError if no broker answers.
    """
    node_ids = list(cluster.metadata.brokers)
    outcomes = await asyncio.gather(
        *(describe_broker_configs(cluster, id_, names, timeout_s=BROKER_RESPONSE_S) for id_ in node_ids),
        return_exceptions=True,
    )
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    refused = [error for error in errors if not isinstance(error, UnreachableError)]
    if refused or len(errors) == len(outcomes):
        raise next(iter([*refused, *errors]))
    return {
        node_id: {name: int(entry.value) for name, entry in outcome.items() if entry.value}
        for node_id, outcome in zip(node_ids, outcomes, strict=True)
        if not isinstance(outcome, BaseException)
    }


def _describe(kind: int, resources: Sequence[str], names: Sequence[str] | None) -> Any:
    keys = None if names is None else list(names)
    return DescribeConfigsRequest(
        resources=[DescribeConfigsRequest.DescribeConfigsResource(kind, name, keys) for name in resources],
        include_synonyms=False,
        include_documentation=False,
        min_version=1,  # version 0 reports only whether a value is the default, not its source
    )


def _entries(cluster: Cluster, result: Any) -> tuple[ConfigEntry, ...]:
    cluster.raise_for(
        result.error_code, "DescribeConfigs", result.resource_name, message=result.error_message
    )
    return tuple(
        ConfigEntry(
            name=config.name,
            value=config.value,
            source=ConfigSource(config.config_source)
            if config.config_source in _SOURCES
            else ConfigSource.UNKNOWN,
            read_only=bool(config.read_only),
            sensitive=bool(config.is_sensitive),
        )
        for config in result.configs
    )


async def alter_topic_configs(
    cluster: Cluster, changes: Mapping[str, Sequence[ConfigChange]], *, validate_only: bool = False
) -> dict[str, BrokerRefusal | None]:
    """Sets or deletes topic configs; returns None for each changed topic, otherwise the broker's refusal.

    The changes of one topic are applied together or not at all. With *validate_only* nothing is changed, and
    None means that the changes would be accepted.

    Raises ClusterError; UnsupportedBrokerError before Kafka 2.3.
    """
    resource_class = IncrementalAlterConfigsRequest.AlterConfigsResource
    responses: dict[str, BrokerRefusal | None] = {}
    config_class = resource_class.AlterableConfig
    for chunk in chunks(list(changes.items()), TOPICS_MAX):
        resources = [
            resource_class(
                _TOPIC,
                topic,
                [
                    config_class(change.name, _DELETE if change.value is None else _SET, change.value)
                    for change in of_topic
                ],
            )
            for topic, of_topic in chunk
        ]
        request = IncrementalAlterConfigsRequest(resources=resources, validate_only=validate_only)
        response = await cluster.call(request, controller=True)
        responses |= {
            result.resource_name: BrokerRefusal.of(result.error_code, result.error_message)
            for result in response.responses
        }
    return responses


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of topics and settings.

    `refused`: topic -> the refusal of the topic itself; `settings`: a sentence for each refused setting.
    """

    refused: Mapping[str, BrokerRefusal]
    settings: tuple[str, ...] = ()


async def create_with_accepted_settings(
    cluster: Cluster, topics: Sequence[NewTopic], *, validate_only: bool = False
) -> Outcome:
    """Creates *topics*, each with the settings that the cluster accepts. Raises ClusterError."""
    if not topics:
        return Outcome(refused={})
    refused = _refused(await create_topics(cluster, topics, validate_only=validate_only))
    doubtful = {
        topic.name: topic
        for topic in topics
        if topic.configs and topic.name in refused and refused[topic.name].code in _OF_A_SETTING
    }

    def with_settings(settings: Mapping[str, Changes]) -> list[NewTopic]:
        return [
            replace(doubtful[name], configs={change.name: change.value or "" for change in changes})
            for name, changes in settings.items()
        ]

    async def validate(settings: Mapping[str, Changes]) -> Refusals:
        return await create_topics(cluster, with_settings(settings), validate_only=True)

    wanted = {
        name: tuple(ConfigChange(name=key, value=value) for key, value in topic.configs.items())
        for name, topic in doubtful.items()
    }
    accepted, sentences = await _sift(wanted, validate)
    if accepted:
        again = await create_topics(cluster, with_settings(accepted), validate_only=validate_only)
        refused = {name: why for name, why in refused.items() if name not in accepted} | _refused(again)
    return Outcome(
        refused=refused,
        settings=tuple(sentence for name, of in sentences.items() if name not in refused for sentence in of),
    )


async def alter_to_accepted_settings(
    cluster: Cluster, changes: Mapping[str, Changes], *, validate_only: bool = False
) -> tuple[dict[str, Changes], Outcome]:
    """Applies those of *changes* that the cluster accepts; returns them, and what was refused.

    Raises ClusterError; UnsupportedBrokerError before Kafka 2.3.
    """
    if not changes:
        return {}, Outcome(refused={})
    refused = _refused(await alter_topic_configs(cluster, changes, validate_only=validate_only))
    doubtful = {name: changes[name] for name, why in refused.items() if why.code in _OF_A_SETTING}

    async def validate(settings: Mapping[str, Changes]) -> Refusals:
        return await alter_topic_configs(cluster, settings, validate_only=True)

    accepted, sentences = await _sift(doubtful, validate)
    some = {name: of_topic for name, of_topic in accepted.items() if of_topic}
    again = _refused(await alter_topic_configs(cluster, some, validate_only=validate_only)) if some else {}
    applied = {name: of_topic for name, of_topic in changes.items() if name not in refused}
    applied |= {name: of_topic for name, of_topic in some.items() if name not in again}
    return applied, Outcome(
        refused={name: why for name, why in refused.items() if name not in doubtful} | again,
        settings=tuple(sentence for of in sentences.values() for sentence in of),
    )


async def _sift(
    wanted: Mapping[str, Changes], validate: Validate
) -> tuple[dict[str, Changes], dict[str, list[str]]]:
    """Returns the changes of each topic that are accepted together, and a sentence for each other one.

    One request tries one setting of all topics. What is refused is tried again when others have been
    accepted: `local.retention.ms` may need the `retention.ms` that comes with it.
    """
    accepted: dict[str, Changes] = dict.fromkeys(wanted, ())
    left = {(name, change.name): change for name, changes in wanted.items() for change in changes}
    why: dict[tuple[str, str], BrokerRefusal] = {}
    has_progress = True
    while left and has_progress:
        has_progress = False
        for setting in sorted({setting for _, setting in left}):
            tried = {
                name: (*accepted[name], left[name, setting]) for name in wanted if (name, setting) in left
            }
            for name, refusal in (await validate(tried)).items():
                if refusal is not None:
                    why[name, setting] = refusal
                    continue
                accepted[name] = tried[name]
                del left[name, setting]
                has_progress = True
    sentences: dict[str, list[str]] = {}
    for (name, setting), change in sorted(left.items()):
        wish = (
            f"does not get {setting}={change.value}" if change.value is not None else f"keeps its {setting}"
        )
        sentences.setdefault(name, []).append(f"Target topic {name} {wish}: {why[name, setting]}.")
    return accepted, sentences


def _refused(responses: Refusals) -> dict[str, BrokerRefusal]:
    return {name: refusal for name, refusal in responses.items() if refusal is not None}

"""Reads and alters the configs of topics, and reads those of brokers.

A broker applies all settings of a topic or none. So settings that are refused together are validated one by one, which changes
nothing, and those that are accepted are then applied together. Each refused one is named.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from kafka.protocol.admin.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from mirrorflow_core.errors import ClusterError, UnreachableError
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry, ConfigSource
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.error_codes import INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION, BrokerRefusal
from mirrorflow_kafka.admin.topics import TOPICS_MAX, NewTopic, create_topics
from mirrorflow_kafka.client.cluster import CALL_TIMEOUT_S, Cluster, chunks

BROKER_RESPONSE_S = 5.0  # for the settings of one of several brokers; a dead one is in the metadata for 9 s
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

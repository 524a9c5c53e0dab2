"""Describes topic and broker configs, and alters topic configs (IncrementalAlterConfigs, KIP-339)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry, ConfigSource
from mirrorflow_kafka.client import error_codes
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import BrokerRefusal, raise_for

# A topic has about 30 config entries (3 kB), so a response stays below 0.5 MB.
TOPICS_MAX = 100
_TOPIC: Final = 2  # ConfigResource.Type
_BROKER: Final = 4
_SET: Final = 0  # AlterConfigOp.OpType
_DELETE: Final = 1
_SOURCES: Final = frozenset(ConfigSource)


async def describe_topic_configs(
    cluster: Cluster, topics: Iterable[str]
) -> dict[str, tuple[ConfigEntry, ...]]:
    """Return all configs of each topic with their sources; topics that do not exist are absent.

    Raises NotAuthorizedError (needs DESCRIBE_CONFIGS), ClusterError.
    """
    found: dict[str, tuple[ConfigEntry, ...]] = {}
    wanted = list(topics)
    for at in range(0, len(wanted), TOPICS_MAX):
        answer = await cluster.call(_describe(_TOPIC, wanted[at : at + TOPICS_MAX], None))
        for one in answer.results:
            if one.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            found[one.resource_name] = _entries(cluster, one)
    return found


async def describe_topic_setting(cluster: Cluster, topics: Sequence[str], name: str) -> dict[str, str | None]:
    """Return one setting of each topic, None without DESCRIBE_CONFIGS.

    Topics that do not exist are absent. Raises ClusterError.
    """
    found: dict[str, str | None] = {}
    for at in range(0, len(topics), TOPICS_MAX):
        answer = await cluster.call(_describe(_TOPIC, topics[at : at + TOPICS_MAX], [name]))
        for one in answer.results:
            if one.error_code == error_codes.TOPIC_AUTHORIZATION_FAILED:
                found[one.resource_name] = None
            elif one.error_code != error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                found[one.resource_name] = next(entry.value or "" for entry in _entries(cluster, one))
    return found


async def describe_broker_configs(
    cluster: Cluster, node_id: int, names: Sequence[str] | None = None
) -> dict[str, ConfigEntry]:
    """Return configs of one broker by name; *names* None means all.

    Raises NotAuthorizedError, ClusterError.
    """
    answer = await cluster.call(_describe(_BROKER, [str(node_id)], names), node_id=node_id)
    return {entry.name: entry for one in answer.results for entry in _entries(cluster, one)}


def _describe(kind: int, resources: Sequence[str], names: Sequence[str] | None) -> Any:
    resource_class = DescribeConfigsRequest.DescribeConfigsResource
    return DescribeConfigsRequest(
        resources=[
            resource_class(
                resource_type=kind,
                resource_name=name,
                configuration_keys=None if names is None else list(names),
            )
            for name in resources
        ],
        include_synonyms=False,
        include_documentation=False,
        min_version=1,  # version 0 reports only whether a value is the default, not its source
    )


def _entries(cluster: Cluster, result: Any) -> tuple[ConfigEntry, ...]:
    raise_for(
        result.error_code,
        cluster=cluster.alias,
        request="DescribeConfigs",
        subject=result.resource_name,
        message=result.error_message,
    )
    return tuple(
        ConfigEntry(
            name=one.name,
            value=one.value,
            source=ConfigSource(one.config_source) if one.config_source in _SOURCES else ConfigSource.UNKNOWN,
            read_only=bool(one.read_only),
            sensitive=bool(one.is_sensitive),
        )
        for one in result.configs
    )


async def alter_topic_configs(
    cluster: Cluster, changes: Mapping[str, Sequence[ConfigChange]], *, validate_only: bool = False
) -> dict[str, BrokerRefusal | None]:
    """Set or delete topic configs; return None for each changed topic, otherwise the broker's refusal.

    The changes of one topic are applied together or not at all. With *validate_only* nothing is changed, and
    None means that the changes would be accepted.

    Raises ClusterError; UnsupportedBrokerError before Kafka 2.3.
    """
    resource_class = IncrementalAlterConfigsRequest.AlterConfigsResource
    answers: dict[str, BrokerRefusal | None] = {}
    wanted = list(changes.items())
    for at in range(0, len(wanted), TOPICS_MAX):
        request = IncrementalAlterConfigsRequest(
            resources=[
                resource_class(
                    resource_type=_TOPIC,
                    resource_name=topic,
                    configs=[
                        resource_class.AlterableConfig(
                            name=one.name,
                            config_operation=_DELETE if one.value is None else _SET,
                            value=one.value,
                        )
                        for one in of_topic
                    ],
                )
                for topic, of_topic in wanted[at : at + TOPICS_MAX]
            ],
            validate_only=validate_only,
        )
        answer = await cluster.call(request, controller=True)
        answers |= {
            one.resource_name: BrokerRefusal.of(one.error_code, one.error_message) for one in answer.responses
        }
    return answers

"""Settings of topics and brokers: describe, and alter by difference (IncrementalAlterConfigs, KIP-339)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from mirrorflow_replicator.flow.topic_configs import ConfigChange, ConfigEntry, ConfigSource
from mirrorflow_replicator.kafka import codes
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import Refusal, raise_for

# A topic's description is some 30 entries and 3 kB: an answer stays below half a megabyte.
TOPICS_MAX = 100
_TOPIC: Final = 2  # ConfigResource.Type
_BROKER: Final = 4
_SET: Final = 0  # AlterConfigOp.OpType
_DELETE: Final = 1
_SOURCES: Final = frozenset(ConfigSource)


async def describe_topic_configs(
    cluster: Cluster, topics: Iterable[str]
) -> dict[str, tuple[ConfigEntry, ...]]:
    """Every setting of each topic with where it comes from; topics that are gone are absent.

    Raises NotAuthorizedError (DESCRIBE_CONFIGS is needed), ClusterError.
    """
    found: dict[str, tuple[ConfigEntry, ...]] = {}
    wanted = list(topics)
    for at in range(0, len(wanted), TOPICS_MAX):
        answer = await cluster.call(_describe(_TOPIC, wanted[at : at + TOPICS_MAX], None))
        for one in answer.results:
            if one.error_code == codes.UNKNOWN_TOPIC_OR_PARTITION:
                continue
            found[one.resource_name] = _entries(cluster, one)
    return found


async def describe_broker_configs(
    cluster: Cluster, node_id: int, names: Sequence[str] | None = None
) -> dict[str, ConfigEntry]:
    """Settings of one broker by name; *names* None is all. Raises NotAuthorizedError, ClusterError."""
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
        min_version=1,  # version 0 tells defaults only from the rest
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
    cluster: Cluster, changes: Mapping[str, Sequence[ConfigChange]]
) -> dict[str, Refusal | None]:
    """Set or delete settings of topics; None for each topic whose changes were all made, none of them otherwise.

    Raises ClusterError; UnsupportedBrokerError before Kafka 2.3.
    """
    resource_class = IncrementalAlterConfigsRequest.AlterConfigsResource
    answers: dict[str, Refusal | None] = {}
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
            validate_only=False,
        )
        answer = await cluster.call(request, controller=True)
        answers |= {
            one.resource_name: Refusal.of(one.error_code, one.error_message) for one in answer.responses
        }
    return answers

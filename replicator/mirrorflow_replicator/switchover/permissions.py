"""Finds the rights that the later states of a switchover need and that its users do not have. Nothing is changed.

Brokers report the operations of a user on clusters and topics. For groups and transactional ids they are asked with a request that they
refuse for another reason after they have checked the right. Each cluster is used as the user of the flow that writes there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import OffsetStore, SourceSettings
from mirrorflow_core.switchover.record import SWITCHOVERS_TOPIC
from mirrorflow_core.switchover.states import SwitchoverState
from mirrorflow_core.topics.topic_acls import Operation
from mirrorflow_core.writer.claim import claims_topic
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.transactions import may_write_as
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_replication_policy
from mirrorflow_replicator.switchover.pair_settings import FenceKind, PairClusters, SwitchoverSettings

REQUESTS_AT_ONCE: Final = 32
# Each takes a request to the target. The rights of the others are as a rule those of these: an ACL has a prefix, or `*`.
GROUPS_MAX: Final = 2_000
RESOURCES_MAX: Final = 3  # that a sentence names for each state and operation
_S = SwitchoverState


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededRight:
    """An operation on one resource, such as `topic orders`, that *state* needs on the cluster *alias*."""

    state: SwitchoverState
    alias: str
    operation: Operation
    resource: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnTopic:
    state: SwitchoverState
    operation: Operation


_OnTopics = tuple[_OnTopic, ...]
_READ_LOG: Final[_OnTopics] = (_OnTopic(state=_S.VERIFYING, operation=Operation.READ),)
_COMPARED: Final[_OnTopics] = (*_READ_LOG, _OnTopic(state=_S.VERIFYING, operation=Operation.DESCRIBE_CONFIGS))
_COPY: Final[_OnTopics] = (*_COMPARED, _OnTopic(state=_S.FORWARD_ENDED, operation=Operation.WRITE))


def _log_of(state: SwitchoverState) -> _OnTopics:
    return (
        _OnTopic(state=state, operation=Operation.READ),
        _OnTopic(state=state, operation=Operation.WRITE),
    )


async def missing_rights(
    settings: SwitchoverSettings,
    clusters: PairClusters,
    copies: Mapping[TopicPartition, TopicPartition],
    writer_ids: Collection[str],
    group_names: Collection[str],
) -> list[NeededRight]:
    """Returns what is missing on both clusters, in the order of the states.

    *copies*: the partitions of the source, and their copies. *writer_ids*: the transactional ids of the forward flow's tasks.
    *group_names*: the groups that are moved. Raises ClusterError.
    """
    source, target = clusters.source, clusters.target
    topics = _needed_topics(settings, copies)
    missing = await asyncio.gather(
        _on_cluster(settings, source),
        _on_cluster(settings, target),
        *(_on_topics(cluster, topics[cluster.alias]) for cluster in (source, target)),
        _on_ids(source, _S.REVERSING, [TransactionalIds(settings.back.source_alias).lock]),
        _on_ids(
            target,
            _S.FORWARD_ENDED,
            [TransactionalIds(settings.forward.source_alias).lock, *writer_ids],
        ),
        _on_groups(target, sorted(group_names)[:GROUPS_MAX]),
    )
    order = [*SwitchoverState]
    return sorted(
        (right for rights in missing for right in rights),
        key=lambda right: (order.index(right.state), right.alias, right.operation, right.resource),
    )


def sentence_of(missing: Iterable[NeededRight]) -> str:
    """Returns the missing rights as a sentence that names states, operations and resources, and the cure; "" for none."""
    by_state: dict[tuple[SwitchoverState, str, Operation], list[str]] = {}
    for right in missing:
        by_state.setdefault((right.state, right.alias, right.operation), []).append(right.resource)
    if not by_state:
        return ""
    parts = [
        f"{state.value} needs {operation.acl_name} on {_some(resources)} of {alias}"
        for (state, alias, operation), resources in by_state.items()
    ]
    return f"permissions: {'; '.join(parts)}. Add these ACLs: `mirrorflow acls` with the file of the pair prints them."


def _needed_topics(
    settings: SwitchoverSettings, copies: Mapping[TopicPartition, TopicPartition]
) -> dict[str, dict[str, _OnTopics]]:
    """Returns what is needed on topics that exist, or that the switchover creates, by the alias of the cluster."""
    on_source: dict[str, _OnTopics] = {partition.topic: _COMPARED for partition in copies}
    on_target: dict[str, _OnTopics] = {copy.topic: _COPY for copy in copies.values()}
    for topics in (on_source, on_target):
        topics[SWITCHOVERS_TOPIC] = _log_of(_S.FENCING)
    on_source.update(dict.fromkeys(_own_topics(settings.back), _log_of(_S.REVERSING)))
    on_target.update(dict.fromkeys(_own_topics(settings.forward), _log_of(_S.FORWARD_ENDED)))
    if settings.forward_groups is not None and settings.forward_groups.emit_s is not None:
        policy = make_replication_policy(settings.forward_groups)
        name = policy.checkpoints_topic(settings.forward_groups.source_alias)
        on_target[name] = _log_of(_S.GROUPS_FINAL)
    return {settings.source: on_source, settings.to: on_target}


def _own_topics(flow: SourceSettings) -> Iterator[str]:
    yield claims_topic(flow.source_alias)
    if flow.offsets.store is OffsetStore.KAFKA:
        yield flow.offsets.topic


async def _on_cluster(settings: SwitchoverSettings, cluster: Cluster) -> list[NeededRight]:
    if settings.fence is not FenceKind.DENY_ACL:
        return []
    is_source = cluster.alias == settings.source
    allowed = await admin.cluster_operations(cluster)
    return [
        NeededRight(
            state=_S.FENCING if is_source else _S.PROMOTING,
            alias=cluster.alias,
            operation=operation,
            resource="the cluster",
        )
        for operation in (Operation.DESCRIBE, Operation.ALTER)
        if int(operation) not in allowed
    ]


async def _on_topics(cluster: Cluster, needed: Mapping[str, _OnTopics]) -> list[NeededRight]:
    allowed = await admin.topic_operations(cluster, [*needed])
    return [
        NeededRight(
            state=right.state,
            alias=cluster.alias,
            operation=right.operation,
            resource=f"topic {topic}",
        )
        for topic, rights in needed.items()
        if topic in allowed
        for right in rights
        if int(right.operation) not in allowed[topic]
    ]


async def _on_ids(cluster: Cluster, state: SwitchoverState, names: Collection[str]) -> list[NeededRight]:
    refused = await _refused(cluster, names, may_write_as)
    return [
        NeededRight(
            state=state, alias=cluster.alias, operation=Operation.WRITE, resource=f"transactional id {name}"
        )
        for name in refused
    ]


async def _on_groups(cluster: Cluster, names: Collection[str]) -> list[NeededRight]:
    refused = await _refused(cluster, names, groups.may_read)
    return [
        NeededRight(
            state=_S.GROUPS_FINAL, alias=cluster.alias, operation=Operation.READ, resource=f"group {name}"
        )
        for name in refused
    ]


async def _refused(
    cluster: Cluster, names: Collection[str], is_allowed: Callable[[Cluster, str], Awaitable[bool]]
) -> list[str]:
    limit = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def ask(name: str) -> bool:
        async with limit:
            return await is_allowed(cluster, name)

    allowed = await asyncio.gather(*map(ask, names))
    return [name for name, is_one in zip(names, allowed, strict=True) if not is_one]


def _some(resources: list[str]) -> str:
    rest = f" and {len(resources) - RESOURCES_MAX} more" if len(resources) > RESOURCES_MAX else ""
    return ", ".join(resources[:RESOURCES_MAX]) + rest

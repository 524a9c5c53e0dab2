"""Finds the partitions of a flow that cannot be read or written at present, and why: a session of a task leaves them out.

One that is taken all the same holds up all others of its task: no transaction can end in it, and no request about it is answered.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from mirrorflow_core.errors import (
    MirrorFlowError,
    NotAuthorizedError,
    SourceUnavailableError,
    TargetOutOfSyncError,
    TargetUnavailableError,
    TopicGoneError,
    UnsupportedBrokerError,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_acls import Operation
from mirrorflow_core.wire.error_codes import (
    NETWORK_EXCEPTION,
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    name_of,
    partition_error,
)
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.metadata import NO_LEADER

# For a leader to answer a small read about its partitions. It takes milliseconds; a leader that needs longer is down, frozen or
# cut off from this process, and the metadata names it for some seconds more, or for ever.
RESPONSE_S: Final = 5.0
_ROUNDS_MAX: Final = 11  # within a second: most elections are over then, and the others are not waited for
_MIN_IN_SYNC: Final = "min.insync.replicas"
_GONE: Final = {UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID}


async def unavailable_partitions(
    source: Cluster, target: Cluster, copies: Mapping[TopicPartition, TopicPartition]
) -> dict[TopicPartition, MirrorFlowError]:
    """Returns which partitions of *copies*, source to target, cannot be copied at present: by the metadata, and by their leaders.

    Raises ClusterError if a whole cluster cannot be used.
    """
    on_source, unwritable = await asyncio.gather(
        _leader_codes(source, copies), unwritable_copies(target, copies)
    )
    unreadable: dict[TopicPartition, MirrorFlowError] = {}
    for partition, code in on_source.items():
        if (error := _topic_error(source, partition, partition, code)) is not None:
            unreadable[partition] = error
        elif code != NONE:
            problem = _problem(source, partition, code)
            unreadable[partition] = SourceUnavailableError(
                topic=partition.topic, partition=partition.partition, problem=problem
            )
    return unwritable | unreadable


async def unwritable_copies(
    target: Cluster, copies: Mapping[TopicPartition, TopicPartition]
) -> dict[TopicPartition, MirrorFlowError]:
    """Returns the partitions of the source whose *copies* cannot be written at present, as `unavailable_partitions`."""
    on_target, out_of_sync, denied = await asyncio.gather(
        _leader_codes(target, copies.values()),
        _out_of_sync(target, copies.values()),
        _denied_topics(target, {copy.topic for copy in copies.values()}),
    )
    unwritable: dict[TopicPartition, MirrorFlowError] = {}
    for origin, copy in copies.items():
        topic, partition = origin
        if copy.topic in denied:
            resource = f"topic {copy.topic}"
            unwritable[origin] = NotAuthorizedError(
                cluster=target.alias, operation="Write", resource=resource
            )
        elif (error := _topic_error(target, origin, copy, on_target[copy])) is not None:
            unwritable[origin] = error
        elif on_target[copy] != NONE:
            problem = _problem(target, copy, on_target[copy])
            unwritable[origin] = TargetUnavailableError(topic=topic, partition=partition, problem=problem)
        elif copy in out_of_sync:
            unwritable[origin] = TargetOutOfSyncError(topic=topic, partition=partition, copy=str(copy))
    return unwritable


async def _leader_codes(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the error codes with which the leaders answer, or why there is none."""
    listed = await admin.list_offsets(
        cluster, partitions, LATEST, rounds_max=_ROUNDS_MAX, timeout_s=RESPONSE_S
    )
    return {partition: result.error for partition, result in listed.items()}


async def _out_of_sync(cluster: Cluster, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
    """Returns those of *partitions* that have a leader and too few replicas in sync to accept a write."""
    short: dict[TopicPartition, int] = {}
    for partition in partitions:
        topic = cluster.metadata.topics.get(partition.topic)
        state = None if topic is None else topic.partitions.get(partition.partition)
        if state is not None and state.leader != NO_LEADER and len(state.isr) < len(state.replicas):
            short[partition] = len(state.isr)
    if not short:
        return frozenset()
    topics = sorted({partition.topic for partition in short})
    least = await admin.describe_topic_setting(cluster, topics, _MIN_IN_SYNC)
    return frozenset(
        partition for partition, in_sync in short.items() if in_sync < int(least.get(partition.topic) or 1)
    )


async def _denied_topics(cluster: Cluster, topics: Iterable[str]) -> set[str]:
    """Returns which of *topics* this client may describe, but not write; none before Kafka 2.3."""
    try:
        operations = await admin.topic_operations(cluster, sorted(topics))
    except UnsupportedBrokerError:
        return set()
    return {topic for topic, granted in operations.items() if granted and Operation.WRITE not in granted}


def _topic_error(
    cluster: Cluster, source: TopicPartition, partition: TopicPartition, code: int
) -> MirrorFlowError | None:
    """Returns the error of a *code* that means the same on both sides."""
    if code in _GONE:
        return TopicGoneError(topic=source.topic, partition=source.partition, cluster=cluster.alias)
    if code == TOPIC_AUTHORIZATION_FAILED:
        return partition_error(code, cluster=cluster.alias, request="ListOffsets", partition=partition)
    return None


def _problem(cluster: Cluster, partition: TopicPartition, code: int) -> str:
    """Returns why no broker of *cluster* serves *partition*, and what to do."""
    leader = cluster.leader(*partition)
    if leader is None:
        return (
            f"{partition} of cluster {cluster.alias} has no leader; start the brokers that hold its replicas"
        )
    does = "does not answer" if code == NETWORK_EXCEPTION else f"answers with {name_of(code)}"
    return (
        f"broker {leader} of cluster {cluster.alias}, which leads {partition}, {does}; check that broker, its log, and the "
        "network to it"
    )

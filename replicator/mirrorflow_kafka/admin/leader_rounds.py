"""Sends requests about partitions to their leaders, in rounds.

There is one request for each leader, in parallel. If a leader has moved or a broker is down, the metadata is refreshed and the
request retried, a limited number of times. A partition that still fails has its error code in the result, so that it does not
hide the results of the others.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire import error_codes
from mirrorflow_kafka.client.cluster import REQUEST_TIMEOUT_S, Cluster, chunks
from mirrorflow_kafka.client.connection import Connection

# An election takes under a second, detecting a dead broker up to broker.session.timeout.ms (9 s): 24 rounds
# are 9 s.
ROUNDS_MAX = 24
# Every broker knows a new topic within a second (0.7 s here); a deleted topic must not cost ten seconds.
UNKNOWN_ROUNDS_MAX = 11
BACKOFF_MIN_S = 0.02  # a leader is in the metadata some milliseconds before it leads a new partition
BACKOFF_MAX_S = 1.0
BACKOFF_GROWTH = 1.25  # the first start of a flow waits for such leaders
# A request with 5,000 partitions is 20 to 100 kB and was answered in 50 ms; a larger one would block a broker
# thread.
PARTITIONS_MAX = 5000
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Code:
    """Stands for a partition's part of a response: one that did not arrive, or of which only the code counts."""

    error_code: int


async def send_to_leaders(
    cluster: Cluster,
    partitions: Iterable[Key],
    send: Callable[[Connection, Sequence[TopicPartition]], Awaitable[dict[TopicPartition, Any]]],
    *,
    rounds_max: int = ROUNDS_MAX,
    timeout_s: float = math.inf,
    purpose: str = "admin",
) -> dict[TopicPartition, Any]:
    """Sends requests with *send* to the leaders of *partitions*; returns each partition's part of a response.

    Each part has an `error_code`. Partitions with stale-metadata or retriable errors are retried, up to *rounds_max* rounds
    and for *timeout_s*. A leader that does not answer in time has NETWORK_EXCEPTION, and does not delay the others.
    """
    now = asyncio.get_running_loop().time
    limit_s = None if timeout_s == math.inf else now() + timeout_s
    responses: dict[TopicPartition, Any] = {}
    waiting = [TopicPartition(*key) for key in partitions]
    unknown = {partition.topic for partition in waiting if cluster.leader(*partition) is None}
    if unknown:
        await _refresh(cluster, unknown, limit_s)

    async def send_to(leader: int, requested: Sequence[TopicPartition]) -> dict[TopicPartition, Any]:
        nothing = dict.fromkeys(requested, _Code(error_codes.NETWORK_EXCEPTION))
        try:
            async with asyncio.timeout_at(limit_s) as limit:
                connection = await cluster.connection(leader, purpose=purpose)
                if limit_s is not None and connection.muted_until_s > now():
                    limit.reschedule(connection.muted_until_s + timeout_s)  # a quota delays the response
                return {**nothing, **await send(connection, requested)}
        except (UnreachableError, TimeoutError):
            return nothing

    rounds = Backoff(min_s=BACKOFF_MIN_S, max_s=BACKOFF_MAX_S, attempts_max=rounds_max, growth=BACKOFF_GROWTH)
    async for number in rounds:
        if number > 1:
            await _refresh(cluster, {partition.topic for partition in waiting}, limit_s)
        groups: dict[int, list[TopicPartition]] = {}
        for partition in waiting:
            leader = cluster.leader(*partition)
            if leader is None:
                responses[partition] = _Code(_why_no_leader(cluster, partition))
            else:
                groups.setdefault(leader, []).append(partition)
        requests = (
            send_to(leader, chunk)
            for leader, group in groups.items()
            for chunk in chunks(group, PARTITIONS_MAX)
        )
        for parts in await asyncio.gather(*requests):
            responses.update(parts)
        waiting = [partition for partition in waiting if _may_heal(responses[partition].error_code, number)]
        if not waiting or (limit_s is not None and now() >= limit_s):
            return responses
    await _refresh(cluster, {partition.topic for partition in waiting}, limit_s)
    return responses


async def _refresh(cluster: Cluster, topics: Iterable[str], limit_s: float | None) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(limit_s):
            await cluster.refresh(topics)


async def call_leaders(
    cluster: Cluster,
    partitions: Iterable[Key],
    request: Callable[[dict[str, list[int]]], Any],
    *,
    names: tuple[str, str] = ("name", "partition_index"),
    rounds_max: int = ROUNDS_MAX,
    timeout_s: float = math.inf,
) -> dict[TopicPartition, Any]:
    """As `send_to_leaders`, with a kafka-python request from partition numbers by topic.

    *names* are those of the topic and the partition in its response.
    """
    topic_name, partition_name = names

    async def send(connection: Connection, requested: Sequence[TopicPartition]) -> dict[TopicPartition, Any]:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in requested:
            by_topic.setdefault(topic, []).append(partition)
        response = await connection.call(request(by_topic), timeout_s=REQUEST_TIMEOUT_S)
        return {
            TopicPartition(getattr(topic, topic_name), getattr(partition, partition_name)): partition
            for topic in response.topics
            for partition in topic.partitions
        }

    return await send_to_leaders(cluster, partitions, send, rounds_max=rounds_max, timeout_s=timeout_s)


def _may_heal(code: int, number: int) -> bool:
    if code in {error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.UNKNOWN_TOPIC_ID}:
        return number < UNKNOWN_ROUNDS_MAX
    return error_codes.is_metadata_stale(code) or error_codes.is_retriable(code)


def _why_no_leader(cluster: Cluster, partition: TopicPartition) -> int:
    """Returns why there is no leader: the topic's error in the metadata, or LEADER_NOT_AVAILABLE."""
    topic = cluster.metadata.topics.get(partition.topic)
    if topic is None or (not topic.error and partition.partition not in topic.partitions):
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    return topic.error or error_codes.LEADER_NOT_AVAILABLE

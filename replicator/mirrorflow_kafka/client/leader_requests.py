"""Sends requests to partition leaders: one request per leader, in parallel.

If a leader has moved or a broker is down, the metadata is refreshed and the request retried, a limited number
of times. A partition that still fails has its error code in the result, so that it does not hide the results
of the others. `admin.log_offsets`, `admin.log_requests` and `admin.log_requests` define the requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client import error_codes
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.connection import Connection

# An election takes under a second, detecting a dead broker up to broker.session.timeout.ms (9 s): 12 rounds
# are 10 s.
ROUNDS_MAX = 12
# Every broker knows a new topic within a second; a deleted topic must not cost ten seconds.
UNKNOWN_ROUNDS_MAX = 4
ROUND_BACKOFF_MIN_S = 0.1
ROUND_BACKOFF_MAX_S = 1.0
# A request with 5,000 partitions is 20 to 100 kB and was answered in 50 ms; a larger one would block a broker
# thread.
PARTITIONS_MAX = 5000
Key = tuple[str, int]
Answer = TypeVar("Answer")


async def of_leaders(
    cluster: Cluster,
    partitions: Iterable[Key],
    ask: Callable[[Connection, Sequence[TopicPartition]], Awaitable[dict[TopicPartition, Answer]]],
    failed: Callable[..., Answer],
    error_of: Callable[[Answer], int],
    *,
    rounds_max: int = ROUNDS_MAX,
    purpose: str = "admin",
) -> dict[TopicPartition, Answer]:
    """Send requests with *ask* to the leaders of *partitions*; return the result of each partition.

    Partitions with stale-metadata or retriable errors are retried, up to *rounds_max* rounds. *failed* makes
    the result for an error code without a response, *error_of* returns a result's error code.
    """
    answers: dict[TopicPartition, Answer] = {}
    waiting = [TopicPartition(*key) for key in partitions]
    unknown = {one.topic for one in waiting if cluster.leader(*one) is None}
    if unknown:
        await cluster.refresh(unknown)
    rounds = Backoff(min_s=ROUND_BACKOFF_MIN_S, max_s=ROUND_BACKOFF_MAX_S, attempts_max=rounds_max)
    async for number in rounds:
        if number > 1:
            await cluster.refresh({one.topic for one in waiting})
        groups: dict[int, list[TopicPartition]] = {}
        for one in waiting:
            leader = cluster.leader(*one)
            if leader is None:
                answers[one] = failed(error=_unled(cluster, one))
            else:
                groups.setdefault(leader, []).append(one)
        chunks = [
            (leader, group[at : at + PARTITIONS_MAX])
            for leader, group in groups.items()
            for at in range(0, len(group), PARTITIONS_MAX)
        ]
        for found in await asyncio.gather(
            *(_ask_one(cluster, leader, chunk, ask, failed, purpose) for leader, chunk in chunks)
        ):
            answers.update(found)
        waiting = [one for one in waiting if _may_heal(error_of(answers[one]), number)]
        if not waiting:
            return answers
    await cluster.refresh({one.topic for one in waiting})
    return answers


async def _ask_one(
    cluster: Cluster,
    leader: int,
    asked: Sequence[TopicPartition],
    ask: Callable[[Connection, Sequence[TopicPartition]], Awaitable[dict[TopicPartition, Answer]]],
    failed: Callable[..., Answer],
    purpose: str,
) -> dict[TopicPartition, Answer]:
    nothing = {one: failed(error=error_codes.NETWORK_EXCEPTION) for one in asked}
    try:
        connection = await cluster.connection(leader, purpose=purpose)
        return {**nothing, **await ask(connection, asked)}
    except UnreachableError:
        return nothing


def _may_heal(code: int, number: int) -> bool:
    if code in {error_codes.UNKNOWN_TOPIC_OR_PARTITION, error_codes.UNKNOWN_TOPIC_ID}:
        return number < UNKNOWN_ROUNDS_MAX
    return error_codes.is_metadata_stale(code) or error_codes.is_retriable(code)


def _unled(cluster: Cluster, partition: TopicPartition) -> int:
    """Return why there is no leader: the topic's error in the metadata, or LEADER_NOT_AVAILABLE."""
    topic = cluster.metadata.topics.get(partition.topic)
    if topic is None or (not topic.error and partition.partition not in topic.partitions):
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    return topic.error or error_codes.LEADER_NOT_AVAILABLE


def believed_epoch(cluster: Cluster, topic: str, partition: int) -> int:
    """Return the cached leader epoch; a broker that knows another epoch returns an error."""
    return cluster.metadata.topics[topic].partitions[partition].leader_epoch


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for topic, partition in partitions:
        groups.setdefault(topic, []).append(partition)
    return groups

"""Asks the leader of each partition: one request for each leader, in parallel, for whatever only a leader answers.

A leader that has moved, or a broker that is gone, costs a metadata refresh and another round, a bounded number of times;
what is unanswered then carries its error code, because one partition must not hide the others' answers. The questions
are `log_offsets`, `log_producers` and `log_changes`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from mirrorflow_replicator.errors import UnreachableError
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import codes
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.connection import Connection
from mirrorflow_replicator.kafka.pool import backoff_s

# An election takes a fraction of a second, a broker's death up to broker.session.timeout.ms (9 s): 12 rounds are 10 s.
ROUNDS_MAX = 12
# A topic created elsewhere is known to every broker within a second; a deleted one must not cost ten.
UNKNOWN_ROUNDS_MAX = 4
ROUND_BACKOFF_MIN_S = 0.1
ROUND_BACKOFF_MAX_S = 1.0
# A request about 5,000 partitions is 20 to 100 kB and was answered in 50 ms; more would hold the broker's thread.
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
    """Ask the leader of each partition, again where the answer says that metadata are old."""
    answers: dict[TopicPartition, Answer] = {}
    waiting = [TopicPartition(*key) for key in partitions]
    unknown = {one.topic for one in waiting if cluster.leader(*one) is None}
    if unknown:
        await cluster.refresh(unknown)
    for number in range(1, rounds_max + 1):
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
        rounds = await asyncio.gather(
            *(_ask_one(cluster, leader, chunk, ask, failed, purpose) for leader, chunk in chunks)
        )
        for found in rounds:
            answers.update(found)
        waiting = [one for one in waiting if _may_heal(error_of(answers[one]), number)]
        if not waiting:
            break
        if number < rounds_max:
            await asyncio.sleep(
                backoff_s(number, lowest_s=ROUND_BACKOFF_MIN_S, highest_s=ROUND_BACKOFF_MAX_S)
            )
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
    nothing = {one: failed(error=codes.NETWORK_EXCEPTION) for one in asked}
    try:
        connection = await cluster.connection(leader, purpose=purpose)
        return {**nothing, **await ask(connection, asked)}
    except UnreachableError:
        return nothing


def _may_heal(code: int, number: int) -> bool:
    if code in {codes.UNKNOWN_TOPIC_OR_PARTITION, codes.UNKNOWN_TOPIC_ID}:
        return number < UNKNOWN_ROUNDS_MAX
    return codes.is_metadata_stale(code) or codes.is_retriable(code)


def _unled(cluster: Cluster, partition: TopicPartition) -> int:
    """Why there is no leader: what the metadata say of the topic, or that an election is going on."""
    topic = cluster.metadata.topics.get(partition.topic)
    if topic is None or (not topic.error and partition.partition not in topic.partitions):
        return codes.UNKNOWN_TOPIC_OR_PARTITION
    return topic.error or codes.LEADER_NOT_AVAILABLE


def believed_epoch(cluster: Cluster, topic: str, partition: int) -> int:
    """The leader epoch that we believe in: a broker that knows another one says so instead of answering."""
    return cluster.metadata.topics[topic].partitions[partition].leader_epoch


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for topic, partition in partitions:
        groups.setdefault(topic, []).append(partition)
    return groups

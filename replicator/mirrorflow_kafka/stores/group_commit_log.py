"""Follows `__consumer_offsets` from its current end: which groups have committed which offsets since.

Needs Read on that topic. Guarantees: after `open`, each commit that counts later is returned once, in the order of its
partition; also those of transactions that are open at `open` and began at most REREAD_OFFSETS_MAX before. A log that lost records, was created again or got other partitions
raises OffsetsLogChangedError: the caller opens it again and reads all groups. `mirrorflow_core.offsets.group_commits` decodes.
"""

import asyncio
from typing import Final

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.offsets.group_commits import GROUP_OFFSETS_TOPIC, GroupCommit, PartitionCommits
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import batches_between, read_once
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster

# The topic is created with the first group; until then there is nothing to read.
_CREATED_POLL_S: Final = 1.0
# Some seconds to read. A transaction that never ends holds the last stable offset, and all commits since could take
# longer than the caller waits, each time.
REREAD_OFFSETS_MAX: Final = 100_000


class OffsetsLogChangedError(ClusterError):
    """Raised when `__consumer_offsets` is not the log any more that was followed."""

    reason = "OffsetsLogChanged"
    retriable = True

    def __init__(self, *, cluster: str) -> None:
        super().__init__(
            f"{GROUP_OFFSETS_TOPIC} of {cluster} was created again, has lost records, or has more partitions; all groups are read again.",
            cluster=cluster,
        )


class GroupCommitLog:
    """The offset commits of one cluster. `open` comes first; one call at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topic_id = ""
        self._next: dict[TopicPartition, int] = {}  # the offset to read next
        self._commits: dict[TopicPartition, PartitionCommits] = {}
        self._looked_s = 0.0

    async def open(self) -> None:
        """Notes where the log ends. Raises NotAuthorizedError without Read on the topic, and ClusterError."""
        partitions = await self._partitions()
        ends = await admin.offsets_at(self._cluster, partitions, LATEST)
        # From the first open transaction on, because its commits count with a marker that is still to come.
        stable = await admin.offsets_at(self._cluster, partitions, LATEST, read_committed=True)
        self._next = {
            partition: stable[partition] if end - stable[partition] <= REREAD_OFFSETS_MAX else end
            for partition, end in ends.items()
        }
        self._commits = {partition: PartitionCommits() for partition in partitions}
        for partition in partitions[:1]:
            await read_once(self._cluster, partition, self._next[partition], max_bytes=1)

    async def read_new(self) -> list[GroupCommit]:
        """Returns the commits that count since the last call. Raises OffsetsLogChangedError and ClusterError."""
        if not self._next and not await self._appeared():
            return []
        ends = await admin.offsets_at(self._cluster, self._next, LATEST)
        metadata = self._cluster.metadata
        topic = metadata.topics.get(GROUP_OFFSETS_TOPIC)
        if (
            metadata.topic_id(GROUP_OFFSETS_TOPIC) != self._topic_id
            or (topic is not None and len(topic.partitions) > len(self._next))
            or any(end < self._next[partition] for partition, end in ends.items())
        ):
            raise OffsetsLogChangedError(cluster=self._cluster.alias)
        grown = [partition for partition, end in ends.items() if end > self._next[partition]]
        read = await asyncio.gather(*(self._read(partition, ends[partition]) for partition in grown))
        return [commit for commits in read for commit in commits]

    async def _appeared(self) -> bool:
        """Returns whether the topic exists now; it is read from its beginning then."""
        now = asyncio.get_running_loop().time()
        if now < self._looked_s + _CREATED_POLL_S:
            return False
        self._looked_s = now
        self._next = dict.fromkeys(await self._partitions(), 0)
        self._commits = {partition: PartitionCommits() for partition in self._next}
        return bool(self._next)

    async def _partitions(self) -> list[TopicPartition]:
        await self._cluster.refresh([GROUP_OFFSETS_TOPIC])
        topic = self._cluster.metadata.topics.get(GROUP_OFFSETS_TOPIC)
        if topic is None or topic.error == UNKNOWN_TOPIC_OR_PARTITION:
            return []
        self._cluster.raise_for(topic.error, "Metadata", GROUP_OFFSETS_TOPIC)
        self._topic_id = self._cluster.metadata.topic_id(GROUP_OFFSETS_TOPIC)
        return [TopicPartition(GROUP_OFFSETS_TOPIC, number) for number in sorted(topic.partitions)]

    async def _read(self, partition: TopicPartition, end: int) -> list[GroupCommit]:
        commits: list[GroupCommit] = []
        async for batch, _ in batches_between(self._cluster, partition, self._next[partition], end):
            commits += self._commits[partition].take(batch)
            self._next[partition] = batch.next_offset
        return commits

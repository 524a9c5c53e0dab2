"""Reads what a task must know about its source partitions: where they end, and whether they are compacted.

A compacted source shows two copiers different records after the same one, so equal sequence numbers may stand
for different records (docs/exactly-once.md, clause 2). Such partitions have one batch in flight. A topic
whose policy may not be read is treated as compacted: slower copying is better than lost records.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.target_probe import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.partition_copier import PartitionCopier

# As often as brokers check for logs to clean (log.cleaner.backoff.ms): a topic may become compacted at any
# time.
READ_EVERY_S = 15.0

CLEANUP_POLICY, TIMESTAMP_TYPE = "cleanup.policy", "message.timestamp.type"

log = logging.getLogger("mirrorflow.task")


async def note_ends(source: Cluster, lanes: Collection[PartitionCopier], *, read_committed: bool) -> None:
    """Sets the current end offset of each of *lanes*. Raises ClusterError."""
    ends = await admin.list_offsets(
        source, [lane.source for lane in lanes], LATEST, read_committed=read_committed
    )
    for lane in lanes:
        lane.start_end = lane.cursor.end_offset = ends[lane.source].offset


async def note_stamped_topics(target: Cluster, lanes: Collection[PartitionCopier]) -> None:
    """Notes which target topics of *lanes* use LogAppendTime, where that may be read. Raises ClusterError."""
    topics = sorted({lane.target_topic for lane in lanes})
    kinds = await admin.describe_topic_setting(target, topics, TIMESTAMP_TYPE)
    for lane in lanes:
        if kinds.get(lane.target_topic) == "LogAppendTime":
            lane.around.stamped.add(lane.target_topic)


class CleanupPolicies:
    """Keeps `PartitionCopier.is_compacted` in line with the source's `cleanup.policy`."""

    def __init__(self, source: Cluster) -> None:
        self._source = source
        self._unreadable: frozenset[str] = frozenset()  # topics, logged once

    async def apply(self, lanes: Iterable[PartitionCopier]) -> None:
        """Reads the policies of the topics of *lanes* and applies them. Raises ClusterError."""
        lanes = list(lanes)
        topics = sorted({lane.topic for lane in lanes})
        policies = await admin.describe_topic_setting(self._source, topics, CLEANUP_POLICY)
        for lane in lanes:
            if lane.topic in policies:
                policy = policies[lane.topic]
                lane.is_compacted = policy is None or "compact" in policy
                lane.packer.is_one_in_flight = lane.is_compacted
        unreadable = frozenset(topic for topic, policy in policies.items() if policy is None)
        if new := sorted(unreadable - self._unreadable):
            log.warning(
                "The cleanup.policy of %s cannot be read, so they are copied with one batch in flight, as if they were "
                "compacted; grant DescribeConfigs on them to copy faster.",
                ", ".join(new),
            )
        self._unreadable |= unreadable

    async def follow(
        self, *, lanes: Callable[[], Iterable[PartitionCopier]], on_error: Callable[[MirrorFlowError], None]
    ) -> None:
        """Applies the current policies every READ_EVERY_S, until cancelled."""
        while True:
            await asyncio.sleep(READ_EVERY_S)
            try:
                await self.apply(lanes())
            except MirrorFlowError as error:
                on_error(error)

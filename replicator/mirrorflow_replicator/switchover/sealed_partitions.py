"""Lists the partitions that a switchover seals: those of all topics that the forward flow selects, without heartbeats.

Heartbeats never end, and belong to the flows.
"""

from collections.abc import Iterable

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_kafka.admin import admin
from mirrorflow_replicator.config.plugins import make_naming, make_replication_policy, make_selection
from mirrorflow_replicator.switchover.pair_settings import PairClusters, SwitchoverSettings


class SealedPartitions:
    """The partitions by their names on both clusters, read anew at each call."""

    def __init__(self, settings: SwitchoverSettings, clusters: PairClusters) -> None:
        self._clusters = clusters
        self._selection = make_selection(settings.forward)
        self._policy = make_replication_policy(settings.forward)
        self._rename = make_naming(settings.forward).target_topic

    async def topics(self) -> frozenset[str]:
        """Returns the topics on the source. Raises ClusterError."""
        listed = await admin.list_topics(self._clusters.source)
        return frozenset(
            name
            for name, topic in listed.items()
            if not topic.error
            and self._selection.selects(name)
            and not self._policy.is_heartbeats_topic(name)
        )

    async def on_source(self) -> list[TopicPartition]:
        """Returns the partitions on the source, sorted. Raises ClusterError."""
        names, known = sorted(await self.topics()), self._clusters.source.metadata.topics
        return [TopicPartition(name, number) for name in names for number in sorted(known[name].partitions)]

    async def copies(self) -> dict[TopicPartition, TopicPartition]:
        """Returns the partition of the target for each one of the source. Raises ClusterError."""
        copies = {
            partition: TopicPartition(self._rename(partition.topic), partition.partition)
            for partition in await self.on_source()
        }
        await self._clusters.target.refresh({copy.topic for copy in copies.values()})
        return copies

    async def remaining_copies(self, positions: Iterable[WriterPosition]) -> list[TopicPartition]:
        """Returns the copies of *positions* whose topics are no longer on the source. Raises ClusterError.

        A topic of the target with the same name that was created again since is no copy.
        """
        on_source, target = await self.topics(), self._clusters.target
        copies = {
            TopicPartition(self._rename(position.topic), position.partition): position.target_topic_id
            for position in positions
            if position.next_source_offset >= 0
            and position.topic not in on_source
            and not self._policy.is_heartbeats_topic(position.topic)
        }
        await target.refresh({copy.topic for copy in copies})
        known = target.metadata.topics
        return [
            copy
            for copy, topic_id in copies.items()
            if copy.topic in known
            and copy.partition in known[copy.topic].partitions
            and (not topic_id or topic_id == target.metadata.topic_id(copy.topic))
        ]

"""Lists the partitions that a switchover seals: those of all topics that the forward flow selects, without heartbeats.

Heartbeats never end, and belong to the flows.

Brokers do not list topics that a user may not describe. Such a topic would be neither fenced nor sealed, although applications write to
it, so one that the flow has copied must be listed, or be deleted.
"""

from collections.abc import Collection, Iterable

from mirrorflow_core.errors import NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.error_codes import (
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.stored_positions import read_positions
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_naming, make_replication_policy, make_selection
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.switchover.flow_end import NO_BARRIER
from mirrorflow_replicator.switchover.pair_settings import PairClusters, SwitchoverSettings


async def has_stored_positions(flow: SourceSettings, target: Cluster) -> bool:
    """Returns whether *flow* has its offsets topic. Without one it has never run, and a read would wait for it. Raises ClusterError."""
    await target.refresh([flow.offsets.topic])
    topic = target.metadata.topics.get(flow.offsets.topic)
    return topic is not None and topic.error != UNKNOWN_TOPIC_OR_PARTITION


class SealedPartitions:
    """The partitions by their names on both clusters, read anew at each call."""

    def __init__(self, settings: SwitchoverSettings, clusters: PairClusters) -> None:
        self._settings = settings
        self._clusters = clusters
        self._known: frozenset[str] | None = None  # topics that were copied or listed before
        self._selection = make_selection(settings.forward)
        self._policy = make_replication_policy(settings.forward)
        self._rename = make_naming(settings.forward).target_topic

    async def topics(self) -> frozenset[str]:
        """Returns the topics on the source. Raises ClusterError, NotAuthorizedError if it hides one of them."""
        listed = await admin.list_topics(self._clusters.source)
        names = frozenset(name for name, topic in listed.items() if not topic.error and self._is_sealed(name))
        if self._known is None:
            self._known = await self._copied_topics()
        if self._known is not None:
            self._known = names | await self._still_there(self._known - names)
        return names

    async def _still_there(self, unlisted: Collection[str]) -> frozenset[str]:
        """Returns those of *unlisted* that exist. Raises NotAuthorizedError, or another ClusterError, if that is not known."""
        source, existing = self._clusters.source, set[str]()
        if unlisted:
            await source.refresh(unlisted)
        for name in sorted(unlisted):
            topic = source.metadata.topics.get(name)
            code = UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error
            if code == TOPIC_AUTHORIZATION_FAILED:
                raise NotAuthorizedError(cluster=source.alias, operation="Describe", resource=f"topic {name}")
            if code == NONE:
                existing.add(name)
            elif code != UNKNOWN_TOPIC_OR_PARTITION:
                source.raise_for(code, "Metadata", name)
        return frozenset(existing)

    async def has_stored_positions(self) -> bool:
        """Returns what the function `has_stored_positions` does, of the forward flow. Raises ClusterError."""
        return await has_stored_positions(self._settings.forward, self._clusters.target)

    async def _copied_topics(self) -> frozenset[str] | None:
        """Returns the topics of which the flow has a position; None without an offsets topic. Raises ClusterError."""
        if not await self.has_stored_positions():
            return None
        target = self._clusters.target
        flow = FlowClusters(self._settings.forward, target, target, initial=set())
        stored = (await flow.runner.run(read_positions(NO_BARRIER))).committed
        newest = {position.topic_partition: position for position in stored}
        return frozenset(
            position.topic
            for position in newest.values()
            if position.next_source_offset >= 0 and self._is_sealed(position.topic)
        )

    def _is_sealed(self, topic: str) -> bool:
        return self._selection.selects(topic) and not self._policy.is_heartbeats_topic(topic)

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

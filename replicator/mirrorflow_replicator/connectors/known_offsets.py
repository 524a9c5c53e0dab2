"""Reads what is known about offsets and groups: checkpoints, offset syncs and the offset map.

Guarantees: nothing is written here; each record is read once, and records that cannot be decoded are counted
in `skipped`; a map is used only until one of its topics is re-created.
`connectors.checkpoint_passes` reads repeatedly and the command once; both handle the errors.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import NamedTuple

from mirrorflow_core.connect.mirror_records import (
    decode_checkpoint,
    decode_map,
    decode_map_key,
    decode_offset_sync,
    offset_map_topic,
)
from mirrorflow_core.errors import BrokerError, OffsetSyncsMissingError
from mirrorflow_core.offsets.checkpoints import CheckpointStore, Point
from mirrorflow_core.offsets.offset_map import OffsetMap
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore, Sync
from mirrorflow_core.offsets.offset_translation import Translator, renaming
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import CheckpointSettings
from mirrorflow_core.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_kafka.admin.log_requests import ends_of
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import MirrorLog
from mirrorflow_replicator.config.plugins import make_naming, make_replication_policy


class OffsetReaders(NamedTuple):
    """A client for each purpose; purposes with the same connection share one."""

    source: Cluster  # groups
    target: Cluster  # groups, creates the checkpoints topic
    syncs: Cluster  # reads the offset-syncs topic, on either side
    reader: Cluster  # reads the checkpoints topic


class TargetReaders(NamedTuple):
    """The clients where the source cannot be reached; `syncs` is unused if offset syncs are on the source."""

    target: Cluster
    syncs: Cluster
    reader: Cluster
    source: None = None


class KnownOffsets:
    """The checkpoints, offset syncs and offset maps of one flow, as read so far."""

    def __init__(self, settings: CheckpointSettings, clusters: OffsetReaders | TargetReaders) -> None:
        policy = make_replication_policy(settings)
        other = settings.target_alias if settings.syncs_on_source else settings.source_alias
        self.checkpoints_topic = policy.checkpoints_topic(settings.source_alias)
        self.syncs_topic = policy.offset_syncs_topic(other)
        self.map_topic = offset_map_topic(settings.source_alias)
        naming = make_naming(settings)
        self.rename = renaming(naming, target_alias=settings.target_alias)
        self.checkpoints = CheckpointStore()
        # A message for each topic with records that cannot be decoded.
        self.skipped: dict[str, str] = {}
        self._clusters = clusters
        self._syncs = OffsetSyncStore(must_read_to_end=True)
        self._has_history = True
        self._syncs_log = MirrorLog(clusters.syncs, self.syncs_topic)
        self._map_log = MirrorLog(clusters.reader, self.map_topic)
        self._maps: dict[TopicPartition, OffsetMap] = {}
        self._valid_maps: Mapping[TopicPartition, OffsetMap] = {}
        # Maps of a flow from the target to the source, by partition of the target. Only where names are kept: else groups of
        # both sides may be active, and a copy must not move the group of its original.
        self.opposite_map_topic = offset_map_topic(settings.target_alias)
        self._opposite_log = (
            MirrorLog(clusters.source, self.opposite_map_topic)
            if naming.keeps_names and clusters.source is not None
            else None
        )
        self._opposite_maps: dict[TopicPartition, OffsetMap] = {}
        self._valid_opposite_maps: Mapping[TopicPartition, OffsetMap] = {}
        self._news: set[TopicPartition] = set()

    @property
    def translator(self) -> Translator:
        """A translator of group offsets by what is known now."""
        return Translator(
            self._syncs,
            self._valid_maps,
            opposite_maps=self._valid_opposite_maps,
            has_history=self._has_history,
        )

    def sources_by_copy(self) -> dict[TopicPartition, list[TopicPartition]]:
        """Returns the source partitions with known offsets by their copy; several of one copy if names collide."""
        sources: dict[TopicPartition, list[TopicPartition]] = {}
        for partition in sorted({*self._maps, *self._syncs.partitions}):
            sources.setdefault(self.rename(partition), []).append(partition)
        return sources

    async def current_translator(
        self, partitions: Collection[TopicPartition], source: Cluster | None
    ) -> tuple[Translator, frozenset[TopicPartition]]:
        """Returns a translator for source *partitions*, and those whose map does not hold for today's topics.

        Its maps are compared with both clusters now; *source* None: with the target alone. Unlike `translator`, it also returns
        bounds without earlier checkpoints, and uses no offset syncs where the target has lost records: they may be from before
        the loss. Raises ClusterError.
        """
        maps = {partition: self._maps[partition] for partition in partitions if partition in self._maps}
        valid = await self._not_lost(await self._of_same_topics(maps, source))
        lost = {partition for partition, known in valid.items() if known is not maps[partition]}
        return Translator(self._syncs.without(lost), valid), frozenset(maps.keys() - valid.keys())

    async def read_checkpoints(self) -> bool:
        """Reads all checkpoints; returns True. Raises ClusterError."""
        undecodable = 0
        async for record in MirrorLog(self._clusters.reader, self.checkpoints_topic).read_new():
            try:
                checkpoint = decode_checkpoint(record.key, record.value)
            except ValueError:
                undecodable += 1
                continue
            point = Point(
                upstream_offset=checkpoint.upstream_offset,
                downstream_offset=checkpoint.downstream_offset,
                metadata=checkpoint.metadata,
            )
            partition = TopicPartition(checkpoint.topic, checkpoint.partition)
            self.checkpoints.take(checkpoint.group, {partition: point})
            self.checkpoints.note_written(checkpoint.group, [partition], record.timestamp)
        self._note_skipped(self.checkpoints_topic, undecodable, "checkpoints")
        return True

    async def open_syncs(self, *, must_read_to_end: bool) -> None:
        """Reads all offset syncs from the beginning. Raises ClusterError."""
        self._syncs = OffsetSyncStore(must_read_to_end=must_read_to_end)
        self._has_history = not must_read_to_end
        self._syncs_log = MirrorLog(self._clusters.syncs, self.syncs_topic)
        await self.read_syncs()
        self._syncs.mark_read_to_end()

    async def read_syncs(self) -> bool:
        """Reads the new offset syncs; returns True. Raises ClusterError."""
        undecodable = 0
        try:
            async for record in self._syncs_log.read_new():
                try:
                    decoded = decode_offset_sync(record.key, record.value)
                except ValueError:
                    undecodable += 1
                    continue
                sync = Sync(decoded.upstream_offset, decoded.downstream_offset)
                partition = TopicPartition(decoded.topic, decoded.partition)
                if self._syncs.add(partition, sync):
                    self.checkpoints.doubt(
                        self.rename(partition), sync.downstream_offset, at_ms=record.timestamp
                    )
                self._news.add(partition)
        except BrokerError as error:
            if error.code != UNKNOWN_TOPIC_OR_PARTITION:
                raise
            alias = self._clusters.syncs.alias
            raise OffsetSyncsMissingError(cluster=alias, topic=self.syncs_topic) from error
        self._note_skipped(self.syncs_topic, undecodable, "offset syncs")
        return True

    async def read_maps(self) -> bool:
        """Reads the new offset maps, and compares all with the topics of today; returns True. Raises ClusterError.

        There are none where Java MM2 copies, or nothing.
        """
        await self.read_new_maps()
        self._valid_maps = await self._not_lost(await self._of_same_topics(self._maps, self._clusters.source))
        return True

    async def read_new_maps(self) -> bool:
        """Reads the new offset maps for `translator_of`; returns True. Raises ClusterError."""
        await self._read_maps_of(self._map_log, self._maps)
        return True

    async def read_opposite_maps(self) -> bool:
        """Reads the new maps of a flow in the opposite direction; returns True. Raises ClusterError.

        It has ended while this flow copies, so its maps do not change between two passes. Most flows have no opposite one, and need
        not be allowed to see its topic.
        """
        source, topic = self._clusters.source, self.opposite_map_topic
        if self._opposite_log is None or source is None:
            return True
        await source.refresh([topic])
        if source.leader(topic, 0) is None:
            return True
        await self._read_maps_of(self._opposite_log, self._opposite_maps)
        self._valid_opposite_maps = await self._valid_opposites(self._opposite_maps.keys())
        return True

    async def _read_maps_of(self, log: MirrorLog, maps: dict[TopicPartition, OffsetMap]) -> None:
        """Reads the new maps of *log* into *maps*. Raises ClusterError."""
        newest: dict[TopicPartition, bytes | None] = {}
        undecodable = 0
        try:
            async for record in log.read_new():
                try:
                    newest[decode_map_key(record.key)] = record.value
                except ValueError:
                    undecodable += 1
        except BrokerError as error:
            if error.code != UNKNOWN_TOPIC_OR_PARTITION:
                raise
            maps.clear()
        finally:
            # Also after an error: the next read continues behind these records.
            undecodable += self._take_maps(newest, maps)
            self._note_skipped(log.topic, undecodable, "offset maps of this version")

    def _take_maps(
        self, newest: Mapping[TopicPartition, bytes | None], maps: dict[TopicPartition, OffsetMap]
    ) -> int:
        """Decodes *newest* into *maps*; returns how many cannot be decoded."""
        undecodable = 0
        for partition, value in newest.items():
            earlier = maps.pop(partition, None)
            try:
                maps[partition] = decode_map(value)
            except ValueError:
                undecodable += 1
                continue
            if maps is self._maps and earlier and earlier.stream[1:] != maps[partition].stream[1:]:
                self.checkpoints.doubt(self.rename(partition))
        if maps is self._maps:
            self._news.update(newest)
        return undecodable

    async def _valid_opposites(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, OffsetMap]:
        """Returns the opposite maps of *partitions*, as far as both sides have the topics and records of then.

        Without topic ids, nothing shows that, so none is used.
        """
        source, target = self._clusters.source, self._clusters.target
        if source is None:
            return {}
        maps = {
            partition: known
            for partition in partitions
            if (known := self._opposite_maps.get(partition)) is not None
        }
        topics = {partition.topic for partition in maps}
        await asyncio.gather(source.refresh(topics), target.refresh(topics))
        same = {
            partition: known
            for partition, known in maps.items()
            if "" not in known.stream[1:]
            and known.stream.source_topic_id == target.metadata.topic_id(partition.topic)
            and known.stream.target_topic_id == source.metadata.topic_id(partition.topic)
        }
        return await _not_lost(source, same, {partition: partition for partition in same})

    def take_news(self) -> set[TopicPartition]:
        """Returns the source partitions of which syncs or maps were read since the last call."""
        news, self._news = self._news, set()
        return news

    async def translator_of(self, partitions: Collection[TopicPartition]) -> Translator:
        """Returns a translator for source *partitions*, whose maps are compared with both clusters now. Raises ClusterError."""
        maps = {partition: self._maps[partition] for partition in partitions if partition in self._maps}
        valid = await self._not_lost(await self._of_same_topics(maps, self._clusters.source))
        opposite = await self._valid_opposites(partitions) if self._opposite_maps else {}
        return Translator(self._syncs, valid, opposite_maps=opposite, has_history=self._has_history)

    def reaches(self, partition: TopicPartition, upstream_offset: int) -> bool:
        """Returns whether the map that was read last covers *upstream_offset*, so that a newer one is no more precise there."""
        known = self._maps.get(partition)
        return known is not None and known.upstream_end >= upstream_offset

    async def _of_same_topics(
        self, maps: Mapping[TopicPartition, OffsetMap], source: Cluster | None
    ) -> dict[TopicPartition, OffsetMap]:
        """Returns *maps* without those of re-created topics."""
        target = self._clusters.target
        if maps and source is not None:
            await source.refresh({partition.topic for partition in maps})
        if maps:
            await target.refresh({self.rename(partition).topic for partition in maps})

        def is_same_topic(partition: TopicPartition, known: OffsetMap) -> bool:
            now = (
                "" if source is None else source.metadata.topic_id(partition.topic),
                target.metadata.topic_id(self.rename(partition).topic),
            )
            ids = zip(now, known.stream[1:], strict=True)
            return all(not topic or not other or topic == other for topic, other in ids)

        return {partition: known for partition, known in maps.items() if is_same_topic(partition, known)}

    async def _not_lost(self, maps: Mapping[TopicPartition, OffsetMap]) -> dict[TopicPartition, OffsetMap]:
        """Returns *maps* without the target offsets that the target has lost since.

        The copying task stores the shorter map as well, but perhaps later.
        """
        copies = {partition: self.rename(partition) for partition in maps}
        return await _not_lost(self._clusters.target, maps, copies)

    def _note_skipped(self, topic: str, count: int, what: str) -> None:
        if count:
            self.skipped[topic] = f"{count} records of {topic} cannot be decoded as {what} and were skipped."


async def _not_lost(
    cluster: Cluster,
    maps: Mapping[TopicPartition, OffsetMap],
    copies: Mapping[TopicPartition, TopicPartition],
) -> dict[TopicPartition, OffsetMap]:
    """Returns *maps* without the offsets that *cluster*, which has the *copies*, has lost since. Raises ClusterError."""
    valid = dict(maps)
    moved = {
        copies[partition]: partition
        for partition, known in maps.items()
        if cluster.metadata.leader_epoch(*copies[partition]) != known.leader_epoch
    }
    ends = await ends_of(cluster, {copy: maps[partition].leader_epoch for copy, partition in moved.items()})
    for copy, partition in moved.items():
        left = maps[partition].before(ends.get(copy, 0))
        if left is None:
            del valid[partition]
        else:
            valid[partition] = left
    return valid

"""The source and target of one flow, as the ownership protocol needs them: topics, starts and stored positions."""

import asyncio
from collections.abc import Awaitable, Iterable

from mirrorflow_core.connect.mirror_records import offset_map_topic
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.offsets.offset_map import OffsetMap
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import OffsetStore, SourceSettings, StartPosition
from mirrorflow_core.writer.broker_requests import ReadOffsetMap
from mirrorflow_core.writer.flow_plan import TopicIds
from mirrorflow_core.writer.position import WriterPosition, obeyed_position
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.admin.transaction_log_reader import LogCache
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic, RecordLosses
from mirrorflow_kafka.stores.position_store import TOPIC_KEY, position_store
from mirrorflow_kafka.writer.flow_topics import open_claims_topic
from mirrorflow_kafka.writer.partition_availability import unavailable_partitions
from mirrorflow_kafka.writer.protocol_runner import ProtocolRunner
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.copy.offset_map_writer import MapLog
from mirrorflow_replicator.copy.task_parts import flow_topics


class FlowClusters:
    """The clusters of a flow. *initial*: the partitions that it begins with, at the configured start; more may follow."""

    def __init__(
        self,
        settings: SourceSettings,
        source: Cluster,
        target: Cluster,
        *,
        initial: set[TopicPartition],
        logs: LogCache | None = None,
    ) -> None:
        """*logs*: of this flow, as `ProtocolRunner` uses them."""
        self.settings = settings
        self.source = source
        self.target = target
        self.runner = ProtocolRunner(
            source,
            target,
            flow_topics(settings),
            transaction_timeout_ms=settings.transaction_timeout_ms,
            start_at=self._start_at,
            offset_map=self._source_of,
            logs=logs,
        )
        self.offsets_topic = RecordLosses(target, settings.offsets.topic)
        self._initial = initial
        self._starting: frozenset[TopicPartition] = frozenset()  # partitions that are looked up now
        # Of partitions whose target has lost records, with the offset up to which it has lost nothing since.
        self._maps: dict[TopicPartition, tuple[OffsetMap, int]] = {}
        self._mapping = asyncio.Lock()

    async def open(self, *, has_claims: bool) -> None:
        """Creates the flow's own topics; their records are read when the flow is taken. Raises MirrorFlowError."""
        settings, target = self.settings, self.target
        # Together, because each waits for its leaders.
        opening: list[Awaitable[object]] = []
        if settings.offsets.store is OffsetStore.KAFKA:
            opening.append(CompactedTopic(target, settings.offsets, key=TOPIC_KEY).open())
        else:
            opening.append(position_store(settings, target).open())
        if has_claims:
            opening.append(open_claims_topic(target, settings.offsets, settings.source_alias))
        await asyncio.gather(*opening)

    async def ensure_topics(self, *, has_claims: bool) -> None:
        """Creates those of the flow's own topics again that were deleted meanwhile. Raises MirrorFlowError."""
        settings, target = self.settings, self.target
        if settings.offsets.store is OffsetStore.KAFKA:
            await CompactedTopic(target, settings.offsets, key=TOPIC_KEY).open()
        if has_claims:
            await open_claims_topic(target, settings.offsets, settings.source_alias)

    def begin_with(self, partitions: Iterable[TopicPartition]) -> None:
        """Notes that the flow begins with *partitions*, too."""
        self._initial.update(partitions)

    async def begin_lookup(self, partitions: Iterable[TopicPartition]) -> None:
        """Notes which partitions are looked up next, and the state of the offsets topic before that. Raises ClusterError.

        Their offset maps are read again, all together, if one is needed.
        """
        self._starting, self._maps = frozenset(partitions), {}
        await self.offsets_topic.has_lost_records()

    async def topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[str, TopicIds]:
        """Returns the ids of topics and copies, by the name on the source, from fresh metadata. Raises ClusterError."""
        source, target = self.source, self.target
        route = make_naming(self.settings).route
        copies = {
            topic: route(topic).name for topic in dict.fromkeys(partition.topic for partition in partitions)
        }
        await asyncio.gather(source.refresh(copies), target.refresh(copies.values()))
        return {
            topic: TopicIds(source.metadata.topic_id(topic), target.metadata.topic_id(copy), copy)
            for topic, copy in copies.items()
        }

    async def unavailable(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, MirrorFlowError]:
        """Returns which partitions cannot be copied at present, and why: they must not delay the others. Raises ClusterError."""
        on_target = flow_topics(self.settings).on_target
        return await unavailable_partitions(
            self.source, self.target, {partition: on_target(partition) for partition in partitions}
        )

    async def stored_positions(self) -> dict[TopicPartition, WriterPosition]:
        """Returns the positions of a flow that has no owner. Raises ClusterError."""
        store = position_store(self.settings, self.target)
        await store.open()
        return {partition: obeyed_position(position) for partition, position in store.positions.items()}

    async def _source_of(self, request: ReadOffsetMap) -> int | None:
        """Returns which source offset was copied to an offset that the target has lost; None if that is not known."""
        partition, offset = request.partition, request.target_offset
        if self.settings.syncs is None:
            return None
        async with self._mapping:
            if partition not in self._maps:
                self._maps |= await self._read_maps({*self._starting, partition})
            known, kept_end = self._maps.get(partition, (None, 0))
        if known is None or not known.is_current(offset, generation=request.generation, kept_end=kept_end):
            return None
        return known.source_of(offset)

    async def _read_maps(
        self, partitions: set[TopicPartition]
    ) -> dict[TopicPartition, tuple[OffsetMap, int]]:
        """Returns the stored maps of *partitions*, and up to where the target has lost nothing since."""
        topic = offset_map_topic(self.settings.source_alias)
        log = MapLog(self.target, topic, replication_factor=self.settings.offsets.replication_factor)
        maps = await log.read(partitions)
        copies = {partition: flow_topics(self.settings).on_target(partition) for partition in maps}
        ends = await log.ends({copies[partition]: known.leader_epoch for partition, known in maps.items()})
        return {partition: (known, ends.get(copies[partition], 0)) for partition, known in maps.items()}

    def _start_at(self, partition: TopicPartition) -> int:
        """Returns the timestamp at which a partition starts that was never copied."""
        start = self.settings.start if partition in self._initial else StartPosition.EARLIEST
        match start:
            case StartPosition.EARLIEST:
                return EARLIEST
            case StartPosition.LATEST:
                return LATEST
            case StartPosition.TIMESTAMP:
                return self.settings.start_timestamp_ms

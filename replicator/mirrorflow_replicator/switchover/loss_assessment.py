"""Assesses what an unplanned switchover loses, and where the copies were cut off, from the target and what still answers.

How far each partition is copied is read from the target: positions, and what was written since. The ends of the source are known to its
leaders, where they answer, and to the processes of the flow, which keep what they have read last (`/progress`). The target itself stores
no end of the source.
Guarantee: no end is higher than one that the source had, so the loss is never overstated but for markers and removed records.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.switchover.loss import EndEvidence, LossAssessment, PartitionCut, PartitionLoss
from mirrorflow_core.switchover.observation import PartitionEnd
from mirrorflow_core.writer.broker_requests import Producer, Unavailable, gather, until_unavailable
from mirrorflow_core.writer.end_lookup import next_uncopied_offset
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.stored_positions import read_positions
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_replication_policy, make_selection
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.switchover.sealed_partitions import has_stored_positions

SOURCE_TIMEOUT_S: Final = 5.0  # for all that is asked of a source that may be lost
_NO_BARRIER: Final = Producer("", UNKNOWN, UNKNOWN)  # nothing is taken from the flow, which may run


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowProgress:
    """What processes of the flow have read last, by the partition of the source. Offsets are exclusive."""

    ends: Mapping[TopicPartition, int] = field(default_factory=dict)  # of the source
    copied: Mapping[TopicPartition, int] = field(default_factory=dict)
    known_until_ms: int | None = None  # when the source was read for the last time, by this machine's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPartition:
    """How far one partition is copied, as the target alone shows."""

    position: WriterPosition
    copied: int  # the next source offset that the target does not have


class CopiedPartitions:
    """The partitions of a flow whose source may be lost, by their names on the target, which are those of the source."""

    def __init__(self, settings: SourceSettings, target: Cluster) -> None:
        self._settings = settings
        self._target = target
        self._selects = make_selection(settings).selects
        self._is_heartbeats = make_replication_policy(settings).is_heartbeats_topic

    def includes(self, topic: str) -> bool:
        """Returns whether the flow copies *topic* for applications; heartbeats belong to the flow."""
        return self._selects(topic) and not self._is_heartbeats(topic)

    async def has_stored_positions(self) -> bool:
        """Returns whether the flow has ever run. Raises ClusterError."""
        return await has_stored_positions(self._settings, self._target)

    async def topics(self) -> frozenset[str]:
        """Returns the topics on the target. Raises ClusterError."""
        return await self._selected(self._target)

    async def partitions(self) -> list[TopicPartition]:
        """Returns the partitions on the target, sorted. Raises ClusterError."""
        return _partitions(self._target, await self.topics())

    async def on_source(self, source: Cluster) -> list[TopicPartition]:
        """Returns the partitions on the source, which may have more. Raises ClusterError."""
        return _partitions(source, await self._selected(source))

    async def copied(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, CopiedPartition]:
        """Returns how far those of *partitions* are copied that the flow has copied at all. Raises ClusterError.

        It needs the target alone. While the flow runs, more may be copied.
        """
        clusters = FlowClusters(self._settings, self._target, self._target, initial=set())
        stored = (await clusters.runner.run(read_positions(_NO_BARRIER))).committed
        newest = {position.topic_partition: position for position in stored}
        known = {
            key: newest[key] for key in partitions if key in newest and newest[key].next_source_offset >= 0
        }
        counted = await clusters.runner.run(
            gather(
                {key: until_unavailable(next_uncopied_offset(position)) for key, position in known.items()}
            )
        )
        return {
            key: CopiedPartition(
                position=known[key],
                copied=known[key].next_source_offset if isinstance(offset, Unavailable) else offset,
            )
            for key, offset in counted.items()
        }

    async def _selected(self, cluster: Cluster) -> frozenset[str]:
        listed = await admin.list_topics(cluster)
        return frozenset(name for name, topic in listed.items() if not topic.error and self.includes(name))


def _partitions(cluster: Cluster, topics: Collection[str]) -> list[TopicPartition]:
    known = cluster.metadata.topics
    return [
        TopicPartition(topic, number)
        for topic in sorted(topics)
        for number in sorted(known[topic].partitions)
    ]


async def assess_loss(
    partitions: CopiedPartitions, source: Cluster | None, progress: FlowProgress
) -> LossAssessment:
    """Returns what is known to be lost; without partitions if nothing was ever copied, and there is nothing to switch over to.

    *source* is None if it does not answer. Raises ClusterError if the target cannot be read.
    """
    # Without stored positions there is no copy, whatever the target has of these topics.
    on_target = await partitions.partitions() if await partitions.has_stored_positions() else []
    if not on_target:
        return LossAssessment(partitions=())
    answered = await _answered(partitions, source)
    seen = {
        partition: end for partition, end in progress.ends.items() if partitions.includes(partition.topic)
    }
    everything = sorted({*on_target, *answered, *seen})
    # The ends of the source were read before: what is copied meanwhile only makes the loss smaller.
    copied = await partitions.copied(everything)
    now_ms = time.time_ns() // 1_000_000

    def assessed(partition: TopicPartition) -> PartitionLoss:
        known = copied.get(partition)
        stored_ms = known.position.time_ms if known is not None and known.position.time_ms > 0 else None
        next_offset = max(0 if known is None else known.copied, progress.copied.get(partition, 0))
        end: int | None
        seen_ms: int | None
        if partition in answered:
            start, end = answered[partition]
            evidence, seen_ms, next_offset = EndEvidence.SOURCE, now_ms, max(next_offset, start)
        elif partition in seen:
            end, evidence = seen[partition], EndEvidence.FLOW
            seen_ms = progress.known_until_ms if progress.known_until_ms is not None else stored_ms
        else:
            end, evidence, seen_ms = None, EndEvidence.NONE, stored_ms
        return PartitionLoss(
            topic=partition.topic,
            partition=partition.partition,
            copied=next_offset,
            source_end=end,
            evidence=evidence,
            seen_ms=seen_ms,
        )

    return LossAssessment(
        partitions=tuple(assessed(partition) for partition in everything),
        is_source_answering=bool(answered) and answered.keys() >= {*on_target},
    )


async def _answered(
    partitions: CopiedPartitions, source: Cluster | None
) -> dict[TopicPartition, tuple[int, int]]:
    """Returns begin and end of each partition whose leader on the source answers in time."""
    if source is None:
        return {}
    try:
        async with asyncio.timeout(SOURCE_TIMEOUT_S):
            on_source = await partitions.on_source(source)
            starts, ends = await asyncio.gather(
                admin.list_offsets(source, on_source, EARLIEST, timeout_s=SOURCE_TIMEOUT_S),
                admin.list_offsets(source, on_source, LATEST, timeout_s=SOURCE_TIMEOUT_S),
            )
    except (MirrorFlowError, TimeoutError):
        return {}
    return {
        partition: (starts[partition].offset, end.offset)
        for partition, end in ends.items()
        if not end.error and not starts[partition].error
    }


async def read_cuts(
    partitions: CopiedPartitions, ends: Mapping[TopicPartition, PartitionEnd]
) -> tuple[PartitionCut, ...]:
    """Returns where the copies were cut off; *ends* are those of the target, read after the flow has ended. Raises ClusterError."""
    copied = await partitions.copied([*ends])
    return tuple(
        PartitionCut(
            topic=partition.topic,
            partition=partition.partition,
            source_topic_id=copied[partition].position.source_topic_id if partition in copied else "",
            copied=copied[partition].copied if partition in copied else 0,
            target_topic_id=end.topic_id,
            target_end=end.end,
        )
        for partition, end in sorted(ends.items())
    )

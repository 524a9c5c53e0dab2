"""Plans an export: reads the topics and offsets of the source, and cuts partitions into one range per task.

Ranges can be read in any order, so a partition is cut into several, each with one task and one file of about the
configured size. Offsets without records (compaction, markers) make a file smaller than planned.
"""

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirrorflow_core.errors import NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.topic_configs import ConfigEntry
from mirrorflow_core.wire.batch import split
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import read_through_elections
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.errors import NothingSelectedError
from mirrorflow_seed.verify.range_reader import OffsetRange

# Starting a task costs some 50 ms, which would dominate for fewer offsets.
OFFSETS_MIN = 1_000
# One fetch at the start of each partition estimates its bytes per offset; this many at once do not load brokers.
SAMPLE_BYTES = 256 << 10
SAMPLES_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRange:
    """The offset range that one task reads; *index* is its number in the plan and in the name of its file."""

    index: int
    topic: str
    partition: int
    start: int
    end: int

    def size_bytes(self, bytes_per_offset: Mapping[TopicPartition, float]) -> float:
        """Returns the estimated size on the source."""
        return (self.end - self.start) * bytes_per_offset.get(TopicPartition(self.topic, self.partition), 1.0)


def plan_ranges(
    extents: Mapping[TopicPartition, OffsetRange],
    bytes_per_offset: Mapping[TopicPartition, float],
    *,
    file_bytes: int,
) -> tuple[ExportRange, ...]:
    """Splits *extents* into ranges: largest partitions first, each in offset order."""

    def cost(partition: TopicPartition) -> float:
        extent = extents[partition]
        return (extent.end - extent.start) * bytes_per_offset.get(partition, 1.0)

    pieces = [
        (partition, piece)
        for partition in sorted(extents, key=lambda one: (-cost(one), one))
        for piece in _pieces(extents[partition], bytes_per_offset.get(partition, 1.0), file_bytes)
    ]
    return tuple(
        ExportRange(index=index, topic=topic, partition=number, start=piece.start, end=piece.end)
        for index, ((topic, number), piece) in enumerate(pieces)
    )


def _pieces(extent: OffsetRange, bytes_per_offset: float, file_bytes: int) -> Iterable[OffsetRange]:
    total = extent.end - extent.start
    if total <= 0:
        return
    wanted = max(OFFSETS_MIN, int(file_bytes / max(bytes_per_offset, 1.0)))
    number = -(-total // wanted)  # of about equal length, so that none is tiny
    bounds = [extent.start + total * at // number for at in range(number + 1)]
    for start, end in itertools.pairwise(bounds):
        yield OffsetRange(start, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSnapshot:
    """The topics of the source when an export begins: their settings, offsets and bytes per offset."""

    cluster_id: str
    topic_ids: Mapping[str, str]
    configs: Mapping[str, tuple[ConfigEntry, ...]]
    extents: Mapping[TopicPartition, OffsetRange]  # frozen: later records are not archived
    bytes_per_offset: Mapping[TopicPartition, float]


async def read_source(settings: SourceSettings) -> SourceSnapshot:
    """Reads the selected topics of the source. Raises MirrorFlowError, NothingSelectedError."""
    resolve = Resolver(settings.providers).resolve_client
    cluster = await Cluster.connect(settings.source_admin, resolve=resolve)
    try:
        await cluster.refresh()
        selection = make_selection(settings)
        present = [
            name for name, topic in cluster.metadata.topics.items() if not topic.error and topic.partitions
        ]
        if nothing_selected := selection.nothing_selected(present):
            raise NothingSelectedError(nothing_selected)
        topics = {
            name: topic
            for name, topic in cluster.metadata.topics.items()
            if not topic.error and topic.partitions and selection.selects(name)
        }
        partitions = [
            TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions
        ]
        # Start offsets are read last, so that records deleted in between are no gap.
        ends = await admin.offsets_at(cluster, partitions, LATEST, read_committed=settings.read_committed)
        starts = await admin.offsets_at(cluster, partitions, EARLIEST, read_committed=settings.read_committed)
        extents = {one: OffsetRange(min(starts[one], ends[one]), ends[one]) for one in partitions}
        return SourceSnapshot(
            cluster_id=cluster.cluster_id,
            topic_ids={name: cluster.metadata.topic_id(name) for name in topics},
            configs=await _configs(cluster, topics),
            extents=extents,
            bytes_per_offset=await _read_bytes_per_offset(cluster, extents),
        )
    finally:
        await cluster.close()


async def _configs(cluster: Cluster, topics: Iterable[str]) -> Mapping[str, tuple[ConfigEntry, ...]]:
    try:
        return await admin.describe_topic_configs(cluster, topics)
    except NotAuthorizedError:
        return {}  # the archive has no topic settings then; a restore uses the target's defaults


async def _read_bytes_per_offset(
    cluster: Cluster, extents: Mapping[TopicPartition, OffsetRange]
) -> Mapping[TopicPartition, float]:
    turn = asyncio.Semaphore(SAMPLES_AT_ONCE)

    async def measure(partition: TopicPartition, extent: OffsetRange) -> float:
        async with turn:
            answer = await read_through_elections(cluster, partition, extent.start, max_bytes=SAMPLE_BYTES)
        batches = split(answer.records)
        if not batches:
            return 1.0
        return sum(one.size_bytes for one in batches) / max(
            1, batches[-1].next_offset - batches[0].base_offset
        )

    wanted = {one: extent for one, extent in extents.items() if extent.end > extent.start}
    found = await asyncio.gather(*(measure(one, extent) for one, extent in wanted.items()))
    return dict(zip(wanted, found, strict=True))

"""What an export begins with: the flow's topics on the source, their settings, and the offsets that are frozen for it."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirrorflow_replicator.connect.plugins import make_selection
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.errors import NotAuthorizedError
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.topic_configs import ConfigEntry
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.witnesses import EARLIEST, LATEST, read_once
from mirrorflow_replicator.settings import SourceSettings
from mirrorflow_replicator.wire.batch import split
from mirrorflow_seed.archive.planning import Extent

# One look at the beginning of each partition tells how dense it is; so many at once load no broker.
SAMPLE_BYTES = 256 << 10
SAMPLES_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """See the module."""

    cluster_id: str
    topic_ids: Mapping[str, str]
    configs: Mapping[str, tuple[ConfigEntry, ...]]
    extents: Mapping[TopicPartition, Extent]
    bytes_per_offset: Mapping[TopicPartition, float]


async def survey(settings: SourceSettings) -> Survey:
    """Ask the source. Raises MirrorFlowError."""
    resolve = Resolver(settings.providers).resolve_client
    cluster = await Cluster.connect(settings.source_admin, resolve=resolve)
    try:
        await cluster.refresh()
        selection = make_selection(settings)
        topics = {
            name: topic
            for name, topic in cluster.metadata.topics.items()
            if not topic.error and topic.partitions and selection.selects(name)
        }
        partitions = [
            TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions
        ]
        # Beginnings last: what is deleted in between is then no gap.
        ends = await admin.offsets_at(cluster, partitions, LATEST, read_committed=settings.read_committed)
        starts = await admin.offsets_at(cluster, partitions, EARLIEST, read_committed=settings.read_committed)
        extents = {one: Extent(min(starts[one], ends[one]), ends[one]) for one in partitions}
        return Survey(
            cluster_id=cluster.cluster_id,
            topic_ids={name: cluster.metadata.topic_id(name) for name in topics},
            configs=await _configs(cluster, topics),
            extents=extents,
            bytes_per_offset=await _densities(cluster, extents),
        )
    finally:
        await cluster.close()


async def _configs(cluster: Cluster, topics: Iterable[str]) -> Mapping[str, tuple[ConfigEntry, ...]]:
    try:
        return await admin.describe_topic_configs(cluster, topics)
    except NotAuthorizedError:
        return {}  # an archive without settings: a restore then takes the target's defaults, as a copy would


async def _densities(
    cluster: Cluster, extents: Mapping[TopicPartition, Extent]
) -> Mapping[TopicPartition, float]:
    turn = asyncio.Semaphore(SAMPLES_AT_ONCE)

    async def density(partition: TopicPartition, extent: Extent) -> float:
        async with turn:
            answer = await read_once(cluster, partition, extent.start, max_bytes=SAMPLE_BYTES)
        batches = split(answer.records)
        if not batches:
            return 1.0
        return sum(one.size_bytes for one in batches) / max(
            1, batches[-1].next_offset - batches[0].base_offset
        )

    wanted = {one: extent for one, extent in extents.items() if extent.end > extent.start}
    found = await asyncio.gather(*(density(one, extent) for one, extent in wanted.items()))
    return dict(zip(wanted, found, strict=True))

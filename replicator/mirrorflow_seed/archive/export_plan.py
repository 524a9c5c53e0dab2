"""Plans an export: reads the topics and offsets of the source, and cuts what is not archived yet into ranges.

Ranges can be read in any order, so a partition is cut into several, each with a file of about the configured size. The
size is estimated from a few records of each partition, written to Parquet; a task ends a file that becomes too large.
Offsets without records (compaction, markers) make a file smaller than planned.
"""

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.errors import CorruptRecordsError, NotAuthorizedError
from mirrorflow_core.offsets.checkpoints import GroupSelection
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.topic_acls import AclBinding
from mirrorflow_core.topics.topic_configs import ConfigEntry
from mirrorflow_core.wire.batch import Batch, split
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import read_through_elections
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.archive.manifest import (
    ArchivedConfig,
    ArchivedGroup,
    ArchivedPartition,
    ArchivedTopic,
    Gap,
    Manifest,
)
from mirrorflow_seed.archive.parquet_files import encoded_size_bytes
from mirrorflow_seed.archive.source_metadata import SourceGroups, read_acls, read_groups
from mirrorflow_seed.errors import NothingSelectedError
from mirrorflow_seed.record_columns import ColumnBuilder
from mirrorflow_seed.verify.range_reader import OffsetRange

# The least size that is planned for a file, where a partition has as much. Engines read files of this size well, and a
# task takes some seconds for one. With twice as much or more a partition is cut; a file ends at four times as much.
FILE_BYTES: Final = 128 << 20
FILE_GROWTH_MAX: Final = 4
# Starting a task costs some 50 ms, which would dominate for fewer offsets.
OFFSETS_MIN = 1_000
# An estimate below this is not one: it would make ranges of any length.
BYTES_PER_OFFSET_MIN = 0.1
# One fetch at the start of each partition estimates its bytes per offset; this many at once do not load brokers.
SAMPLE_BYTES = 256 << 10
SAMPLES_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRange:
    """A range of offsets that one task reads; *index* is its number in the plan and in the names of its files."""

    index: int
    topic: str
    partition: int
    start: int
    end: int
    size_bytes: int  # the estimated size of its file


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
        for partition in sorted(extents, key=lambda partition: (-cost(partition), partition))
        for piece in _pieces(extents[partition], bytes_per_offset.get(partition, 1.0), file_bytes)
    ]
    return tuple(
        ExportRange(
            index=index,
            topic=partition.topic,
            partition=partition.partition,
            start=piece.start,
            end=piece.end,
            size_bytes=round((piece.end - piece.start) * bytes_per_offset.get(partition, 1.0)),
        )
        for index, (partition, piece) in enumerate(pieces)
    )


def _pieces(extent: OffsetRange, bytes_per_offset: float, file_bytes: int) -> Iterable[OffsetRange]:
    total = extent.end - extent.start
    if total <= 0:
        return
    wanted = max(OFFSETS_MIN, int(file_bytes / max(bytes_per_offset, BYTES_PER_OFFSET_MIN)))
    number = max(1, total // wanted)  # of about equal length: none is smaller than the configured size
    bounds = [extent.start + total * index // number for index in range(number + 1)]
    for start, end in itertools.pairwise(bounds):
        yield OffsetRange(start, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSnapshot:
    """The topics of the source when an export begins: their settings, offsets and ACLs, and the groups that read them.

    None: not read, because a permission is missing or the flow does not want it. `warnings` say what is missing.
    """

    cluster_id: str
    topic_ids: Mapping[str, str]
    configs: Mapping[str, tuple[ConfigEntry, ...]] | None
    extents: Mapping[TopicPartition, OffsetRange]  # frozen: later records are not archived
    groups: SourceGroups | None = None
    acls: tuple[AclBinding, ...] | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """What the source has and the archive has not.

    `content` has no files yet. `unfit` has a sentence for each topic that cannot be continued, `warnings` one for what
    cannot be read besides records.
    """

    content: Manifest
    extents: Mapping[TopicPartition, OffsetRange]  # without what the source has deleted
    unfit: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


async def read_source(
    settings: SourceSettings, selected_groups: GroupSelection | None = None
) -> SourceSnapshot:
    """Reads the selected topics and groups of the source. Raises MirrorFlowError, NothingSelectedError."""
    resolve = Resolver(settings.providers).resolve_client
    cluster = await Cluster.connect(settings.source_admin, resolve=resolve)
    try:
        await cluster.refresh()
        selection = make_selection(settings)
        present = [
            name for name, topic in cluster.metadata.topics.items() if not topic.error and topic.partitions
        ]
        if (nothing_selected := selection.nothing_selected(present)) is not None:
            raise NothingSelectedError(nothing_selected)
        topics = {
            name: topic
            for name, topic in cluster.metadata.topics.items()
            if not topic.error and topic.partitions and selection.selects(name)
        }
        partitions = [
            TopicPartition(name, number) for name, topic in topics.items() for number in topic.partitions
        ]
        warnings: list[str] = []
        # Groups are read first: what a group has read by then is in this increment.
        groups = None
        if selected_groups is not None:
            groups = await read_groups(cluster, selected_groups, topics)
            warnings += groups.warnings
        # Start offsets are read last, so that records deleted in between are no gap.
        ends = await admin.offsets_at(cluster, partitions, LATEST, read_committed=settings.read_committed)
        starts = await admin.offsets_at(cluster, partitions, EARLIEST, read_committed=settings.read_committed)
        extents = {
            partition: OffsetRange(min(starts[partition], ends[partition]), ends[partition])
            for partition in partitions
        }
        configs, acls = None, None
        try:
            configs = await admin.describe_topic_configs(cluster, topics)
        except NotAuthorizedError as error:
            warnings.append(
                f"Topic settings are not archived, so a restore uses the target's defaults: {error}"
            )
        if settings.sync_acls_s is not None:
            acls, warning = await read_acls(cluster)
            warnings += [warning] if warning else []
        return SourceSnapshot(
            cluster_id=cluster.cluster_id or "",
            topic_ids={name: cluster.metadata.topic_id(name) for name in topics},
            configs=configs,
            extents=extents,
            groups=groups,
            acls=acls,
            warnings=tuple(warnings),
        )
    finally:
        await cluster.close()


async def read_bytes_per_offset(
    settings: SourceSettings, extents: Mapping[TopicPartition, OffsetRange]
) -> Mapping[TopicPartition, float]:
    """Estimates how large one offset of each partition is in a Parquet file, in bytes. Raises MirrorFlowError."""
    turn = asyncio.Semaphore(SAMPLES_AT_ONCE)
    resolve = Resolver(settings.providers).resolve_client
    cluster = await Cluster.connect(settings.source_consumer, resolve=resolve)

    async def measure(partition: TopicPartition, extent: OffsetRange) -> float:
        async with turn:
            response = await read_through_elections(cluster, partition, extent.start, max_bytes=SAMPLE_BYTES)
        return archived_bytes_per_offset(split(response.records))

    try:
        sizes = await asyncio.gather(*(measure(partition, extent) for partition, extent in extents.items()))
    finally:
        await cluster.close()
    return dict(zip(extents, sizes, strict=True))


def archived_bytes_per_offset(batches: Sequence[Batch]) -> float:
    """Returns the size of the records of *batches* in a Parquet file, for each offset; 1 without records.

    A batch that cannot be read counts as it is: the task that exports it reports it.
    """
    if not batches:
        return 1.0
    offsets = max(1, batches[-1].next_offset - batches[0].base_offset)
    try:
        builder = ColumnBuilder()
        for batch in batches:
            if not batch.is_control and batch.count:
                builder.add(batch)
        columns = builder.finish()
        return encoded_size_bytes([columns]) / offsets if columns.num_rows else 1.0
    except CorruptRecordsError:
        return sum(batch.size_bytes for batch in batches) / offsets


def plan_increment(
    settings: SourceSettings,
    snapshot: SourceSnapshot,
    archived: Manifest | None,
    *,
    archive_id: str,
    started: str,
) -> Increment:
    """Returns what the source has after *archived*, from the next offset of each partition on."""
    done = archived.partitions if archived else {}
    earlier_topics = {topic.name: topic for topic in archived.topics} if archived else {}
    unfit: dict[str, str] = {}
    extents: dict[TopicPartition, OffsetRange] = {}
    parts: dict[str, list[ArchivedPartition]] = {}
    for partition in sorted(snapshot.extents):
        extent, earlier = snapshot.extents[partition], done.get(partition)
        start = earlier.end if earlier else extent.start
        known = earlier_topics.get(partition.topic)
        if known and known.topic_id and known.topic_id != snapshot.topic_ids[partition.topic]:
            unfit[partition.topic] = f"{partition.topic} was deleted and created again on the source"
        elif start > extent.end:
            unfit[partition.topic] = (
                f"{partition} ends at {extent.end} on the source, and at {start} in the archive"
            )
        gap = (Gap(start=start, end=min(extent.start, extent.end)),) if extent.start > start else ()
        extents[partition] = OffsetRange(max(start, extent.start), extent.end)
        parts.setdefault(partition.topic, []).append(
            ArchivedPartition(number=partition.partition, start=start, end=extent.end, gaps=gap)
        )
    topics = tuple(
        ArchivedTopic(
            name=name,
            topic_id=snapshot.topic_ids[name],
            configs=_configs_of(name, snapshot, earlier_topics.get(name)),
            partitions=tuple(parts[name]),
        )
        for name in sorted(parts)
        if name not in unfit
    )
    return Increment(
        content=Manifest(
            archive_id=archive_id,
            flow=settings.flow,
            source_alias=settings.source_alias,
            source_cluster_id=snapshot.cluster_id,
            isolation=isolation_of(settings),
            started=started,
            finished="",
            topics=topics,
            groups=_groups_of(snapshot, archived, topics),
            groups_read_ms=snapshot.groups.read_ms if snapshot.groups else None,
            acls=snapshot.acls,
        ),
        extents={key: extent for key, extent in extents.items() if key.topic not in unfit},
        unfit=tuple(unfit.values()),
        warnings=snapshot.warnings,
    )


def _groups_of(
    snapshot: SourceSnapshot, archived: Manifest | None, topics: Sequence[ArchivedTopic]
) -> tuple[ArchivedGroup, ...]:
    if snapshot.groups is None:
        return ()
    return snapshot.groups.with_earlier(archived.groups if archived else (), {topic.name for topic in topics})


def _configs_of(
    topic: str, snapshot: SourceSnapshot, earlier: ArchivedTopic | None
) -> tuple[ArchivedConfig, ...]:
    """Returns the settings of *topic*; those of the archive if they cannot be read now."""
    if snapshot.configs is None:
        return earlier.configs if earlier else ()
    return archived_configs(snapshot.configs.get(topic, ()))


def adds_nothing(increment: Manifest, archived: Manifest) -> bool:
    """Whether *archived* has all offsets of *increment*, and the same partitions, topic settings, groups and ACLs."""
    if increment.groups_read_ms is not None and increment.groups != archived.groups:
        return False
    if increment.acls is not None and increment.acls != archived.acls:
        return False
    topics = {topic.name: topic for topic in archived.topics}
    partitions = archived.partitions
    return all(
        (known := topics.get(topic.name)) is not None and known.configs == topic.configs
        for topic in increment.topics
    ) and all(
        (earlier := partitions.get(key)) is not None and earlier.end == later.end
        for key, later in increment.partitions.items()
    )


def isolation_of(settings: SourceSettings) -> str:
    """Returns Kafka's name of the isolation level that the flow reads with."""
    return "read_committed" if settings.read_committed else "read_uncommitted"


def archived_configs(entries: Iterable[ConfigEntry]) -> tuple[ArchivedConfig, ...]:
    """Returns the settings of a topic for the archive, without secrets."""
    return tuple(
        ArchivedConfig(
            name=entry.name, value=entry.value, source=int(entry.source), read_only=entry.read_only
        )
        for entry in entries
        if not entry.sensitive
    )

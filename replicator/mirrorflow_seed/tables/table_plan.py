"""Plans what a query reads: the ranges of offsets of each partition, from the source's offsets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.tables.table_filters import UNBOUNDED, TableFilter
from mirrorflow_seed.tables.table_options import StartingOffsets, TableOptions
from mirrorflow_seed.verify.range_reader import OffsetRange

T = TypeVar("T")
# The offsets of a stream, as its checkpoint has them: topic -> partition -> next offset.
StreamOffsets = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRange:
    """The offsets that one task reads."""

    partition: TopicPartition
    offsets: OffsetRange


def read_ranges(options: TableOptions, query: TableFilter) -> list[TableRange]:
    """Returns what a batch query reads, from the offsets that the source has now. Raises MirrorFlowError, JobFailedError."""
    return asyncio.run(_read_ranges(options, query))


async def _read_ranges(options: TableOptions, query: TableFilter) -> list[TableRange]:
    cluster = await options.client.connect()
    try:
        partitions = [
            partition for partition in await _partitions(cluster, options) if query.selects(*partition)
        ]
        extents = await _extents(cluster, options, partitions)
        low_ms = max(query.timestamp_ms.low, -UNBOUNDED if options.start_ms is None else options.start_ms)
        starts = await _starts(cluster, extents, low_ms)
        ends: Mapping[TopicPartition, int] = {}
        if options.timestamps_in_order and query.timestamp_ms.high < UNBOUNDED:
            ends = await _offsets_since(cluster, extents, query.timestamp_ms.high + 1)
    finally:
        await cluster.close()
    return cut(
        {
            partition: OffsetRange(
                max(extent.start, starts.get(partition, extent.start), query.offset.low),
                min(extent.end, ends.get(partition, extent.end), query.offset.high + 1),
            )
            for partition, extent in extents.items()
        },
        options.offsets_per_task,
    )


def cut(extents: Mapping[TopicPartition, OffsetRange], offsets_per_task: int) -> list[TableRange]:
    """Returns the ranges of tasks, at most *offsets_per_task* each."""
    return [
        TableRange(partition=partition, offsets=OffsetRange(start, min(start + offsets_per_task, extent.end)))
        for partition, extent in sorted(extents.items())
        for start in range(extent.start, extent.end, offsets_per_task)
    ]


class StreamPlanner:
    """The offsets of a stream: where it begins, how far it can read, and the ranges of a batch."""

    def __init__(self, options: TableOptions) -> None:
        self._options = options

    def begin(self) -> StreamOffsets:
        """Returns where a stream without a checkpoint begins."""
        options = self._options

        async def first(cluster: Cluster) -> StreamOffsets:
            extents = await _extents(cluster, options, await _partitions(cluster, options))
            if options.start_ms is not None:
                since = await _offsets_since(cluster, extents, options.start_ms)
                return as_stream_offsets({key: since.get(key, extent.end) for key, extent in extents.items()})
            is_latest = options.start is StartingOffsets.LATEST
            return as_stream_offsets(
                {key: extent.end if is_latest else extent.start for key, extent in extents.items()}
            )

        return asyncio.run(self._ask(first))

    def extents(self) -> Mapping[TopicPartition, OffsetRange]:
        """Returns the offsets that the source has of each partition."""
        options = self._options

        async def read(cluster: Cluster) -> Mapping[TopicPartition, OffsetRange]:
            return await _extents(cluster, options, await _partitions(cluster, options))

        return asyncio.run(self._ask(read))

    def ranges(self, start: StreamOffsets, end: StreamOffsets) -> list[TableRange]:
        """Returns the ranges of the batch from *start* to *end*. A partition without a start is read from its beginning.

        Raises JobFailedError if the source has lost records of it, unless losses are accepted.
        """
        options, begins, ends = self._options, of_stream_offsets(start), of_stream_offsets(end)

        async def extents_of(cluster: Cluster) -> dict[TopicPartition, OffsetRange]:
            return await _extents(cluster, options, list(ends))

        extents = asyncio.run(self._ask(extents_of)) if begins != ends else {}
        extents_of_batch = {}
        for partition, extent in extents.items():
            begin = begins.get(partition, extent.start)
            if (begin < extent.start or ends[partition] > extent.end) and options.fails_on_loss:
                raise lost(partition, begin, extent)
            extents_of_batch[partition] = OffsetRange(
                max(begin, extent.start), min(ends[partition], extent.end)
            )
        return cut(extents_of_batch, options.offsets_per_task)

    async def _ask(self, question: Callable[[Cluster], Awaitable[T]]) -> T:
        cluster = await self._options.client.connect()
        try:
            return await question(cluster)
        finally:
            await cluster.close()


def lost(partition: TopicPartition, offset: int, extent: OffsetRange) -> JobFailedError:
    """Returns the error for records that the query needs from *offset* on and the source does not have."""
    return JobFailedError(
        f"{partition} has offsets {extent.start} to {extent.end} on the source, and the query continues at {offset}: records are"
        " lost. Set failOnDataLoss to false to read what is left, or begin with a new checkpoint."
    )


def limited(
    start: StreamOffsets, extents: Mapping[TopicPartition, OffsetRange], offsets_max: int | None
) -> StreamOffsets:
    """Returns how far a batch reads that begins at *start*: to the ends, or at most about *offsets_max* offsets.

    Each partition gets its share by its lag, and at least one offset, so that none is left behind.
    """
    begins = of_stream_offsets(start)
    # A partition that is gone from the source keeps its position, and offsets never decrease.
    reached = dict(begins)
    lags: dict[TopicPartition, int] = {}
    for key, extent in extents.items():
        reached.setdefault(key, extent.start)
        lags[key] = max(0, extent.end - reached[key])
    total = sum(lags.values())
    is_limited = offsets_max is not None and total > offsets_max
    for key, lag in lags.items():
        if lag:
            share = max(1, lag * (offsets_max or 0) // total) if is_limited else lag
            reached[key] += min(lag, share)
    return as_stream_offsets(reached)


def as_stream_offsets(offsets: Mapping[TopicPartition, int]) -> StreamOffsets:
    """Returns *offsets* as a checkpoint stores them."""
    by_topic: StreamOffsets = {}
    for (topic, number), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(number)] = offset
    return by_topic


def of_stream_offsets(offsets: StreamOffsets) -> dict[TopicPartition, int]:
    """Returns the offsets that a checkpoint has stored."""
    return {
        TopicPartition(topic, int(number)): offset
        for topic, numbers in offsets.items()
        for number, offset in numbers.items()
    }


async def _partitions(cluster: Cluster, options: TableOptions) -> list[TopicPartition]:
    """Returns the partitions of the topics that the query reads. Raises JobFailedError if a named topic does not exist."""
    await cluster.refresh()
    topics = {
        name: topic
        for name, topic in cluster.metadata.topics.items()
        if not topic.error and topic.partitions and options.selects(name)
    }
    if missing := sorted(options.topics - topics.keys()):
        raise JobFailedError(
            f"{', '.join(missing)} does not exist on the source; correct the option subscribe."
        )
    return [
        TopicPartition(name, number) for name in sorted(topics) for number in sorted(topics[name].partitions)
    ]


async def _extents(
    cluster: Cluster, options: TableOptions, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, OffsetRange]:
    committed = options.client.read_committed
    ends = await admin.offsets_at(cluster, partitions, LATEST, read_committed=committed)
    starts = await admin.offsets_at(cluster, partitions, EARLIEST, read_committed=committed)
    return {key: OffsetRange(min(starts[key], ends[key]), ends[key]) for key in partitions}


async def _starts(
    cluster: Cluster, extents: Mapping[TopicPartition, OffsetRange], low_ms: int
) -> Mapping[TopicPartition, int]:
    """Returns offsets before which no record has a timestamp of *low_ms* or later."""
    if low_ms <= 0:
        return {}
    since = await _offsets_since(cluster, extents, low_ms)
    return {key: since.get(key, extent.end) for key, extent in extents.items()}


async def _offsets_since(
    cluster: Cluster, partitions: Iterable[TopicPartition], timestamp_ms: int
) -> Mapping[TopicPartition, int]:
    """Returns the offset of the first record with *timestamp_ms* or later, of partitions that have one."""
    offsets = await admin.offsets_at(cluster, list(partitions), max(0, timestamp_ms))
    return {key: offset for key, offset in offsets.items() if offset >= 0}

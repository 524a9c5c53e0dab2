"""Reads the internal topics of the flows of files for the console, with the credentials of these files."""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mirrorflow_cli.clusters import connected
from mirrorflow_cli.errors import CommandError
from mirrorflow_cli.flow_arguments import source_settings
from mirrorflow_cli.internal_records import TOPICS, DumpTopic, decoded, partitions_of
from mirrorflow_console.internal_topics import (
    RECORDS_MAX,
    Cursor,
    InternalRecord,
    InternalTopic,
    PartitionRecords,
    newest_of_all,
)
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import records_between
from mirrorflow_operator.plan.properties import Plan

# A page may take as long. `mirrorflow dump` reads a topic of any length.
READ_MAX_S: Final = 10.0
# 20,000 records, then spans of 80,000 and 320,000 offsets: a page of a compacted topic reads as far, however few records there are.
SPANS_MAX: Final = 3
SPAN_GROWTH: Final = 4


class FileFlowTopics:
    """The internal topics of *plans*, which are read at each request; two requests read one after the other."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans: Mapping[str, Plan] = {plan.flow: plan for plan in plans}
        self._reading = asyncio.Lock()

    @property
    def flows(self) -> Sequence[str]:
        """The names of the flows."""
        return [*self._plans]

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of topics."""
        return [*TOPICS]

    async def read(self, flow: str, kind: str, before: Cursor) -> InternalTopic:
        """Returns the newest records of a topic *before* a cursor, or why it cannot be read."""
        planned = self._plans[flow]
        try:
            settings, _ = source_settings(planned)
            topic = TOPICS[kind](planned, settings)
            async with self._reading, asyncio.timeout(READ_MAX_S):
                return await _read(topic, settings, before)
        except TimeoutError:
            problem = f"Reading takes more than {READ_MAX_S:g} s. `mirrorflow dump {kind}` reads a topic of any length."
        except (CommandError, MirrorFlowError) as error:
            problem = str(error)
        return InternalTopic(problem=problem)


async def _read(topic: DumpTopic, settings: SourceSettings, before: Cursor) -> InternalTopic:
    async with connected(topic.client, settings) as cluster:
        partitions = [TopicPartition(topic.name, number) for number in await partitions_of(topic, cluster)]
        with admin.naming_leaderless(cluster, topic.name):
            starts = await admin.offsets_at(cluster, partitions, EARLIEST)
            ends = await admin.offsets_at(cluster, partitions, LATEST, read_committed=True)
        most = max(1, RECORDS_MAX // len(partitions))
        cursor = {
            partition.partition: max(
                starts[partition], min(before.get(partition.partition, ends[partition]), ends[partition])
            )
            for partition in partitions
        }
        read = {
            partition.partition: await _newest(
                cluster, partition, starts[partition], cursor[partition.partition], most
            )
            for partition in partitions
        }
    kept, older = newest_of_all(read)
    records = [
        InternalRecord(
            partition=number,
            offset=record.offset,
            timestamp_ms=record.timestamp,
            fields=decoded(topic, record),
        )
        for number, newest in kept.items()
        for record in _shown(topic, newest)
    ]
    return InternalTopic(
        name=topic.name, cluster=topic.client.alias, records=records, before=cursor, older=older
    )


def _shown(topic: DumpTopic, records: Sequence[Record]) -> Iterable[Record]:
    """Returns *records*; of a topic of states only the newest of each key."""
    return {record.key: record for record in records}.values() if topic.newest_only else records


async def _newest(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, most: int
) -> PartitionRecords:
    """Returns the newest records of *partition* from *start* until before *end*, at most so many. Raises ClusterError.

    Compaction leaves few records in many offsets, so each span that is read is longer than the one after it.
    """
    read: list[Record] = []
    low, span = end, most
    for _ in range(SPANS_MAX):
        high, low = low, max(start, low - span)
        span_records: deque[Record] = deque(maxlen=most - len(read))
        async for records, _next_offset in records_between(cluster, partition, low, high):
            span_records += (record for record in records if record.offset < high)
        read = [*span_records, *read]
        if len(read) == most:
            low = read[0].offset
        if low == start or len(read) == most:
            break
        span *= SPAN_GROWTH
    return PartitionRecords(read, low, end, has_older=low > start)

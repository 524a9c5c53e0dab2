"""Opens both sides of a comparison: connections, readers of a range, and digests of its records.

The source's records are compared after the flow's transforms; the target's are always read as committed.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.record_digests import RecordDigester
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.client.cluster import Cluster, connect_both
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.verify.offset_windows import VerifyRange
from mirrorflow_seed.verify.range_reader import OffsetRange, OffsetRangeReader

# Yields the clusters "source" and "target" with the records of each range, one after the other.
OpenSides = Callable[[SourceSettings, Sequence[VerifyRange]], AsyncIterator[Mapping[str, Cluster]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """Settings of the comparison, without secrets. *bytes_per_second* is of both sides; None: no limit."""

    run_id: str
    decode_all: bool = False
    bytes_per_second: float | None = None
    lists_all: bool = False  # windows have the offsets of all their differences
    keeps_keys: bool = False  # the first records that differ have their keys

    async def pace(self, began_s: float, bytes_read: int) -> None:
        """Waits until *bytes_read* since *began_s* (`time.monotonic`) keep to the rate."""
        if self.bytes_per_second is not None:
            await asyncio.sleep(max(0.0, began_s + bytes_read / self.bytes_per_second - time.monotonic()))


async def cluster_sides(
    settings: SourceSettings, ranges: Sequence[VerifyRange]
) -> AsyncIterator[Mapping[str, Cluster]]:
    """Yields the same connections for each of *ranges* (`OpenSides`). Raises ClusterError, SettingError."""
    async with connect_clusters(settings) as sides:
        for _ in ranges:
            yield sides


@contextlib.asynccontextmanager
async def connect_clusters(settings: SourceSettings) -> AsyncIterator[Mapping[str, Cluster]]:
    """Yields connections to "source" and "target", closed at the end. Raises ClusterError, SettingError."""
    both = await connect_both(
        settings.source_consumer, settings.target_admin, resolve=Resolver(settings.providers).resolve_client
    )
    try:
        yield dict(zip(("source", "target"), both, strict=True))
    finally:
        await asyncio.gather(*(cluster.close() for cluster in both))


@contextlib.asynccontextmanager
async def range_readers(
    sides: Mapping[str, Cluster], settings: SourceSettings, verify_range: VerifyRange
) -> AsyncIterator[Mapping[str, OffsetRangeReader]]:
    """Yields started readers of both sides of the range."""
    readers = {
        "source": OffsetRangeReader(
            sides["source"],
            TopicPartition(verify_range.topic, verify_range.partition),
            OffsetRange(verify_range.source_from, verify_range.source_to),
            read_committed=settings.read_committed,
        ),
        # Records of the flow's aborted transactions are not part of the copy.
        "target": OffsetRangeReader(
            sides["target"],
            TopicPartition(verify_range.target_topic, verify_range.partition),
            OffsetRange(verify_range.target_from, verify_range.target_to),
            read_committed=True,
        ),
    }
    try:
        for reader in readers.values():
            reader.start()
        yield readers
    finally:
        await asyncio.gather(*(reader.close() for reader in readers.values()))


def digesters(
    settings: SourceSettings, verify_range: VerifyRange, compare_settings: CompareSettings
) -> tuple[RecordDigester, RecordDigester]:
    """Returns what computes the digests of a range's source records, after the flow's transforms, and target records."""
    run_id, timestamps = compare_settings.run_id, verify_range.timestamps
    edits = make_naming(settings).header_edits(verify_range.topic)
    return (
        RecordDigester(run_id, verify_range.partition, edits=edits, timestamps=timestamps),
        RecordDigester(run_id, verify_range.partition, timestamps=timestamps),
    )

"""Reads and compares both sides of a stretch in a Spark task, in bounded memory; returns its windows.

An error of one stretch (a damaged batch, records deleted meanwhile, no permission) makes its windows
undecided; other stretches continue. An unusable cluster fails the task, which Spark retries.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

from mirrorflow_core.errors import (
    BrokerError,
    CorruptRecordsError,
    NotAuthorizedError,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.client.cluster import Cluster, connect_both
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.process import memory_tuning
from mirrorflow_seed.verify.compacted_partitions import NewestPerKeyComparison
from mirrorflow_seed.verify.comparison import Comparison
from mirrorflow_seed.verify.digests import RecordDigest
from mirrorflow_seed.verify.splits import Method, Split
from mirrorflow_seed.verify.stretch_reader import DeletedMeanwhileError, StretchReader
from mirrorflow_seed.verify.windows import WindowResult


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchResult:
    """The windows of a stretch and their cost, without payload."""

    windows: tuple[WindowResult, ...]
    behind: int  # records that the target may not have yet
    bytes_read: int
    seconds: float
    memory_bytes: int  # peak of the process


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareSettings:
    """How stretches are compared; no secret. *bytes_per_second* is of both sides together; None: no limit."""

    run_id: str
    decode_all: bool = False
    bytes_per_second: float | None = None


async def compare_stretches(
    settings: SourceSettings, splits: Iterable[Split], compare_settings: CompareSettings
) -> list[StretchResult]:
    """Compares *splits* one after the other over the same connections. Raises ClusterError, SettingError."""
    async with clusters(settings) as sides:
        return [await compare_stretch(sides, settings, split, compare_settings) for split in splits]


async def read_stretch(settings: SourceSettings, split: Split) -> int:
    """Reads both sides without comparing them, for benchmarks; returns the bytes read.

    Raises ClusterError, SettingError.
    """
    async with clusters(settings) as sides, _readers(sides, settings, split) as readers:

        async def drain(reader: StretchReader) -> None:
            while await reader.more() is not None:
                pass

        await asyncio.gather(*map(drain, readers.values()))
        return sum(reader.bytes_read for reader in readers.values())


@contextlib.asynccontextmanager
async def clusters(settings: SourceSettings) -> AsyncIterator[Mapping[str, Cluster]]:
    """Yields connections to "source" and "target", closed at the end. Raises ClusterError, SettingError."""
    both = await connect_both(
        settings.source_consumer,
        settings.target_admin,
        resolve=Resolver(settings.providers).resolve_client,
    )
    try:
        yield dict(zip(("source", "target"), both, strict=True))
    finally:
        await asyncio.gather(*(cluster.close() for cluster in both))


@contextlib.asynccontextmanager
async def _readers(
    sides: Mapping[str, Cluster], settings: SourceSettings, split: Split
) -> AsyncIterator[Mapping[str, StretchReader]]:
    """Yields started readers of both sides of the stretch."""
    readers = {
        "source": StretchReader(
            sides["source"],
            TopicPartition(split.topic, split.partition),
            split.source_from,
            split.source_to,
            read_committed=settings.read_committed,
        ),
        # Records of an aborted transaction of the flow are not part of the copy.
        "target": StretchReader(
            sides["target"],
            TopicPartition(split.target_topic, split.partition),
            split.target_from,
            split.target_to,
            read_committed=True,
        ),
    }
    try:
        for reader in readers.values():
            reader.start()
        yield readers
    finally:
        await asyncio.gather(*(reader.close() for reader in readers.values()))


async def compare_stretch(
    sides: Mapping[str, Cluster], settings: SourceSettings, split: Split, compare_settings: CompareSettings
) -> StretchResult:
    """Compares one stretch between connected clusters. Raises ClusterError."""
    began = time.perf_counter()
    edits = make_naming(settings).header_edits(split.topic)
    of_source = RecordDigest(
        compare_settings.run_id, split.partition, edits=edits, timestamps=split.timestamps
    )
    of_target = RecordDigest(compare_settings.run_id, split.partition, timestamps=split.timestamps)
    comparison: Comparison | NewestPerKeyComparison
    if split.method is Method.LATEST:
        comparison = NewestPerKeyComparison(split, source=of_source, target=of_target)
    else:
        comparison = Comparison(
            split, source=of_source, target=of_target, decode_all=compare_settings.decode_all
        )
    reason = ""
    async with _readers(sides, settings, split) as readers:
        try:
            await _walk(comparison, readers, compare_settings.bytes_per_second)
        except (DeletedMeanwhileError, CorruptRecordsError, NotAuthorizedError) as error:
            reason = str(error)
        except BrokerError as error:
            if error.retriable:
                raise
            reason = str(error)
        bytes_read = sum(reader.bytes_read for reader in readers.values())
    return StretchResult(
        windows=tuple(comparison.results(reason=reason)),
        behind=comparison.behind,
        bytes_read=bytes_read,
        seconds=time.perf_counter() - began,
        memory_bytes=memory_tuning.peak_bytes(),
    )


async def _walk(
    comparison: Comparison | NewestPerKeyComparison,
    readers: Mapping[str, StretchReader],
    bytes_per_second: float | None,
) -> None:
    began = time.monotonic()
    while any(needs := comparison.advance()):
        for side, is_needed in zip(("source", "target"), needs, strict=True):
            if is_needed:
                batches = await readers[side].more()
                if batches is None:
                    comparison.end(**{side: True})
                else:
                    comparison.feed(**{side: batches})
        if bytes_per_second is not None:
            due = began + sum(reader.bytes_read for reader in readers.values()) / bytes_per_second
            await asyncio.sleep(max(0.0, due - time.monotonic()))

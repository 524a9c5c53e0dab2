"""A task's work: both sides of a stretch are read and compared, in bounded memory, and rows come out.

What goes wrong with one stretch (a damaged batch, records deleted meanwhile, no permission) is the reason why its windows
are undecided, and the others go on. A cluster that cannot be used at all fails the task, which Spark tries again.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass

from mirrorflow_replicator.connect.plugins import make_naming
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.errors import (
    BrokerError,
    CorruptRecordsError,
    NotAuthorizedError,
)
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka.both import connect_both
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.runtime import memory
from mirrorflow_replicator.settings import SourceSettings
from mirrorflow_seed.verify.comparing import Comparison
from mirrorflow_seed.verify.digests import RecordDigest
from mirrorflow_seed.verify.latest import LatestComparison
from mirrorflow_seed.verify.reading import DeletedMeanwhileError, StretchReader
from mirrorflow_seed.verify.splits import Method, Split
from mirrorflow_seed.verify.windows import WindowResult

CONNECT_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchResult:
    """What a task gives back: rows, and what they have cost. No payload."""

    windows: tuple[WindowResult, ...]
    behind: int  # records that the target need not have yet
    bytes_read: int
    seconds: float
    memory_bytes: int  # the most that the process ever had


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How stretches are compared; no secret. *bytes_per_second* is both sides' together, None: as fast as it goes."""

    run_id: str
    decode_all: bool = False
    bytes_per_second: float | None = None


async def compare_stretches(
    settings: SourceSettings, splits: Iterable[Split], terms: Terms
) -> list[StretchResult]:
    """One after the other, over the same connections. Raises ClusterError, SettingError."""
    async with clusters(settings) as sides:
        return [await compare_stretch(sides, settings, split, terms) for split in splits]


async def read_stretch(settings: SourceSettings, split: Split) -> int:
    """Both sides read as for a comparison and thrown away, for who measures; bytes. Raises ClusterError, SettingError."""
    async with clusters(settings) as sides, _readers(sides, settings, split) as readers:

        async def drain(reader: StretchReader) -> None:
            while await reader.more() is not None:
                pass

        await asyncio.gather(*map(drain, readers.values()))
        return sum(reader.bytes_read for reader in readers.values())


@contextlib.asynccontextmanager
async def clusters(settings: SourceSettings) -> AsyncIterator[Mapping[str, Cluster]]:
    """Both sides, for as long as they are needed. Raises ClusterError, SettingError."""
    both = await connect_both(
        settings.source_consumer,
        settings.target_admin,
        resolve=Resolver(settings.providers).resolve_client,
        timeout_s=CONNECT_TIMEOUT_S,
    )
    try:
        yield dict(zip(("source", "target"), both, strict=True))
    finally:
        await asyncio.gather(*(cluster.close() for cluster in both))


@contextlib.asynccontextmanager
async def _readers(
    sides: Mapping[str, Cluster], settings: SourceSettings, split: Split
) -> AsyncIterator[Mapping[str, StretchReader]]:
    """Both sides of the stretch, being fetched."""
    readers = {
        "source": StretchReader(
            sides["source"],
            TopicPartition(split.topic, split.partition),
            split.source_from,
            split.source_to,
            read_committed=settings.read_committed,
        ),
        # What the flow has written in a transaction that was aborted is there for nobody who asks for that.
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
    sides: Mapping[str, Cluster], settings: SourceSettings, split: Split, terms: Terms
) -> StretchResult:
    """One, between clusters that are connected. Raises ClusterError."""
    began = time.perf_counter()
    edits = make_naming(settings).header_edits(split.topic)
    of_source = RecordDigest(terms.run_id, split.partition, edits=edits, timestamps=split.timestamps)
    of_target = RecordDigest(terms.run_id, split.partition, timestamps=split.timestamps)
    comparison: Comparison | LatestComparison
    if split.method is Method.LATEST:
        comparison = LatestComparison(split, source=of_source, target=of_target)
    else:
        comparison = Comparison(split, source=of_source, target=of_target, decode_all=terms.decode_all)
    reason = ""
    async with _readers(sides, settings, split) as readers:
        try:
            await _walk(comparison, readers, terms.bytes_per_second)
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
        memory_bytes=memory.peak_bytes(),
    )


async def _walk(
    comparison: Comparison | LatestComparison,
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

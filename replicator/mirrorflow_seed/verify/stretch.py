"""One task's work: both sides of a stretch are read and compared, in bounded memory, and rows come out.

What goes wrong with one stretch (a damaged batch, records deleted meanwhile, no permission) is the reason why its windows
are undecided, and the others go on. A cluster that cannot be used at all fails the task, which Spark tries again.
"""

import asyncio
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass

from mirrorflow_replicator.connect.plugins import make_naming
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.errors import (
    BrokerError,
    CorruptRecordsError,
    NotAuthorizedError,
)
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka.cluster import Cluster
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


async def compare_stretch(
    settings: SourceSettings, split: Split, *, run_id: str, decode_all: bool = False
) -> StretchResult:
    """Raises ClusterError, SettingError."""
    began = time.perf_counter()
    resolve = Resolver(settings.providers).resolve_client
    source = await Cluster.connect(settings.source_consumer, resolve=resolve, timeout_s=CONNECT_TIMEOUT_S)
    try:
        target = await Cluster.connect(settings.target_admin, resolve=resolve, timeout_s=CONNECT_TIMEOUT_S)
        try:
            windows, behind, bytes_read = await _compared(
                source, target, settings, split, run_id, decode_all=decode_all
            )
        finally:
            await target.close()
    finally:
        await source.close()
    return StretchResult(
        windows=tuple(windows),
        behind=behind,
        bytes_read=bytes_read,
        seconds=time.perf_counter() - began,
        memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    )


async def _compared(
    source: Cluster,
    target: Cluster,
    settings: SourceSettings,
    split: Split,
    run_id: str,
    *,
    decode_all: bool,
) -> tuple[list[WindowResult], int, int]:
    edits = make_naming(settings).header_edits(split.topic)
    of_source = RecordDigest(run_id, split.partition, edits=edits, timestamps=split.timestamps)
    of_target = RecordDigest(run_id, split.partition, timestamps=split.timestamps)
    comparison: Comparison | LatestComparison
    if split.method is Method.LATEST:
        comparison = LatestComparison(split, source=of_source, target=of_target)
    else:
        comparison = Comparison(split, source=of_source, target=of_target, decode_all=decode_all)
    readers = {
        "source": StretchReader(
            source,
            TopicPartition(split.topic, split.partition),
            split.source_from,
            split.source_to,
            read_committed=settings.read_committed,
        ),
        # What the flow has written in a transaction that was aborted is not there for consumers who ask for that.
        "target": StretchReader(
            target,
            TopicPartition(split.target_topic, split.partition),
            split.target_from,
            split.target_to,
            read_committed=True,
        ),
    }
    for reader in readers.values():
        reader.start()
    reason = ""
    try:
        await _walk(comparison, readers)
    except (DeletedMeanwhileError, CorruptRecordsError, NotAuthorizedError) as error:
        reason = str(error)
    except BrokerError as error:
        if error.retriable:
            raise
        reason = str(error)
    finally:
        await asyncio.gather(*(reader.close() for reader in readers.values()))
    bytes_read = sum(reader.bytes_read for reader in readers.values())
    return comparison.results(reason=reason), comparison.behind, bytes_read


async def _walk(comparison: Comparison | LatestComparison, readers: Mapping[str, StretchReader]) -> None:
    while any(needs := comparison.advance()):
        for side, is_needed in zip(("source", "target"), needs, strict=True):
            if is_needed:
                batches = await readers[side].more()
                if batches is None:
                    comparison.end(**{side: True})
                else:
                    comparison.feed(**{side: batches})

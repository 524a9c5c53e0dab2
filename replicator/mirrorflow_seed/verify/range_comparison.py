"""Compares one offset range of source and target in a Spark task, and returns its windows (`in_order_comparison`).

An error of one range (a damaged batch, records deleted meanwhile, no permission) makes its windows undecided; other
ranges continue. An unusable cluster fails the task, which Spark retries.
"""

import contextlib
import time
from collections.abc import Iterable, Mapping

from mirrorflow_core.errors import BrokerError, ClusterError, CorruptRecordsError, NotAuthorizedError
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator import process
from mirrorflow_seed.verify.compared_sides import CompareSettings, connect_clusters, digesters, range_readers
from mirrorflow_seed.verify.in_order_comparison import InOrderComparison
from mirrorflow_seed.verify.offset_windows import VerifyRange, VerifyRangeResult
from mirrorflow_seed.verify.range_reader import DeletedMeanwhileError, OffsetRangeReader
from mirrorflow_seed.verify.record_details import describe_windows


async def compare_ranges(
    settings: SourceSettings, ranges: Iterable[VerifyRange], compare_settings: CompareSettings
) -> list[VerifyRangeResult]:
    """Compares *ranges* one after the other over the same connections. Raises ClusterError, SettingError."""
    async with connect_clusters(settings) as sides:
        return [
            await compare_range(sides, settings, verify_range, compare_settings) for verify_range in ranges
        ]


async def compare_range(
    sides: Mapping[str, Cluster],
    settings: SourceSettings,
    verify_range: VerifyRange,
    compare_settings: CompareSettings,
) -> VerifyRangeResult:
    """Compares one range between connected clusters. Raises ClusterError."""
    began = time.perf_counter()
    of_source, of_target = digesters(settings, verify_range, compare_settings)
    comparison = InOrderComparison(
        verify_range,
        source=of_source,
        target=of_target,
        decode_all=compare_settings.decode_all,
        lists_all=compare_settings.lists_all,
    )
    reason: str | None = None
    async with range_readers(sides, settings, verify_range) as readers:
        try:
            await _run_comparison(comparison, readers, compare_settings)
        except (DeletedMeanwhileError, CorruptRecordsError, NotAuthorizedError) as error:
            reason = str(error)
        except BrokerError as error:
            if error.retriable:
                raise
            reason = str(error)
        bytes_read = sum(reader.bytes_read for reader in readers.values())
    windows = comparison.results(reason=reason)
    with contextlib.suppress(ClusterError):
        windows = await describe_windows(
            windows, sides, settings, verify_range, keeps_keys=compare_settings.keeps_keys
        )
    return VerifyRangeResult(
        windows=tuple(windows),
        behind=comparison.behind,
        bytes_read=bytes_read,
        seconds=time.perf_counter() - began,
        memory_bytes=process.peak_bytes(),
    )


async def _run_comparison(
    comparison: InOrderComparison,
    readers: Mapping[str, OffsetRangeReader],
    compare_settings: CompareSettings,
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
        await compare_settings.pace(began, sum(reader.bytes_read for reader in readers.values()))

"""Looks up the keys that differ once more before they are reported, and returns the results of their classes.

A key may be written again between the plan and the comparison. The log cleaner then removes its older records, and the
newest lies after the planned end, so the key looks missing or different. Each such key is looked up between the planned
and the present end of both logs; where it was written again, it is undecided.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mirrorflow_core.errors import CorruptRecordsError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_seed.verify.compared_sides import CompareSettings, OpenSides, digesters
from mirrorflow_seed.verify.key_comparison import KeyClassComparison
from mirrorflow_seed.verify.offset_windows import VerifyRange, VerifyRangeResult
from mirrorflow_seed.verify.range_reader import DeletedMeanwhileError, OffsetRange, OffsetRangeReader
from mirrorflow_seed.verify.record_details import describe_results

REWRITTEN: Final = "Keys differ that were written again since the comparison began, so a log cleaner may have removed what was compared; compare again."
# Keys that are looked up together: a task holds their digests, some 100 bytes each.
LOOKED_UP_KEYS_MAX: Final = 200_000
# A lookup repeats from its last end until a round takes less than this: no log cleaner removes a record within a second of
# its writing, because its segment must be closed first, and cleaners run every 15 s.
LOOKUP_ROUND_S: Final = 1.0
LOOKUP_ROUNDS_MAX: Final = 10
GROWS_TOO_FAST: Final = (
    "Keys differ, and the log grows faster than it is read, so it is unknown whether they were written again."
)


async def settle_key_classes(
    comparisons: Iterable[KeyClassComparison],
    compare_settings: CompareSettings,
    *,
    load: Callable[[], SourceSettings],
    open_sides: OpenSides,
) -> list[VerifyRangeResult]:
    """Returns the results of *comparisons*, after their differing keys were looked up. Raises ClusterError, SettingError."""
    results: list[tuple[VerifyRange, VerifyRangeResult]] = []
    waiting: list[KeyClassComparison] = []
    keys = 0

    async def settle() -> None:
        await look_up_keys(waiting, compare_settings, load, open_sides)
        results.extend((comparison.verify_range, _result_of(comparison)) for comparison in waiting)
        waiting.clear()

    for comparison in comparisons:
        waiting.append(comparison)
        keys += len(comparison.keys_to_look_up)
        if keys >= LOOKED_UP_KEYS_MAX:
            await settle()
            keys = 0
    await settle()
    return await describe_results(results, load, open_sides, keeps_keys=compare_settings.keeps_keys)


def _result_of(comparison: KeyClassComparison) -> VerifyRangeResult:
    window = comparison.result()
    return VerifyRangeResult(
        windows=(window,),
        behind=comparison.behind,
        bytes_read=comparison.bytes_read,
        seconds=comparison.seconds,
        memory_bytes=comparison.memory_bytes,
    )


async def look_up_keys(
    comparisons: Sequence[KeyClassComparison],
    compare_settings: CompareSettings,
    load: Callable[[], SourceSettings],
    open_sides: OpenSides,
) -> None:
    """Leaves differing keys undecided that were written again after the planned end of either side.

    Each partition is read once from its planned to its present end, whatever the number of its classes.
    """
    by_range: dict[VerifyRange, list[KeyClassComparison]] = {}
    for comparison in comparisons:
        if comparison.keys_to_look_up:
            by_range.setdefault(comparison.verify_range, []).append(comparison)
    if not by_range:
        return
    settings, unread = load(), iter(by_range.items())
    async for sides in open_sides(settings, [_after(verify_range) for verify_range in by_range]):
        verify_range, of_range = next(unread)
        keys = frozenset[bytes]().union(*(comparison.keys_to_look_up for comparison in of_range))
        lookup = KeyLookup(sides, settings, verify_range, keys, compare_settings)
        try:
            await lookup.run()
        except (DeletedMeanwhileError, CorruptRecordsError, NotAuthorizedError) as error:
            lookup.problem = str(error)
        for comparison in of_range:
            comparison.leave_undecided(lookup.rewritten, REWRITTEN)
            if lookup.problem:
                unsettled = comparison.keys_to_look_up - lookup.rewritten
                comparison.leave_undecided(unsettled, lookup.problem)
        of_range[0].add_cost(bytes_read=lookup.bytes_read, seconds=time.monotonic() - lookup.began_s)


def _after(verify_range: VerifyRange) -> VerifyRange:
    """Returns the empty range at the planned ends."""
    return replace(verify_range, source_from=verify_range.source_to, target_from=verify_range.target_to)


class KeyLookup:
    """Looks up *keys*, by their digests, after the planned ends of *verify_range*; `rewritten` are those that it finds."""

    def __init__(
        self,
        sides: Mapping[str, Cluster],
        settings: SourceSettings,
        verify_range: VerifyRange,
        keys: frozenset[bytes],
        compare_settings: CompareSettings,
    ) -> None:
        self.rewritten: set[bytes] = set()
        self.problem: str | None = None  # why it is unknown whether the other keys were written again
        self.bytes_read = 0
        self.began_s = time.monotonic()
        self._sides = sides
        self._keys = keys
        self._compare_settings = compare_settings
        self._digester, _ = digesters(settings, verify_range, compare_settings)
        self._logs = {
            "source": (
                TopicPartition(verify_range.topic, verify_range.partition),
                verify_range.source_to,
                settings.read_committed,
            ),
            "target": (
                TopicPartition(verify_range.target_topic, verify_range.partition),
                verify_range.target_to,
                True,
            ),
        }

    async def run(self) -> None:
        """Reads both logs up to their present ends. Raises ClusterError, CorruptRecordsError, DeletedMeanwhileError."""
        for side, (partition, offset, read_committed) in self._logs.items():
            await self._read_to_end(self._sides[side], partition, offset, read_committed=read_committed)

    async def _read_to_end(
        self, cluster: Cluster, partition: TopicPartition, offset: int, *, read_committed: bool
    ) -> None:
        for _ in range(LOOKUP_ROUNDS_MAX):
            round_began_s = time.monotonic()
            listed = (await admin.list_offsets(cluster, [partition], LATEST, read_committed))[partition]
            if listed.error:
                self.problem = str(
                    error_codes.error_for(
                        listed.error, cluster=cluster.alias, request="ListOffsets", subject=str(partition)
                    )
                )
                return
            end = listed.offset
            if end <= offset:
                return
            await self._read(cluster, partition, OffsetRange(offset, end), read_committed=read_committed)
            if self._keys <= self.rewritten or time.monotonic() - round_began_s < LOOKUP_ROUND_S:
                return
            offset = end
        self.problem = GROWS_TOO_FAST

    async def _read(
        self, cluster: Cluster, partition: TopicPartition, offsets: OffsetRange, *, read_committed: bool
    ) -> None:
        reader = OffsetRangeReader(cluster, partition, offsets, read_committed=read_committed)
        read_before = self.bytes_read
        try:
            while (batches := await reader.more()) is not None:
                for batch in batches:
                    self._find(batch, offsets.start)
                self.bytes_read = read_before + reader.bytes_read
                await self._compare_settings.pace(self.began_s, self.bytes_read)
        finally:
            await reader.close()

    def _find(self, batch: Batch, begin: int) -> None:
        keys, digest_key = self._keys, self._digester.digest_key
        for record in decode(batch):
            if record.offset >= begin and (key := digest_key(record.key)) in keys:
                self.rewritten.add(key)

"""Reads and compares both sides of a stretch in a Spark task, in bounded memory; returns its windows.

An error of one stretch (a damaged batch, records deleted meanwhile, no permission) makes its windows
undecided; other stretches continue. An unusable cluster fails the task, which Spark retries.

A compacted partition is compared by the newest record of each key on both sides, for the keys of one class.

The log cleaner removes older records and tombstones at different times on each side. So the comparison is of
what a consumer ends up with: the newest value of each key, where a tombstone equals no record. Classes of
keys, by the digest of the key, bound the memory: a task reads the whole partition and keeps the keys of its
class.

A key whose newest source record may not be copied yet counts as behind. Without a stored offset, the newest
record on both sides shows what was copied, because records are copied in order.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass

from mirrorflow_core.errors import BrokerError, CorruptRecordsError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.batch import Batch, checksum_holds
from mirrorflow_core.wire.records import decode
from mirrorflow_kafka.client.cluster import Cluster, connect_both
from mirrorflow_replicator import process
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.verify.comparison import Comparison, Needs
from mirrorflow_seed.verify.digests import Digested, RecordDigest
from mirrorflow_seed.verify.stretch_reader import DeletedMeanwhileError, StretchReader
from mirrorflow_seed.verify.windows import DifferenceKind, Method, Split, WindowResult, WindowTally

UNSETTLED = "Keys differ, and no stored offset shows whether their newest records were copied."
EXPIRED = "Some keys exist on one side only; retention (cleanup.policy=compact,delete) may have deleted them on the other."

# The newest record of a key, and whether it is a tombstone.
_Newest = tuple[Digested, bool]


class NewestPerKeyComparison:
    """Compares the keys of one class; used like `comparison.Comparison`."""

    def __init__(self, split: Split, *, source: RecordDigest, target: RecordDigest) -> None:
        self.behind = 0
        self._split = split
        self._digests = {"source": source, "target": target}
        self._newest: dict[str, dict[bytes, _Newest]] = {"source": {}, "target": {}}
        self._ended = {"source": False, "target": False}

    def feed(self, *, source: Iterable[Batch] = (), target: Iterable[Batch] = ()) -> None:
        """Adds batches of either side, in order. Raises CorruptRecordsError."""
        for side, batches in (("source", source), ("target", target)):
            for batch in batches:
                self._take(side, batch)

    def end(self, *, source: bool = False, target: bool = False) -> None:
        self._ended["source"] |= source
        self._ended["target"] |= target

    def advance(self) -> Needs:
        """Returns which side it needs next: first all of the source, then the target."""
        if not self._ended["source"]:
            return Needs(source=True)
        return Needs(target=not self._ended["target"])

    def results(self, *, reason: str = "") -> list[WindowResult]:
        """Returns one result for the class."""
        split, tally = self._split, WindowTally(0)
        pairs = list(self._keys())
        settled = split.settled_before
        if settled is None:
            both = (
                here[0].offset
                for here, there in pairs
                if here and there and here[0].digest == there[0].digest
            )
            settled = max(both, default=-1) + 1
        for here, there in pairs:
            self._judge(tally, here, there, settled)
        if reason:
            tally.leave_undecided(reason)
        return [tally.result(split, split.source_from, split.source_to, key_class=split.key_class)]

    def _take(self, side: str, batch: Batch) -> None:
        if not checksum_holds(batch):
            raise CorruptRecordsError(f"the batch at offset {batch.base_offset} of the {side} is damaged")
        split, digest, newest = self._split, self._digests[side], self._newest[side]
        end = split.source_to if side == "source" else split.target_to
        for record in decode(batch):
            key = digest.of_key(record.key)
            if record.offset < end and int.from_bytes(key[:8], "big") % split.key_classes == split.key_class:
                newest[key] = Digested(record.offset, digest.of(record)), record.value is None

    def _keys(self) -> Iterator[tuple[_Newest | None, _Newest | None]]:
        """Yields the newest records of each key: in source order, then keys that only the target has."""
        here, there = self._newest["source"], self._newest["target"]
        for key in sorted(here, key=lambda one: here[one][0].offset):
            yield here[key], there.get(key)
        for key in sorted(there.keys() - here.keys(), key=lambda one: there[one][0].offset):
            yield None, there[key]

    def _judge(self, tally: WindowTally, here: _Newest | None, there: _Newest | None, settled: int) -> None:
        source = None if here is None or (here[1] and there is None) else here[0]
        target = None if there is None or (there[1] and here is None) else there[0]
        if source is not None and target is not None and source.digest == target.digest:
            tally.source(source)
            tally.target(target)
        elif source is not None and source.offset >= settled and self._split.settled_before is not None:
            self.behind += 1
        elif source is not None or target is not None:
            if source is not None:
                tally.source(source)
            if target is not None:
                tally.target(target)
            if source is not None and source.offset >= settled:
                tally.leave_undecided(UNSETTLED)
                return
            if (source is None or target is None) and self._split.can_expire:
                tally.leave_undecided(EXPIRED)
                return
            kind = (
                DifferenceKind.MISSING
                if target is None
                else DifferenceKind.EXTRA
                if source is None
                else DifferenceKind.CHANGED
            )
            tally.differs(kind, source, target)


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


@contextlib.asynccontextmanager
async def clusters(settings: SourceSettings) -> AsyncIterator[Mapping[str, Cluster]]:
    """Yields connections to "source" and "target", closed at the end. Raises ClusterError, SettingError."""
    both = await connect_both(
        settings.source_consumer, settings.target_admin, resolve=Resolver(settings.providers).resolve_client
    )
    try:
        yield dict(zip(("source", "target"), both, strict=True))
    finally:
        await asyncio.gather(*(cluster.close() for cluster in both))


@contextlib.asynccontextmanager
async def stretch_readers(
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
    async with stretch_readers(sides, settings, split) as readers:
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
        memory_bytes=process.peak_bytes(),
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

"""Writes offset maps to `mm2-offset-map.<source alias>.internal`, without delaying the copying.

`copy.offset_sync_writer` passes what was delivered to each partition's map. This module keeps the maps, joins
them with what an earlier process wrote, and writes the changed ones: several times a second while few change,
so that groups follow in seconds, at the latest when offsets are stored, and at once where the target lost records.

Guarantees: nothing is written for a partition before its existing map was read, so that nothing known is
lost; a topic that cannot be read or written delays and loses no record, is reported in `warnings`, and
retried. What a process could not write before it died lies between what it had written and where its
successor continues, and is found again there. Records that the target lost since a map was written (its
leader epochs show that) are not confused with those that lie there now.
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from mirrorflow_core.connect.mirror_records import decode_map, decode_map_key, encode_map, encode_map_key
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError
from mirrorflow_core.offsets.offset_map import FIRST_EPOCH, MapStream, OffsetMap, PartitionMap
from mirrorflow_core.offsets.offset_syncs import Sync
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.admin.log_requests import ends_of
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import MirrorLog, RecordLosses, append, create_own_topic
from mirrorflow_kafka.stores.own_topics import new_offset_map

MAPS_PER_WRITE_MAX = 500  # at most 4 kB each, mostly less than 0.1
WRITE_EVERY_S = 0.25
# A map of one run takes 0.1 kB, and 20 us to encode. Above this rate, maps are further apart: 1,000 busy partitions are
# written every 0.4 s, or every 12 s if each has RUNS_MAX runs.
BYTES_PER_S_MAX = 256 << 10
RETRY_MIN_S, RETRY_MAX_S = 0.5, 30.0  # missing ACLs take people a while to fix
LEAVE_S = 1.0  # at stop; the next copier finds what did not arrive
REPLICATION_FACTOR_KEY = "offset.storage.replication.factor"


class OffsetMapTarget(Protocol):
    """The offset-map topic as `OffsetMaps` uses it."""

    where: str  # for messages

    async def read(self, wanted: set[TopicPartition]) -> dict[TopicPartition, OffsetMap]:
        """Returns the newest map of each of *wanted* that has one. Raises MirrorFlowError."""

    async def ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Returns up to which offset each target partition has lost nothing since the given leader epoch.

        Partitions whose leader does not respond now are left out. Raises MirrorFlowError.
        """

    async def has_lost_records(self) -> bool:
        """Returns whether the topic has lost records since the last call. Raises MirrorFlowError."""

    async def append(self, records: Sequence[Record]) -> None:
        """Writes *records*; returns when all are replicated.

        Raises MirrorFlowError; some may have been written then.
        """


class OffsetMaps:
    """Keeps the offset maps of a task's partitions and writes them; `run` runs until cancelled."""

    def __init__(self, log: OffsetMapTarget, *, errors: Counter[str], now_ms: Callable[[], int]) -> None:
        self.written = 0
        # Called where the target lost records that an earlier process had mapped, with the last pair that is
        # left.
        self._on_lost: Callable[[PartitionCopier, Sync], None] | None = None
        self._log = log
        self._errors = errors
        self._now_ms = now_ms
        self._problem: MirrorFlowError | None = None
        self._maps: dict[PartitionCopier, PartitionMap] = {}
        self._unread: dict[PartitionCopier, None] = {}  # maps that begun since the topic was read
        # Ordinal, end and number of runs, as last written.
        self._written: dict[PartitionCopier, tuple[int, int, int]] = {}
        # The previous leader epoch, written until offset-sync readers have learned of the loss.
        self._epochs: dict[PartitionCopier, int] = {}
        self._due: dict[PartitionCopier, None] = {}
        self._moved: dict[PartitionCopier, None] = {}  # changed since they were due; longest first
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Returns why nothing is written; empty while all is well."""
        if self._problem is None:
            return ()
        return (
            f"Offsets are translated by offset syncs alone, because {self._log.where} cannot be used: {self._problem}",
        )

    def of(self, copier: PartitionCopier, stream: MapStream, pair: OffsetPair) -> PartitionMap:
        """Returns the map of *copier*, which copies *stream*; *pair* is the last record on the target."""
        known = self._maps.get(copier)
        if known is None:
            known = self._maps[copier] = PartitionMap(stream, pair)
            self._unread[copier] = None
            self._wake.set()
        elif known.aligned(stream, pair):
            # Readers that know of records the target lost must forget them.
            self._due[copier] = None
            self._wake.set()
        known.note_leader_epoch(copier.target_epoch)
        return known

    def report_losses_to(self, on_lost: Callable[[PartitionCopier, Sync], None]) -> None:
        """Calls *on_lost* with the last sync that still holds, where the target has lost records."""
        self._on_lost = on_lost

    def syncs_written(self, copiers: Iterable[PartitionCopier]) -> None:
        """Notes that offset-sync readers know of the losses that were reported of *copiers*."""
        for copier in copiers:
            if self._epochs.pop(copier, None) is not None:
                self._written.pop(copier, None)
                self._due[copier] = None
                self._wake.set()

    def moved(self, copier: PartitionCopier) -> None:
        """Notes that the map of *copier* has grown. Called for each batch, so it does nothing else."""
        if copier not in self._moved:
            self._moved[copier] = None
            self._wake.set()

    def promote(self, copiers: Iterable[PartitionCopier]) -> None:
        """Makes the maps of *copiers* due, because offsets are being stored."""
        self._due.update((copier, None) for copier in copiers if copier in self._maps)
        if self._due:
            self._wake.set()

    async def leave(self, copiers: Iterable[PartitionCopier]) -> None:
        """Writes what is known of *copiers*, for at most LEAVE_S, and drops them."""
        leaving = list(copiers)
        self.promote(leaving)
        if self._problem is None:
            with contextlib.suppress(TimeoutError, MirrorFlowError):
                async with asyncio.timeout(LEAVE_S):
                    await self._read()
                    while not self._due.keys().isdisjoint(leaving):
                        await self._write_due()
        for copier in leaving:
            for of_copiers in (
                self._maps,
                self._unread,
                self._written,
                self._due,
                self._moved,
                self._epochs,
            ):
                of_copiers.pop(copier, None)

    async def write_what_is_lost(self) -> None:
        """Reads the topic and writes all maps again if it has lost records. Raises MirrorFlowError."""
        if await self._log.has_lost_records():
            self._written.clear()
            self._unread.update(dict.fromkeys(self._maps))
            self._wake.set()

    # -- reading and writing

    async def run(self) -> None:
        """Reads existing maps and writes those that are due, or have grown, until cancelled."""
        pause_s = RETRY_MIN_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            size_bytes = 0
            try:
                await self._read()
                self._take_moved()
                while self._due:
                    size_bytes += await self._write_due()
            except MirrorFlowError as error:
                self._problem = error
                self._errors[error.reason] += 1
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                self._wake.set()
            else:
                self._problem, pause_s = None, RETRY_MIN_S
                await asyncio.sleep(max(WRITE_EVERY_S, size_bytes / BYTES_PER_S_MAX))
                if self._moved:
                    self._wake.set()

    def _take_moved(self) -> None:
        """Makes the maps due that have grown, at most one request's worth."""
        for copier in list(itertools.islice(self._moved, MAPS_PER_WRITE_MAX)):
            del self._moved[copier]
            if copier in self._maps:
                self._due[copier] = None

    async def _read(self) -> None:
        """Joins the maps that began since the last read with what the topic holds."""
        async with self._writing:
            if not self._unread:
                return
            begun = dict(self._unread)
            stored = await self._log.read({copier.source for copier in begun})
            epochs = {
                copier.target: FIRST_EPOCH
                if (kept := stored.get(copier.source)) is None
                else kept.leader_epoch
                for copier in begun
            }
            ends = await self._log.ends(epochs)
            for copier in begun:
                known, end = self._maps.get(copier), ends.get(copier.target)
                if known is None or copier not in self._unread or end is None:
                    continue
                del self._unread[copier]
                written = stored.get(copier.source)
                if written is not None and written.stream[1:] == known.stream[1:]:
                    kept = written.before(end)
                    if kept is not written and kept is not None and self._on_lost is not None:
                        last, self._epochs[copier] = kept.runs[-1], written.leader_epoch
                        self._on_lost(copier, Sync(last.upstream_end - 1, last.downstream_end - 1))
                    if kept is not None:
                        known.follow(kept)
                if written is None:
                    known.extend_to_log_start()
                    # A group that has read all of a partition that is empty by now needs it.
                    self._due[copier] = None

    async def _write_due(self) -> int:
        """Writes one request's worth of the maps that are due; returns its bytes."""
        async with self._writing:
            taken = list(self._due)[:MAPS_PER_WRITE_MAX]
            records, written = [], {}
            now_ms = self._now_ms()
            for copier in taken:
                del self._due[copier]
                kept = self._kept(copier)
                if kept is None:
                    continue
                short = (kept.ordinal, kept.upstream_end, len(kept.runs))
                if self._written.get(copier) != short:
                    written[copier] = short
                    records.append(Record(0, now_ms, encode_map_key(copier.source), encode_map(kept), ()))
            try:
                if records:
                    await self._log.append(records)
            except BaseException:
                self._due.update((copier, None) for copier in written if copier in self._maps)
                raise
            self._written.update((copier, short) for copier, short in written.items() if copier in self._maps)
            self.written += len(records)
            return sum(len(record.key or b"") + len(record.value or b"") for record in records)

    def _kept(self, copier: PartitionCopier) -> OffsetMap | None:
        """Returns the map to write for *copier*; None while the existing map was not read, or without a stream."""
        if copier in self._unread or copier.stream is None or copier not in self._maps:
            return None
        kept = self._maps[copier].kept(copier.stream.delivered)
        return replace(kept, leader_epoch=self._epochs.get(copier, kept.leader_epoch))


class MapLog:
    """The offset-map topic on the target, created when it is first read."""

    def __init__(self, cluster: Cluster, topic: str, *, replication_factor: int) -> None:
        self.where = f"topic {topic} of {cluster.alias}"
        self._cluster = cluster
        self._topic = topic
        self._replication_factor = replication_factor
        self._losses = RecordLosses(cluster, topic)

    async def has_lost_records(self) -> bool:
        """See `OffsetMapTarget.has_lost_records`."""
        return await self._losses.has_lost_records()

    async def read(self, wanted: set[TopicPartition]) -> dict[TopicPartition, OffsetMap]:
        """Reads the newest maps; see `OffsetMapTarget.read`."""
        with self._named_as("Create"):
            new = new_offset_map(self._topic, self._replication_factor)
            await create_own_topic(self._cluster, new, key=REPLICATION_FACTOR_KEY)
        values: dict[TopicPartition, bytes | None] = {}
        with self._named_as("Read"):
            await (
                self._losses.has_lost_records()
            )  # before the read: the next check notices what is lost from here on
            async for record in MirrorLog(self._cluster, self._topic).read_new():
                with contextlib.suppress(ValueError):  # written by another version, or by another application
                    partition = decode_map_key(record.key)
                    if partition in wanted:
                        values[partition] = record.value
        maps = {}
        for partition, value in values.items():
            with contextlib.suppress(ValueError):
                maps[partition] = decode_map(value)
        return maps

    async def ends(self, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Returns the ends; see `OffsetMapTarget.ends`."""
        return await ends_of(self._cluster, epochs)

    async def append(self, records: Sequence[Record]) -> None:
        """Writes *records*; see `OffsetMapTarget.append`."""
        with self._named_as("Write"):
            await append(self._cluster, self._topic, records)

    @contextlib.contextmanager
    def _named_as(self, operation: str) -> Iterator[None]:
        try:
            yield
        except NotAuthorizedError as error:
            raise NotAuthorizedError(
                cluster=error.cluster, operation=operation, resource=f"topic {self._topic}"
            ) from error

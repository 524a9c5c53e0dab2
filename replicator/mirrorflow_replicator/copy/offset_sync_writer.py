"""Writes offset syncs to MM2's offset-syncs topic, without delaying the copying.

Partition copiers report acknowledgements in one call each (`delivered`); `mirrorflow_core.offsets.offset_syncs` decides which
pairs are due. One loop writes them in batches, with its own client, because the topic may be on the source
and its writer may be another user than the reader. The calls are passed to the maps of
`copy.offset_map_writer` as well, so a batch costs one call for both.

Guarantees: a bounded number of pending syncs for each partition; each sync is a record's own pair, in source
order; a topic that cannot be written delays and loses no record, is reported in `warnings`, counted in
`errors`, and retried. What a process could not write before it died, its successor writes, as far as the
target shows it (`aligned`).
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from mirrorflow_core.connect.mirror_records import (
    OffsetSync,
    encode_offset_sync_key,
    encode_offset_sync_value,
)
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError
from mirrorflow_core.offsets.offset_map import MapStream, PartitionMap
from mirrorflow_core.offsets.offset_syncs import PartitionSyncs, Sync
from mirrorflow_core.partitions import OffsetPair
from mirrorflow_core.settings import OffsetSyncSettings
from mirrorflow_core.wire.records import Record
from mirrorflow_core.writer.stream import Span
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.security.secret_rotation import Resolve
from mirrorflow_kafka.stores.compacted_topic import RecordLosses, append, create_mirror_topic
from mirrorflow_replicator.config.connector_properties import SYNCS_FACTOR_KEY
from mirrorflow_replicator.copy.offset_map_writer import OffsetMaps

# Groups are translated once a minute; four checks a second cost almost nothing and put many partitions into
# one request.
WRITE_EVERY_S = 0.25
# 2 % of a core, measured. Above it, busy partitions write less often, and their syncs are further apart.
SYNCS_PER_S_MAX = 2_000
SYNCS_PER_WRITE_MAX = 1_000  # 40 kB to 300 kB: below the smallest usual max.message.bytes
RETRY_MIN_S, RETRY_MAX_S = 0.5, 30.0  # missing ACLs take people a while to fix
CONNECT_TIMEOUT_S = 15.0
LEAVE_S = 1.0  # at stop, for the last ones; the next copier writes what did not arrive


class SyncTarget(Protocol):
    """The offset-syncs topic as `OffsetSyncWriter` uses it."""

    where: str  # for messages

    async def append(self, records: Sequence[Record]) -> None:
        """Writes *records*; returns when all are replicated.

        Raises MirrorFlowError; some may have been written then.
        """

    async def has_lost_records(self) -> bool:
        """Returns whether the topic has lost records since the last call. Raises MirrorFlowError."""

    async def close(self) -> None:
        """Closes its connections."""


class _PartitionNotes:
    """The offset syncs and the offset map of one partition."""

    __slots__ = ("runs", "syncs")

    def __init__(self, lag_max: int) -> None:
        self.syncs = PartitionSyncs(lag_max)
        self.runs: PartitionMap | None = None  # set by `aligned`, where a map is kept


class OffsetSyncWriter:
    """Collects the offset syncs of a task's partitions and writes them; `run` runs until cancelled."""

    def __init__(
        self,
        log: SyncTarget,
        *,
        lag_max: int,
        errors: Counter[str],
        now_ms: Callable[[], int],
        maps: OffsetMaps | None = None,
    ) -> None:
        self.written = 0
        self._maps = maps
        self._log = log
        self._lag_max = lag_max
        self._errors = errors
        self._now_ms = now_ms
        self._problem: MirrorFlowError | None = None
        self._copiers: dict[PartitionCopier, _PartitionNotes] = {}
        self._due: dict[PartitionCopier, PartitionSyncs] = {}  # longest due first
        self._lost_in: set[PartitionCopier] = set()  # their next syncs report a loss
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        if maps is not None:
            maps.report_losses_to(self._lost)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Returns why nothing is written; empty while all is well."""
        maps = () if self._maps is None else self._maps.warnings
        if self._problem is None:
            return maps
        return (f"Offset syncs are not written to {self._log.where}: {self._problem}", *maps)

    # -- called by the partition copiers

    def delivered(self, copier: PartitionCopier, span: Span, base_offset: int) -> None:
        """Notes that the records of *span* lie on the target from *base_offset* on.

        Called for each batch, so it does nothing else.
        """
        notes = self._copiers.get(copier)
        if notes is None:
            notes = self._copiers[copier] = _PartitionNotes(self._lag_max)
        ordinal, count, source_offset, _, _, _, offsets, _, _ = span
        runs = notes.runs
        if offsets is None:
            due = notes.syncs.delivered(source_offset, base_offset, count)
            if runs is not None:
                runs.delivered(source_offset, base_offset, count, ordinal)
        else:
            due = notes.syncs.delivered_with_gaps(offsets, base_offset)
            if runs is not None:
                runs.delivered_with_gaps(offsets, base_offset, ordinal)
        if runs is not None and self._maps is not None:
            self._maps.moved(copier)
        if due:
            self._due[copier] = notes.syncs
            self._wake.set()

    def aligned(
        self, copier: PartitionCopier, stream: MapStream, pair: OffsetPair, *, was_cut_off: bool
    ) -> None:
        """Notes that *copier* continues after *pair*. *was_cut_off*: its last writer may not have written this sync."""
        notes = self._copiers.setdefault(copier, _PartitionNotes(self._lag_max))
        if self._maps is not None:
            notes.runs = self._maps.of(copier, stream, pair)
        syncs = notes.syncs
        if (
            was_cut_off
            and min(pair.ordinal, pair.target_offset) >= 0
            and syncs.aligned(pair.source_offset, pair.target_offset)
        ):
            self._due[copier] = syncs
            self._wake.set()

    def _lost(self, copier: PartitionCopier, left: Sync) -> None:
        """Makes a sync due that makes readers drop pairs after *left*.

        An earlier process may have written them, and the target has lost their records.
        """
        notes = self._copiers.get(copier)
        if notes is not None:
            notes.syncs.lost(left)
            self._lost_in.add(copier)
            self._due[copier] = notes.syncs
            self._wake.set()

    def promote(self, copiers: Iterable[PartitionCopier]) -> None:
        """Makes the newest sync and the map of each of *copiers* due, because offsets are being stored."""
        if self._maps is not None:
            self._maps.promote(copiers)
        for copier in copiers:
            notes = self._copiers.get(copier)
            if notes is not None and notes.syncs.promote():
                self._due[copier] = notes.syncs
        if self._due:
            self._wake.set()

    async def leave(self, copiers: Iterable[PartitionCopier]) -> None:
        """Writes what *copiers* have, for at most LEAVE_S, and drops them."""
        leaving = list(copiers)
        self.promote(leaving)
        if self._maps is not None:
            await self._maps.leave(leaving)
        if self._problem is None:
            with contextlib.suppress(TimeoutError, MirrorFlowError):
                async with asyncio.timeout(LEAVE_S):
                    while not self._due.keys().isdisjoint(leaving):
                        await self._write_due()
        for copier in leaving:
            self._copiers.pop(copier, None)
            self._due.pop(copier, None)
            self._lost_in.discard(copier)

    async def write_what_is_lost(self) -> None:
        """Writes the newest sync and the map of each partition again if their topics have lost records. Raises MirrorFlowError."""
        if self._maps is not None:
            await self._maps.write_what_is_lost()
        if await self._log.has_lost_records():
            for copier, notes in self._copiers.items():
                if notes.syncs.repeat():
                    self._due[copier] = notes.syncs
            if self._due:
                self._wake.set()

    # -- writing

    async def run(self) -> None:
        """Writes what is due until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._write_for_ever())
                if self._maps is not None:
                    group.create_task(self._maps.run())
        finally:
            await self._log.close()

    async def _write_for_ever(self) -> None:
        pause_s = RETRY_MIN_S
        while True:
            await self._wake.wait()
            try:
                count = await self._write_due()
            except MirrorFlowError as error:
                self._problem = error
                self._errors[error.reason] += 1
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            else:
                self._problem, pause_s = None, RETRY_MIN_S
                await asyncio.sleep(max(WRITE_EVERY_S, count / SYNCS_PER_S_MAX))

    async def _write_due(self) -> int:
        """Writes one request's worth, the longest due first; returns the number of syncs."""
        async with self._writing:
            taken: list[tuple[PartitionCopier, PartitionSyncs, tuple[Sync, ...]]] = []
            count = 0
            while self._due and count < SYNCS_PER_WRITE_MAX:
                copier = next(iter(self._due))
                syncs = self._due.pop(copier)
                taken.append((copier, syncs, syncs.take()))
                count += len(taken[-1][2])
            if not self._due:
                self._wake.clear()
            of_losses = [copier for copier, _, _ in taken if copier in self._lost_in]
            self._lost_in.difference_update(of_losses)
            try:
                if count:
                    await self._log.append(self._records(taken))
            except BaseException:
                for copier, syncs, those in taken:
                    syncs.put_back(those)
                    if syncs.pending and copier in self._copiers:
                        self._due[copier] = syncs
                self._lost_in.update(of_losses)
                self._wake.set()
                raise
            self.written += count
            if self._maps is not None:
                self._maps.syncs_written(of_losses)
            return count

    def _records(
        self, taken: "Iterable[tuple[PartitionCopier, PartitionSyncs, tuple[Sync, ...]]]"
    ) -> list[Record]:
        now_ms = self._now_ms()
        records = []
        for copier, _, syncs in taken:
            for upstream, downstream in syncs:
                sync = OffsetSync(
                    topic=copier.topic,
                    partition=copier.partition,
                    upstream_offset=upstream,
                    downstream_offset=downstream,
                )
                key, value = encode_offset_sync_key(sync), encode_offset_sync_value(sync)
                records.append(Record(0, now_ms, key, value, ()))
        return records


class SyncsLog:
    """The offset-syncs topic, written with the producer of *settings*.

    It connects when there is something to write.
    """

    def __init__(self, settings: OffsetSyncSettings, topic: str, *, resolve: Resolve) -> None:
        self.where = f"topic {topic} of {settings.producer.alias}"
        self._settings = settings
        self._topic = topic
        self._resolve = resolve
        self._cluster: Cluster | None = None
        self._losses: RecordLosses | None = None

    async def has_lost_records(self) -> bool:
        """See `SyncTarget.has_lost_records`; without a connection nothing was written."""
        return self._losses is not None and await self._losses.has_lost_records()

    async def append(self, records: Sequence[Record]) -> None:
        """Writes *records*; see `SyncTarget.append`."""
        if self._cluster is None:
            self._cluster = await Cluster.connect(
                self._settings.producer, resolve=self._resolve, timeout_s=CONNECT_TIMEOUT_S
            )
            self._losses = RecordLosses(self._cluster, self._topic)
            await self._losses.has_lost_records()  # before the first one is written
        try:
            await append(self._cluster, self._topic, records)
        except NotAuthorizedError as error:
            raise NotAuthorizedError(
                cluster=error.cluster, operation="Write", resource=f"topic {self._topic}"
            ) from error

    async def close(self) -> None:
        """Closes its connections."""
        if self._cluster is not None:
            await self._cluster.close()


class UnwrittenSyncs:
    """A `SyncTarget` that drops all syncs, for a copy that keeps only the offset map."""

    where = "no topic"

    async def append(self, records: Sequence[Record]) -> None:
        """Writes nothing."""

    async def has_lost_records(self) -> bool:
        """Returns False: nothing was written."""
        return False

    async def close(self) -> None:
        """Does nothing: no connection is open."""


class SyncsTopic:
    """Creates the offset-syncs topic, as Java's connector does, before its tasks write to it."""

    def __init__(self, settings: OffsetSyncSettings, topic: str, *, resolve: Resolve) -> None:
        self._settings = settings
        self._topic = topic
        self._resolve = resolve
        self._problem: MirrorFlowError | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Returns why the topic cannot be created; empty once it exists."""
        if self._problem is None:
            return ()
        return (
            f"Topic {self._topic} of {self._settings.admin.alias} for offset syncs cannot be made: {self._problem}",
        )

    async def run(self) -> None:
        """Retries until the topic exists."""
        pause_s = RETRY_MIN_S
        while True:
            try:
                await self.ensure()
            except MirrorFlowError as error:
                self._problem = error
            else:
                self._problem = None
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def ensure(self) -> None:
        """Creates the topic unless it exists. Raises ClusterError, SettingError."""
        settings = self._settings
        cluster = await Cluster.connect(settings.admin, resolve=self._resolve, timeout_s=CONNECT_TIMEOUT_S)
        try:
            await create_mirror_topic(
                cluster,
                self._topic,
                replication_factor=settings.replication_factor,
                key=SYNCS_FACTOR_KEY,
            )
        except NotAuthorizedError as error:
            raise NotAuthorizedError(
                cluster=error.cluster, operation="Create", resource=f"topic {self._topic}"
            ) from error
        finally:
            await cluster.close()

"""Offset syncs on their way to MM2's offset-syncs topic: beside the copying, never in its way.

Acknowledgements are told by the lanes in one call each (`delivered`); which pairs are due is `flow.offset_syncs`'. One
loop writes what is due, in batches and by a client of its own, because the topic may be on the source and written by
another user than the one who reads. It promises: at most a bounded number of syncs waits for each partition; each is a
record's own pair, in the order of the source; a topic that cannot be written costs no record and no time of copying, is
told in `warnings`, counted in `errors`, and tried again. What a process could not write before it died is written by its
successor, as far as the target tells it (`aligned`).

What lanes tell goes to the maps of `runtime.mapping`, too, so that a batch costs one call for both.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from mirrorflow_replicator.connect.mirror_records import (
    OffsetSync,
    encode_offset_sync_key,
    encode_offset_sync_value,
)
from mirrorflow_replicator.connect.offset_syncs import REPLICATION_FACTOR_KEY
from mirrorflow_replicator.errors import MirrorFlowError, NotAuthorizedError
from mirrorflow_replicator.flow.alignment import Pair
from mirrorflow_replicator.flow.offset_map import PartitionMap
from mirrorflow_replicator.flow.offset_syncs import PartitionSyncs, Sync
from mirrorflow_replicator.flow.stream import Span
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.credentials import Resolve
from mirrorflow_replicator.kafka.mirror_log import append, create_mirror_topic
from mirrorflow_replicator.runtime.mapping import OffsetMaps
from mirrorflow_replicator.settings import OffsetSyncSettings
from mirrorflow_replicator.wire.records import Record

if TYPE_CHECKING:
    from mirrorflow_replicator.runtime.lane import Lane

# A group is translated once a minute; four looks a second cost next to nothing and put many partitions into one request.
WRITE_EVERY_S = 0.25
# 2 % of a core here. Busy partitions then write less often, and what they write is spread wider.
SYNCS_PER_S_MAX = 2_000
SYNCS_PER_WRITE_MAX = 1_000  # 40 kB to 300 kB: below the smallest usual max.message.bytes
RETRY_MIN_S, RETRY_MAX_S = 0.5, 30.0  # ACLs are mended by people
CONNECT_TIMEOUT_S = 15.0
LEAVE_S = 1.0  # at a stop, for the last ones; the next copier writes what did not arrive


class Log(Protocol):
    """The offset-syncs topic as `Syncing` sees it."""

    where: str  # for a sentence

    async def append(self, records: Sequence[Record]) -> None:
        """Write *records*; returns when all are replicated. Raises MirrorFlowError; then some may have been written."""

    async def close(self) -> None:
        """Write no more."""


class _Told:
    """What is made of what one lane tells."""

    __slots__ = ("runs", "syncs")

    def __init__(self, lag_max: int) -> None:
        self.syncs = PartitionSyncs(lag_max)
        self.runs: PartitionMap | None = None  # once it is aligned, where a map is kept


class Syncing:
    """See the module. `run` until cancelled."""

    def __init__(
        self,
        log: Log,
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
        self._lanes: dict[Lane, _Told] = {}
        self._due: dict[Lane, PartitionSyncs] = {}  # longest due first
        self._lost_in: set[Lane] = set()  # their next syncs tell of a loss
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        if maps is not None:
            maps.on_lost = self._lost

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why nothing is written, as long as it is so."""
        maps = () if self._maps is None else self._maps.warnings
        if self._problem is None:
            return maps
        return (f"Offset syncs are not written to {self._log.where}: {self._problem}", *maps)

    # -- what the lanes tell

    def delivered(self, lane: "Lane", span: Span, base_offset: int) -> None:
        """The records of *span* lie at *base_offset* and behind it. Called for each batch: nothing else is done here."""
        told = self._lanes.get(lane)
        if told is None:
            told = self._lanes[lane] = _Told(self._lag_max)
        ordinal, count, source_offset, _, _, _, offsets = span
        runs = told.runs
        if offsets is None:
            due = told.syncs.delivered(source_offset, base_offset, count)
            if runs is not None:
                runs.delivered(source_offset, base_offset, count, ordinal)
        else:
            due = told.syncs.delivered_with_gaps(offsets, base_offset)
            if runs is not None:
                runs.delivered_with_gaps(offsets, base_offset, ordinal)
        if due:
            self._due[lane] = told.syncs
            self._wake.set()

    def aligned(self, lane: "Lane", pair: Pair) -> None:
        """The target was asked: it has the record of *pair* last, if that is a record's pair at all."""
        if lane.anchor is None:
            return
        told = self._lanes.setdefault(lane, _Told(self._lag_max))
        if self._maps is not None:
            told.runs = self._maps.of(lane, pair)
        if pair.ordinal < lane.anchor.ordinal or pair.target_offset < 0:
            return
        syncs = told.syncs
        if syncs.aligned(pair.source_offset, pair.target_offset):
            self._due[lane] = syncs
            self._wake.set()

    def _lost(self, lane: "Lane", left: Sync) -> None:
        """An earlier process may have written pairs behind *left* that the target has lost: readers are to forget them."""
        told = self._lanes.get(lane)
        if told is not None:
            told.syncs.lost(left)
            self._lost_in.add(lane)
            self._due[lane] = told.syncs
            self._wake.set()

    async def forget(self, lane: "Lane", pair: Pair) -> None:
        """*lane* will go on behind *pair*: what was known of records that the target has lost is forgotten first."""
        if self._maps is not None:
            await self._maps.forget(lane, pair)

    def promote(self, lanes: Iterable["Lane"]) -> None:
        """Positions are being written: so are now the newest sync of each of *lanes*, due or not, and its map."""
        if self._maps is not None:
            self._maps.promote(lanes)
        for lane in lanes:
            told = self._lanes.get(lane)
            if told is not None and told.syncs.promote():
                self._due[lane] = told.syncs
        if self._due:
            self._wake.set()

    async def leave(self, lanes: Iterable["Lane"]) -> None:
        """*lanes* are given up: write what they have, if that is soon done, and forget them."""
        leaving = list(lanes)
        self.promote(leaving)
        if self._maps is not None:
            await self._maps.leave(leaving)
        if self._problem is None:
            with contextlib.suppress(TimeoutError, MirrorFlowError):
                async with asyncio.timeout(LEAVE_S):
                    while not self._due.keys().isdisjoint(leaving):
                        await self._write_due()
        for lane in leaving:
            self._lanes.pop(lane, None)
            self._due.pop(lane, None)
            self._lost_in.discard(lane)

    # -- writing

    async def run(self) -> None:
        """Write what is due until cancelled."""
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
        """Write the longest due, one request's worth; how many they were."""
        async with self._writing:
            taken: list[tuple[Lane, PartitionSyncs, tuple[Sync, ...]]] = []
            count = 0
            while self._due and count < SYNCS_PER_WRITE_MAX:
                lane = next(iter(self._due))
                syncs = self._due.pop(lane)
                taken.append((lane, syncs, syncs.take()))
                count += len(taken[-1][2])
            if not self._due:
                self._wake.clear()
            of_losses = [lane for lane, _, _ in taken if lane in self._lost_in]
            self._lost_in.difference_update(of_losses)
            try:
                if count:
                    await self._log.append(self._records(taken))
            except BaseException:
                for lane, syncs, those in taken:
                    syncs.give_back(those)
                    if syncs.pending and lane in self._lanes:
                        self._due[lane] = syncs
                self._lost_in.update(of_losses)
                self._wake.set()
                raise
            self.written += count
            for lane in of_losses:
                assert self._maps is not None
                self._maps.syncs_written(lane)
            return count

    def _records(self, taken: "Iterable[tuple[Lane, PartitionSyncs, tuple[Sync, ...]]]") -> list[Record]:
        now_ms = self._now_ms()
        records = []
        for lane, _, syncs in taken:
            for upstream, downstream in syncs:
                sync = OffsetSync(
                    topic=lane.topic,
                    partition=lane.partition,
                    upstream_offset=upstream,
                    downstream_offset=downstream,
                )
                key, value = encode_offset_sync_key(sync), encode_offset_sync_value(sync)
                records.append(Record(0, now_ms, key, value, ()))
        return records


class SyncsLog:
    """The topic by the producer of *settings*, connected when there is something to write."""

    def __init__(self, settings: OffsetSyncSettings, topic: str, *, resolve: Resolve) -> None:
        self.where = f"topic {topic} of {settings.producer.alias}"
        self._settings = settings
        self._topic = topic
        self._resolve = resolve
        self._cluster: Cluster | None = None

    async def append(self, records: Sequence[Record]) -> None:
        """See `Log`."""
        if self._cluster is None:
            self._cluster = await Cluster.connect(
                self._settings.producer, resolve=self._resolve, timeout_s=CONNECT_TIMEOUT_S
            )
        try:
            await append(self._cluster, self._topic, records)
        except NotAuthorizedError as error:
            raise NotAuthorizedError(
                cluster=error.cluster, operation="Write", resource=f"topic {self._topic}"
            ) from error

    async def close(self) -> None:
        """Close its connections."""
        if self._cluster is not None:
            await self._cluster.close()


class SyncsTopic:
    """The topic itself: the connector makes it, as Java's does, before its tasks may write to it."""

    def __init__(self, settings: OffsetSyncSettings, topic: str, *, resolve: Resolve) -> None:
        self._settings = settings
        self._topic = topic
        self._resolve = resolve
        self._problem: MirrorFlowError | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why it is not there, as long as it is so."""
        if self._problem is None:
            return ()
        return (
            f"Topic {self._topic} of {self._settings.admin.alias} for offset syncs cannot be made: {self._problem}",
        )

    async def run(self) -> None:
        """Try until it is there."""
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
        """Make it unless it is there. Raises ClusterError, SettingError."""
        settings = self._settings
        cluster = await Cluster.connect(settings.admin, resolve=self._resolve, timeout_s=CONNECT_TIMEOUT_S)
        try:
            await create_mirror_topic(
                cluster,
                self._topic,
                replication_factor=settings.replication_factor,
                key=REPLICATION_FACTOR_KEY,
            )
        except NotAuthorizedError as error:
            raise NotAuthorizedError(
                cluster=error.cluster, operation="Create", resource=f"topic {self._topic}"
            ) from error
        finally:
            await cluster.close()

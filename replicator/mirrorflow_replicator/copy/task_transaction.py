"""Writes the records of a task that cannot be plain batches in transactions of its own, and all positions (KIP-618).

    add partitions ──> records ──> hold, all acknowledged ──> positions ──> commit ──> add partitions ...

Guarantees: no record is committed without its position, and no position without its records. A transaction is
committed as soon as the source has no more, and otherwise after COMMIT_INTERVAL_MS, or as soon as it has what the target
takes in a tenth of its time limit; a usual commit takes at most a tenth of the time. A partition changes its mode
(`copy.write_mode_tracker`) only when its position is committed; while one waits for that, a commit takes at most half of
the time. Nothing is committed after a response that is lost, or
after the leader of a partition has changed, for which the leaders are asked: then the task ends (`end_task`), and its
next start finds in the logs what was written.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.send_window import SendWindow
from mirrorflow_core.source_epochs import followed_by
from mirrorflow_core.writer.broker_requests import Producer, Refused, Transaction
from mirrorflow_core.writer.flow_plan import TaskStart, TopicIds, point_behind, position_at, start_position
from mirrorflow_core.writer.ownership import touch_interval_ms
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.task_restart_reason import restart_reason
from mirrorflow_core.writer.write_mode import (
    ChangeMode,
    commit_interval_ms,
    commit_pause_ms,
    longest_interval_ms,
)
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import (
    EPOCH_IS_OVER,
    INVALID_PRODUCER_ID_MAPPING,
    NONE,
    OPERATION_NOT_ATTEMPTED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    is_metadata_stale,
    name_of,
    partition_error,
    raise_for,
)
from mirrorflow_kafka.writer.producer_transactions import ProducerTransactions
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.partition_writer import PartitionWriter
from mirrorflow_replicator.copy.position_writer import FINAL_CODES, TIMES_AVERAGED
from mirrorflow_replicator.process import now_ms

# A broker that has not answered for so long, though what is in flight must have reached it, is being replaced.
DRAIN_S = 10.0
DRAIN_LOOK_S = 0.5
# Error codes that concern the transactional id, whichever partition they are returned for.
_OF_TRANSACTIONAL_ID = EPOCH_IS_OVER | {INVALID_PRODUCER_ID_MAPPING, TRANSACTIONAL_ID_AUTHORIZATION_FAILED}


class TaskTransaction:
    """The transactions of one start of a task; `run` runs until cancelled."""

    def __init__(
        self,
        target: Cluster,
        transactions: ProducerTransactions,
        start: TaskStart,
        *,
        pump: Callable[[], None],
        end_task: Callable[[str], None],
    ) -> None:
        self._expires_s = 0.0  # transactional.id.expiration.ms, in seconds; 0: unknown
        self._target = target
        self._transactions = transactions
        self._producers = start.producers
        self._points = start.points
        self._topic_ids = start.topic_ids
        self._pump = pump
        self._end_task = end_task
        self._is_over = False
        self._wanted: dict[PartitionWriter, None] = {}
        self._members: dict[PartitionWriter, None] = {}
        self._stored: dict[PartitionWriter, WriterPosition] = {}
        self._changing: dict[PartitionWriter, int] = {}  # with `resyncs`; they wait for another mode
        self._due: dict[PartitionWriter, None] = {}  # whose positions are to be stored
        self._draining: set[PartitionWriter] = set()
        self._drained = asyncio.Event()
        self._wake = asyncio.Event()
        # What one transaction may hold, so that it ends within its time limit on a slow link or under a quota. A quota
        # lets a burst pass before it throttles: the rate of one transaction proves little about a much larger one.
        self._window = SendWindow(longest_interval_ms(transactions.timeout_ms) / 1000, growth=2)
        self._sent_bytes = 0  # in the open transaction
        self._began_s = self._ended_s = self._touched_s = time.monotonic()
        self.took_ms: deque[float] = deque(maxlen=TIMES_AVERAGED)  # durations of the newest commits
        self._working = asyncio.Lock()

    def keep_ids(self, expires_s: float) -> None:
        """Uses both ids often enough for a coordinator that forgets them after *expires_s*."""
        self._expires_s = expires_s

    # -- called by the partition copiers

    def want(self, writing: PartitionWriter) -> None:
        """Takes *writing* in, because it has records to write, or lets it change its mode."""
        if writing.mode.change is not None:
            self._changing[writing] = writing.copier.resyncs
        elif not writing.mode.is_plain:
            self._wanted[writing] = None
        self._wake.set()

    def sent(self, size_bytes: int) -> None:
        """Counts a batch of *size_bytes* that was sent inside the transaction; all are held when it takes no more."""
        self._sent_bytes += size_bytes
        if self._is_full:
            for writing in self._members:
                writing.hold()
            self._wake.set()

    @property
    def _is_full(self) -> bool:
        return self._sent_bytes >= self._window.size_bytes

    def emptied(self, writing: PartitionWriter) -> None:
        """Notes that *writing*, which is held for a commit, has nothing in flight any more."""
        self._draining.discard(writing)
        if not self._draining:
            self._drained.set()

    def progressed(self, copier: PartitionCopier) -> None:
        """Notes that *copier* may have written everything that its source has."""
        if copier.writing in self._members and _is_idle(copier.writing):
            self._wake.set()

    def refused(self, code: int) -> None:
        """Ends the task if a refusal with *code* leaves open what was appended, or means that it is fenced."""
        if code in FINAL_CODES:
            self._end(f"the target answered {name_of(code)}")

    def ended_elsewhere(self) -> None:
        """Ends the task: only another producer can have ended its transaction."""
        self._end("its transaction was ended by another process")

    def includes(self, writing: PartitionWriter) -> bool:
        """Returns whether the open transaction has *writing*."""
        return writing in self._members

    async def finish(self, timeout_s: float) -> None:
        """Commits at once, before partitions are given up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._working:
                if self._members:
                    await self._commit()

    async def store(self, copiers: Iterable[PartitionCopier], *, left: bool) -> None:
        """Stores that *copiers* are given up, or soon the positions of those that write plain batches.

        All others are stored with their records. Raises ClusterError.
        """
        if left:
            await self._store_left(copiers)
            return
        self._due |= dict.fromkeys(one for one in _begun(copiers) if one.mode.is_plain)
        self._wake.set()

    def acknowledged(self, copiers: Iterable[PartitionCopier]) -> list[WriterPosition]:
        """Returns what is stored of each partition, then how far plain batches of *copiers* are acknowledged.

        The latter are marked as left where another producer has written a batch with our next number: none of ours follows.
        """
        begun = {one.source: one for one in _begun(copiers) if one.source in self._points}
        stored = [self._stored_position(source, begun.get(source)) for source in self._points]
        return stored + [
            self._position(one, is_left=one.repeat is not None and one.repeat.is_foreign)
            for one in begun.values()
            if one.mode.is_plain and not one.stream.has_fallen_back
        ]

    def _stored_position(self, source: TopicPartition, writing: PartitionWriter | None) -> WriterPosition:
        if writing is not None and writing in self._stored:
            return self._stored[writing]
        point, ids = self._points[source], self._topic_ids.get(source.topic, TopicIds())
        return start_position(source, point, self._producers, time_ms=now_ms(), topic_ids=ids)

    def positions_lost(self) -> None:
        """Ends the task: its next start stores the positions of all of its partitions."""
        self._end("the offsets topic was deleted, or its records were")

    async def _store_left(self, copiers: Iterable[PartitionCopier]) -> None:
        """Stores that nothing was written behind the positions of *copiers*. Raises ClusterError."""
        async with self._working:
            if self._is_over or self._members:
                return  # the next start asks the target
            known = [one for one in _begun(copiers) if one.source in self._points]
            settled = [one for one in known if one.is_drained and not one.has_uncertain_writes]
            await self._ask_leaders(settled)
            if settled and not self._is_over:
                transactional = self._producers.transactional
                positions = [self._position(one, is_left=True) for one in settled]
                await self._transactions.store_positions(transactional, positions)
                await self._transactions.end(transactional, commit=True)
                await self._transactions.wait_for_markers(transactional)

    # -- the loop

    async def run(self) -> None:
        """Adds partitions and commits until cancelled, or until the task must end."""
        while not self._is_over:
            try:
                async with self._working:
                    await self._step()
            except MirrorFlowError as error:
                self._end(str(error))
            self._pump()
            await self._wait()

    def _end(self, why: str) -> None:
        if not self._is_over:  # a broker that fails refuses all batches in flight
            self._is_over = True
            self._end_task(why)

    async def _wait(self) -> None:
        self._wake.clear()
        if self._wanted or self._is_over:
            return
        due_s = min(self._due_s, self._touch_due_s) if self._has_work else self._touch_due_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, due_s - time.monotonic())):
                await self._wake.wait()

    @property
    def _has_work(self) -> bool:
        return bool(self._members or self._changing or self._due)

    @property
    def _due_s(self) -> float:
        """When the open transaction is committed, or the next one for positions alone."""
        # The median: after one slow commit, consumers would wait ten times as long for the next one.
        commit_ms = round(median(self.took_ms)) if self.took_ms else 0
        if self._is_full:
            return self._began_s
        if self._changing:
            # Partitions wait for it. That is rare: with frequent gaps they stay in transactions.
            return self._ended_s + commit_ms / 1000
        soonest_s = self._ended_s + commit_pause_ms(commit_ms) / 1000
        if not self._members:
            return soonest_s
        latest_s = self._began_s + commit_interval_ms(commit_ms, self._transactions.timeout_ms) / 1000
        if all(map(_is_idle, self._members)):
            return min(latest_s, max(self._began_s, soonest_s))
        return latest_s

    @property
    def _touch_due_s(self) -> float:
        interval_s = touch_interval_ms(round(self._expires_s * 1000)) / 1000 if self._expires_s else math.inf
        return self._touched_s + interval_s

    async def _step(self) -> None:
        if self._has_work and time.monotonic() >= self._due_s:
            await self._commit()
        if self._wanted and not self._is_over:
            wanted = list(self._wanted)
            self._wanted.clear()
            await self._join(wanted)
        if time.monotonic() >= self._touch_due_s:
            await self._touch()

    async def _touch(self) -> None:
        """Uses both ids, so that the coordinator does not forget them."""
        self._touched_s = time.monotonic()
        await self._use_ids([self._producers.plain] if self._members else self._producers.all)

    async def _use_ids(self, producers: Iterable[Producer]) -> None:
        """Commits an empty transaction of each of *producers*, which waits for their last ones; a refusal ends the task."""
        for producer in producers:
            if isinstance(response := await self._transactions.run(Transaction(producer)), Refused):
                self._end(f"{producer.transactional_id} was refused with {name_of(response.error_code)}")

    async def _join(self, wanted: Sequence[PartitionWriter]) -> None:
        """Adds *wanted* to the transaction; returns when the markers of the previous one are written."""
        resyncs = {one: one.copier.resyncs for one in wanted if one.copier.state is CopierState.COPYING}
        if not resyncs:
            return
        if not self._members:
            positions = [self._position(one) for one in resyncs]
            await self._transactions.begin_transaction(self._producers.transactional, positions)
        # A partition that had no leader may miss the marker of the last transaction (KAFKA-20734). If it were in the
        # next one, and that is aborted, its committed records would be aborted.
        await self._ask_leaders(resyncs)
        if not self._is_over:
            partitions = [one.target for one in resyncs]
            codes = await self._transactions.try_add_partitions(self._producers.transactional, partitions)
            self._admit(resyncs, codes)

    def _admit(self, resyncs: Mapping[PartitionWriter, int], codes: Mapping[TopicPartition, int]) -> None:
        """Handles the coordinator's responses; *resyncs* has the `resyncs` of the copiers at its request."""
        for code in codes.values():
            if code in _OF_TRANSACTIONAL_ID:
                subject = self._producers.transactional.transactional_id
                raise_for(code, cluster=self._target.alias, request="AddPartitionsToTxn", subject=subject)
        for writing, resyncs_then in resyncs.items():
            copier = writing.copier
            code = codes.get(writing.target, OPERATION_NOT_ATTEMPTED)
            if code == NONE:
                if not self._members:
                    self._began_s = time.monotonic()
                self._members[writing] = None
                if copier.state is CopierState.COPYING and copier.resyncs == resyncs_then:
                    writing.join()
                    if self._is_full:
                        writing.hold()
                    self._wanted.pop(writing, None)  # it has asked again meanwhile
            elif code == OPERATION_NOT_ATTEMPTED:
                self.want(writing)
            elif is_metadata_stale(code):
                copier.resync()
            else:
                self._refuse(copier, code)

    def _refuse(self, copier: PartitionCopier, code: int) -> None:
        alias = self._target.alias
        copier.stop(
            partition_error(code, cluster=alias, request="AddPartitionsToTxn", partition=copier.target)
        )

    async def _commit(self) -> None:
        began_s = time.monotonic()
        members = list(self._members)
        for writing in members:
            writing.hold()
        await self._drain(members)
        if self._has_problem(members):
            return  # a response that comes later is not in the positions
        changes = self._ready_changes()
        resyncs = {one: one.copier.resyncs for one in members}
        due = [one for one in self._due if not one.has_uncertain_writes]
        self._due.clear()
        positions = {
            one: self._position(one, changes.get(one)) for one in dict.fromkeys([*members, *changes, *due])
        }
        transactional = self._producers.transactional
        await self._ask_leaders(positions)
        if not self._has_problem([*members, *changes]) and positions:
            await self._transactions.store_positions(transactional, positions.values())
        if self._has_problem([*members, *changes]):
            return
        if positions:
            await self._transactions.end(transactional, commit=True)
            # Without the wait for markers, which the beginning of the next transaction has in any case.
            self.took_ms.append((time.monotonic() - began_s) * 1000)
            # Before their markers are there: the next start passes them on if the offsets topic loses them.
            self._stored |= positions
            await self._transactions.wait_for_markers(transactional)
        self._members.clear()
        self._sent_bytes = 0
        for writing, position in positions.items():
            writing.committed(position.next_source_offset)
        for writing in members:
            if writing not in changes:
                writing.release(marked=resyncs[writing] == writing.copier.resyncs)
        self._ended_s = time.monotonic()
        if any(not one.mode.is_plain for one in changes):
            # It ends when the markers of the last transaction are written. An unclean election that removes the marker of
            # a partition then removes its plain batches, too.
            await self._use_ids([transactional])
        for writing, change in changes.items():
            is_wanted = writing.mode.change is change
            if is_wanted:
                writing.change_mode(change)
            if is_wanted or writing in resyncs:
                writing.release(marked=False)

    async def _ask_leaders(self, writers: Iterable[PartitionWriter]) -> None:
        """Ends the task if a partition of *writers* has another leader. Raises ClusterError if one has none.

        The metadata may be older than an election that the same broker has won. A position with the epoch before
        would look as if the target had lost the records behind the election.
        """
        asked = {one.target: one.copier for one in writers}
        epochs = await self._transactions.leader_epochs(asked)
        for target, copier in asked.items():
            if epochs[target] > copier.target_epoch:
                self._end(f"{target} has another leader")

    def _ready_changes(self) -> dict[PartitionWriter, ChangeMode]:
        """Returns the changes of mode that are still wanted; everything before them is acknowledged."""
        found = {
            one: one.mode.change
            for one, resyncs in self._changing.items()
            if one.mode.change is not None
            and one.copier.state is CopierState.COPYING
            and one.copier.resyncs == resyncs
            and one.is_drained
            and not one.has_uncertain_writes
        }
        self._changing.clear()
        return found

    async def _drain(self, members: Iterable[PartitionWriter]) -> None:
        """Waits for the responses to what is in flight, for as long as the transaction may stay open.

        A broker that answers, or throttles, is waited for; one that does not is given up after DRAIN_S.
        """
        began_s = time.monotonic()
        ends_s = self._began_s + self._transactions.timeout_ms / 1000
        self._draining = {one for one in members if not one.is_drained}
        self._drained.clear()
        was_busy = bool(self._draining)
        while self._draining:
            expected_s = min(one.pipe.expects_answer_by(began_s) for one in self._draining)
            left_s = min(expected_s + DRAIN_S, ends_s) - time.monotonic()
            if left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, DRAIN_LOOK_S)):
                    await self._drained.wait()
        # With nothing in flight at its end, the transaction waited for the source.
        self._window = self._window.after(
            self._sent_bytes, time.monotonic() - self._began_s if was_busy else 0.0
        )

    def _has_problem(self, members: Iterable[PartitionWriter]) -> bool:
        """Returns whether the transaction of *members* must not be committed; the task ends then."""
        for one in members:
            why = restart_reason(
                one.target,
                one.stream,
                has_lost_responses=not one.is_drained or one.lost_batches > 0,
                has_new_leader=self._target.metadata.leader_epoch(*one.target) > one.copier.target_epoch,
            )
            if why:
                self._end(why)
        return self._is_over

    def _position(
        self, writing: PartitionWriter, change: ChangeMode | None = None, *, is_left: bool = False
    ) -> WriterPosition:
        """Returns the position behind what is acknowledged, or at *change*."""
        start, stored, mode = self._points[writing.source], self._stored.get(writing), writing.mode
        at, before = writing.stream.delivered, start if stored is None else stored
        # Java also reads positions of aborted transactions, so its offset is that of the transaction before.
        settled = before.next_source_offset - 1
        point = point_behind(
            start,
            writing.stream,
            sequence=mode.plain_sequence(at.ordinal),
            target_epoch=writing.copier.target_epoch,
        )
        # Plain batches wait for the marker of the transaction that the position is in.
        plain_start = point.target_end + 1 if writing in self._members else before.plain_start
        point = replace(point, plain_start=plain_start, revision=(before.revision or 0) + 1)
        if change is not None:
            point = replace(
                point,
                next_source_offset=change.next_source_offset,
                source_epoch=change.source_epoch,
                epochs=followed_by(point.epochs, change.source_epoch, point.next_source_offset),
            )
        return position_at(
            writing.source,
            point,
            self._producers,
            mode=mode.current if change is None else change.mode,
            time_ms=now_ms(),
            java_offset=at.source_offset if is_left or mode.is_plain else settled,
            topic_ids=self._topic_ids.get(writing.source.topic, TopicIds()),
            left=is_left,
        )


def _begun(copiers: Iterable[PartitionCopier]) -> list[PartitionWriter]:
    """Returns the writers of those of *copiers* that have begun."""
    return [copier.writing for copier in copiers if copier.writing is not None]


def _is_idle(writing: PartitionWriter) -> bool:
    """Returns whether *writing* has written everything that its source is known to have."""
    cursor = writing.copier.cursor
    return writing.is_drained and not writing.packer and cursor.offset >= cursor.end_offset

"""Decides for a task what its transactions hold and when they are committed, and stores all positions in them (KIP-618).

    add partitions ──> records ──> hold, all acknowledged ──> positions ──> commit ──> add partitions ...

Guarantees: no record is committed without its position, and no position without its records. A transaction is
committed as soon as the source has no more, and otherwise after COMMIT_INTERVAL_MS, or as soon as it has what the target
takes in a tenth of its time limit; a usual commit takes at most a tenth of the time. A partition changes its mode
(`copying.write_mode_tracker`) only when its position is committed; while one waits for that, a commit takes at most half of
the time. Nothing is committed after a response that is lost, or after the leader of a partition has changed, for which the
leaders are asked: then the session ends, and the next one finds in the logs what was written.

`due` chooses what to do: each of these is a generator that yields one request at a time and is resumed with its response and
the time. A request that fails ends the session, and its generator is dropped.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from mirrorflow_core.copying.effects import NOTHING
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.copying.transaction_requests import (
    AddPartitions,
    AskLeaders,
    AwaitMarkers,
    BeginTransaction,
    CarryOut,
    Commit,
    Drain,
    Now,
    Steps,
    StorePositions,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.send_window import SendWindow
from mirrorflow_core.source_epochs import followed_by
from mirrorflow_core.wire.error_codes import (
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
from mirrorflow_core.writer import flow_plan
from mirrorflow_core.writer.broker_requests import Producer, Refused, Transaction
from mirrorflow_core.writer.flow_plan import TopicIds
from mirrorflow_core.writer.ownership import touch_interval_ms
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.write_mode import (
    ChangeMode,
    commit_interval_ms,
    commit_pause_ms,
    longest_interval_ms,
)

TIMES_AVERAGED: Final = 10  # a minute at the default interval, like Kafka's own metric windows
# Error codes that concern the transactional id, whichever partition they are returned for.
_OF_TRANSACTIONAL_ID: Final = EPOCH_IS_OVER | {
    INVALID_PRODUCER_ID_MAPPING,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class TaskTransaction:
    """The transactions of one session of a task."""

    def __init__(
        self,
        session: CopySession,
        *,
        timeout_ms: int,
        metadata_epoch: Callable[[TopicPartition], int],
        now_s: float,
    ) -> None:
        """A transaction may stay open for *timeout_ms*. *metadata_epoch* knows leader epochs of the target as last read."""
        self.end_reason: str | None = None  # why the session must end; None while it need not
        # Durations of the newest commits, without the wait for markers.
        self.took_ms: deque[float] = deque(maxlen=TIMES_AVERAGED)
        self._session = session
        self._producers = session.start.producers
        self._timeout_ms = timeout_ms
        self._metadata_epoch = metadata_epoch
        self._expires_s = 0.0  # transactional.id.expiration.ms, in seconds; 0: unknown
        self._wanted: dict[PartitionCopier, None] = {}
        self._members: dict[PartitionCopier, None] = {}
        self._changing: dict[PartitionCopier, int] = {}  # with `resyncs`; they wait for another mode
        self._to_store: dict[PartitionCopier, None] = {}  # whose positions are to be stored
        self._stored: dict[TopicPartition, WriterPosition] = {}  # also of partitions that were given up
        # What one transaction may hold, so that it ends within its time limit on a slow link or under a quota. A quota
        # lets a burst pass before it throttles: the rate of one transaction proves little about a much larger one.
        self._window = SendWindow(longest_interval_ms(timeout_ms) / 1000, growth=2)
        self._sent_bytes = 0  # in the open transaction
        self._began_s = self._ended_s = self._touched_s = now_s

    # -- events

    def set_id_expiration(self, expires_s: float) -> None:
        """Uses both ids often enough for a coordinator that forgets them after *expires_s*."""
        self._expires_s = expires_s

    def want(self, copier: PartitionCopier) -> None:
        """Takes *copier* in, because it has records to write, or lets it change its mode."""
        if copier.wanted_change is not None:
            self._changing[copier] = copier.resyncs
            self._wanted.pop(copier, None)
        else:
            self._wanted[copier] = None

    def sent(self, size_bytes: int) -> None:
        """Counts a batch of *size_bytes* that was sent in it; all members are held when it takes no more."""
        self._sent_bytes += size_bytes
        if self.is_full:
            for copier in self._members:
                copier.held()

    def store(self, copiers: Iterable[PartitionCopier]) -> None:
        """Stores the positions of *copiers* soon; those of members are stored with their records."""
        self._to_store |= {copier: None for copier in copiers if copier.has_position_without_records}

    def end(self, reason: str) -> None:
        """The session ends because of *reason*; nothing is committed any more."""
        self.end_reason = self.end_reason or reason

    # -- what is asked

    @property
    def is_full(self) -> bool:
        """Whether the open transaction takes no more records."""
        return self._sent_bytes >= self._window.size_bytes

    @property
    def has_wishes(self) -> bool:
        """Whether a partition waits to become a member."""
        return bool(self._wanted)

    def is_idle(self, copier: PartitionCopier) -> bool:
        """Returns whether *copier* is a member that has written everything that its source is known to have."""
        return copier in self._members and _is_idle(copier)

    def acknowledged_positions(
        self, copiers: Iterable[PartitionCopier], wall_ms: int
    ) -> list[WriterPosition]:
        """Returns what is stored of each partition, then how far plain batches of *copiers* are acknowledged.

        The latter are marked as left where another producer has written a batch with our next number: none of ours follows.
        """
        points = self._session.start.points
        stored = [self._stored.get(source) or self._start_position(source, wall_ms) for source in points]
        return stored + [
            self._position(copier, wall_ms, is_left=copier.repeat is not None and copier.repeat.is_foreign)
            for copier in _begun(copiers)
            if copier.source in points and copier.mode is not None and copier.mode.is_plain
            if copier.stream is not None and not copier.stream.has_fallen_back
        ]

    def _start_position(self, source: TopicPartition, wall_ms: int) -> WriterPosition:
        start = self._session.start
        ids = start.topic_ids.get(source.topic, TopicIds())
        return flow_plan.start_position(
            source, start.points[source], self._producers, time_ms=wall_ms, topic_ids=ids
        )

    # -- when

    def due(self, now: Now) -> Steps | None:
        """Returns what is to be done now: a commit, a join, or the use of ids that must not be forgotten; None: nothing."""
        if self.end_reason:
            return None
        if self._has_work and now.monotonic_s >= self._commit_due_s:
            return self.commit(now)
        if self._wanted:
            return self._join(now)
        return self._touch(now) if now.monotonic_s >= self._touch_due_s else None

    @property
    def next_due_s(self) -> float:
        """When `due` has something to do if nothing happens until then (monotonic clock)."""
        touch_due_s = self._touch_due_s
        return min(self._commit_due_s, touch_due_s) if self._has_work else touch_due_s

    @property
    def _has_work(self) -> bool:
        return bool(self._members or self._changing or self._to_store)

    @property
    def _commit_due_s(self) -> float:
        """When the open transaction is committed, or the next one for positions alone."""
        # The median: after one slow commit, consumers would wait ten times as long for the next one.
        commit_ms = round(median(self.took_ms)) if self.took_ms else 0
        if self.is_full:
            return self._began_s
        if self._changing:
            # Partitions wait for it. That is rare: with frequent gaps they stay in transactions.
            return self._ended_s + commit_ms / 1000
        soonest_s = self._ended_s + commit_pause_ms(commit_ms) / 1000
        if not self._members:
            return soonest_s
        latest_s = self._began_s + commit_interval_ms(commit_ms, self._timeout_ms) / 1000
        if all(map(_is_idle, self._members)):
            return min(latest_s, max(self._began_s, soonest_s))
        return latest_s

    @property
    def _touch_due_s(self) -> float:
        interval_s = touch_interval_ms(round(self._expires_s * 1000)) / 1000 if self._expires_s else math.inf
        return self._touched_s + interval_s

    # -- how

    def _touch(self, now: Now) -> Steps:
        """Uses both ids, so that the coordinator does not forget them."""
        self._touched_s = now.monotonic_s
        producers = [self._producers.plain] if self._members else self._producers.all
        return (yield from self._use_ids(producers, now))

    def _use_ids(self, producers: Iterable[Producer], now: Now) -> Steps:
        """Commits an empty transaction of each of *producers*, which waits for their last ones; a refusal ends the session."""
        for producer in producers:
            response, now = yield Transaction(producer)
            if isinstance(response, Refused):
                code, name = response.error_code, producer.transactional_id
                self.end(
                    f"a request of {name} was not answered"
                    if code is None
                    else f"{name} was refused with {name_of(code)}"
                )
        return now

    def _join(self, now: Now) -> Steps:
        """Adds those that want it to the transaction; returns when the markers of the previous one are written."""
        joining = {
            copier: copier.resyncs
            for copier in self._wanted
            if copier.state is CopierState.COPYING and copier.membership.is_joining
        }
        self._wanted.clear()
        if not joining:
            return now
        producer = self._producers.transactional
        if not self._members:
            positions = [self._position(copier, now.wall_ms) for copier in joining]
            _, now = yield BeginTransaction(producer, positions)
        # A partition that had no leader may miss the marker of the last transaction (KAFKA-20734). If it were in the
        # next one, and that is aborted, its committed records would be aborted.
        now = yield from self._ask_leaders(joining, now)
        if self.end_reason:
            return now
        codes, now = yield AddPartitions(producer, [copier.target for copier in joining])
        return (yield from self._admit(joining, codes, now))

    def _admit(
        self, joining: Mapping[PartitionCopier, int], codes: Mapping[TopicPartition, int], now: Now
    ) -> Steps:
        """Handles the coordinator's responses; *joining* has the `resyncs` of each partition when it was asked."""
        for code in codes.values():
            if code in _OF_TRANSACTIONAL_ID:
                subject, alias = self._producers.transactional.transactional_id, self._session.target_alias
                raise_for(code, cluster=alias, request="AddPartitionsToTxn", subject=subject)
        for copier, resyncs in joining.items():
            code = codes.get(copier.target, OPERATION_NOT_ATTEMPTED)
            if code == NONE:
                if not self._members:
                    self._began_s = now.monotonic_s
                self._members[copier] = None
                if copier.resyncs == resyncs:
                    self._wanted.pop(copier, None)  # it has asked again meanwhile
                effects = copier.joined(resyncs, is_full=self.is_full)
            elif code == OPERATION_NOT_ATTEMPTED:
                self.want(copier)
                continue
            elif is_metadata_stale(code):
                effects = copier.resync()
            else:
                effects = copier.stop(
                    partition_error(
                        code,
                        cluster=self._session.target_alias,
                        request="AddPartitionsToTxn",
                        partition=copier.target,
                    )
                )
            _, now = yield CarryOut(copier, effects)
        return now

    def commit(self, now: Now) -> Steps:
        """Commits the open transaction with the positions of its members, and positions alone."""
        began_s = now.monotonic_s
        members = list(self._members)
        now = yield from self._hold(members, now)
        if self._has_problem(members):
            return now  # a response that comes later is not in the positions
        changes = self._ready_changes()
        resyncs = {copier: copier.resyncs for copier in members}
        alone = [
            copier
            for copier in self._to_store
            if copier.has_position_without_records and not copier.has_uncertain_writes
        ]
        self._to_store.clear()
        positions = {
            copier: self._position(copier, now.wall_ms, changes.get(copier))
            for copier in dict.fromkeys([*members, *changes, *alone])
        }
        now = yield from self._ask_leaders(positions, now)
        producer = self._producers.transactional
        # A leader that has changed, by the response; and one that changes while positions are stored.
        if not self._has_problem([*members, *changes]) and positions:
            _, now = yield StorePositions(producer, list(positions.values()))
        if self._has_problem([*members, *changes]):
            return now
        if positions:
            _, now = yield Commit(producer)
            # Without the wait for markers, which the beginning of the next transaction has in any case.
            self.took_ms.append((now.monotonic_s - began_s) * 1000)
            # Before their markers are there: the next session passes them on if the offsets topic loses them.
            self._stored |= {copier.source: position for copier, position in positions.items()}
            _, now = yield AwaitMarkers(producer)
        self._members.clear()
        self._sent_bytes = 0
        for copier, position in positions.items():
            copier.committed(position.next_source_offset)
        for copier, before in resyncs.items():
            if copier not in changes:
                is_marked = before == copier.resyncs
                _, now = yield CarryOut(copier, copier.released(is_marked=is_marked))
        self._ended_s = now.monotonic_s
        return (yield from self._change_modes(changes, resyncs.keys(), now))

    def _hold(self, members: Sequence[PartitionCopier], now: Now) -> Steps:
        """Has *members* send nothing more, and waits for the responses to what is in flight."""
        for copier in members:
            copier.held()
        was_busy = not all(copier.is_drained for copier in members)
        if was_busy:
            _, now = yield Drain(members, self._began_s + self._timeout_ms / 1000)
        if all(copier.is_drained for copier in members):
            # With nothing in flight at its end, the transaction waited for the source.
            took_s = now.monotonic_s - self._began_s if was_busy else 0.0
            self._window = self._window.after(self._sent_bytes, took_s)
        return now

    def _change_modes(
        self,
        changes: Mapping[PartitionCopier, ChangeMode],
        members: Collection[PartitionCopier],
        now: Now,
    ) -> Steps:
        """Has partitions continue in another mode, whose positions are committed."""
        if any(copier.mode is not None and not copier.mode.is_plain for copier in changes):
            # It ends when the markers of the last transaction are written. An unclean election that removes the marker of
            # a partition then removes its plain batches, too.
            now = yield from self._use_ids([self._producers.transactional], now)
            if self.end_reason:
                return now
        for copier, change in changes.items():
            is_wanted = copier.wanted_change is change
            effects = copier.change_mode(change, now.wall_ms) if is_wanted else NOTHING
            if is_wanted or copier in members:
                _, now = yield CarryOut(copier, (*effects, *copier.released(is_marked=False)))
        return now

    def store_left(self, copiers: Iterable[PartitionCopier], now: Now) -> Steps:
        """Stores that nothing was written after the positions of *copiers*, which are given up."""
        if self.end_reason or self._members:
            return now  # the next session asks the target
        points = self._session.start.points
        settled = [
            copier
            for copier in _begun(copiers)
            if copier.source in points and copier.is_drained and not copier.has_uncertain_writes
        ]
        now = yield from self._ask_leaders(settled, now)
        if settled and not self.end_reason:
            producer = self._producers.transactional
            positions = [self._position(copier, now.wall_ms, is_left=True) for copier in settled]
            _, now = yield StorePositions(producer, positions)
            _, now = yield Commit(producer)
            _, now = yield AwaitMarkers(producer)
        return now

    def finish(self, now: Now) -> Steps:
        """Commits at once, before partitions are given up."""
        if self._members and not self.end_reason:
            now = yield from self.commit(now)
        return now

    def _ask_leaders(self, copiers: Iterable[PartitionCopier], now: Now) -> Steps:
        """Ends the session if one of *copiers* has another leader.

        The metadata may be older than an election that the same broker has won. A position with the epoch before
        would look as if the target had lost the records after the election.
        """
        led = list(copiers)
        if not led:
            return now
        epochs, now = yield AskLeaders([copier.target for copier in led])
        for copier in led:
            if epochs[copier.target] > copier.target_epoch:
                self.end(f"{copier.target} has another leader")
        return now

    def _ready_changes(self) -> dict[PartitionCopier, ChangeMode]:
        """Returns the changes of mode that are still wanted; everything before them is acknowledged."""
        changes = {
            copier: copier.wanted_change
            for copier, resyncs in self._changing.items()
            if copier.wanted_change is not None
            and copier.state is CopierState.COPYING
            and copier.resyncs == resyncs
            and copier.is_drained
            and not copier.has_uncertain_writes
        }
        self._changing.clear()
        return changes

    def _has_problem(self, copiers: Iterable[PartitionCopier]) -> bool:
        """Returns whether the transaction of *copiers* must not be committed; the session ends then."""
        for copier in copiers:
            if reason := copier.uncommittable_reason(self._metadata_epoch(copier.target)):
                self.end(reason)
        return bool(self.end_reason)

    def _position(
        self,
        copier: PartitionCopier,
        wall_ms: int,
        change: ChangeMode | None = None,
        *,
        is_left: bool = False,
    ) -> WriterPosition:
        """Returns the position after what is acknowledged, or at *change*."""
        stream, mode = copier.stream, copier.mode
        assert stream is not None
        assert mode is not None
        start, stored = self._session.start, self._stored.get(copier.source)
        point = start.points[copier.source]
        delivered, before = stream.delivered, point if stored is None else stored
        # Java also reads positions of aborted transactions, so its offset is that of the transaction before.
        settled = before.next_source_offset - 1
        after = flow_plan.point_after(
            point,
            stream,
            sequence=mode.plain_sequence(delivered.ordinal),
            target_epoch=copier.target_epoch,
        )
        # Plain batches wait for the marker of the transaction that the position is in.
        plain_start = after.target_end + 1 if copier in self._members else before.plain_start
        after = replace(after, plain_start=plain_start, revision=(before.revision or 0) + 1)
        if change is not None:
            after = replace(
                after,
                next_source_offset=change.next_source_offset,
                source_epoch=change.source_epoch,
                epochs=followed_by(after.epochs, change.source_epoch, after.next_source_offset),
            )
        return flow_plan.position_at(
            copier.source,
            after,
            self._producers,
            mode=mode.current if change is None else change.mode,
            time_ms=wall_ms,
            java_offset=delivered.source_offset if is_left or mode.is_plain else settled,
            topic_ids=start.topic_ids.get(copier.topic, TopicIds()),
            left=is_left,
        )


def _begun(copiers: Iterable[PartitionCopier]) -> list[PartitionCopier]:
    """Returns those of *copiers* that have begun in this session."""
    return [copier for copier in copiers if copier.stream is not None]


def _is_idle(copier: PartitionCopier) -> bool:
    """Returns whether *copier* has written everything that its source is known to have."""
    cursor = copier.cursor
    return copier.is_drained and not copier.packer and cursor.offset >= cursor.end_offset

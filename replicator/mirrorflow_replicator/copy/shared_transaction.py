"""Copies old records inside a transaction of the flow's shared identity (docs/exactly-once.md, clause 3).

A leader forgets a producer whose last record is old by its own timestamp, unless a transaction is open; when
that ends, the marker counts as written now. So partitions with old records join the flow's one transaction.
Any copier commits it every half second: other tasks, other pods and copiers that are believed dead share it,
and everything in it was admitted by its sequence number, so a commit is right whichever process sends it. No
copier aborts it or raises the epoch: the request versions that do so are not used.

Before a commit, the batches in flight are waited for, because a batch behind the marker is refused. Where
another copier commits, exactly that happens: the partition copier is in doubt, asks, and joins again,
whatever the age of its next records. If no copier commits in time, the coordinator aborts and raises the
epoch. Then this process steps back, and the flow continues in the next generation, behind the last committed
record.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from mirrorflow_core.errors import BrokerError, FencedError, MirrorFlowError, NotAuthorizedError
from mirrorflow_core.exactly_once.identity import Identity, identity_topic
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import (
    EPOCH_IS_OVER,
    INVALID_PRODUCER_ID_MAPPING,
    NONE,
    OPERATION_NOT_ATTEMPTED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    is_metadata_stale,
    raise_for,
)
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier

COMMIT_EVERY_S = 0.5
COMMIT_SPREAD_S = 0.1  # so that two tasks do not commit at the same moment
# With thousands of partitions a commit takes longer; it must not take more than this share of the time ...
COMMIT_SHARE_MAX = 0.1
COMMIT_EVERY_MAX_S = 10.0
TIMEOUT_SHARE_MAX = 1 / 6  # ... and the coordinator aborts after `transaction.timeout.ms`
# Pauses by which others' commits postpone ours at most: idle members must become known as committed.
POSTPONED_TIMES = 3
DRAIN_S = 1.0  # a broker that does not answer for so long delays the others no longer
CALL_S = 10.0  # for one request; after that the error is noted at the copiers that wait
RETRY_S = 0.5
# A coordinator forgets a transactional id that had no transaction for transactional.id.expiration.ms.
KEPT_ALIVE_TIMES = 4  # keep-alive transactions within that time
KEEP_ALIVE_MIN_S = 1.0

# Error codes that concern the transactional id, whichever partition they are returned for.
_OF_TRANSACTIONAL_ID = EPOCH_IS_OVER | {INVALID_PRODUCER_ID_MAPPING, TRANSACTIONAL_ID_AUTHORIZATION_FAILED}

NO_TRANSACTIONAL_ID = "NoTransactionalId"
TRANSACTIONAL_ID_EXPIRED = "TransactionalIdExpired"
# Copiers whose sent records are all known. Those that leave store where the target ends.
_SURE = frozenset({CopierState.COPYING, CopierState.LEAVING})

log = logging.getLogger("mirrorflow.task")


class SharedTransaction:
    """The transaction for old records, as one task sees it.

    It adds partitions, commits, and keeps the transactional id alive.
    """

    def __init__(
        self,
        target: Cluster,
        identity: Identity,
        *,
        source_alias: str,
        timeout_ms: int,
        pump: Callable[[], None],
    ) -> None:
        # Why there is no transaction.
        self.unavailable = "" if identity.transactional_id else NO_TRANSACTIONAL_ID
        self.expires_s = 0.0  # transactional.id.expiration.ms, in seconds
        self._target = target
        self._identity = identity
        self._source_alias = source_alias
        # The partition a transaction consists of if it needs no other.
        self._decisions = TopicPartition(identity_topic(source_alias), 0)
        self._pump = pump
        self._wanted: dict[PartitionCopier, None] = {}
        self._members: dict[PartitionCopier, None] = {}
        self._draining: set[PartitionCopier] = set()
        self._drained = asyncio.Event()
        self._wake = asyncio.Event()
        self._is_idle = asyncio.Event()  # nothing has to be committed
        self._is_idle.set()
        self._due_s = self._latest_s = self._touch_s = 0.0
        self._pause_max_s = max(
            COMMIT_EVERY_S, min(COMMIT_EVERY_MAX_S, timeout_ms / 1000 * TIMEOUT_SHARE_MAX)
        )
        self._pause_s = COMMIT_EVERY_S
        self._is_fenced = False

    # -- called by the partition copiers

    def want(self, lane: PartitionCopier) -> None:
        """Takes *lane* in: it has an old batch, or its partition is in an uncommitted transaction."""
        if self._is_fenced:
            self._stop([lane])
            return
        self._wanted[lane] = None
        self._wake.set()

    def emptied(self, lane: PartitionCopier) -> None:
        """Notes that *lane*, which is held for a commit, has nothing in flight any more."""
        self._draining.discard(lane)
        if not self._draining:
            self._drained.set()

    def refused(self, code: int) -> None:
        """Does nothing on a refused batch.

        Its copier asks the target itself, and nothing else of the flow ends by it.
        """

    def ended_elsewhere(self) -> None:
        """Postpones the next commit, because another copier has just committed."""
        self._due_s = max(self._due_s, min(self._next_due_s(), self._latest_s))

    async def finish(self, timeout_s: float) -> None:
        """Commits at once and waits for the markers, for at most *timeout_s*.

        Called before partitions are given up, so that it is known where the target ends.
        """
        if not self._is_idle.is_set():
            self._due_s = 0.0
            self._wake.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._is_idle.wait()

    # -- the loop

    async def run(self) -> None:
        """Joins and commits until cancelled."""
        while True:
            try:
                if not self._is_fenced and not self.unavailable:
                    await self._step()
            except NotAuthorizedError:
                self._give_up(NO_TRANSACTIONAL_ID)
            except BrokerError as error:
                if error.code in EPOCH_IS_OVER:
                    self._step_back()
                elif error.code == INVALID_PRODUCER_ID_MAPPING:
                    self._give_up(TRANSACTIONAL_ID_EXPIRED)
                else:
                    await self._wait_out(error)
            except MirrorFlowError as error:
                await self._wait_out(error)
            self._pump()
            await self._wait()

    async def _wait(self) -> None:
        if self._is_fenced or self.unavailable:
            await self._wake.wait()
            self._wake.clear()
            if self.unavailable:
                self._let_go(list(self._wanted))
            return
        due_s = self._due_s if self._members else self._touch_s
        try:
            async with asyncio.timeout(max(0.0, due_s - time.monotonic())):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    async def _step(self) -> None:
        now_s = time.monotonic()
        if self._members and now_s >= self._due_s:
            await self._commit()
        if self._wanted:
            lanes = list(self._wanted)
            self._wanted.clear()
            try:
                await self._join(lanes)
            except MirrorFlowError:
                self._wanted = dict.fromkeys(lanes) | self._wanted
                raise
        elif not self._members and now_s >= self._touch_s:
            await self._keep_alive()

    async def _keep_alive(self) -> None:
        """Commits an empty transaction.

        The coordinator keeps the id, and what a dead copier left open is committed.
        """
        try:
            codes = await self._add([self._decisions])
            for code in codes.values():
                raise_for(code, cluster=self._target.alias, request="AddPartitionsToTxn")
            await self._end()
        except BrokerError as error:
            # A copier that needs the transaction gets the same error and steps back; no other is harmed.
            if error.code not in EPOCH_IS_OVER:
                raise
        self._touch_s = self._next_touch_s()

    async def _join(self, lanes: Sequence[PartitionCopier]) -> None:
        """Adds *lanes* to the transaction; returns when the previous one is over."""
        doubts = {lane: lane.doubts for lane in lanes if lane.state is CopierState.COPYING}
        if doubts:
            self._admit(doubts, await self._add([lane.target for lane in doubts]))

    def _admit(self, doubts: Mapping[PartitionCopier, int], codes: Mapping[TopicPartition, int]) -> None:
        """Handles the coordinator's answers for copiers that were to be added.

        *doubts* has their `doubts` when the coordinator was asked.
        """
        for code in codes.values():
            if code in _OF_TRANSACTIONAL_ID:
                subject = self._identity.transactional_id
                raise_for(code, cluster=self._target.alias, request="AddPartitionsToTxn", subject=subject)
        for lane, doubts_then in doubts.items():
            code = codes.get(lane.target, OPERATION_NOT_ATTEMPTED)
            if code == NONE:
                if not self._members:
                    self._due_s = self._next_due_s()
                    self._latest_s = self._due_s + POSTPONED_TIMES * self._pause_s
                    self._is_idle.clear()
                self._members[lane] = None
                if lane.state is CopierState.COPYING and lane.doubts == doubts_then:
                    lane.pin.join()
            elif code == OPERATION_NOT_ATTEMPTED:
                self.want(lane)
            elif is_metadata_stale(code):
                lane.doubt()
            else:
                self._refuse(lane, code)

    def _refuse(self, lane: PartitionCopier, code: int) -> None:
        try:
            raise_for(
                code, cluster=self._target.alias, request="AddPartitionsToTxn", subject=str(lane.target)
            )
        except MirrorFlowError as error:
            lane.stop(error)

    async def _commit(self) -> None:
        began_s = time.monotonic()
        lanes = list(self._members)
        for lane in lanes:
            lane.pin.hold()
        await self._drain(lanes)
        await self._complete(lanes)
        quiet = {lane: lane.doubts for lane in lanes if lane.state in _SURE and lane.is_drained}
        delivered = {lane: lane.stream.delivered for lane in lanes if lane.stream is not None}
        await self._end()
        # The commit is decided from here on. Until the markers are written, nothing can be written behind
        # them.
        self._members.clear()
        for lane, pair in delivered.items():
            lane.pin.commit(pair)
        again = {
            lane: doubts
            for lane, doubts in quiet.items()
            if lane.state is CopierState.COPYING and lane.packer.is_next_older(lane.around.pin_before_ms)
        }
        try:
            codes = await self._add([lane.target for lane in again]) if again else await self._end()
        except MirrorFlowError:
            self._is_idle.set()
            for lane in lanes:
                lane.pin.release(marked=False)
                lane.doubt()
            raise
        for lane in lanes:
            lane.pin.release(marked=quiet.get(lane) == lane.doubts)
        self._is_idle.set()
        self._admit(again, codes)
        now_s = time.monotonic()
        self._pause_s = min(max(COMMIT_EVERY_S, (now_s - began_s) / COMMIT_SHARE_MAX), self._pause_max_s)
        self._touch_s = self._next_touch_s()

    async def _complete(self, lanes: Sequence[PartitionCopier]) -> None:
        """Adds what else belongs in the transaction of *lanes* before it ends; here nothing."""

    async def _drain(self, lanes: Iterable[PartitionCopier]) -> None:
        """Waits until nothing of *lanes* is in flight, for at most DRAIN_S."""
        self._draining = {lane for lane in lanes if not lane.is_drained}
        self._drained.clear()
        if self._draining:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await self._drained.wait()

    async def _add(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        identity = self._identity
        return await admin.try_add_partitions_to_txn(
            self._target,
            identity.transactional_id,
            identity.producer_id,
            identity.producer_epoch,
            partitions,
            timeout_s=CALL_S,
        )

    async def _end(self) -> Mapping[TopicPartition, int]:
        identity = self._identity
        await admin.end_txn(
            self._target,
            identity.transactional_id,
            identity.producer_id,
            identity.producer_epoch,
            committed=True,
            timeout_s=CALL_S,
        )
        return {}

    def _next_due_s(self) -> float:
        return time.monotonic() + self._pause_s + random.uniform(0, COMMIT_SPREAD_S)  # noqa: S311

    def _next_touch_s(self) -> float:
        return time.monotonic() + max(KEEP_ALIVE_MIN_S, self.expires_s / KEPT_ALIVE_TIMES)

    # -- when it does not work

    def _give_up(self, reason: str) -> None:
        """Continues without a transaction.

        There is a single writer with one batch in flight, and the copiers report why.
        """
        log.warning("Old records are copied by a single writer: %s", reason)
        self.unavailable = reason
        lanes = [*self._members, *self._wanted]
        self._members.clear()
        self._is_idle.set()
        self._let_go(lanes)

    def _let_go(self, lanes: Iterable[PartitionCopier]) -> None:
        self._wanted.clear()
        for lane in lanes:
            lane.pin.release(marked=False)
            lane.doubt()

    def _step_back(self) -> None:
        """Stops the copiers: the coordinator aborted, or another copier raised the epoch.

        The worker then finds a new generation for all of them.
        """
        self._is_fenced = True
        lanes = dict.fromkeys([*self._members, *self._wanted])
        self._members.clear()
        self._wanted.clear()
        self._is_idle.set()
        self._stop(lanes)

    def _stop(self, lanes: Iterable[PartitionCopier]) -> None:
        for lane in lanes:
            lane.stop(FencedError(source=self._source_alias, epoch=self._identity.producer_epoch))

    async def _wait_out(self, error: MirrorFlowError) -> None:
        for lane in (*self._members, *self._wanted):
            lane.note(error)
        await asyncio.sleep(RETRY_S)
        self._wake.set()

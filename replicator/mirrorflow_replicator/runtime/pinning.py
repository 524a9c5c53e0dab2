"""The pin of old records: their batches go inside a transaction of the shared identity (DESIGN 4.2, clause 3).

A leader drops a producer whose last record is old by its own timestamp, unless a transaction is open; and when that ends,
the marker counts as written now. So lanes with old records are taken into the flow's one transaction, which is committed
every half second by whoever comes first: other tasks, other pods and copiers that are to be dead by now share it, and
whatever is in it was admitted by its number, so committing it is right whoever does. Nobody ever aborts it, and nobody
raises the epoch: versions of the requests that do are not used.

Before a commit the lanes' batches in flight are waited for, because what comes behind the marker is refused. Where somebody
else commits, that is what happens: the lane is in doubt, asks, and is taken in again.
If nobody commits in time the coordinator aborts, and raises the epoch. Then all of this process steps back, and the flow
goes on in a next generation, behind the last committed record.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from mirrorflow_replicator.errors import BrokerError, FencedError, MirrorFlowError, NotAuthorizedError
from mirrorflow_replicator.flow.identity import Identity, identity_topic
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import (
    EPOCH_IS_OVER,
    INVALID_PRODUCER_ID_MAPPING,
    NONE,
    OPERATION_NOT_ATTEMPTED,
    is_metadata_stale,
    raise_for,
)
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.surroundings import State

COMMIT_EVERY_S = 0.5
COMMIT_SPREAD_S = 0.1  # so that two tasks do not commit in the same moment
# With thousands of partitions a commit takes longer; it is not to take more than this share of the time ...
COMMIT_SHARE_MAX = 0.1
COMMIT_EVERY_MAX_S = 10.0
TIMEOUT_SHARE_MAX = 1 / 6  # ... and the coordinator aborts after `transaction.timeout.ms`
POSTPONED_TIMES = 3  # others commit, we need not; what lies idle in the transaction is to be known as committed all the same
DRAIN_S = 1.0  # a broker that does not answer for so long holds up the others no longer
CALL_S = 10.0  # for one request; then the lanes say why they wait
RETRY_S = 0.5
# A coordinator forgets a transactional id after transactional.id.expiration.ms without a transaction.
KEPT_ALIVE_TIMES = 4  # touched so often within that time
KEEP_ALIVE_MIN_S = 1.0
PRODUCER_KEY = "producer.id.expiration.ms"
PRODUCER_EXPIRATION_MS = 86_400_000
TRANSACTIONAL_ID_KEY = "transactional.id.expiration.ms"
TRANSACTIONAL_ID_EXPIRATION_MS = 7 * 86_400_000

NO_TRANSACTIONAL_ID = "NoTransactionalId"
TRANSACTIONAL_ID_EXPIRED = "TransactionalIdExpired"
# Lanes of which it is known what they have sent. Those that leave tell their successors where the target ends.
_SURE = frozenset({State.COPYING, State.LEAVING})

log = logging.getLogger("mirrorflow.task")


class Pinning:
    """See the module. One for each task."""

    def __init__(
        self,
        target: Cluster,
        identity: Identity,
        *,
        source_alias: str,
        timeout_ms: int,
        pump: Callable[[], None],
    ) -> None:
        self.unavailable = "" if identity.transactional_id else NO_TRANSACTIONAL_ID  # why there is no pin
        self.expires_s = 0.0  # of the transactional id
        self._target = target
        self._identity = identity
        self._source_alias = source_alias
        # The partition of which a transaction is made if it needs no other.
        self._decisions = TopicPartition(identity_topic(source_alias), 0)
        self._pump = pump
        self._wanted: dict[Lane, None] = {}
        self._members: dict[Lane, None] = {}
        self._draining: set[Lane] = set()
        self._drained = asyncio.Event()
        self._wake = asyncio.Event()
        self._is_idle = asyncio.Event()  # nothing is to be committed
        self._is_idle.set()
        self._due_s = self._latest_s = self._touch_s = 0.0
        self._pause_max_s = max(
            COMMIT_EVERY_S, min(COMMIT_EVERY_MAX_S, timeout_ms / 1000 * TIMEOUT_SHARE_MAX)
        )
        self._pause_s = COMMIT_EVERY_S
        self._is_fenced = False

    # -- what lanes say

    def want(self, lane: Lane) -> None:
        """*lane* has an old batch, or its partition is in a transaction that nobody has committed."""
        if self._is_fenced:
            self._stop([lane])
            return
        self._wanted[lane] = None
        self._wake.set()

    def emptied(self, lane: Lane) -> None:
        """*lane*, which is held, has nothing in flight any more."""
        self._draining.discard(lane)
        if not self._draining:
            self._drained.set()

    def refused(self, code: int) -> None:
        """The target has refused a batch with *code*: its lane looks where it stands, and nothing else of the flow ends by it."""

    def ended_elsewhere(self) -> None:
        """Somebody else has committed: it need not be done again so soon."""
        self._due_s = max(self._due_s, min(self._next_due_s(), self._latest_s))

    async def finish(self, timeout_s: float) -> None:
        """Commit at once, before lanes are given up, and wait for the markers: then it is known where the target ends."""
        if not self._is_idle.is_set():
            self._due_s = 0.0
            self._wake.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._is_idle.wait()

    # -- the loop

    async def run(self) -> None:
        """Join and commit until cancelled."""
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
        """A transaction of nothing: the coordinator remembers the id, and what a dead copier left open is committed."""
        try:
            codes = await self._add([self._decisions])
            for code in codes.values():
                raise_for(code, cluster=self._target.alias, request="AddPartitionsToTxn")
            await self._end()
        except BrokerError as error:
            # Whoever needs the pin will be told the same, and steps back; nobody else is harmed.
            if error.code not in EPOCH_IS_OVER:
                raise
        self._touch_s = self._next_touch_s()

    async def _join(self, lanes: Sequence[Lane]) -> None:
        """Take *lanes* into the transaction; returns when the one before is over."""
        doubts = {lane: lane.doubts for lane in lanes if lane.state is State.COPYING}
        if doubts:
            self._admit(doubts, await self._add([lane.target for lane in doubts]))

    def _admit(self, doubts: Mapping[Lane, int], codes: Mapping[TopicPartition, int]) -> None:
        """What became of lanes that were to be taken in, and had as many *doubts* when that was asked for."""
        for code in codes.values():
            if code in EPOCH_IS_OVER or code == INVALID_PRODUCER_ID_MAPPING:
                raise_for(code, cluster=self._target.alias, request="AddPartitionsToTxn")
        for lane, doubts_then in doubts.items():
            code = codes.get(lane.target, OPERATION_NOT_ATTEMPTED)
            if code == NONE:
                if not self._members:
                    self._due_s = self._next_due_s()
                    self._latest_s = self._due_s + POSTPONED_TIMES * self._pause_s
                    self._is_idle.clear()
                self._members[lane] = None
                if lane.state is State.COPYING and lane.doubts == doubts_then:
                    lane.pin.join()
            elif code == OPERATION_NOT_ATTEMPTED:
                self.want(lane)
            elif is_metadata_stale(code):
                lane.doubt()
            else:
                self._refuse(lane, code)

    def _refuse(self, lane: Lane, code: int) -> None:
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
        # From here on it is decided. Markers follow; until they are there, nothing can be written behind them.
        self._members.clear()
        for lane, pair in delivered.items():
            lane.pin.commit(pair)
        again = {
            lane: doubts
            for lane, doubts in quiet.items()
            if lane.packer.is_old and lane.state is State.COPYING
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

    async def _complete(self, lanes: Sequence[Lane]) -> None:
        """Add what else belongs into the transaction of *lanes*, before it ends."""

    async def _drain(self, lanes: Iterable[Lane]) -> None:
        """Wait until nothing of *lanes* is in flight."""
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
        """There is no pin for this process: one writer, one batch in flight, and the lanes say why."""
        log.warning("Old records are copied by a single writer: %s", reason)
        self.unavailable = reason
        lanes = [*self._members, *self._wanted]
        self._members.clear()
        self._is_idle.set()
        self._let_go(lanes)

    def _let_go(self, lanes: Iterable[Lane]) -> None:
        self._wanted.clear()
        for lane in lanes:
            lane.pin.release(marked=False)
            lane.doubt()

    def _step_back(self) -> None:
        """The coordinator has aborted, or somebody has raised the epoch: the worker finds a new generation for all."""
        self._is_fenced = True
        lanes = dict.fromkeys([*self._members, *self._wanted])
        self._members.clear()
        self._wanted.clear()
        self._is_idle.set()
        self._stop(lanes)

    def _stop(self, lanes: Iterable[Lane]) -> None:
        for lane in lanes:
            lane.stop(FencedError(source=self._source_alias, epoch=self._identity.producer_epoch))

    async def _wait_out(self, error: MirrorFlowError) -> None:
        for lane in (*self._members, *self._wanted):
            lane.note(error)
        await asyncio.sleep(RETRY_S)
        self._wake.set()


async def expiries(target: Cluster) -> tuple[int, float]:
    """How old a record may be before the target's leaders forget who wrote it, in ms, and for how many seconds its coordinators
    remember a transactional id that is not used; Kafka's defaults where we may not ask.
    """
    found = {PRODUCER_KEY: PRODUCER_EXPIRATION_MS, TRANSACTIONAL_ID_KEY: TRANSACTIONAL_ID_EXPIRATION_MS}
    node_id = next(iter(target.metadata.brokers))
    with contextlib.suppress(NotAuthorizedError):
        entries = await admin.describe_broker_configs(target, node_id, list(found))
        found |= {name: int(entry.value) for name, entry in entries.items() if name in found and entry.value}
    return found[PRODUCER_KEY], found[TRANSACTIONAL_ID_KEY] / 1000

"""Asks the brokers what the transactions of a task ask (`copying.transaction`), and ends the session where they cannot respond."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.copying.transaction import TaskTransaction
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
    TransactionRequest,
)
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.writer.broker_requests import Transaction
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.producer_transactions import ProducerTransactions
from mirrorflow_replicator.copy.position_committer import CopierServices
from mirrorflow_replicator.process import now_ms

# A broker that has not responded for so long, though what is in flight must have reached it, is being replaced.
DRAIN_S = 10.0
DRAIN_CHECK_S = 0.5


class TransactionRunner:
    """The transactions of one session of a task; `run` runs until cancelled, or until the session must end."""

    def __init__(
        self,
        target: Cluster,
        transactions: ProducerTransactions,
        session: CopySession,
        services: CopierServices,
        *,
        end_session: Callable[[str], None],
    ) -> None:
        self._transactions = transactions
        self._services = services
        self._end_session = end_session
        self._is_over = False
        self._draining: set[PartitionCopier] = set()
        self._drained = asyncio.Event()
        self._wake = asyncio.Event()
        self._working = asyncio.Lock()
        self._decisions = TaskTransaction(
            session,
            timeout_ms=transactions.timeout_ms,
            metadata_epoch=lambda partition: target.metadata.leader_epoch(*partition),
            now_s=time.monotonic(),
        )

    @property
    def took_ms(self) -> Sequence[float]:
        """The durations of the newest commits."""
        return self._decisions.took_ms

    # -- events

    def set_id_expiration(self, expires_s: float) -> None:
        """Uses both ids often enough for a coordinator that forgets them after *expires_s*."""
        self._decisions.set_id_expiration(expires_s)

    def want(self, copier: PartitionCopier) -> None:
        """Takes *copier* in, because it has records to write, or lets it change its mode."""
        self._decisions.want(copier)
        self._wake.set()

    def sent(self, size_bytes: int) -> None:
        """Counts a batch of *size_bytes* that was sent in the open transaction."""
        self._decisions.sent(size_bytes)
        if self._decisions.is_full:
            self._wake.set()

    def drained(self, copier: PartitionCopier) -> None:
        """Notes that *copier*, which is held for a commit, has nothing in flight any more."""
        self._draining.discard(copier)
        if not self._draining:
            self._drained.set()

    def progressed(self, copier: PartitionCopier) -> None:
        """Notes that *copier* may have written everything that its source has."""
        if self._decisions.is_idle(copier):
            self._wake.set()

    def end(self, reason: str) -> None:
        """Ends the session because of *reason*, once: a broker that fails refuses all batches in flight."""
        self._decisions.end(reason)
        if not self._is_over:
            self._is_over = True
            self._end_session(reason)

    def positions_lost(self) -> None:
        """Ends the session: the next one stores the positions of all of its partitions."""
        self.end("the offsets topic was deleted, or its records were")

    def acknowledged_positions(self, copiers: Iterable[PartitionCopier]) -> list[WriterPosition]:
        """Returns what is stored, then how far *copiers* are acknowledged, for the next session."""
        return self._decisions.acknowledged_positions(copiers, now_ms())

    # -- the loop

    async def run(self) -> None:
        """Adds partitions and commits until cancelled, or until the session must end."""
        while not self._is_over:
            async with self._working:
                steps = self._decisions.due(_now())
                if steps is not None:
                    await self._perform(steps)
            self._services.pump()
            if steps is None:
                await self._wait()

    async def _wait(self) -> None:
        self._wake.clear()
        if self._decisions.has_wishes or self._is_over:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._decisions.next_due_s - time.monotonic())):
                await self._wake.wait()

    async def finish(self, timeout_s: float) -> None:
        """Commits at once, before partitions are given up. Raises ClusterError."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._working:
                await self._ask(self._decisions.finish(_now()))

    async def store(self, copiers: Iterable[PartitionCopier], *, left: bool) -> None:
        """Stores that *copiers* are given up, or soon their positions; members are stored with their records. Raises ClusterError."""
        if left:
            async with self._working:
                await self._ask(self._decisions.store_left(copiers, _now()))
            return
        self._decisions.store(copiers)
        self._wake.set()

    async def _perform(self, steps: Steps) -> None:
        """Asks what *steps* ask; the session ends where that fails, or where they find that it must."""
        try:
            await self._ask(steps)
        except MirrorFlowError as error:
            self.end(str(error))

    async def _ask(self, steps: Steps) -> None:
        response: Any = None
        while True:
            try:
                request = steps.send(response)
            except StopIteration:
                break
            response = await self._respond(request), _now()
        if self._decisions.end_reason:
            self.end(self._decisions.end_reason)

    async def _respond(self, request: TransactionRequest) -> Any:
        """Returns the response to *request*. Raises MirrorFlowError."""
        transactions = self._transactions
        match request:
            case CarryOut(copier, effects):
                self._services.apply(copier, effects)
            case Drain(copiers, ends_s):
                await self._drain(copiers, ends_s)
            case BeginTransaction(producer, positions):
                await transactions.begin_transaction(producer, positions)
            case AskLeaders(partitions):
                return await transactions.leader_epochs(partitions)
            case AddPartitions(producer, partitions):
                return await transactions.try_add_partitions(producer, partitions)
            case StorePositions(producer, positions):
                await transactions.store_positions(producer, positions)
            case Commit(producer):
                await transactions.end(producer, commit=True)
            case AwaitMarkers(producer):
                await transactions.wait_for_markers(producer)
            case Transaction():
                return await transactions.run(request)
        return None

    async def _drain(self, copiers: Sequence[PartitionCopier], ends_s: float) -> None:
        """Waits for the responses to what *copiers* have in flight, at most until *ends_s*."""
        began_s = time.monotonic()
        self._draining = {copier for copier in copiers if not copier.is_drained}
        self._drained.clear()
        while self._draining:
            expected_s = min(self._services.expects_response_by(copier, began_s) for copier in self._draining)
            left_s = min(expected_s + DRAIN_S, ends_s) - time.monotonic()
            if left_s <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, DRAIN_CHECK_S)):
                    await self._drained.wait()


def _now() -> Now:
    return Now(time.monotonic(), now_ms())

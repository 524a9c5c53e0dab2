"""A commit waits for brokers that respond late. It ends the session if a broker does not respond."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.copying.effects import Effects, EndSession, Signal
from mirrorflow_core.copying.membership import TransactionMembership
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.errors import MirrorFlowError, UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import INVALID_PRODUCER_EPOCH
from mirrorflow_core.writer.broker_requests import Done, Producer, Transaction
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_replicator.copy import transaction_runner
from mirrorflow_replicator.copy.transaction_runner import TransactionRunner
from tests.unit.core.copying.stubs import (
    begun_copier,
    new_session,
    put_in_flight,
    send,
    want_transaction,
)
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS

DRAIN_S = 0.05
DOWN = UnreachableError(cluster="west", addresses="b:9092", problem="refused")


class Brokers:
    """Brokers that accept all transaction requests unless the coordinator is down."""

    timeout_ms = 60_000

    def __init__(self) -> None:
        self.is_down = False
        self.committed: list[int] = []  # the next source offsets of the positions

    async def begin_transaction(self, _: Producer, positions: Sequence[WriterPosition]) -> None:
        """Returns without a request, because the markers of the last transaction are written already."""

    async def leader_epochs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def try_add_partitions(
        self, _: Producer, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    async def store_positions(self, _: Producer, positions: Iterable[WriterPosition]) -> None:
        if self.is_down:
            raise DOWN
        self.committed += [position.next_source_offset for position in positions]

    async def end(self, _: Producer, *, commit: bool) -> None:
        assert commit

    async def wait_for_markers(self, _: Producer) -> None:
        """Returns at once, because the markers are written already."""

    async def run(self, _: Transaction) -> Done:
        return Done()


class Task:
    """A runner with one partition. It records the reasons for which it has ended its session."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.ended: list[str] = []
        self.reached_s: Callable[[float], float] = lambda since_s: since_s
        session = new_session()
        self.copier = begun_copier(TIMESTAMP_MS, session)
        target: Any = SimpleNamespace(metadata=SimpleNamespace(leader_epoch=lambda *_: 0))
        brokers: Any = self.brokers
        self.runner = TransactionRunner(target, brokers, session, self, end_session=self.ended.append)

    # -- position_committer.CopierServices

    def apply(self, copier: PartitionCopier, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Signal.JOIN_TRANSACTION:
                    self.runner.want(copier)
                case Signal.DRAINED:
                    self.runner.drained(copier)
                case EndSession(reason):
                    self.runner.end(reason)

    def pump(self) -> None:
        """Does nothing, because there is nothing more to send."""

    def expects_response_by(self, copier: PartitionCopier, since_s: float) -> float:
        assert copier is self.copier
        return self.reached_s(since_s)

    # -- events

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the transactions until the block ends."""
        loop = asyncio.create_task(self.runner.run())
        yield
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)

    async def begin(self) -> None:
        """Sends three records in a transaction."""
        want_transaction(self.copier, TIMESTAMP_MS)
        self.runner.want(self.copier)
        async with self.running():
            while self.copier.membership is not TransactionMembership.INSIDE:  # noqa: ASYNC110  nothing signals it
                await asyncio.sleep(0)
        data = send(self.copier, TIMESTAMP_MS)
        assert data is not None
        self.runner.sent(len(data))

    def acknowledge(self) -> None:
        """Acknowledges the records."""
        self.apply(self.copier, self.copier.acknowledged(40, -1, TIMESTAMP_MS))


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(transaction_runner, "DRAIN_S", DRAIN_S)
    monkeypatch.setattr(transaction_runner, "DRAIN_CHECK_S", 0.01)
    return Task()


@pytest.mark.parametrize("responds", [True, False])
def test_a_commit_waits_for_a_late_response_and_gives_up_without_one(*, responds: bool, task: Task) -> None:
    if responds:
        task.reached_s = lambda _: time.monotonic()  # other responses arrive continuously

    async def finish() -> None:
        await task.begin()
        if responds:
            asyncio.get_running_loop().call_later(4 * DRAIN_S, task.acknowledge)
        await task.runner.finish(30)

    asyncio.run(finish())

    assert bool(task.ended) is not responds
    assert task.brokers.committed == ([103] if responds else [])


def test_a_transaction_is_committed_after_the_last_response(task: Task) -> None:
    async def finish() -> None:
        await task.begin()
        asyncio.get_running_loop().call_soon(task.acknowledge)
        async with task.running(), asyncio.timeout(30):
            while not task.brokers.committed:  # noqa: ASYNC110  nothing signals it
                await asyncio.sleep(0)

    asyncio.run(finish())

    assert task.brokers.committed == [103]
    assert not task.ended
    assert len(task.runner.took_ms) == 1


def test_a_broker_that_refuses_all_batches_in_flight_ends_the_session_once(task: Task) -> None:
    for _ in range(5):
        put_in_flight(task.copier, 3)

    for _ in range(5):
        task.apply(task.copier, task.copier.refused(INVALID_PRODUCER_EPOCH, ""))

    assert task.ended == ["the target refused a batch with INVALID_PRODUCER_EPOCH"]


def test_a_request_that_fails_ends_the_session(task: Task) -> None:
    task.brokers.is_down = True

    async def finish() -> None:
        await task.begin()
        task.acknowledge()
        await task.runner.run()

    asyncio.run(finish())

    assert task.ended == [str(DOWN)]
    assert task.brokers.committed == []


def test_lost_positions_end_the_session(task: Task) -> None:
    """The next session stores the positions of all its partitions."""
    task.runner.positions_lost()

    assert task.ended == ["the offsets topic was deleted, or its records were"]


def test_a_failure_to_store_positions_of_leaving_partitions_does_not_end_the_session(task: Task) -> None:
    """The task reports the error."""
    task.brokers.is_down = True

    with pytest.raises(MirrorFlowError):
        asyncio.run(task.runner.store([task.copier], left=True))

    assert not task.ended

"""What a commit has: a transaction with records that its positions do not count must not be committed."""

import asyncio
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.transforms import RenameRule
from mirrorflow_core.writer.broker_requests import Done, Producer, Transaction
from mirrorflow_core.writer.flow_plan import TaskProducers, TaskStart, WritePoint
from mirrorflow_core.writer.position import WriteMode
from mirrorflow_core.writer.write_mode import ChangeMode
from mirrorflow_kafka.client.error_codes import INVALID_PRODUCER_EPOCH
from mirrorflow_replicator.copy import task_transaction
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.partition_reports import partition_report
from mirrorflow_replicator.copy.partition_writer import PartitionWriter
from mirrorflow_replicator.copy.task_transaction import TaskTransaction
from tests.unit.copy.stubs import PRODUCERS, begun_writer, context_at
from tests.unit.copy.test_batch_packer import WHEN, small
from tests.unit.core.wire.strategies import batch_of


class Brokers:
    """Accepts everything; the answer to what *writing* has in flight comes while its leader is asked for its epoch."""

    timeout_ms = 60_000

    def __init__(self, writing: PartitionWriter) -> None:
        self.writing = writing
        self.committed: list[int] = []  # the next source offsets of the positions
        self.ended: list[Producer] = []  # of empty transactions, and so of those before them

    async def leader_epochs(self, partitions: Any) -> Any:
        if not self.writing.is_drained:
            self.writing.acknowledged(40, -1)
        return dict.fromkeys(partitions, self.writing.copier.target_epoch)

    async def store_positions(self, _: Any, positions: Any) -> None:
        self.committed += [one.next_source_offset for one in positions]

    async def end(self, _: Any, *, commit: bool) -> None:
        assert commit

    async def wait_for_markers(self, _: Any) -> None:
        """They are there."""

    async def run(self, request: Transaction) -> Done:
        assert self.writing.is_held
        assert not self.writing.mode.is_plain
        self.ended.append(request.producer)
        return Done()


DAY_MS = 86_400_000
POINT = WritePoint(next_source_offset=100, source_epoch=-1, sequence=-1, target_end=0, target_epoch=0)


def transaction_of(
    brokers: Brokers, copiers: Sequence[PartitionCopier], end_task: Callable[[str], None]
) -> TaskTransaction:
    metadata = SimpleNamespace(leader_epoch=lambda *_: brokers.writing.copier.target_epoch)
    return TaskTransaction(
        SimpleNamespace(alias="west", metadata=metadata),  # type: ignore[arg-type]
        brokers,  # type: ignore[arg-type]
        TaskStart(
            producers=TaskProducers(
                transactional=PRODUCERS[WriteMode.TRANSACTION], plain=PRODUCERS[WriteMode.PLAIN]
            ),
            points={copier.source: POINT for copier in copiers},
            problems={},
        ),
        pump=lambda: None,
        end_task=end_task,
    )


@pytest.mark.parametrize("is_late", [False, True])
def test_nothing_is_committed_when_an_answer_comes_after_the_wait_for_it(
    *, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_transaction, "DRAIN_S", 0)
    writing = begun_writer(context_at(WHEN))
    copier = writing.copier
    writing.packer.add(batch_of(small(3), base_offset=100))
    assert writing.next_batch() is not None
    brokers, ended = Brokers(writing), list[str]()
    if not is_late:
        writing.acknowledged(40, -1)
    transaction = transaction_of(brokers, [copier], ended.append)
    transaction._admit({writing: copier.resyncs}, {copier.target: 0})

    asyncio.run(transaction.finish(5))

    assert brokers.committed == ([] if is_late else [103])
    assert bool(ended) is is_late


def test_records_are_reported_as_copied_when_their_transaction_is_committed() -> None:
    """Before that, consumers of committed records do not get them, and a kill aborts them."""
    writing = begun_writer(context_at(WHEN + 10 * DAY_MS))
    writing.change_mode(ChangeMode(WriteMode.TRANSACTION, 100, -1))
    transaction = transaction_of(Brokers(writing), [writing.copier], lambda _: None)
    transaction._admit({writing: writing.copier.resyncs}, {writing.target: 0})
    writing.packer.add(batch_of(small(3), base_offset=100))
    assert writing.next_batch() is not None
    writing.acknowledged(40, -1)

    open_report = partition_report(writing.copier)
    asyncio.run(transaction.finish(5))

    assert (open_report.source_offset, open_report.records) == (100, 3)
    assert partition_report(writing.copier).source_offset == 103


def test_a_partition_is_added_once_to_each_transaction() -> None:
    """It asks again while the coordinator is asked."""
    writing = begun_writer(context_at(WHEN))
    writing.change_mode(ChangeMode(WriteMode.TRANSACTION, 100, -1))
    transaction = transaction_of(Brokers(writing), [writing.copier], lambda _: None)
    transaction.want(writing)

    transaction._admit({writing: writing.copier.resyncs}, {writing.target: 0})

    assert not transaction._wanted


def test_a_broker_that_refuses_all_batches_in_flight_ends_the_task_once() -> None:
    writing, ended = begun_writer(context_at(WHEN)), list[str]()
    transaction = transaction_of(Brokers(writing), [writing.copier], ended.append)

    for _ in range(5):
        transaction.refused(INVALID_PRODUCER_EPOCH)

    assert ended == ["the target answered INVALID_PRODUCER_EPOCH"]


def test_one_slow_commit_does_not_delay_the_next_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause goes by the median of the newest commits."""
    now_s = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    writing = begun_writer(context_at(WHEN))
    brokers = Brokers(writing)
    transaction = transaction_of(brokers, [writing.copier], lambda _: None)
    transaction.took_ms += [15.0, 15.0, 15.0, 200.0]
    transaction._admit({writing: writing.copier.resyncs}, {writing.target: 0})

    assert transaction._due_s == pytest.approx(1000.15)


def test_plain_batches_wait_for_the_marker_of_the_transaction_before_them() -> None:
    writing = begun_writer(context_at(WHEN))
    writing.change_mode(ChangeMode(WriteMode.TRANSACTION, 100, -1))
    brokers, ended = Brokers(writing), list[str]()
    transaction = transaction_of(brokers, [writing.copier], ended.append)
    transaction._admit({writing: writing.copier.resyncs}, {writing.target: 0})
    writing.mode.want(ChangeMode(WriteMode.PLAIN, 100, -1))
    transaction.want(writing)

    asyncio.run(transaction.finish(5))

    assert brokers.ended == [PRODUCERS[WriteMode.TRANSACTION]]
    assert writing.mode.is_plain
    assert not writing.is_held
    assert not ended


def test_positions_are_stored_as_left_beside_a_partition_that_has_not_begun() -> None:
    """It has written nothing: its leader is not compared with one that the task has asked."""
    context = context_at(WHEN)
    writing = begun_writer(context)
    writing.copier.note_target_epoch(4)
    waiting = PartitionCopier(TopicPartition("orders", 3), RenameRule(name="east.orders"), context)
    brokers, ended = Brokers(writing), list[str]()
    transaction = transaction_of(brokers, [writing.copier, waiting], ended.append)

    asyncio.run(transaction.store([writing.copier, waiting], left=True))

    assert brokers.committed == [100]
    assert not ended


def test_a_transaction_takes_no_more_than_arrives_in_a_tenth_of_its_time_limit() -> None:
    """All members are held, and it is committed at once."""
    first, second = begun_writer(context_at(WHEN)), begun_writer(context_at(WHEN), partition=3)
    for writing in (first, second):
        writing.change_mode(ChangeMode(WriteMode.TRANSACTION, 100, -1))
    transaction = transaction_of(Brokers(first), [first.copier, second.copier], lambda _: None)
    members = {one: one.copier.resyncs for one in (first, second)}
    transaction._admit(members, {one.target: 0 for one in members})
    most_bytes = transaction._window.size_bytes

    transaction.sent(most_bytes - 1)
    is_held_before = first.is_held or second.is_held
    transaction.sent(1)

    assert not is_held_before
    assert first.is_held
    assert second.is_held
    assert transaction._due_s <= time.monotonic()


@pytest.mark.parametrize("answers", [True, False])
def test_a_broker_that_answers_late_is_waited_for_and_one_that_does_not_answer_is_given_up(
    *, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_transaction, "DRAIN_S", 0.05)
    monkeypatch.setattr(task_transaction, "DRAIN_LOOK_S", 0.01)
    writing = begun_writer(context_at(WHEN))
    writing.packer.add(batch_of(small(3), base_offset=100))
    assert writing.next_batch() is not None
    ended: list[str] = []
    transaction = transaction_of(Brokers(writing), [writing.copier], ended.append)
    writing.copier.context.writer = transaction
    transaction._admit({writing: writing.copier.resyncs}, {writing.target: 0})

    def expects_answer_by(since_s: float) -> float:
        """Other answers come all the time."""
        return time.monotonic() if answers else since_s

    async def finish() -> None:
        if answers:
            asyncio.get_running_loop().call_later(4 * task_transaction.DRAIN_S, writing.acknowledged, 40, -1)
        await transaction.finish(30)

    writing.pipe.expects_answer_by = expects_answer_by  # type: ignore[method-assign]

    asyncio.run(finish())

    assert bool(ended) is not answers

"""What a commit has: a transaction with records that its positions do not count must not be committed."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mirrorflow_core.copying.effects import Signal
from mirrorflow_core.copying.membership import TransactionMembership
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.copying.transaction import (
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
    TaskTransaction,
    TransactionRequest,
)
from mirrorflow_core.writer.broker_requests import Done, Producer, Transaction
from mirrorflow_replicator.copy.partition_reports import partition_report
from tests.unit.core.copying.stubs import (
    PRODUCERS,
    begun_copier,
    new_copier,
    new_session,
    records_of,
    send,
    want_transaction,
)
from tests.unit.core.copying.test_batch_packer import WHEN
from tests.unit.core.wire.strategies import batch_of

BEGAN_S = 1000.0


class Rig:
    """The transactions of a session, and brokers that accept everything.

    A response to a batch that is in flight comes while the leaders are asked, or while it is waited for if *answers_in_time*.
    """

    def __init__(
        self,
        *copiers: PartitionCopier,
        answers_in_time: bool = False,
        takes_s: Mapping[type[TransactionRequest], float] | None = None,
    ) -> None:
        self.copiers = copiers
        self.answers_in_time = answers_in_time
        self.takes_s = {} if takes_s is None else takes_s
        self.now = Now(BEGAN_S, WHEN)
        self.requests: list[TransactionRequest] = []
        self.committed: list[int] = []  # the next source offsets of the positions
        self.ended: list[Producer] = []  # of empty transactions, and so of those before them
        self.asks_again = False  # while its partition is added
        self._stored: list[int] = []
        self.transaction = TaskTransaction(
            copiers[0].session, timeout_ms=60_000, metadata_epoch=self._epochs.__getitem__, now_s=BEGAN_S
        )

    @property
    def _epochs(self) -> dict[Any, int]:
        return {copier.target: copier.target_epoch for copier in self.copiers}

    def join(self) -> None:
        """Makes each partition a member that has sent a batch of three old records."""
        for copier in self.copiers:
            want_transaction(copier, self.now.wall_ms)
            self.transaction.want(copier)
        self.perform(self.transaction.due(self.now))
        for copier in self.copiers:
            assert copier.membership is TransactionMembership.INSIDE
            assert send(copier, self.now.wall_ms) is not None

    def acknowledge(self) -> None:
        """Has the leaders answer everything in flight."""
        for copier in self.copiers:
            while not copier.is_drained:
                assert copier.stream is not None
                base_offset = max(40, copier.stream.expected_target)
                copier.acknowledged(base_offset, -1, self.now.wall_ms)

    def perform(self, steps: Steps | None) -> None:
        """Responds to what *steps* ask, at once or after the time that it takes."""
        assert steps is not None
        with contextlib.suppress(StopIteration):
            request = next(steps)
            while True:
                self.requests.append(request)
                response = self._respond(request)
                request = steps.send((response, self._later(self.takes_s.get(type(request), 0.0))))

    def _later(self, seconds: float) -> Now:
        self.now = Now(self.now.monotonic_s + seconds, self.now.wall_ms + round(1000 * seconds))
        return self.now

    def _respond(self, request: TransactionRequest) -> Any:
        match request:
            case Drain():
                if self.answers_in_time:
                    self.acknowledge()
            case AskLeaders(partitions):
                self.acknowledge()
                epoch = self.copiers[0].target_epoch
                return dict.fromkeys(partitions, epoch)
            case AddPartitions(_, partitions):
                if self.asks_again:
                    self.transaction.want(self.copiers[0])
                return dict.fromkeys(partitions, 0)
            case StorePositions(_, positions):
                self._stored = [position.next_source_offset for position in positions]
            case Commit():
                self.committed += self._stored
            case Transaction(producer):
                for copier in self.copiers:
                    assert copier.is_held
                    assert copier.mode is not None
                    assert not copier.mode.is_plain
                self.ended.append(producer)
                return Done()
        return None

    def asked(self) -> Sequence[type[TransactionRequest]]:
        """The kinds of the requests, without effects."""
        return [type(request) for request in self.requests if not isinstance(request, CarryOut)]


@pytest.mark.parametrize("is_late", [False, True])
def test_nothing_is_committed_when_a_response_comes_after_the_wait_for_it(*, is_late: bool) -> None:
    rig = Rig(begun_copier(WHEN), answers_in_time=not is_late)
    rig.join()

    rig.perform(rig.transaction.finish(rig.now))
    rig.acknowledge()

    assert rig.committed == ([] if is_late else [103])
    assert bool(rig.transaction.end_reason) is is_late


def test_a_response_that_comes_while_leaders_are_asked_is_not_in_a_position() -> None:
    """Positions of plain batches are stored without waiting for what is in flight."""
    copier = begun_copier(WHEN)
    rig = Rig(copier)
    copier.packer.add(batch_of(records_of(WHEN), base_offset=100))
    assert send(copier, WHEN) is not None
    rig.transaction.store([copier])

    rig.perform(rig.transaction.commit(rig.now))

    assert copier.settled_next_offset == 103
    assert rig.committed == [100]
    assert not rig.transaction.end_reason


def test_records_are_reported_as_copied_when_their_transaction_is_committed() -> None:
    """Before that, consumers of committed records do not get them, and a kill aborts them."""
    copier = begun_copier(WHEN)
    rig = Rig(copier)
    rig.join()
    rig.acknowledge()

    open_report = partition_report(copier, WHEN)
    rig.perform(rig.transaction.finish(rig.now))

    assert (open_report.source_offset, open_report.records) == (100, 3)
    assert partition_report(copier, WHEN).source_offset == 103


def test_a_partition_is_added_once_to_each_transaction() -> None:
    """It asks again while the coordinator is asked."""
    rig = Rig(begun_copier(WHEN))
    rig.asks_again = True
    rig.join()

    assert not rig.transaction.has_wishes
    assert rig.asked() == [BeginTransaction, AskLeaders, AddPartitions]


def test_one_slow_commit_does_not_delay_the_next_ones() -> None:
    """The pause goes by the median of the newest commits."""
    rig = Rig(begun_copier(WHEN))
    rig.transaction.took_ms += [15.0, 15.0, 15.0, 200.0]
    rig.join()
    rig.acknowledge()

    assert rig.transaction.next_due_s == pytest.approx(BEGAN_S + 0.15)


def test_the_wait_for_markers_is_not_counted_in_the_duration_of_a_commit() -> None:
    """The beginning of the next transaction waits for them in any case: the pause between commits must not grow by them."""
    rig = Rig(
        begun_copier(WHEN),
        answers_in_time=True,
        takes_s={Drain: 0.010, StorePositions: 0.020, Commit: 0.003, AwaitMarkers: 5.0},
    )
    rig.join()

    rig.perform(rig.transaction.finish(rig.now))

    assert rig.asked()[-4:] == [AskLeaders, StorePositions, Commit, AwaitMarkers]
    assert list(rig.transaction.took_ms) == [pytest.approx(33)]


def test_plain_batches_wait_for_the_marker_of_the_transaction_before_them() -> None:
    copier = begun_copier(WHEN)
    rig = Rig(copier)
    rig.join()
    rig.acknowledge()
    copier.packer.add(batch_of(records_of(WHEN), base_offset=103))
    data, effects = copier.next_batch(WHEN, 1 << 20)
    assert (data, effects) == (None, (Signal.JOIN_TRANSACTION,))
    rig.transaction.want(copier)

    rig.perform(rig.transaction.finish(rig.now))

    assert rig.ended == [PRODUCERS.transactional]
    assert rig.asked()[-2:] == [AwaitMarkers, Transaction]
    assert copier.mode is not None
    assert copier.mode.is_plain
    assert not copier.is_held
    assert not rig.transaction.end_reason


def test_positions_are_stored_as_left_beside_a_partition_that_has_not_begun() -> None:
    """It has written nothing: its leader is not compared with one that the task has asked."""
    session = new_session()
    copier, waiting = begun_copier(WHEN, session), new_copier(session, 3)
    copier.note_target_epoch(4)
    rig = Rig(copier, waiting)

    rig.perform(rig.transaction.store_left([copier, waiting], rig.now))

    assert rig.committed == [100]
    assert not rig.transaction.end_reason


def test_a_transaction_takes_no_more_than_arrives_in_a_tenth_of_its_time_limit() -> None:
    """All members are held, and it is committed at once."""
    session = new_session()
    first, second = begun_copier(WHEN, session), begun_copier(WHEN, session, 3)
    rig = Rig(first, second)
    rig.join()
    most_bytes = rig.transaction._window.size_bytes

    rig.transaction.sent(most_bytes - 1)
    is_held_before = first.is_held or second.is_held
    rig.transaction.sent(1)

    assert not is_held_before
    assert first.is_held
    assert second.is_held
    assert rig.transaction.next_due_s <= rig.now.monotonic_s
    rig.answers_in_time = True
    rig.perform(rig.transaction.due(rig.now))
    assert rig.committed == [103, 103]

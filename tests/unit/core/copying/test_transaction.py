"""A transaction is committed only if its positions cover all its records."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from mirrorflow_core.copying.effects import Signal
from mirrorflow_core.copying.membership import TransactionMembership
from mirrorflow_core.copying.partition import PartitionCopier
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
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.source_epochs import EpochStart
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_core.writer.broker_requests import NO_RESPONSE, Done, Producer, Refused, Transaction
from mirrorflow_replicator.copy.partition_reports import partition_report
from tests.unit.core.copying.stubs import (
    POINT,
    PRODUCERS,
    begun_copier,
    new_copier,
    new_session,
    records_of,
    send,
    want_transaction,
)
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS, with_leader_epoch
from tests.unit.core.wire.strategies import batch_of
from tests.unit.core.wire.test_fetch import data_batch, marker

START_S = 1000.0


class Rig:
    """The transactions of a session, with brokers that accept everything.

    Batches in flight are acknowledged during `AskLeaders`, or already during `Drain` if *responds_in_time*.
    """

    def __init__(
        self,
        *copiers: PartitionCopier,
        responds_in_time: bool = False,
        takes_s: Mapping[type[TransactionRequest], float] | None = None,
    ) -> None:
        self.copiers = copiers
        self.responds_in_time = responds_in_time
        self.takes_s = {} if takes_s is None else takes_s
        self.now = Now(START_S, TIMESTAMP_MS)
        self.requests: list[TransactionRequest] = []
        self.committed: list[int] = []  # the next source offsets of the positions
        self.ended: list[Producer] = []  # producers whose empty transactions were committed
        self.ends: Done | Refused = Done()  # the response to them
        self.asks_again = False  # whether the copier requests to join again while it is added
        self._stored: list[int] = []
        self.transaction = TaskTransaction(
            copiers[0].session, timeout_ms=60_000, metadata_epoch=self._epochs.__getitem__, now_s=START_S
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

    def next_due(self) -> Now:
        """A time at which everything that waits is due."""
        return Now(self.now.monotonic_s + 3_600, self.now.wall_ms + 3_600_000)

    def acknowledge(self) -> None:
        """Acknowledges all batches in flight."""
        for copier in self.copiers:
            while not copier.is_drained:
                assert copier.stream is not None
                base_offset = max(40, copier.stream.expected_target or 0)
                copier.acknowledged(base_offset, -1, self.now.wall_ms)

    def perform(self, steps: Steps | None) -> None:
        """Runs *steps*; each request takes the time in *takes_s*."""
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
                if self.responds_in_time:
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
                return self.ends
        return None

    def request_kinds(self) -> Sequence[type[TransactionRequest]]:
        """The types of the requests, without those that carry out effects."""
        return [type(request) for request in self.requests if not isinstance(request, CarryOut)]


@pytest.mark.parametrize("is_late", [False, True])
def test_nothing_is_committed_if_a_response_arrives_after_the_drain(*, is_late: bool) -> None:
    rig = Rig(begun_copier(TIMESTAMP_MS), responds_in_time=not is_late)
    rig.join()

    rig.perform(rig.transaction.finish(rig.now))
    rig.acknowledge()

    assert rig.committed == ([] if is_late else [103])
    assert bool(rig.transaction.end_reason) is is_late


def test_a_response_during_the_leader_check_does_not_change_the_position() -> None:
    """Positions of plain batches are stored without waiting for batches in flight."""
    copier = begun_copier(TIMESTAMP_MS)
    rig = Rig(copier)
    copier.packer.add(batch_of(records_of(TIMESTAMP_MS), base_offset=100))
    assert send(copier, TIMESTAMP_MS) is not None
    rig.transaction.store([copier])

    rig.perform(rig.transaction.commit(rig.now))

    assert copier.settled_next_offset == 103
    assert rig.committed == [100]
    assert not rig.transaction.end_reason


def test_records_are_reported_as_copied_after_their_commit() -> None:
    """Before the commit, read-committed consumers do not receive them and a kill aborts them."""
    copier = begun_copier(TIMESTAMP_MS)
    rig = Rig(copier)
    rig.join()
    rig.acknowledge()

    open_report = partition_report(copier, TIMESTAMP_MS)
    rig.perform(rig.transaction.finish(rig.now))

    assert (open_report.source_offset, open_report.records) == (100, 3)
    assert partition_report(copier, TIMESTAMP_MS).source_offset == 103


def test_a_partition_is_added_once_to_each_transaction() -> None:
    """The copier requests to join again while it is being added."""
    rig = Rig(begun_copier(TIMESTAMP_MS))
    rig.asks_again = True
    rig.join()

    assert not rig.transaction.has_wishes
    assert rig.request_kinds() == [BeginTransaction, AskLeaders, AddPartitions]


def test_a_single_slow_commit_does_not_lengthen_later_pauses() -> None:
    """The pause depends on the median duration of recent commits."""
    rig = Rig(begun_copier(TIMESTAMP_MS))
    rig.transaction.took_ms += [15.0, 15.0, 15.0, 200.0]
    rig.join()
    rig.acknowledge()

    assert rig.transaction.next_due_s == pytest.approx(START_S + 0.15)


def test_the_duration_of_a_commit_excludes_the_wait_for_markers() -> None:
    """The next transaction waits for markers anyway, so they must not lengthen the pause between commits."""
    rig = Rig(
        begun_copier(TIMESTAMP_MS),
        responds_in_time=True,
        takes_s={Drain: 0.010, StorePositions: 0.020, Commit: 0.003, AwaitMarkers: 5.0},
    )
    rig.join()

    rig.perform(rig.transaction.finish(rig.now))

    assert rig.request_kinds()[-4:] == [AskLeaders, StorePositions, Commit, AwaitMarkers]
    assert list(rig.transaction.took_ms) == [pytest.approx(33)]


def test_plain_batches_wait_for_the_marker_of_the_previous_transaction() -> None:
    copier = begun_copier(TIMESTAMP_MS)
    rig = Rig(copier)
    rig.join()
    rig.acknowledge()
    copier.packer.add(batch_of(records_of(TIMESTAMP_MS), base_offset=103))
    data, effects = copier.next_batch(TIMESTAMP_MS, 1 << 20)
    assert (data, effects) == (None, (Signal.JOIN_TRANSACTION,))
    rig.transaction.want(copier)

    rig.perform(rig.transaction.finish(rig.now))

    assert rig.ended == [PRODUCERS.transactional]
    assert rig.request_kinds()[-2:] == [AwaitMarkers, Transaction]
    assert copier.mode is not None
    assert copier.mode.is_plain
    assert not copier.is_held
    assert not rig.transaction.end_reason


def test_no_plain_batch_follows_a_transaction_whose_marker_may_be_missing() -> None:
    """An unclean election that removes the marker alone would leave plain batches after records that are copied again."""
    copier = begun_copier(TIMESTAMP_MS)
    rig = Rig(copier)
    rig.join()
    rig.acknowledge()
    copier.packer.add(batch_of(records_of(TIMESTAMP_MS), base_offset=103))
    copier.next_batch(TIMESTAMP_MS, 1 << 20)
    rig.transaction.want(copier)
    rig.ends = Refused(NO_RESPONSE)

    rig.perform(rig.transaction.finish(rig.now))

    assert (rig.committed, rig.ended) == ([103], [PRODUCERS.transactional])
    assert rig.transaction.end_reason
    assert send(copier, TIMESTAMP_MS) is None


@pytest.mark.parametrize(
    ("response", "sentence"),
    [
        (Refused(NO_RESPONSE), "a request of t was not answered"),
        (Refused(-1), "t was refused with UNKNOWN_SERVER_ERROR"),
    ],
)
def test_a_lost_response_is_not_reported_as_an_error_of_the_broker(response: Refused, sentence: str) -> None:
    rig = Rig(begun_copier(TIMESTAMP_MS))
    steps = rig.transaction._use_ids([PRODUCERS.transactional], rig.now)
    next(steps)

    with pytest.raises(StopIteration):
        steps.send((response, rig.now))

    assert rig.transaction.end_reason == sentence


def test_leaving_partitions_store_positions_although_one_has_not_started() -> None:
    """That partition has written nothing, so its leader epoch is not checked."""
    session = new_session()
    copier, waiting = begun_copier(TIMESTAMP_MS, session), new_copier(session, 3)
    rig = Rig(copier, waiting)

    rig.perform(rig.transaction.store_left([copier, waiting], rig.now))

    assert rig.committed == [100]
    assert not rig.transaction.end_reason


def test_a_transaction_is_limited_to_the_bytes_of_a_tenth_of_its_timeout() -> None:
    """At the limit, all members are held and the transaction is committed at once."""
    session = new_session()
    first, second = begun_copier(TIMESTAMP_MS, session), begun_copier(TIMESTAMP_MS, session, 3)
    rig = Rig(first, second)
    rig.join()
    limit_bytes = rig.transaction._window.size_bytes

    rig.transaction.sent(limit_bytes - 1)
    is_held_before = first.is_held or second.is_held
    rig.transaction.sent(1)

    assert not is_held_before
    assert first.is_held
    assert second.is_held
    assert rig.transaction.next_due_s <= rig.now.monotonic_s
    rig.responds_in_time = True
    rig.perform(rig.transaction.due(rig.now))
    assert rig.committed == [103, 103]


@pytest.mark.parametrize(
    ("read_committed", "skipped", "end", "aborted"),
    [
        (False, [marker(7, 103, commits=True)], 104, ()),
        (True, [data_batch(7, 103), marker(7, 105, commits=False)], 106, ((7, 103),)),
    ],
    ids=["the marker of the source comes after the commit", "the last transaction of the source is aborted"],
)
def test_offsets_that_the_source_skips_after_a_commit_are_stored_without_records(
    read_committed, skipped, end, aborted
):
    """Else the partition never counts as caught up, and a loss is reported when retention deletes these offsets."""
    copier = begun_copier(TIMESTAMP_MS, new_session(read_committed=read_committed))
    rig = Rig(copier, responds_in_time=True)
    rig.join()
    rig.acknowledge()
    rig.perform(rig.transaction.commit(rig.now))
    copier.cursor.seek(103, 0)
    records = memoryview(b"".join(batch.data for batch in skipped))
    response = PartitionFetchResponse(FetchKey(b"orders", 2), 0, end, end, 0, aborted, -1, records)

    copier.fetched(response, 103)
    rig.transaction.store([copier])
    rig.perform(rig.transaction.due(rig.next_due()))

    assert (rig.committed[-1], copier.settled_next_offset) == (end, end)
    rig.transaction.store([copier])
    assert rig.transaction.due(rig.next_due()) is None


def test_a_member_is_stored_with_its_records_alone() -> None:
    """Its records are not committed before the transaction is."""
    copier = begun_copier(TIMESTAMP_MS)
    rig = Rig(copier, responds_in_time=True)
    rig.join()
    assert not copier.has_position_without_records

    rig.acknowledge()

    assert not copier.has_position_without_records


def test_a_session_passes_on_what_it_has_stored_of_partitions_that_it_has_left() -> None:
    """If the offsets topic was deleted meanwhile, records in transactions would be copied again from the session's start."""
    copier = begun_copier(TIMESTAMP_MS)
    rig = Rig(copier, responds_in_time=True)
    rig.join()
    rig.perform(rig.transaction.commit(rig.now))

    acknowledged = rig.transaction.acknowledged_positions([], rig.now.wall_ms)

    offsets = [position.next_source_offset for position in acknowledged if position.partition == 2]
    assert rig.committed == offsets == [103]


def test_a_position_before_the_first_acknowledgement_names_the_leader_epoch_of_the_batch_in_flight() -> None:
    """A batch that is appended then is counted from this position: with the epoch before, the source would look as if rewritten."""
    session = new_session()
    source = TopicPartition("orders", 2)
    session.start.points[source] = replace(POINT, source_epoch=3, epochs=(EpochStart(3, 0),))
    copier = begun_copier(TIMESTAMP_MS, session)
    rig = Rig(copier)
    copier.packer.add(with_leader_epoch(batch_of(records_of(TIMESTAMP_MS), base_offset=100), 4))
    assert send(copier, TIMESTAMP_MS) is None
    rig.transaction.want(copier)
    rig.perform(rig.transaction.commit(rig.now))
    assert send(copier, TIMESTAMP_MS) is not None

    rig.transaction.store([copier])
    rig.perform(rig.transaction.commit(rig.now))

    stored = [
        (position.next_source_offset, position.source_epoch, position.epochs)
        for request in rig.requests
        if isinstance(request, StorePositions)
        for position in request.positions
    ]
    assert stored == 2 * [(100, 4, (EpochStart(3, 0), EpochStart(4, 100)))]

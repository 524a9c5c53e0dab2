"""Where partitions start: with an owner, behind what its last writers wrote, and without one, behind what is stored."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

import pytest

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.source_epochs import EpochStart
from mirrorflow_core.writer.broker_requests import (
    NO_RESPONSE,
    Busy,
    Done,
    InitProducerId,
    LeaderEpochEnd,
    LogEnd,
    Pause,
    Producer,
    ReadAborted,
    ReadBatches,
    ReadClaims,
    ReadEnd,
    ReadEpochEnd,
    ReadIdleLimit,
    ReadLastSequence,
    ReadOffsetMap,
    ReadPositions,
    ReadSourceStart,
    ReadWallClock,
    Refused,
    ReportLoss,
    Request,
    SourceStart,
    Steps,
    Transaction,
    Unavailable,
)
from mirrorflow_core.writer.claim import ABANDONED_MS, Claim
from mirrorflow_core.writer.flow_plan import FlowPlan, PartitionProblem, SessionStart, SourceLoss, TopicIds
from mirrorflow_core.writer.ownership import Ownership, recover_task, take_flow
from mirrorflow_core.writer.position import WriterPosition, obeyed_position
from mirrorflow_core.writer.takeover import start_unfenced
from mirrorflow_core.writer.transaction_log import LogBatch, Marker
from mirrorflow_core.writer.transactional_ids import WriterIds
from tests.unit.core.writer.logs import aborted_after

T = TypeVar("T")

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)
SOURCE_START, SOURCE_EPOCH, TARGET_END = 5, 4, 50
PRODUCER = Producer("", 99, 0)
WHY = "an ACL is missing"
IDLE_LIMIT_MS = 600_000  # connections.max.idle.ms
MAPPED = 6  # the source offset that the offset map has for the first batch of the target


class Brokers:
    """Responses where source and target have no records behind the stored positions; notes what is stored."""

    def __init__(
        self,
        positions: Iterable[WriterPosition] = (),
        *,
        source_ends: Mapping[int, int] | None = None,
        target_ends: Mapping[int, int] | None = None,
        target_start: int = 0,
        last_sequence: int | None = None,
    ) -> None:
        self.positions = list(positions)
        self.source_ends = source_ends or {}  # of leader epochs
        self.target_ends = target_ends or {}
        self.target_start = target_start
        self.last_sequence = last_sequence  # as the leader remembers it
        self.batches: tuple[LogBatch, ...] = ()  # of the target
        self.busy: set[str] = set()  # ids whose last transaction cannot end
        self.given: dict[str, list[tuple[int, int]]] = {}  # the next producer ids and epochs of an id
        self.paused_ms = 0
        self.refuses_positions = False  # once
        self.transactions: list[Transaction] = []
        self.unread: dict[TopicPartition, MirrorFlowError] = {}  # partitions whose leaders do not answer
        self.denied: dict[TopicPartition, MirrorFlowError] = {}  # partitions that no transaction may have
        self.reported: list[
            tuple[int, int]
        ] = []  # where a loss continues, and how many transactions came before

    def respond(self, request: Request) -> Any:
        match request:
            case InitProducerId(name) if name in self.busy:
                return Busy()
            case InitProducerId(name) if self.given.get(name):
                return Producer(name, *self.given[name].pop(0))
            case InitProducerId(name):
                return Producer(name, sum(name.encode()), 16)
            case Transaction() if request.positions and self.refuses_positions:
                self.refuses_positions = False
                return Refused(NO_RESPONSE)
            case Transaction():
                self.transactions.append(request)
                return Done({one: why for one, why in self.denied.items() if one in request.partitions})
            case ReadClaims():
                return ()
            case ReadPositions():
                records = tuple(enumerate(self.positions))
                return ((LogBatch(0, 9, -1, -1, -1, is_transactional=False, records=records),),)
            case ReadEnd(partition) if partition in self.unread:
                return Unavailable(self.unread[partition])
            case ReadEnd():
                return LogEnd(self.target_start, TARGET_END, TARGET_END, 3)
            case ReadBatches(_, start, end):
                assert start >= self.target_start, "a fetch there is refused"
                return tuple(
                    one for one in self.batches if one.last_offset >= start and one.base_offset < end
                )
            case ReadAborted(_, offset):
                return aborted_after(self.batches, offset)
            case ReadOffsetMap(_, target_offset, _):
                return MAPPED if target_offset == self.batches[0].base_offset else None
            case ReportLoss(_, next_source_offset, _):
                self.reported.append((next_source_offset, len(self.transactions)))
                return None
            case ReadLastSequence():
                return self.last_sequence
            case ReadSourceStart():
                return SourceStart(SOURCE_START, SOURCE_EPOCH)
            case ReadEpochEnd():
                ends = self.target_ends if request.on_target else self.source_ends
                found = max((one for one in ends if one <= request.epoch), default=-1)
                return LeaderEpochEnd(found, ends.get(found, -1))
            case ReadIdleLimit():
                return IDLE_LIMIT_MS
            case Pause(ms):
                self.paused_ms += ms
                return self.paused_ms
            case ReadWallClock():
                return 0
        raise AssertionError(request)

    def run(self, steps: Steps[T]) -> T:
        responses: Any = None
        try:
            while True:
                responses = tuple(map(self.respond, steps.send(responses)))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def plan(
    *assigned: TopicPartition, copies: Mapping[str, TopicIds], loss_policy: LossPolicy = LossPolicy.FAIL
) -> FlowPlan:
    claim = Claim(flow="f", process="p", source_alias="east", tasks=1, lock_epoch=-1, time_ms=0)
    return FlowPlan(claim=claim, assignment=(assigned,), topic_ids=copies, loss_policy=loss_policy)


def stored(partition: TopicPartition, *, target_topic: str, next_source_offset: int = 10) -> WriterPosition:
    """The position of a writer that has left."""
    return WriterPosition(
        topic=partition.topic,
        partition=partition.partition,
        next_source_offset=next_source_offset,
        target_topic=target_topic,
        writer=WriterIds("t", "t-plain"),
        left=True,
    )


OWN_COPIES = {"orders": TopicIds(copy="east.orders"), "payments": TopicIds(copy="east.payments")}
ONE_COPY = {"orders": TopicIds(copy="all"), "payments": TopicIds(copy="all")}


IDS = WriterIds("mirrorflow:east:task-0", "mirrorflow:east:task-0-plain")


JAVAS_ID = 7


class LostMarkers(Brokers):
    """The offsets topic lacks the marker of a task's transaction, in which the second of two positions was written."""

    def __init__(self, batches: tuple[LogBatch, ...]) -> None:
        super().__init__()
        self.batches = batches
        positions = [
            WriterPosition(topic="orders", partition=0, next_source_offset=one, target_end=end, writer=IDS)
            for one, end in ((10, 40), (20, 45))
        ]
        self.log = [
            LogBatch(0, 0, -1, -1, -1, is_transactional=False, records=((0, positions[0]),)),
            LogBatch(
                1, 1, id_of(IDS.transactional), 15, 0, is_transactional=True, records=((1, positions[1]),)
            ),
        ]

    def respond(self, request: Request) -> Any:
        match request:
            case ReadPositions():
                return (tuple(self.log),)
            case Transaction(producer, commit, _, positions, _, is_barrier) if positions or is_barrier:
                at = len(self.log)
                rows = tuple((at, one) for one in positions)
                self.log.append(LogBatch(at, at, *producer[1:], 0, is_transactional=True, records=rows))
                marker = Marker.COMMIT if commit else Marker.ABORT
                self.log.append(LogBatch(at + 1, at + 1, *producer[1:], -1, True, marker))
        return super().respond(request)


def id_of(transactional_id: str) -> int:
    return sum(transactional_id.encode())


@pytest.mark.parametrize(
    ("marker", "next_source_offset"),
    [(Marker.COMMIT, 20), (Marker.ABORT, 10), (None, 10)],
    ids=["committed", "aborted", "undecided"],
)
def test_an_undecided_position_counts_if_its_records_are_committed(
    marker: Marker | None, next_source_offset: int
) -> None:
    written_by = id_of(IDS.transactional), 15
    batches: tuple[LogBatch, ...] = (LogBatch(40, 44, *written_by, 0, is_transactional=True),)
    if marker is not None:
        batches += (LogBatch(45, 45, *written_by, -1, is_transactional=True, marker=marker),)
    brokers = LostMarkers(batches)

    taken = brokers.run(take_flow(plan(ORDERS, copies={})))

    assert isinstance(taken, Ownership)
    assert taken.tasks[0].points[ORDERS].next_source_offset == next_source_offset
    positions = [one for one in brokers.transactions if one.positions]
    aborted = [one for one in brokers.transactions if one.is_barrier and not one.commit]
    assert [one.producer.transactional_id for one in aborted] == [IDS.transactional]
    if marker is Marker.COMMIT:
        assert positions[0].producer.transactional_id == IDS.plain
        assert brokers.transactions.index(positions[0]) < brokers.transactions.index(aborted[0])


class KilledError(Exception):
    """The process is killed in the middle of a transaction, which the next one to take the id aborts."""


class KilledInTransaction(LostMarkers):
    """As `LostMarkers`; the process is killed in transaction *number* of those that write into the offsets topic."""

    def __init__(self, batches: tuple[LogBatch, ...], number: int) -> None:
        super().__init__(batches)
        self.left = number

    def respond(self, request: Request) -> Any:
        if isinstance(request, Transaction) and (request.positions or request.is_barrier):
            if self.left == 0:
                self.left = -1
                super().respond(request._replace(commit=False))
                raise KilledError
            self.left -= 1
        return super().respond(request)


def killed_in_transaction(number: int, batches: tuple[LogBatch, ...]) -> KilledInTransaction | None:
    """The brokers after a start that was killed in transaction *number*; None if it had fewer."""
    brokers = KilledInTransaction(batches, number)
    try:
        brokers.run(take_flow(plan(ORDERS, copies={})))
    except KilledError:
        return brokers
    return None


def test_a_start_that_is_killed_in_any_of_its_transactions_loses_no_position() -> None:
    """Each becomes an abort, also one that would have committed the position under its own id."""
    written_by = id_of(IDS.transactional), 15
    batches = (
        LogBatch(40, 44, *written_by, 0, is_transactional=True),
        LogBatch(45, 45, *written_by, -1, is_transactional=True, marker=Marker.COMMIT),
    )
    offsets: list[int] = []
    while (brokers := killed_in_transaction(len(offsets), batches)) is not None:
        taken = brokers.run(take_flow(plan(ORDERS, copies={})))
        assert isinstance(taken, Ownership)
        offsets.append(taken.tasks[0].points[ORDERS].next_source_offset)

    assert len(offsets) > 2
    assert set(offsets) == {20}


def test_a_task_takes_its_spare_id_while_positions_of_the_other_one_cannot_be_decided() -> None:
    error = MirrorFlowError("orders-0 has no leader")
    brokers = LostMarkers(())
    brokers.unread = {ORDERS: error}

    taken = brokers.run(take_flow(plan(ORDERS, PAYMENTS, copies={})))

    assert isinstance(taken, Ownership)
    (task,) = taken.tasks
    assert task.waiting == {ORDERS: error}
    assert [*task.points] == [PAYMENTS]
    assert task.producers.ids == WriterIds(IDS.spare, IDS.plain)
    ended = [one.producer.transactional_id for one in brokers.transactions if one.positions or one.is_barrier]
    assert IDS.transactional not in ended


class JavasTransaction(LostMarkers):
    """Java's transaction with the second of two positions ends while the offsets topic is read."""

    def __init__(self) -> None:
        super().__init__(())
        java = WriterPosition(topic="orders", partition=0, next_source_offset=20)
        self.log[1] = self.log[1]._replace(producer_id=JAVAS_ID, records=((1, java),))
        self.reads = 0

    def respond(self, request: Request) -> Any:
        if isinstance(request, ReadPositions):
            self.reads += 1
            if self.reads == 4:
                at = len(self.log)
                self.log.append(LogBatch(at, at, JAVAS_ID, 15, -1, True, Marker.COMMIT))
        return super().respond(request)


def test_an_open_transaction_of_java_is_waited_for() -> None:
    taken = JavasTransaction().run(take_flow(plan(ORDERS, copies={})))

    assert isinstance(taken, Ownership)
    assert taken.tasks[0].points[ORDERS].next_source_offset == 20


@pytest.mark.parametrize(
    ("copies", "positions", "owner"),
    [
        (OWN_COPIES, [stored(PAYMENTS, target_topic="east.payments")], None),
        (ONE_COPY, [stored(PAYMENTS, target_topic="all")], "payments"),
        (ONE_COPY, [stored(PAYMENTS, target_topic="east.payments")], None),
        (ONE_COPY, [stored(ORDERS, target_topic="all"), stored(PAYMENTS, target_topic="all")], None),
    ],
    ids=["own copy", "copy of another topic", "the other has another copy by now", "both were copied before"],
)
def test_a_topic_is_not_copied_into_the_copy_of_another(copies, positions, owner):
    """The other one keeps it, whether it is still copied or not."""
    brokers = Brokers(positions)

    taken = brokers.run(take_flow(plan(ORDERS, copies=copies)))

    assert isinstance(taken, Ownership)
    (task,) = taken.tasks
    is_taken = owner is not None
    assert task.owners == ({ORDERS: owner} if is_taken else {})
    assert task.problems == ({ORDERS: PartitionProblem.TARGET_TAKEN} if is_taken else {})
    assert set(task.points) == (set() if is_taken else {ORDERS})
    written = [one.topic for transaction in brokers.transactions for one in transaction.positions]
    assert written == ([] if is_taken else ["orders"])


def test_the_first_stored_position_names_the_epoch_of_the_first_record():
    """So that plain batches of that epoch need no other position before them."""
    brokers = Brokers()

    brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    (position,) = [one for transaction in brokers.transactions for one in transaction.positions]
    assert position.next_source_offset == SOURCE_START
    assert (position.source_epoch, position.epochs) == (
        SOURCE_EPOCH,
        (EpochStart(SOURCE_EPOCH, SOURCE_START),),
    )


@pytest.mark.parametrize("step", ["before", "fence", "lookup"])
def test_a_partition_that_cannot_be_taken_waits_and_the_others_start(step):
    """Its stored position stays: it names the writer that is not fenced there."""
    why = MirrorFlowError("denied")
    open_writer = {"left": False, "producer_id": Brokers().respond(InitProducerId("t-plain")).producer_id}
    brokers = Brokers(
        replace(stored(one, target_topic=f"east.{one.topic}"), **open_writer) for one in (ORDERS, PAYMENTS)
    )
    brokers.batches = (fence_marker(open_writer["producer_id"]),)
    wanted = plan(ORDERS, PAYMENTS, copies=OWN_COPIES)
    match step:
        case "before":
            wanted = replace(wanted, unavailable={ORDERS: why})
        case "fence":
            brokers.denied[ORDERS] = why
        case "lookup":
            brokers.unread[ORDERS] = why

    taken = brokers.run(take_flow(wanted))

    assert isinstance(taken, Ownership)
    (task,) = taken.tasks
    assert (set(task.points), task.problems, task.waiting) == ({PAYMENTS}, {}, {ORDERS: why})
    written = [one.topic for transaction in brokers.transactions for one in transaction.positions]
    assert written == ["payments"]


def fence_marker(producer_id: int) -> LogBatch:
    return LogBatch(49, 49, producer_id, 16, -1, is_transactional=True, marker=Marker.ABORT)


def test_of_two_new_topics_with_one_copy_the_first_by_name_is_copied():
    brokers = Brokers()

    taken = brokers.run(take_flow(plan(ORDERS, PAYMENTS, copies=ONE_COPY)))

    assert isinstance(taken, Ownership)
    (task,) = taken.tasks
    assert (set(task.points), task.owners) == ({ORDERS}, {PAYMENTS: "orders"})


def unfenced(
    *positions: Position,
    loss_policy: LossPolicy = LossPolicy.FAIL,
    source_ends: Mapping[int, int] | None = None,
) -> Any:
    """The start of a task with one partition where no other writer can be fenced."""
    brokers = Brokers(source_ends=source_ends)
    known = {TopicPartition(one.topic, one.partition): obeyed_position(one) for one in positions}
    steps = start_unfenced(plan(copies=OWN_COPIES, loss_policy=loss_policy), PRODUCER, [ORDERS], known, WHY)
    start = brokers.run(steps)
    assert brokers.transactions == []
    assert start.unfenced_reason == WHY
    assert start.producers.plain == start.producers.transactional == PRODUCER
    return start


COPIED = Position(topic="orders", partition=0, source_offset=9, source_epoch=2)


@pytest.mark.parametrize(
    ("positions", "next_offset", "epoch"), [((), SOURCE_START, SOURCE_EPOCH), ((COPIED,), 10, 2)]
)
def test_without_an_owner_a_task_starts_behind_the_stored_position(positions, next_offset, epoch):
    """What was written behind it is written again, behind the end of the target."""
    start = unfenced(*positions)

    point = start.points[ORDERS]
    assert (point.next_source_offset, point.source_epoch) == (next_offset, epoch)
    assert (point.target_end, point.target_epoch, point.sequence) == (TARGET_END, 3, -1)


def test_without_an_owner_a_source_that_was_rewritten_is_found():
    """Its leader epoch 2 ends at offset 7: two copied records are others now."""
    start = unfenced(COPIED, source_ends={2: 7})

    assert start.points == {}
    assert start.problems == {ORDERS: PartitionProblem.SOURCE_REWRITTEN}
    assert start.losses == {ORDERS: SourceLoss(10, 7, PartitionProblem.SOURCE_REWRITTEN)}


def test_without_an_owner_a_source_that_returned_to_an_earlier_epoch_is_copied_from_where_it_differs():
    """Of that epoch it has more records than were copied before the next one began."""
    position = replace(COPIED, epochs=(EpochStart(1, 4), EpochStart(2, 6)))

    start = unfenced(position, loss_policy=LossPolicy.ALERT, source_ends={1: 8})

    assert start.points[ORDERS].next_source_offset == 6


@pytest.mark.parametrize(
    ("loss_policy", "next_offset"), [(LossPolicy.ALERT, 7), (LossPolicy.RESTART, SOURCE_START)]
)
def test_without_an_owner_the_loss_policy_decides_where_to_continue(loss_policy, next_offset):
    start = unfenced(COPIED, loss_policy=loss_policy, source_ends={2: 7})

    assert start.points[ORDERS].next_source_offset == next_offset
    assert start.losses[ORDERS].wanted == 10


EPOCHS = (EpochStart(0, 0), EpochStart(1, 4), EpochStart(2, 6))


@pytest.mark.parametrize(
    ("source_ends", "next_offset"),
    [
        ({2: 20, 1: 8}, 10),  # it has the epoch of the last record, and more
        ({1: 20}, 6),  # of the epoch before it has more than was copied
        ({1: 5}, 5),
        ({0: 3, 1: 5, 3: 20}, 5),
        ({0: 20}, 4),  # longer in the epoch before that
        ({0: 3, 2: 20}, 10),
    ],
    ids=[
        "same log",
        "longer in the epoch before",
        "shorter in the epoch before",
        "new epochs behind it",
        "longer two epochs before",
        "compacted",
    ],
)
def test_a_source_without_the_epoch_of_the_last_record_differs_from_the_copy_before_it(
    source_ends, next_offset
):
    """The records from offset 6 on were copied in epoch 2, those from 4 on in epoch 1."""
    position = replace(stored(ORDERS, target_topic="east.orders"), source_epoch=2, epochs=EPOCHS)
    brokers = Brokers([position], source_ends=source_ends)

    taken = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES, loss_policy=LossPolicy.ALERT)))

    assert isinstance(taken, Ownership)
    assert taken.tasks[0].points[ORDERS].next_source_offset == next_offset


OPEN = replace(
    stored(ORDERS, target_topic="east.orders"),
    left=False,
    producer_id=7,
    producer_epoch=16,
    target_end=20,
    target_epoch=2,
)
ACKNOWLEDGED = replace(OPEN, next_source_offset=15, sequence=4, target_end=25, records=15, counting=1)


@pytest.mark.parametrize(
    ("acknowledged", "target_ends", "next_offset"),
    [
        (ACKNOWLEDGED, {}, 15),
        (ACKNOWLEDGED, {2: 25}, 15),
        (ACKNOWLEDGED, {2: 22}, 10),
        (replace(ACKNOWLEDGED, producer_epoch=15), {}, 10),
        (replace(ACKNOWLEDGED, next_source_offset=9), {}, 10),
    ],
    ids=["not known", "kept", "lost by the target", "of an earlier writer", "older than what is stored"],
)
def test_a_start_continues_behind_what_the_last_one_acknowledged(acknowledged, target_ends, next_offset):
    """The target's log does not show it: retention has removed the records."""
    brokers = Brokers([OPEN], target_ends=target_ends)
    lock = Producer("lock", 1, 0)
    owned = Ownership(plan=plan(ORDERS, copies=OWN_COPIES), lock=lock, tasks=())
    ids = WriterIds("t", "t-plain")

    start = brokers.run(recover_task(owned, ids, [ORDERS], [acknowledged]))

    assert isinstance(start, SessionStart)
    assert start.points[ORDERS].next_source_offset == next_offset


@pytest.mark.parametrize(
    ("loss_policy", "next_offset"), [(LossPolicy.FAIL, None), (LossPolicy.ALERT, 10), (LossPolicy.RESTART, 5)]
)
def test_a_target_without_records_of_the_time_since_the_position_goes_by_policy(loss_policy, next_offset):
    brokers = Brokers([OPEN], target_start=30)

    taken = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES, loss_policy=loss_policy)))

    assert isinstance(taken, Ownership)
    start = taken.tasks[0]
    assert start.losses[ORDERS].problem is PartitionProblem.TARGET_TRIMMED
    found = start.points[ORDERS].next_source_offset if ORDERS in start.points else None
    assert found == next_offset
    assert start.problems == ({ORDERS: PartitionProblem.TARGET_TRIMMED} if next_offset is None else {})
    stores = len(brokers.transactions) - 1
    assert brokers.reported == ([] if next_offset is None else [(next_offset, stores)])


@pytest.mark.parametrize(
    ("last_sequence", "next_offset"),
    [(4, 15), (9, 20), (10, None), (-1, 10)],
    ids=["less", "all", "more than there was", "nothing"],
)
def test_the_leader_remembers_what_the_target_has_deleted(last_sequence, next_offset):
    """Ten offsets are gone; the position is of sequence -1, and of the present leader."""
    brokers = Brokers([replace(OPEN, target_epoch=3)], target_start=30, last_sequence=last_sequence)

    taken = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    assert isinstance(taken, Ownership)
    points = taken.tasks[0].points
    assert (points[ORDERS].next_source_offset if points else None) == next_offset


def test_only_the_leader_of_the_writer_knows_that_it_wrote_nothing():
    """Another one may know the epoch by a marker alone."""
    brokers = Brokers([OPEN], target_start=30, last_sequence=-1)

    taken = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    assert isinstance(taken, Ownership)
    assert taken.tasks[0].problems == {ORDERS: PartitionProblem.TARGET_TRIMMED}


@pytest.mark.parametrize(
    ("target_start", "problems"), [(23, {}), (24, {ORDERS: PartitionProblem.TARGET_TRIMMED})]
)
def test_the_markers_behind_a_position_may_be_gone(target_start, problems):
    brokers = Brokers([replace(OPEN, plain_start=23)], target_start=target_start)

    taken = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    assert isinstance(taken, Ownership)
    assert taken.tasks[0].problems == problems
    assert problems or taken.tasks[0].points[ORDERS].next_source_offset == OPEN.next_source_offset


def test_a_start_stores_where_its_plain_batches_can_begin():
    """Behind the marker of its fence, so that the marker does not count as a lost record."""
    brokers = Brokers([replace(OPEN, records=10, counting=1)])

    brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    (position,) = [one for transaction in brokers.transactions for one in transaction.positions]
    assert (position.target_end, position.plain_start) == (OPEN.target_end, TARGET_END)


@pytest.mark.parametrize("time_ms", [-1, 0, 10**15], ids=["unknown", "long ago", "by a clock ahead"])
def test_a_start_waits_for_a_writer_whose_id_was_forgotten_by_its_own_clock(time_ms):
    """Once, and its own claim is renewed meanwhile: a standby that took the flow would have to wait anew."""
    brokers = Brokers([replace(OPEN, time_ms=time_ms)])
    brokers.refuses_positions = True

    brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    assert IDLE_LIMIT_MS < brokers.paused_ms < 2 * IDLE_LIMIT_MS
    claims = [one.claim.time_ms for one in brokers.transactions if one.claim is not None]
    assert max(after - before for before, after in pairwise(claims)) < ABANDONED_MS


def test_a_task_that_waits_leaves_the_claim_to_its_owner():
    brokers = Brokers([OPEN])
    owned = Ownership(plan=plan(ORDERS, copies=OWN_COPIES), lock=Producer("lock", 1, 0), tasks=())

    brokers.run(recover_task(owned, WriterIds("t", "t-plain"), [ORDERS]))

    assert brokers.paused_ms > IDLE_LIMIT_MS
    assert [one.claim for one in brokers.transactions if one.claim is not None] == []


def test_a_plain_id_whose_epochs_are_used_up_gets_another_producer_id_behind_its_last_fence():
    brokers = Brokers([OPEN])
    brokers.given["t-plain"] = [(7, 32_766), (8, 16)]
    brokers.batches = (LogBatch(40, 40, 7, 32_766, -1, is_transactional=True, marker=Marker.ABORT),)
    owned = Ownership(plan=plan(ORDERS, copies=OWN_COPIES), lock=Producer("lock", 1, 0), tasks=())

    start = brokers.run(recover_task(owned, WriterIds("t", "t-plain"), [ORDERS]))

    assert isinstance(start, SessionStart)
    assert start.producers.plain == Producer("t-plain", 8, 16)
    (fence,) = [one for one in brokers.transactions if one.partitions]
    assert fence.producer == Producer("t-plain", 7, 32_766)
    (position,) = [one for transaction in brokers.transactions for one in transaction.positions]
    assert (position.producer_id, position.producer_epoch) == (8, 16)
    assert brokers.paused_ms == 0


def test_a_source_without_the_epoch_of_the_last_record_is_not_asked_for_it_again():
    """Each fetch that names it would diverge; one that names the epoch before finds the next loss."""
    position = replace(stored(ORDERS, target_topic="east.orders"), source_epoch=2)
    brokers = Brokers([position], source_ends={1: 20})

    taken = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES, loss_policy=LossPolicy.ALERT)))

    assert isinstance(taken, Ownership)
    point = taken.tasks[0].points[ORDERS]
    assert (point.next_source_offset, point.source_epoch) == (10, 1)
    assert not taken.tasks[0].losses


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_task_takes_its_spare_id_while_its_last_transaction_cannot_end(*, is_busy):
    """Before 4.0, brokers keep the id busy while a partition of the transaction has no leader."""
    brokers = Brokers([OPEN])
    brokers.busy = {"t"} if is_busy else set()
    owned = Ownership(plan=plan(ORDERS, copies=OWN_COPIES), lock=Producer("lock", 1, 0), tasks=())

    start = brokers.run(recover_task(owned, WriterIds("t", "t-plain"), [ORDERS]))

    assert isinstance(start, SessionStart)
    assert start.producers.ids == WriterIds("t-spare" if is_busy else "t", "t-plain")
    assert brokers.transactions[-1].positions[0].writer == start.producers.ids


def written(name: str, first: int, last: int, *, marker: Marker | None = None) -> LogBatch:
    """A batch of a transaction, or its marker."""
    return LogBatch(first, last, sum(name.encode()), 16, 0, is_transactional=True, marker=marker)


@pytest.mark.parametrize("marker", Marker)
def test_records_of_a_stored_position_are_copied_again_if_they_were_aborted(marker):
    """The partition had no leader when their marker was due, and the transaction that was to write it was interrupted."""
    brokers = Brokers([OPEN])
    brokers.batches = (
        written("t", 15, 19),
        written("t", 20, 20, marker=marker),
        written("t-plain", 21, 21, marker=Marker.ABORT),
    )

    taken = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    assert isinstance(taken, Ownership)
    expected = MAPPED if marker is Marker.ABORT else OPEN.next_source_offset
    assert taken.tasks[0].points[ORDERS].next_source_offset == expected

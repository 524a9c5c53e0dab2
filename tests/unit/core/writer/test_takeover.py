"""Partitions start after the last written record with fencing, and after the stored position without fencing."""

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
from mirrorflow_core.writer.partition_start import start_of_partition
from mirrorflow_core.writer.position import WriterPosition, obeyed_position
from mirrorflow_core.writer.takeover import start_unfenced
from mirrorflow_core.writer.transaction_log import LogBatch, Marker
from mirrorflow_core.writer.transactional_ids import WriterIds
from tests.unit.core.writer.logs import aborted_after

T = TypeVar("T")

ORDERS, PAYMENTS = TopicPartition("orders", 0), TopicPartition("payments", 0)
SOURCE_START, SOURCE_EPOCH, TARGET_END = 5, 4, 50
CONFIGURED_START = 6  # of partitions that were never copied
PRODUCER = Producer("", 99, 0)
UNFENCED_REASON = "an ACL is missing"
IDLE_LIMIT_MS = 600_000  # connections.max.idle.ms
MAPPED = 6  # the source offset that the offset map returns for the first batch of the target


class Brokers:
    """Brokers without records after the stored positions. They record transactions and loss reports."""

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
        self.source_ends = source_ends or {}  # end offsets by leader epoch
        self.target_ends = target_ends or {}
        self.target_start = target_start
        self.last_sequence = last_sequence  # in the producer state of the leader
        self.batches: tuple[LogBatch, ...] = ()  # batches in the target
        self.busy: set[str] = set()  # ids whose last transaction cannot end
        # The next producer ids and epochs of an id.
        self.next_producers: dict[str, list[tuple[int, int]]] = {}
        self.paused_ms = 0
        self.refuses_positions = False  # applies to one request
        self.transactions: list[Transaction] = []
        self.unread: dict[TopicPartition, MirrorFlowError] = {}  # partitions without an available leader
        # Partitions that transactions must not include.
        self.denied: dict[TopicPartition, MirrorFlowError] = {}
        # The next source offset of each reported loss, and the number of transactions before the report.
        self.reported: list[tuple[int, int]] = []

    def respond(self, request: Request) -> Any:
        match request:
            case InitProducerId(name) if name in self.busy:
                return Busy()
            case InitProducerId(name) if self.next_producers.get(name):
                return Producer(name, *self.next_producers[name].pop(0))
            case InitProducerId(name):
                return Producer(name, sum(name.encode()), 16)
            case Transaction() if request.positions and self.refuses_positions:
                self.refuses_positions = False
                return Refused(NO_RESPONSE)
            case Transaction():
                self.transactions.append(request)
                return Done(
                    {
                        partition: error
                        for partition, error in self.denied.items()
                        if partition in request.partitions
                    }
                )
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
                assert start >= self.target_start, "a fetch before the log start is refused"
                return tuple(
                    batch for batch in self.batches if batch.last_offset >= start and batch.base_offset < end
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
            case ReadSourceStart(_, from_beginning):
                return SourceStart(SOURCE_START if from_beginning else CONFIGURED_START, SOURCE_EPOCH)
            case ReadEpochEnd():
                ends = self.target_ends if request.on_target else self.source_ends
                epoch = max((known for known in ends if known <= request.epoch), default=-1)
                return LeaderEpochEnd(epoch, ends.get(epoch, -1))
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
    """Returns the position of a writer that has left."""
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


def test_a_task_with_many_partitions_stores_where_it_starts_in_several_transactions() -> None:
    partitions = [TopicPartition("orders", number) for number in range(1_500)]
    brokers = Brokers()

    owned = brokers.run(take_flow(plan(*partitions, copies=OWN_COPIES)))

    assert isinstance(owned, Ownership)
    sizes = [len(transaction.positions) for transaction in brokers.transactions if transaction.positions]
    assert sizes == [1_000, 500]


JAVA_PRODUCER_ID = 7


class LostMarkers(Brokers):
    """Brokers whose offsets topic lacks a marker, that of the transaction with the second of two positions."""

    def __init__(self, batches: tuple[LogBatch, ...]) -> None:
        super().__init__()
        self.batches = batches
        positions = [
            WriterPosition(topic="orders", partition=0, next_source_offset=offset, target_end=end, writer=IDS)
            for offset, end in ((10, 40), (20, 45))
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
                offset = len(self.log)
                rows = tuple((offset, position) for position in positions)
                self.log.append(
                    LogBatch(offset, offset, *producer[1:], 0, is_transactional=True, records=rows)
                )
                marker = Marker.COMMIT if commit else Marker.ABORT
                self.log.append(LogBatch(offset + 1, offset + 1, *producer[1:], -1, True, marker))
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

    owned = brokers.run(take_flow(plan(ORDERS, copies={})))

    assert isinstance(owned, Ownership)
    assert owned.tasks[0].points[ORDERS].next_source_offset == next_source_offset
    positions = [transaction for transaction in brokers.transactions if transaction.positions]
    aborted = [
        transaction
        for transaction in brokers.transactions
        if transaction.is_barrier and not transaction.commit
    ]
    assert [transaction.producer.transactional_id for transaction in aborted] == [IDS.transactional]
    if marker is Marker.COMMIT:
        assert positions[0].producer.transactional_id == IDS.plain
        assert brokers.transactions.index(positions[0]) < brokers.transactions.index(aborted[0])


class KilledError(Exception):
    """The process is killed inside a transaction, which the next owner of the id aborts."""


class KilledInTransaction(LostMarkers):
    """Like `LostMarkers`, but the process is killed in the transaction with index *number* on the offsets topic."""

    def __init__(self, batches: tuple[LogBatch, ...], number: int) -> None:
        super().__init__(batches)
        self.remaining = number

    def respond(self, request: Request) -> Any:
        if isinstance(request, Transaction) and (request.positions or request.is_barrier):
            if self.remaining == 0:
                self.remaining = -1
                super().respond(request._replace(commit=False))
                raise KilledError
            self.remaining -= 1
        return super().respond(request)


def killed_in_transaction(number: int, batches: tuple[LogBatch, ...]) -> KilledInTransaction | None:
    """Returns the brokers after a takeover that was killed in transaction *number*, or None if it had fewer."""
    brokers = KilledInTransaction(batches, number)
    try:
        brokers.run(take_flow(plan(ORDERS, copies={})))
    except KilledError:
        return brokers
    return None


def test_a_takeover_killed_in_any_of_its_transactions_loses_no_position() -> None:
    """Each interrupted transaction is aborted, including one that would have committed the position under its own id."""
    writer = id_of(IDS.transactional), 15
    batches = (
        LogBatch(40, 44, *writer, 0, is_transactional=True),
        LogBatch(45, 45, *writer, -1, is_transactional=True, marker=Marker.COMMIT),
    )
    offsets: list[int] = []
    while (brokers := killed_in_transaction(len(offsets), batches)) is not None:
        ownership = brokers.run(take_flow(plan(ORDERS, copies={})))
        assert isinstance(ownership, Ownership)
        offsets.append(ownership.tasks[0].points[ORDERS].next_source_offset)

    assert len(offsets) > 2
    assert set(offsets) == {20}


def test_a_task_takes_its_spare_id_while_positions_of_its_first_id_are_undecided() -> None:
    error = MirrorFlowError("orders-0 has no leader")
    brokers = LostMarkers(())
    brokers.unread = {ORDERS: error}

    owned = brokers.run(take_flow(plan(ORDERS, PAYMENTS, copies={})))

    assert isinstance(owned, Ownership)
    (task,) = owned.tasks
    assert task.waiting == {ORDERS: error}
    assert [*task.points] == [PAYMENTS]
    assert task.producers.ids == WriterIds(IDS.spare, IDS.plain)
    ended = [
        transaction.producer.transactional_id
        for transaction in brokers.transactions
        if transaction.positions or transaction.is_barrier
    ]
    assert IDS.transactional not in ended


class JavaTransaction(LostMarkers):
    """Brokers where a transaction of Java with the second of two positions ends while the offsets topic is read."""

    def __init__(self) -> None:
        super().__init__(())
        java = WriterPosition(topic="orders", partition=0, next_source_offset=20)
        self.log[1] = self.log[1]._replace(producer_id=JAVA_PRODUCER_ID, records=((1, java),))
        self.reads = 0

    def respond(self, request: Request) -> Any:
        if isinstance(request, ReadPositions):
            self.reads += 1
            if self.reads == 4:
                offset = len(self.log)
                self.log.append(LogBatch(offset, offset, JAVA_PRODUCER_ID, 15, -1, True, Marker.COMMIT))
        return super().respond(request)


def test_a_takeover_waits_for_an_open_transaction_of_java() -> None:
    owned = JavaTransaction().run(take_flow(plan(ORDERS, copies={})))

    assert isinstance(owned, Ownership)
    assert owned.tasks[0].points[ORDERS].next_source_offset == 20


@pytest.mark.parametrize(
    ("copies", "positions", "owner"),
    [
        (OWN_COPIES, [stored(PAYMENTS, target_topic="east.payments")], None),
        (ONE_COPY, [stored(PAYMENTS, target_topic="all")], "payments"),
        (ONE_COPY, [stored(PAYMENTS, target_topic="east.payments")], None),
        (ONE_COPY, [stored(ORDERS, target_topic="all"), stored(PAYMENTS, target_topic="all")], None),
    ],
    ids=["own target", "target of a different topic", "target changed since", "both were copied before"],
)
def test_a_topic_is_not_copied_into_the_target_of_a_different_topic(copies, positions, owner):
    """The other topic keeps its target even if it is no longer copied."""
    brokers = Brokers(positions)

    owned = brokers.run(take_flow(plan(ORDERS, copies=copies)))

    assert isinstance(owned, Ownership)
    (task,) = owned.tasks
    is_taken = owner is not None
    assert task.owners == ({ORDERS: owner} if is_taken else {})
    assert task.problems == ({ORDERS: PartitionProblem.TARGET_TAKEN} if is_taken else {})
    assert set(task.points) == (set() if is_taken else {ORDERS})
    written_topics = [
        position.topic for transaction in brokers.transactions for position in transaction.positions
    ]
    assert written_topics == ([] if is_taken else ["orders"])


def test_the_first_stored_position_has_the_epoch_of_the_first_record():
    """Plain batches with that epoch then need no further position."""
    brokers = Brokers()

    brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    (position,) = [position for transaction in brokers.transactions for position in transaction.positions]
    assert position.next_source_offset == CONFIGURED_START
    assert (position.source_epoch, position.epochs) == (
        SOURCE_EPOCH,
        (EpochStart(SOURCE_EPOCH, CONFIGURED_START),),
    )


@pytest.mark.parametrize("step", ["before", "fence", "lookup"])
def test_a_partition_that_cannot_be_taken_over_waits_and_the_others_start(step):
    """Its stored position stays, because it names the writer that is not yet fenced."""
    error = MirrorFlowError("denied")
    open_writer = {"left": False, "producer_id": Brokers().respond(InitProducerId("t-plain")).producer_id}
    brokers = Brokers(
        replace(stored(partition, target_topic=f"east.{partition.topic}"), **open_writer)
        for partition in (ORDERS, PAYMENTS)
    )
    brokers.batches = (fence_marker(open_writer["producer_id"]),)
    flow_plan = plan(ORDERS, PAYMENTS, copies=OWN_COPIES)
    match step:
        case "before":
            flow_plan = replace(flow_plan, unavailable={ORDERS: error})
        case "fence":
            brokers.denied[ORDERS] = error
        case "lookup":
            brokers.unread[ORDERS] = error

    owned = brokers.run(take_flow(flow_plan))

    assert isinstance(owned, Ownership)
    (task,) = owned.tasks
    assert (set(task.points), task.problems, task.waiting) == ({PAYMENTS}, {}, {ORDERS: error})
    written_topics = [
        position.topic for transaction in brokers.transactions for position in transaction.positions
    ]
    assert written_topics == ["payments"]


def fence_marker(producer_id: int) -> LogBatch:
    return LogBatch(49, 49, producer_id, 16, -1, is_transactional=True, marker=Marker.ABORT)


def test_only_the_first_of_two_new_topics_with_the_same_target_is_copied():
    brokers = Brokers()

    owned = brokers.run(take_flow(plan(ORDERS, PAYMENTS, copies=ONE_COPY)))

    assert isinstance(owned, Ownership)
    (task,) = owned.tasks
    assert (set(task.points), task.owners) == ({ORDERS}, {PAYMENTS: "orders"})


def unfenced(
    *positions: Position,
    loss_policy: LossPolicy = LossPolicy.FAIL,
    source_ends: Mapping[int, int] | None = None,
) -> Any:
    """Returns the start of a session with one partition and without fencing."""
    brokers = Brokers(source_ends=source_ends)
    known = {
        TopicPartition(position.topic, position.partition): obeyed_position(position)
        for position in positions
    }
    steps = start_unfenced(
        plan(copies=OWN_COPIES, loss_policy=loss_policy), PRODUCER, [ORDERS], known, UNFENCED_REASON
    )
    start = brokers.run(steps)
    assert brokers.transactions == []
    assert start.unfenced_reason == UNFENCED_REASON
    assert start.producers.plain == start.producers.transactional == PRODUCER
    return start


COPIED = Position(topic="orders", partition=0, source_offset=9, source_epoch=2)


@pytest.mark.parametrize(
    ("positions", "next_offset", "epoch"), [((), CONFIGURED_START, SOURCE_EPOCH), ((COPIED,), 10, 2)]
)
def test_without_fencing_a_task_starts_after_the_stored_position(positions, next_offset, epoch):
    """Records after the position are written again at the end of the target."""
    start = unfenced(*positions)

    point = start.points[ORDERS]
    assert (point.next_source_offset, point.source_epoch) == (next_offset, epoch)
    assert (point.target_end, point.target_epoch, point.sequence) == (TARGET_END, 3, -1)


def test_without_fencing_a_rewritten_source_is_detected():
    """Leader epoch 2 of the source ends at offset 7, so three copied offsets now have different records."""
    start = unfenced(COPIED, source_ends={2: 7})

    assert start.points == {}
    assert start.problems == {ORDERS: PartitionProblem.SOURCE_REWRITTEN}
    assert start.losses == {ORDERS: SourceLoss(10, 7, PartitionProblem.SOURCE_REWRITTEN)}


def test_without_fencing_a_source_that_returned_to_an_earlier_epoch_is_copied_from_the_difference():
    """The source has more records of that epoch than were copied before the next epoch started."""
    position = replace(COPIED, epochs=(EpochStart(1, 4), EpochStart(2, 6)))

    start = unfenced(position, loss_policy=LossPolicy.ALERT, source_ends={1: 8})

    assert start.points[ORDERS].next_source_offset == 6


@pytest.mark.parametrize(
    ("loss_policy", "next_offset"), [(LossPolicy.ALERT, 7), (LossPolicy.RESTART, SOURCE_START)]
)
def test_without_fencing_the_loss_policy_decides_where_to_continue(loss_policy, next_offset):
    start = unfenced(COPIED, loss_policy=loss_policy, source_ends={2: 7})

    assert start.points[ORDERS].next_source_offset == next_offset
    assert start.losses[ORDERS].wanted == 10


@pytest.mark.parametrize(
    ("side", "loss_policy", "next_offset"),
    [
        ("source", LossPolicy.ALERT, SOURCE_START),
        ("source", LossPolicy.RESTART, SOURCE_START),
        ("target", LossPolicy.ALERT, 10),
        ("target", LossPolicy.RESTART, SOURCE_START),
    ],
)
def test_a_topic_that_was_created_again_is_copied_from_its_beginning(
    side: str, loss_policy: LossPolicy, next_offset: int
) -> None:
    """The configured start is for partitions that were never copied."""
    position = replace(
        stored(ORDERS, target_topic="east.orders"), source_topic_id="source-1", target_topic_id="target-1"
    )
    now = {"source": "source-1", "target": "target-1", side: "other"}
    copies = {"orders": TopicIds(now["source"], now["target"], "east.orders")}
    assigned = plan(ORDERS, copies=copies, loss_policy=loss_policy)

    start = Brokers([position]).run(start_of_partition(assigned, {}, ORDERS, position))

    assert start.point is not None
    assert start.point.next_source_offset == next_offset
    assert start.loss is not None
    assert start.loss.found == next_offset


EPOCHS = (EpochStart(0, 0), EpochStart(1, 4), EpochStart(2, 6))


@pytest.mark.parametrize(
    ("source_ends", "next_offset"),
    [
        ({2: 20, 1: 8}, 10),  # the source has the epoch of the last record, and more records
        ({1: 20}, 6),  # the source has more records of the previous epoch than were copied
        ({1: 5}, 5),
        ({0: 3, 1: 5, 3: 20}, 5),
        ({0: 20}, 4),  # longer in the epoch before the previous one
        ({0: 3, 2: 20}, 10),
    ],
    ids=[
        "same log",
        "longer in the previous epoch",
        "shorter in the previous epoch",
        "new epochs after it",
        "longer two epochs before",
        "compacted",
    ],
)
def test_a_source_without_the_epoch_of_the_last_record_is_compared_by_earlier_epochs(
    source_ends, next_offset
):
    """Records from offset 6 on were copied in epoch 2, and records 4 and 5 in epoch 1."""
    position = replace(stored(ORDERS, target_topic="east.orders"), source_epoch=2, epochs=EPOCHS)
    brokers = Brokers([position], source_ends=source_ends)

    owned = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES, loss_policy=LossPolicy.ALERT)))

    assert isinstance(owned, Ownership)
    assert owned.tasks[0].points[ORDERS].next_source_offset == next_offset


OPEN = replace(
    stored(ORDERS, target_topic="east.orders"),
    left=False,
    producer_id=7,
    producer_epoch=16,
    target_end=20,
    target_epoch=2,
)
ACKNOWLEDGED = replace(OPEN, next_source_offset=15, sequence=4, target_end=25, records=15, generation=1)


@pytest.mark.parametrize(
    ("acknowledged", "target_ends", "next_offset"),
    [
        (ACKNOWLEDGED, {}, 15),
        (ACKNOWLEDGED, {2: 25}, 15),
        (ACKNOWLEDGED, {2: 22}, 10),
        (replace(ACKNOWLEDGED, producer_epoch=15), {}, 10),
        (replace(ACKNOWLEDGED, next_source_offset=9), {}, 10),
    ],
    ids=["unknown", "kept", "lost by the target", "from an earlier writer", "older than the stored position"],
)
def test_a_session_continues_after_the_records_acknowledged_in_the_previous_one(
    acknowledged, target_ends, next_offset
):
    """The target's log does not show them, because retention has removed the records."""
    brokers = Brokers([OPEN], target_ends=target_ends)
    lock = Producer("lock", 1, 0)
    owned = Ownership(plan=plan(ORDERS, copies=OWN_COPIES), lock=lock, tasks=())
    ids = WriterIds("t", "t-plain")

    start = brokers.run(recover_task(owned, ids, [ORDERS], [acknowledged]))

    assert isinstance(start, SessionStart)
    assert start.points[ORDERS].next_source_offset == next_offset


@pytest.mark.parametrize("is_left", [False, True])
@pytest.mark.parametrize("acknowledged", [ACKNOWLEDGED, OPEN], ids=["newer", "as stored"])
def test_batches_of_another_producer_do_not_count_as_copied(acknowledged, *, is_left):
    """The last session has found the batch: it marks its position as left, because none of its own batches follow."""
    brokers = Brokers([OPEN])
    first = acknowledged.target_end
    brokers.batches = (
        LogBatch(first, first + 2, 7, 16, acknowledged.sequence + 1, is_transactional=False),
        LogBatch(first + 3, first + 3, 7, 17, -1, is_transactional=True, marker=Marker.ABORT),
    )
    brokers.next_producers = {"t-plain": [(7, 17)]}
    owned = Ownership(plan=plan(ORDERS, copies=OWN_COPIES), lock=Producer("lock", 1, 0), tasks=())

    start = brokers.run(
        recover_task(owned, WriterIds("t", "t-plain"), [ORDERS], [replace(acknowledged, left=is_left)])
    )

    assert isinstance(start, SessionStart)
    copied = 0 if is_left else 3
    assert start.points[ORDERS].next_source_offset == acknowledged.next_source_offset + copied


@pytest.mark.parametrize(
    ("loss_policy", "next_offset"), [(LossPolicy.FAIL, None), (LossPolicy.ALERT, 10), (LossPolicy.RESTART, 5)]
)
def test_the_loss_policy_applies_if_the_target_has_deleted_records_after_the_position(
    loss_policy, next_offset
):
    brokers = Brokers([OPEN], target_start=30)

    owned = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES, loss_policy=loss_policy)))

    assert isinstance(owned, Ownership)
    start = owned.tasks[0]
    assert start.losses[ORDERS].problem is PartitionProblem.TARGET_TRIMMED
    actual = start.points[ORDERS].next_source_offset if ORDERS in start.points else None
    assert actual == next_offset
    assert start.problems == ({ORDERS: PartitionProblem.TARGET_TRIMMED} if next_offset is None else {})
    stores = len(brokers.transactions) - 1
    assert brokers.reported == ([] if next_offset is None else [(next_offset, stores)])


@pytest.mark.parametrize(
    ("last_sequence", "next_offset"),
    [(4, 15), (9, 20), (10, None), (-1, 10)],
    ids=["some records", "all records", "more than deleted", "no records"],
)
def test_the_producer_state_shows_how_many_deleted_records_were_copied(last_sequence, next_offset):
    """Ten offsets are deleted. The position has sequence number -1 and the epoch of the current leader."""
    brokers = Brokers([replace(OPEN, target_epoch=3)], target_start=30, last_sequence=last_sequence)

    owned = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    assert isinstance(owned, Ownership)
    points = owned.tasks[0].points
    assert (points[ORDERS].next_source_offset if points else None) == next_offset


def test_only_the_leader_of_the_position_can_show_that_nothing_was_written():
    """A different leader may know the producer epoch only from a marker."""
    brokers = Brokers([OPEN], target_start=30, last_sequence=-1)

    owned = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    assert isinstance(owned, Ownership)
    assert owned.tasks[0].problems == {ORDERS: PartitionProblem.TARGET_TRIMMED}


@pytest.mark.parametrize(
    ("target_start", "problems"), [(23, {}), (24, {ORDERS: PartitionProblem.TARGET_TRIMMED})]
)
def test_deleted_markers_after_a_position_are_not_a_loss(target_start, problems):
    brokers = Brokers([replace(OPEN, plain_start=23)], target_start=target_start)

    owned = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    assert isinstance(owned, Ownership)
    assert owned.tasks[0].problems == problems
    assert problems or owned.tasks[0].points[ORDERS].next_source_offset == OPEN.next_source_offset


def test_a_session_stores_the_first_possible_offset_of_its_plain_batches():
    """The offset follows the fence marker, so that a deleted marker does not count as a lost record."""
    brokers = Brokers([replace(OPEN, records=10, generation=1)])

    brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    (position,) = [position for transaction in brokers.transactions for position in transaction.positions]
    assert (position.target_end, position.plain_start) == (OPEN.target_end, TARGET_END)


@pytest.mark.parametrize("time_ms", [-1, 0, 10**15], ids=["unknown", "long ago", "in the future"])
def test_a_session_waits_for_a_writer_with_an_expired_id_by_its_own_clock(time_ms):
    """The session waits once and renews its claim. Otherwise a standby that takes over would have to wait again."""
    brokers = Brokers([replace(OPEN, time_ms=time_ms)])
    brokers.refuses_positions = True

    brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    assert IDLE_LIMIT_MS < brokers.paused_ms < 2 * IDLE_LIMIT_MS
    claims = [
        transaction.claim.time_ms for transaction in brokers.transactions if transaction.claim is not None
    ]
    assert max(after - before for before, after in pairwise(claims)) < ABANDONED_MS


def test_a_waiting_task_does_not_renew_the_claim():
    brokers = Brokers([OPEN])
    owned = Ownership(plan=plan(ORDERS, copies=OWN_COPIES), lock=Producer("lock", 1, 0), tasks=())

    brokers.run(recover_task(owned, WriterIds("t", "t-plain"), [ORDERS]))

    assert brokers.paused_ms > IDLE_LIMIT_MS
    assert [transaction for transaction in brokers.transactions if transaction.claim is not None] == []


def test_a_plain_id_with_exhausted_epochs_gets_a_new_producer_id_after_its_last_fence():
    brokers = Brokers([OPEN])
    brokers.next_producers["t-plain"] = [(7, 32_766), (8, 16)]
    brokers.batches = (LogBatch(40, 40, 7, 32_766, -1, is_transactional=True, marker=Marker.ABORT),)
    owned = Ownership(plan=plan(ORDERS, copies=OWN_COPIES), lock=Producer("lock", 1, 0), tasks=())

    start = brokers.run(recover_task(owned, WriterIds("t", "t-plain"), [ORDERS]))

    assert isinstance(start, SessionStart)
    assert start.producers.plain == Producer("t-plain", 8, 16)
    (fence,) = [transaction for transaction in brokers.transactions if transaction.partitions]
    assert fence.producer == Producer("t-plain", 7, 32_766)
    (position,) = [position for transaction in brokers.transactions for position in transaction.positions]
    assert (position.producer_id, position.producer_epoch) == (8, 16)
    assert brokers.paused_ms == 0


def test_fetches_do_not_name_an_epoch_that_the_source_lacks():
    """Each such fetch would diverge. With the previous epoch, a fetch can detect the next loss."""
    position = replace(stored(ORDERS, target_topic="east.orders"), source_epoch=2)
    brokers = Brokers([position], source_ends={1: 20})

    owned = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES, loss_policy=LossPolicy.ALERT)))

    assert isinstance(owned, Ownership)
    point = owned.tasks[0].points[ORDERS]
    assert (point.next_source_offset, point.source_epoch) == (10, 1)
    assert not owned.tasks[0].losses


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_task_takes_its_spare_id_while_its_last_transaction_cannot_end(*, is_busy):
    """Brokers before 4.0 keep the id busy while a partition of the transaction has no leader."""
    brokers = Brokers([OPEN])
    brokers.busy = {"t"} if is_busy else set()
    owned = Ownership(plan=plan(ORDERS, copies=OWN_COPIES), lock=Producer("lock", 1, 0), tasks=())

    start = brokers.run(recover_task(owned, WriterIds("t", "t-plain"), [ORDERS]))

    assert isinstance(start, SessionStart)
    assert start.producers.ids == WriterIds("t-spare" if is_busy else "t", "t-plain")
    assert brokers.transactions[-1].positions[0].writer == start.producers.ids


def transaction_batch(name: str, first: int, last: int, *, marker: Marker | None = None) -> LogBatch:
    """Returns a batch of a transaction, or its marker."""
    return LogBatch(first, last, sum(name.encode()), 16, 0, is_transactional=True, marker=marker)


@pytest.mark.parametrize("marker", Marker)
def test_aborted_records_of_a_stored_position_are_copied_again(marker):
    """When the marker was due, the partition had no leader. The transaction that should have written it was aborted."""
    brokers = Brokers([OPEN])
    brokers.batches = (
        transaction_batch("t", 15, 19),
        transaction_batch("t", 20, 20, marker=marker),
        transaction_batch("t-plain", 21, 21, marker=Marker.ABORT),
    )

    owned = brokers.run(take_flow(plan(ORDERS, copies=OWN_COPIES)))

    assert isinstance(owned, Ownership)
    expected = MAPPED if marker is Marker.ABORT else OPEN.next_source_offset
    assert owned.tasks[0].points[ORDERS].next_source_offset == expected

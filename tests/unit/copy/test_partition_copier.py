"""A partition copier, its task's writer and a leader with Kafka's rules: the target gets each source record once, whatever happens.

The test replaces reader, pipe and brokers and decides what happens next. Everything between them is real, also the start of
the task (`mirrorflow_core.writer.ownership`) and its transactions.
"""

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.reports import Guarantee
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.transforms import RenameRule
from mirrorflow_core.wire.fetch import FetchedPartition, FetchKey
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_core.writer.broker_requests import (
    Done,
    InitProducerId,
    LeaderEpochEnd,
    LogEnd,
    Pause,
    Producer,
    ReadBatches,
    ReadEnd,
    ReadEpochEnd,
    ReadPositions,
    ReadSourceStart,
    SourceStart,
    Transaction,
)
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.flow_plan import FlowPlan, TopicIds
from mirrorflow_core.writer.form import ChangeForm
from mirrorflow_core.writer.ownership import Ownership, recover_task
from mirrorflow_core.writer.position import Form, WriterPosition, obeyed_position
from mirrorflow_core.writer.takeover import start_unfenced
from mirrorflow_core.writer.transaction_log import LogBatch
from mirrorflow_replicator.copy.copier_context import CopierContext, CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.partition_reports import partition_report
from mirrorflow_replicator.copy.task_transaction import TaskTransaction
from mirrorflow_replicator.copy.task_writer import UnfencedWriter
from mirrorflow_replicator.copy.writer_resumer import WriterResumer
from tests.unit.copy.leader import NOT_ENOUGH_REPLICAS, Leader
from tests.unit.copy.test_batch_packer import WHEN, in_epoch, without
from tests.unit.core.wire.strategies import batch_of

STEPS = 120
SETTLE_STEPS = 1_000  # undisturbed: many times what it needs
HALF_DAY_MS = 12 * 3_600_000  # from this age on, a record is old
ORDERS = TopicPartition("orders", 2)
PLAN = FlowPlan(
    claim=Claim(flow="east->west", process="p", source_alias="east", tasks=1, lock_epoch=16, time_ms=0),
    assignment=(),
    topic_ids={"orders": TopicIds("s", "t", "east.orders")},
)
UNFENCED = "the principal has no Write ACL"


def finished(steps, answer):
    """What a protocol returns, whose requests are answered at once."""
    answers = None
    try:
        while True:
            requests = steps.send(answers)
            answers = tuple(map(answer, requests))
    except StopIteration as end:
        return end.value


def run(coroutine):
    """What a coroutine returns that never waits."""
    return finished(coroutine, None)


class Source:
    """Batches that are fetched a few at a time. *has_gaps*: compaction has removed some records."""

    def __init__(self, chance, *, has_gaps=False, value=b"%d"):
        self.batches = []
        self.records = []
        offset = 100
        for _ in range(chance.randint(5, 30)):
            count = chance.choice((1, 1, 1, 2, 5, 30))
            records = [Record(0, WHEN + offset + i, b"k", value % (offset + i)) for i in range(count)]
            batch = batch_of(records, base_offset=offset, codec=chance.choice((0, 0, 4)))
            offset += count
            if has_gaps and not chance.randrange(6):
                batch = without(batch, {0, count // 2}) or batch
            offset += chance.choice((0, 0, 0, 3)) if has_gaps else 0
            self.batches.append(in_epoch(batch, offset // 150))
            self.records += [record[1:] for record in decode(batch)]
        self.end = self.batches[-1].next_offset

    def answer(self, offset, chance):
        """From the batch that holds *offset* on."""
        there = [batch for batch in self.batches if batch.next_offset > offset][: chance.randint(1, 6)]
        data = bytearray(b"".join(bytes(batch.data) for batch in there))
        return FetchedPartition(FetchKey(b"orders", 2), 0, self.end, self.end, 100, (), -1, memoryview(data))


class Copier:
    """The copier of one partition in the starts of its task that follow each other, and what surrounds it."""

    partition_bytes = 1 << 20
    is_connected = True
    lane: PartitionCopier

    def __init__(self, source, leader, chance, now_ms, *, unfenced_why=""):
        self.source, self.leader, self.chance, self.now_ms = source, leader, chance, now_ms
        self.unfenced_why = unfenced_why
        self.syncs: Any = None
        self.position: WriterPosition | None = None
        self.flying: deque[bytes] = deque()  # batches that the leader has not read yet
        self.late: deque[bytes] = deque()  # likewise, of connections that the task has closed
        self.starts = 0
        self._epochs: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self.begin()

    # -- the task

    def begin(self):
        """Start the task, after a former start has ended."""
        self.starts += 1
        self.why_over = ""
        self.is_doubtful = False
        earlier = getattr(self, "lane", None)
        metadata = SimpleNamespace(
            topic_id={"orders": "s", "east.orders": "t"}.get, leader_epoch=lambda *_: self.leader.epoch
        )
        cluster: Any = SimpleNamespace(metadata=metadata)
        start = self._start()
        self.writer: Any = (
            UnfencedWriter(self, end_task=self.end_start)  # type: ignore[arg-type]  # it only writes
            if self.unfenced_why
            else TaskTransaction(cluster, self, start, pump=lambda: None, end_task=self.end_start)  # type: ignore[arg-type]
        )
        around = CopierContext(
            read_committed=False,
            doubtful=self.doubtful,
            source_trouble=self.unexpected,
            refused=lambda _, code, *__: self.writer.refused(code),
            stopped=self.unexpected,
            changed=lambda _: None,
            clock_ms=lambda: self.now_ms,
            writer=self.writer,
            plain_producer=start.producers.plain,
            syncs=self.syncs,
            unfenced_why=self.unfenced_why,
        )
        self.lane = PartitionCopier(ORDERS, RenameRule(name="east.orders"), around)
        if earlier is not None:
            self.lane.inherit(earlier)
        self.lane.reader = self  # type: ignore[assignment]  # what a copier needs of it
        self.lane.pipe = self  # type: ignore[assignment]
        settings: Any = SimpleNamespace(on_source_loss=LossPolicy.FAIL)
        self.resumer = WriterResumer(
            source=cluster,
            target=cluster,
            start=start,
            writer=self.writer,
            settings=settings,
            stamped=around.stamped,
            end_task=self.end_start,
        )
        self.lane.connected()

    def _start(self):
        if self.unfenced_why:
            positions = {} if self.position is None else {ORDERS: self.position}
            producer = Producer("", 1_000 + self.starts, 0)
            return finished(
                start_unfenced(PLAN, producer, [ORDERS], positions, self.unfenced_why), self.broker
            )
        owned = Ownership(plan=PLAN, lock=Producer(PLAN.ids.lock, 1, 16), tasks=())
        return finished(recover_task(owned, PLAN.ids.task(0), [ORDERS]), self.broker)

    def broker(self, request):
        """Answer a request of the ownership protocol."""
        match request:
            case InitProducerId(name):
                return self._init(name)
            case Transaction():
                for _ in request.partitions:
                    self.leader.mark(request.producer, commit=request.commit)
                for position in request.positions:
                    self.position = position
                return Done()
            case ReadPositions():
                stored = () if self.position is None else ((0, self.position),)
                return ((LogBatch(0, 0, -1, -1, -1, is_transactional=False, records=stored),),)
            case ReadEnd():
                return LogEnd(0, self.leader.end, self.leader.end, self.leader.epoch)
            case ReadBatches(_, start, end):
                return tuple(
                    one for one in self.leader.log if start <= one.last_offset and one.base_offset < end
                )
            case ReadSourceStart():
                return SourceStart(100, -1)
            case ReadEpochEnd():
                return LeaderEpochEnd(-1, -1)
            case Pause():
                return self.now_ms
        raise AssertionError(request)

    def _init(self, name):
        producer_id = self._ids.setdefault(name, len(self._ids) + 2)
        epoch = self._epochs[name] = self._epochs.get(name, 15) + 1
        producer = Producer(name, producer_id, epoch)
        if producer_id in self.leader.in_transaction:
            self.leader.mark(producer, commit=False)
        return producer

    def end_start(self, why):
        """The resumer's and the writer's."""
        self.why_over = why

    # -- what the copier and its writer call

    def ready(self, lane):
        """The pipe's."""

    def changed(self, topic, partition):
        """The reader's."""

    def doubtful(self, lane):
        self.is_doubtful = True

    def unexpected(self, lane, *why):
        raise AssertionError(why)

    async def begin_transaction(self, producer, positions):
        """The transactions'."""

    async def leader_epochs(self, partitions):
        """The transactions'."""
        return dict.fromkeys(partitions, self.leader.epoch)

    async def store_positions(self, producer, positions):
        """The transactions': only a commit makes them valid."""
        (self._uncommitted,) = positions

    async def end(self, producer, *, commit):
        assert commit
        self.position = self._uncommitted
        if producer.producer_id in self.leader.in_transaction:
            self.leader.mark(producer, commit=True)

    async def write(self, positions: list[Position], *, now_ms):
        """The position store's, where nothing is fenced."""
        (position,) = positions
        self.position = obeyed_position(position)

    # -- what happens

    @property
    def writing(self):
        """The writer of the copier, which has begun."""
        assert self.lane.writing is not None
        return self.lane.writing

    @property
    def is_done(self):
        stream = self.lane.stream
        return (
            not self.why_over
            and stream is not None
            and self.lane.state is CopierState.COPYING
            and stream.delivered.source_offset == self.source.end - 1
        )

    def ask(self):
        """Serve a copier in doubt, or start the task again."""
        if self.why_over:
            self.cut()
            self.begin()
        elif self.is_doubtful:
            self.is_doubtful = False
            self.resumer._serve(self.lane)

    def use_syncs(self, syncs):
        """Pass what is delivered to *syncs*, also in later starts."""
        self.syncs = self.lane.around.syncs = syncs

    def wait(self, hours):
        self.now_ms += hours * 3_600_000
        self.lane.around.look_at_clock()

    def fetch(self):
        at = self.lane.wanted()
        if at is not None and at.offset < self.source.end:
            self.lane.fetched(self.source.answer(at.offset, self.chance), at.offset)

    def send(self):
        if self.why_over:
            return
        data = None if self.lane.writing is None else self.lane.writing.next_batch()
        if data is not None:
            self.flying.append(bytes(data))

    def answer(self, *, may_refuse=False):
        if self.flying:
            answer = self.leader.append(self.flying.popleft(), may_refuse=may_refuse)
            if answer.code:
                self.writing.refused(answer.code, "")
            else:
                self.writing.acknowledged(answer.base_offset, answer.append_time_ms)

    def commit(self):
        """Store the position: in a transaction with the records that are written in it, if any."""
        if self.why_over or self.lane.writing is None:
            return
        if self.unfenced_why:
            run(self.writer.store([self.lane], left=False))
            return
        if self.writer._members:
            self.writing.hold()
            while self.flying:
                self.answer()
        run(self.writer.store([self.lane], left=False))
        if not self.why_over:
            run(self.writer._commit())

    def join(self):
        """Take the partition into the transaction, if it has records for it."""
        lane = self.lane
        if self.unfenced_why or self.why_over or lane.state is not CopierState.COPYING:
            return
        if self.writer._wanted.pop(lane.writing, lane) is None:
            producer = self.writer._producers.transactional
            self.leader.in_transaction[producer.producer_id] = producer.epoch
            self.writer._admit({lane.writing: lane.doubts}, {lane.target: 0})

    def cut(self):
        """The connection breaks: some of what was sent arrives, now or later, and no answer does."""
        for _ in range(self.chance.randint(0, len(self.flying))):
            self.leader.append(self.flying.popleft())
        self.late += self.flying
        self.flying.clear()
        for _ in range(len(self.lane.stream.in_flight) if self.lane.stream else 0):
            self.writing.lost()

    def reconnect(self):
        self.cut()
        self.lane.connected()

    def kill(self):
        """The process is killed, and another one takes the task over."""
        self.cut()
        self.begin()

    def arrive_late(self):
        if self.late:
            self.leader.append(self.late.popleft())

    def settle(self):
        """Undisturbed until all is there."""
        for _ in range(SETTLE_STEPS):
            for step in (self.ask, self.fetch, self.join, self.send, self.answer, self.commit):
                step()
            if self.is_done and not self.flying:
                self.commit()
                return
        raise AssertionError(
            f"{self.lane.state} at {self.lane.stream and self.lane.stream.delivered} of {self.source.end}"
        )


def disturb(copier, *, strangers=False):
    """One thing that happens."""
    chance, leader = copier.chance, copier.leader
    what = chance.random()
    if what < 0.86:
        steps = (
            copier.ask,
            copier.fetch,
            copier.join,
            copier.send,
            copier.send,
            copier.answer,
            copier.answer,
        )
        chance.choice(steps)()
    elif what < 0.9:
        copier.commit()
    elif what < 0.92:
        copier.reconnect()
    elif what < 0.94:
        copier.kill()
    elif what < 0.96:
        copier.answer(may_refuse=True)
    elif what < 0.97:
        copier.arrive_late()
    elif what < 0.99 and strangers:
        leader.append_foreign()
    else:
        copier.reconnect()
        copier.late.clear()
        leader.move()


def new_copier(seed, *, now_ms=WHEN, unfenced_why="", **of_source):
    chance = random.Random(seed)
    source = Source(chance, **of_source)
    return Copier(source, Leader(), chance, now_ms, unfenced_why=unfenced_why)


def disturbed(seed, *, strangers=False, **kind):
    """A copier that has copied its source, whatever has happened."""
    copier = new_copier(seed, **kind)
    for _ in range(STEPS):
        disturb(copier, strangers=strangers)
    copier.reconnect()
    copier.settle()
    return copier


def copied(leader):
    """What a consumer compares: all but the offsets."""
    return [record[1:] for record in leader.ours()]


@settings(max_examples=4 * settings().max_examples)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_each_record_is_copied_once(seed, strangers, has_gaps):
    """Refusals, broken connections, kills, late arrivals, leaders that forget, and records of others in between."""
    copier = disturbed(seed, strangers=strangers, has_gaps=has_gaps)

    assert copied(copier.leader) == copier.source.records


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from((100, 200, 100_000_000)))
def test_each_old_record_is_copied_once(seed, strangers, age_ms):
    """All of them are old, or those before some offset."""
    copier = disturbed(seed, now_ms=WHEN + HALF_DAY_MS + age_ms, strangers=strangers)

    assert copied(copier.leader) == copier.source.records


@given(st.integers(0, 2**32), st.booleans())
def test_the_stored_position_is_the_end_of_what_was_copied(seed, has_gaps):
    copier = disturbed(seed, has_gaps=has_gaps)

    assert copier.position is not None
    assert copier.position.next_source_offset == copier.source.end


@given(st.integers(0, 2**32))
def test_each_acknowledged_record_is_counted_once(seed):
    """Also where batches are refused, while their task does not start again."""
    copier = new_copier(seed)
    steps = (copier.ask, copier.fetch, copier.send, copier.send, copier.answer, copier.commit)
    for _ in range(STEPS):
        copier.chance.choice(steps)()
        if not copier.chance.randrange(9):
            copier.answer(may_refuse=True)
    copier.settle()

    assert copied(copier.leader) == copier.source.records
    assert copier.starts > 1 or copier.lane.records == len(copier.source.records)


@given(st.integers(0, 2**32), st.booleans())
def test_all_buffers_are_given_back(seed, strangers):
    """What a copier forgets in doubt must not count against the memory of its task."""
    copier = disturbed(seed, strangers=strangers)

    assert (copier.lane.packer.queued_bytes, copier.lane.around.buffered_bytes) == (0, 0)


@given(st.integers(0, 2**32), st.booleans())
def test_where_nothing_is_fenced_each_record_is_copied_at_least_once(seed, has_gaps):
    """What was written behind the stored position is written again."""
    copier = disturbed(seed, now_ms=WHEN + 2 * HALF_DAY_MS, has_gaps=has_gaps, unfenced_why=UNFENCED)

    assert list(dict.fromkeys(copied(copier.leader))) == copier.source.records


@given(st.integers(0, 2**32), st.booleans())
def test_where_nothing_is_fenced_all_batches_are_plain(seed, has_gaps):
    """Also old records, and those behind gaps: no position in a transaction has to precede them."""
    copier = new_copier(seed, now_ms=WHEN + 2 * HALF_DAY_MS, has_gaps=has_gaps, unfenced_why=UNFENCED)
    copier.settle()

    assert copied(copier.leader) == copier.source.records
    assert not any(batch.is_transactional for batch in copier.leader.log)
    report = partition_report(copier.lane)
    assert (report.guarantee, report.guarantee_reason) == (Guarantee.AT_LEAST_ONCE, UNFENCED)


LARGE = b"%d" + b"x" * 5_000  # batches of such records are not merged


def begun(*, in_flight=0):
    """A copier with one acknowledged batch, and some in flight."""
    copier = new_copier(1, value=LARGE)
    for step in (copier.ask, copier.fetch, copier.send, copier.commit, copier.send, copier.answer):
        step()
    while len(copier.flying) < in_flight:
        copier.fetch()
        copier.send()
    return copier


def test_a_new_connection_without_anything_in_flight_continues_in_the_same_start():
    copier = begun()
    copier.reconnect()
    copier.settle()

    assert copier.starts == 1


def test_a_refusal_that_appended_nothing_continues_in_the_same_start():
    copier = begun(in_flight=2)
    copier.answer(may_refuse=True)
    copier.settle()

    assert copier.starts == 1


def lose_answers(copier):
    copier.reconnect()
    copier.ask()


def append_and_refuse(copier):
    copier.leader.append(copier.flying.popleft())
    copier.writing.refused(20, "")


def repeat(copier):
    """The leader had a batch with these numbers already: another producer has written it."""
    copier.leader.append(copier.flying[0])
    copier.answer()
    copier.answer()
    copier.ask()


def expect_another_number(copier):
    copier.leader._producers[copier.lane.packer.producer.producer_id].recent.clear()
    copier.answer()
    copier.answer()
    copier.ask()


def move(copier):
    while copier.flying:
        copier.answer()
    copier.leader.move()
    copier.reconnect()
    copier.ask()


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lose_answers, "was not answered"),
        (append_and_refuse, "NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
        (repeat, "other batches with our numbers"),
        (expect_another_number, "expects other sequence numbers"),
        (move, "has another leader"),
    ],
)
def test_the_start_ends_where_it_is_not_known_what_the_target_has(happens, why):
    """The next one finds it in the log."""
    copier = begun(in_flight=2)
    happens(copier)

    assert why in copier.why_over
    copier.settle()
    assert copier.starts == 2


def test_nothing_is_committed_after_an_election_that_the_metadata_does_not_show():
    """A position with the epoch before would look as if the target had lost what was written since."""
    copier = begun()
    copier.writer._target.metadata.leader_epoch = lambda *_: 0
    copier.leader.move()
    for step in (copier.send, copier.answer, copier.commit):
        step()

    assert "has another leader" in copier.why_over
    copier.settle()
    assert copier.starts == 2


def test_the_first_batch_of_a_form_is_alone_in_flight():
    """The leader may not know its producer yet, and would take a later batch instead of a refused one."""
    writing = begun().writing
    writing.change_form(ChangeForm(Form.TRANSACTION, writing.stream.next_offset, 0))

    assert writing.alone


def test_a_batch_that_replaces_a_refused_one_is_not_counted_and_ends_the_start():
    copier = begun(in_flight=2)
    writing, counted = copier.writing, copier.lane.records
    writing.refused(NOT_ENOUGH_REPLICAS, "")
    writing.acknowledged(writing.stream.delivered.target_offset + 1, -1)
    copier.ask()

    assert copier.lane.records == counted
    assert "was not answered" in copier.why_over


def test_one_batch_is_in_flight_while_the_leader_may_not_remember_the_producer():
    """At the beginning, and after a pause for which a leader remembers no producer."""
    copier = new_copier(1, value=LARGE)
    copier.lane.around.stamped.add("east.orders")  # else the records would be old after the pause
    in_flight = []
    for hours in (0, 13):
        copier.wait(hours)
        for step in (copier.ask, copier.fetch, copier.send, copier.commit, copier.send, copier.send):
            step()
        in_flight.append(len(copier.flying))
        copier.answer()

    assert in_flight == [1, 1]

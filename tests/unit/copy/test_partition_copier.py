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
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_core.writer.broker_requests import (
    Done,
    InitProducerId,
    LeaderEpochEnd,
    LogEnd,
    Pause,
    Producer,
    ReadAborted,
    ReadBatches,
    ReadEnd,
    ReadEpochEnd,
    ReadPositions,
    ReadSourceStart,
    ReadWallClock,
    SourceStart,
    Transaction,
)
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.flow_plan import FlowPlan, TopicIds
from mirrorflow_core.writer.ownership import Ownership, recover_task
from mirrorflow_core.writer.position import WriteMode, WriterPosition, obeyed_position
from mirrorflow_core.writer.takeover import start_unfenced
from mirrorflow_core.writer.transaction_log import LogBatch
from mirrorflow_core.writer.write_mode import ChangeMode
from mirrorflow_replicator.copy.copier_context import CopierContext, CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.partition_reports import partition_report
from mirrorflow_replicator.copy.partition_resumer import PartitionResumer
from mirrorflow_replicator.copy.position_writer import UnfencedWriter
from mirrorflow_replicator.copy.task_transaction import TaskTransaction
from tests.unit.copy.leader import NOT_ENOUGH_REPLICAS, Leader
from tests.unit.copy.test_batch_packer import WHEN, in_epoch, without
from tests.unit.core.wire.strategies import batch_of
from tests.unit.core.writer.logs import aborted_behind

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
        return PartitionFetchResponse(
            FetchKey(b"orders", 2), 0, self.end, self.end, 100, (), -1, memoryview(data)
        )


class Copier:
    """The copier of one partition in the starts of its task that follow each other, and what surrounds it."""

    partition_bytes = 1 << 20
    is_connected = True
    timeout_ms = 60_000
    request_bytes = 1 << 20
    copier: PartitionCopier

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
        self.needs_resume = False
        earlier = getattr(self, "copier", None)
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
        context = CopierContext(
            read_committed=False,
            schedule_resume=self.schedule_resume,
            on_fetch_error=self.unexpected,
            on_produce_error=lambda _, code, *__: self.writer.refused(code),
            stopped=self.unexpected,
            changed=lambda _: None,
            clock_ms=lambda: self.now_ms,
            writer=self.writer,
            plain_producer=start.producers.plain,
            syncs=self.syncs,
            unfenced_why=self.unfenced_why,
        )
        self.copier = PartitionCopier(ORDERS, RenameRule(name="east.orders"), context)
        if earlier is not None:
            self.copier.inherit(earlier)
        self.copier.reader = self  # type: ignore[assignment]  # what a copier needs of it
        self.copier.pipe = self  # type: ignore[assignment]
        settings: Any = SimpleNamespace(on_source_loss=LossPolicy.FAIL)
        self.resumer = PartitionResumer(
            source=cluster,
            target=cluster,
            start=start,
            writer=self.writer,
            settings=settings,
            log_append_time_topics=context.log_append_time_topics,
            end_task=self.end_start,
        )
        self.copier.connected()

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
            case ReadAborted(_, offset):
                return aborted_behind(self.leader.log, offset)
            case ReadSourceStart():
                return SourceStart(100, -1)
            case ReadEpochEnd():
                return LeaderEpochEnd(-1, -1)
            case Pause() | ReadWallClock():
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

    def ready(self, copier):
        """The pipe's."""

    def expects_answer_by(self, since_s):
        """The pipe's."""
        return since_s

    def changed(self, topic, partition):
        """The reader's."""

    def schedule_resume(self, copier):
        self.needs_resume = True

    def unexpected(self, copier, *why):
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

    async def wait_for_markers(self, _producer):
        """They are there."""

    async def run(self, request):
        """The transactions': an empty one."""
        assert not request.partitions
        assert not request.positions
        return Done()

    async def write(self, positions: list[Position], *, now_ms):
        """The position store's, where nothing is fenced."""
        (position,) = positions
        self.position = obeyed_position(position)

    # -- what happens

    @property
    def writing(self):
        """The writer of the copier, which has begun."""
        assert self.copier.writing is not None
        return self.copier.writing

    @property
    def is_done(self):
        stream = self.copier.stream
        return (
            not self.why_over
            and stream is not None
            and self.copier.state is CopierState.COPYING
            and stream.delivered.source_offset == self.source.end - 1
        )

    def ask(self):
        """Serve a copier that is resuming, or start the task again."""
        if self.why_over:
            self.cut()
            self.begin()
        elif self.needs_resume:
            self.needs_resume = False
            self.resumer._serve(self.copier)

    def use_syncs(self, syncs):
        """Pass what is delivered to *syncs*, also in later starts."""
        self.syncs = self.copier.context.syncs = syncs

    def wait(self, hours):
        self.now_ms += hours * 3_600_000
        self.copier.context.update_clock()

    def fetch(self):
        at = self.copier.wanted()
        if at is not None and at.offset < self.source.end:
            self.copier.fetched(self.source.answer(at.offset, self.chance), at.offset)

    def send(self):
        if self.why_over:
            return
        data = None if self.copier.writing is None else self.copier.writing.next_batch()
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
        if self.why_over or self.copier.writing is None:
            return
        if self.unfenced_why:
            run(self.writer.store([self.copier], left=False))
            return
        if self.writer._members:
            self.writing.hold()
            while self.flying:
                self.answer()
        run(self.writer.store([self.copier], left=False))
        if not self.why_over:
            run(self.writer._commit())

    def join(self):
        """Take the partition into the transaction, if it has records for it."""
        copier = self.copier
        if self.unfenced_why or self.why_over or copier.state is not CopierState.COPYING:
            return
        if self.writer._wanted.pop(copier.writing, copier) is None:
            producer = self.writer._producers.transactional
            self.leader.in_transaction[producer.producer_id] = producer.epoch
            self.writer._admit({copier.writing: copier.resyncs}, {copier.target: 0})

    def cut(self):
        """The connection breaks: some of what was sent arrives, now or later, and no answer does."""
        for _ in range(self.chance.randint(0, len(self.flying))):
            self.leader.append(self.flying.popleft())
        self.late += self.flying
        self.flying.clear()
        for _ in range(len(self.copier.stream.in_flight) if self.copier.stream else 0):
            self.writing.lost()

    def reconnect(self):
        self.cut()
        self.copier.connected()

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
            f"{self.copier.state} at {self.copier.stream and self.copier.stream.delivered} of {self.source.end}"
        )


def disturb(rig, *, strangers=False):
    """One thing that happens."""
    chance, leader = rig.chance, rig.leader
    what = chance.random()
    if what < 0.86:
        steps = (
            rig.ask,
            rig.fetch,
            rig.join,
            rig.send,
            rig.send,
            rig.answer,
            rig.answer,
        )
        chance.choice(steps)()
    elif what < 0.9:
        rig.commit()
    elif what < 0.92:
        rig.reconnect()
    elif what < 0.94:
        rig.kill()
    elif what < 0.96:
        rig.answer(may_refuse=True)
    elif what < 0.97:
        rig.arrive_late()
    elif what < 0.99 and strangers:
        leader.append_foreign()
    else:
        rig.reconnect()
        rig.late.clear()
        leader.move()


def new_rig(seed, *, now_ms=WHEN, unfenced_why="", **of_source):
    chance = random.Random(seed)
    source = Source(chance, **of_source)
    return Copier(source, Leader(), chance, now_ms, unfenced_why=unfenced_why)


def disturbed(seed, *, strangers=False, **kind):
    """A copier that has copied its source, whatever has happened."""
    rig = new_rig(seed, **kind)
    for _ in range(STEPS):
        disturb(rig, strangers=strangers)
    rig.reconnect()
    rig.settle()
    return rig


def copied(leader):
    """What a consumer compares: all but the offsets."""
    return [record[1:] for record in leader.ours()]


@settings(max_examples=4 * settings().max_examples)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_each_record_is_copied_once(seed, strangers, has_gaps):
    """Refusals, broken connections, kills, late arrivals, leaders that forget, and records of others in between."""
    rig = disturbed(seed, strangers=strangers, has_gaps=has_gaps)

    assert copied(rig.leader) == rig.source.records


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from((100, 200, 100_000_000)))
def test_each_old_record_is_copied_once(seed, strangers, age_ms):
    """All of them are old, or those before some offset."""
    rig = disturbed(seed, now_ms=WHEN + HALF_DAY_MS + age_ms, strangers=strangers)

    assert copied(rig.leader) == rig.source.records


@given(st.integers(0, 2**32), st.booleans())
def test_the_stored_position_is_the_end_of_what_was_copied(seed, has_gaps):
    rig = disturbed(seed, has_gaps=has_gaps)

    assert rig.position is not None
    assert rig.position.next_source_offset == rig.source.end


@given(st.integers(0, 2**32))
def test_each_acknowledged_record_is_counted_once(seed):
    """Also where batches are refused, while their task does not start again."""
    rig = new_rig(seed)
    steps = (rig.ask, rig.fetch, rig.send, rig.send, rig.answer, rig.commit)
    for _ in range(STEPS):
        rig.chance.choice(steps)()
        if not rig.chance.randrange(9):
            rig.answer(may_refuse=True)
    rig.settle()

    assert copied(rig.leader) == rig.source.records
    assert rig.starts > 1 or rig.copier.records == len(rig.source.records)


@given(st.integers(0, 2**32), st.booleans())
def test_all_buffers_are_given_back(seed, strangers):
    """What a copier drops in a resync must not count against the memory of its task."""
    rig = disturbed(seed, strangers=strangers)

    assert (rig.copier.packer.queued_bytes, rig.copier.context.buffered_bytes) == (0, 0)


@given(st.integers(0, 2**32), st.booleans())
def test_where_nothing_is_fenced_each_record_is_copied_at_least_once(seed, has_gaps):
    """What was written behind the stored position is written again."""
    rig = disturbed(seed, now_ms=WHEN + 2 * HALF_DAY_MS, has_gaps=has_gaps, unfenced_why=UNFENCED)

    assert list(dict.fromkeys(copied(rig.leader))) == rig.source.records


@given(st.integers(0, 2**32), st.booleans())
def test_where_nothing_is_fenced_all_batches_are_plain(seed, has_gaps):
    """Also old records, and those behind gaps: no position in a transaction has to precede them."""
    rig = new_rig(seed, now_ms=WHEN + 2 * HALF_DAY_MS, has_gaps=has_gaps, unfenced_why=UNFENCED)
    rig.settle()

    assert copied(rig.leader) == rig.source.records
    assert not any(batch.is_transactional for batch in rig.leader.log)
    report = partition_report(rig.copier)
    assert (report.guarantee, report.guarantee_reason) == (Guarantee.AT_LEAST_ONCE, UNFENCED)


LARGE = b"%d" + b"x" * 5_000  # batches of such records are not merged


def begun(*, in_flight=0):
    """A copier with one acknowledged batch, and some in flight."""
    rig = new_rig(1, value=LARGE)
    for step in (rig.ask, rig.fetch, rig.send, rig.commit, rig.send, rig.answer):
        step()
    while len(rig.flying) < in_flight:
        rig.fetch()
        rig.send()
    return rig


def test_a_new_connection_without_anything_in_flight_continues_in_the_same_start():
    rig = begun()
    rig.reconnect()
    rig.settle()

    assert rig.starts == 1


def test_a_refusal_that_appended_nothing_continues_in_the_same_start():
    rig = begun(in_flight=2)
    rig.answer(may_refuse=True)
    rig.settle()

    assert rig.starts == 1


def lose_answers(rig):
    rig.reconnect()
    rig.ask()


def append_and_refuse(rig):
    rig.leader.append(rig.flying.popleft())
    rig.writing.refused(20, "")


def repeat(rig):
    """The leader had a batch with these numbers already: another producer has written it."""
    rig.leader.append(rig.flying[0])
    rig.answer()
    rig.answer()
    rig.ask()


def expect_another_number(rig):
    rig.leader._producers[rig.copier.packer.producer.producer_id].recent.clear()
    rig.answer()
    rig.answer()
    rig.ask()


def move(rig):
    while rig.flying:
        rig.answer()
    rig.leader.move()
    rig.reconnect()
    rig.ask()


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
    rig = begun(in_flight=2)
    happens(rig)

    assert why in rig.why_over
    rig.settle()
    assert rig.starts == 2


def test_nothing_is_committed_after_an_election_that_the_metadata_does_not_show():
    """A position with the epoch before would look as if the target had lost what was written since."""
    rig = begun()
    rig.writer._target.metadata.leader_epoch = lambda *_: 0
    rig.leader.move()
    for step in (rig.send, rig.answer, rig.commit):
        step()

    assert "has another leader" in rig.why_over
    rig.settle()
    assert rig.starts == 2


def test_the_first_batch_of_a_form_is_alone_in_flight():
    """The leader may not know its producer yet, and would take a later batch instead of a refused one."""
    writing = begun().writing
    writing.change_mode(ChangeMode(WriteMode.TRANSACTION, writing.stream.next_offset, 0))

    assert writing.single_in_flight


def test_each_response_shows_whether_the_target_sets_timestamps():
    """A topic with LogAppendTime answers with a time. Elsewhere a time means that the leader has another batch."""
    rig = begun(in_flight=2)
    topics = rig.copier.context.log_append_time_topics
    topics.add("east.orders")
    writing, end = rig.writing, rig.writing.stream.delivered.target_offset + 1

    writing.acknowledged(end, WHEN)
    assert topics == {"east.orders"}
    writing.acknowledged(rig.writing.stream.expected_target, -1)
    assert topics == set()
    assert rig.copier.context.may_be_another(writing)


def test_a_batch_that_replaces_a_refused_one_is_not_counted_and_ends_the_start():
    rig = begun(in_flight=2)
    writing, counted = rig.writing, rig.copier.records
    writing.refused(NOT_ENOUGH_REPLICAS, "")
    writing.acknowledged(writing.stream.delivered.target_offset + 1, -1)
    rig.ask()

    assert rig.copier.records == counted
    assert "was not answered" in rig.why_over


def test_one_batch_is_in_flight_while_the_leader_may_not_remember_the_producer():
    """At the beginning, and after a pause for which a leader remembers no producer."""
    hours_paused = 13
    # After the pause it is WHEN, so that the records are young.
    rig = new_rig(1, now_ms=WHEN - hours_paused * 3_600_000, value=LARGE)
    in_flight = []
    for hours in (0, hours_paused):
        rig.wait(hours)
        for step in (rig.ask, rig.fetch, rig.send, rig.commit, rig.send, rig.send):
            step()
        in_flight.append(len(rig.flying))
        rig.answer()

    assert in_flight == [1, 1]

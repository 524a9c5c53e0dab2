"""A copied partition, its task's transactions and a leader with Kafka's rules: the target gets each source record once, whatever happens.

The test replaces connections and brokers and decides what happens next. Everything between them is real, also the takeover
(`mirrorflow_core.writer.ownership`).
"""

import random
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorflow_core.copying.batch_packer import Packer
from mirrorflow_core.copying.effects import (
    Align,
    Count,
    Effects,
    EndSession,
    Signal,
)
from mirrorflow_core.copying.partition import CopierState, PartitionCopier, Surroundings
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.copying.transaction import (
    AddPartitions,
    AskLeaders,
    CarryOut,
    Commit,
    Drain,
    Now,
    StorePositions,
    TaskTransaction,
)
from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.reports import Guarantee
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
from mirrorflow_replicator.copy.partition_reports import partition_report
from mirrorflow_replicator.copy.position_committer import AtLeastOnceCommitter
from tests.unit.core.copying.leader import NOT_ENOUGH_REPLICAS, Leader
from tests.unit.core.copying.test_batch_packer import WHEN, in_epoch, without
from tests.unit.core.wire.strategies import batch_of
from tests.unit.core.writer.logs import aborted_after

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


REQUEST_BYTES = 1 << 20


class Copier:
    """One partition in the sessions of its task that follow each other, and what surrounds it."""

    copier: PartitionCopier

    def __init__(self, source, leader, chance, now_ms, *, unfenced_reason=""):
        self.source, self.leader, self.chance, self.now_ms = source, leader, chance, now_ms
        self.unfenced_reason = unfenced_reason
        self.syncs: Any = None
        self.position: WriterPosition | None = None
        self.flying: deque[bytes] = deque()  # batches that the leader has not read yet
        self.late: deque[bytes] = deque()  # likewise, of connections that the task has closed
        self.sessions = 0
        self._epochs: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self.begin()

    # -- the task

    def begin(self):
        """Begin a session, after the last one has ended."""
        self.sessions += 1
        self.why_over = ""
        self.needs_resume = False
        earlier = getattr(self, "copier", None)
        start = self._start()
        session = CopySession(start=start, source_alias="east", target_alias="west")
        self.known_epoch: int | None = None
        self.transaction = TaskTransaction(
            session, timeout_ms=60_000, metadata_epoch=self._metadata_epoch, now_s=0.0
        )
        self.committer = AtLeastOnceCommitter(self, end_session=self.end_session)  # type: ignore[arg-type]  # it only writes
        packer = Packer("orders", 2, "east.orders", start.producers.plain)
        self.copier = PartitionCopier(ORDERS, "east.orders", session, packer)
        self.apply(self.copier.started(earlier))
        self.apply(self.copier.connected())

    def _metadata_epoch(self, _):
        """The leader has this epoch, unless a test holds an older one."""
        return self.leader.epoch if self.known_epoch is None else self.known_epoch

    def _start(self):
        if self.unfenced_reason:
            positions = {} if self.position is None else {ORDERS: self.position}
            producer = Producer("", 1_000 + self.sessions, 0)
            return finished(
                start_unfenced(PLAN, producer, [ORDERS], positions, self.unfenced_reason), self.broker
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
                return aborted_after(self.leader.log, offset)
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

    def end_session(self, why):
        self.why_over = self.why_over or why

    def apply(self, effects: Effects):
        """What a shell does."""
        for effect in effects:
            match effect:
                case Signal.RESUME:
                    self.needs_resume = True
                case Signal.JOIN_TRANSACTION:
                    self.transaction.want(self.copier)
                case Signal() | Count():
                    pass
                case Align(pair, was_cut_off):
                    if self.syncs is not None:
                        stream = self.copier.map_stream
                        self.syncs.aligned(self.copier, stream, pair, was_cut_off=was_cut_off)
                case EndSession(reason):
                    self.end_session(reason)
                case _:
                    raise AssertionError(effect)

    def perform(self, steps):
        """Answer what a transaction asks, at once."""
        answer = None
        while True:
            try:
                request = steps.send(answer)
            except StopIteration:
                break
            answer = self.respond(request), Now(0.0, self.now_ms)
        if self.transaction.end_reason:
            self.end_session(self.transaction.end_reason)

    def respond(self, request):
        match request:
            case Drain():
                while self.flying:
                    self.answer()
            case AskLeaders(partitions):
                return dict.fromkeys(partitions, self.leader.epoch)
            case AddPartitions(producer, partitions):
                self.leader.in_transaction[producer.producer_id] = producer.epoch
                return dict.fromkeys(partitions, 0)
            case StorePositions(_, positions):
                (self._uncommitted,) = positions  # only a commit makes them valid
            case Commit(producer):
                self.position = self._uncommitted
                if producer.producer_id in self.leader.in_transaction:
                    self.leader.mark(producer, commit=True)
            case CarryOut(_, effects):
                self.apply(effects)
            case Transaction():
                assert not request.partitions
                assert not request.positions
                return Done()
        return None

    async def write(self, positions: list[Position], *, now_ms):
        """The position store's, where nothing is fenced."""
        (position,) = positions
        self.position = obeyed_position(position)

    # -- what happens

    @property
    def stream(self):
        """The stream of the partition, which has begun."""
        assert self.copier.stream is not None
        return self.copier.stream

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
        """Let a partition continue that is resuming, or begin another session."""
        if self.why_over:
            self.cut()
            self.begin()
        elif self.needs_resume:
            self.needs_resume = False
            seen = Surroundings(True, "s", "t", self._metadata_epoch(self.copier.target))
            self.apply(self.copier.resumed(seen, self.now_ms))

    def wait(self, hours):
        self.now_ms += hours * 3_600_000

    def fetch(self):
        wanted = self.copier.next_fetch(REQUEST_BYTES)
        if wanted is not None and wanted.offset < self.source.end:
            self.apply(self.copier.fetched(self.source.answer(wanted.offset, self.chance), wanted.offset))

    def send(self):
        if self.why_over:
            return
        data, effects = self.copier.next_batch(self.now_ms, REQUEST_BYTES)
        self.apply(effects)
        if data is not None:
            self.flying.append(bytes(data))

    def answer(self, *, may_refuse=False):
        if self.flying:
            answer = self.leader.append(self.flying.popleft(), may_refuse=may_refuse)
            if answer.code:
                self.apply(self.copier.refused(answer.code, ""))
            else:
                self.acknowledge(answer.base_offset, answer.append_time_ms)

    def acknowledge(self, base_offset, append_time_ms):
        span = self.stream.in_flight[0]
        effects = self.copier.acknowledged(base_offset, append_time_ms, self.now_ms)
        if self.syncs is not None and self.stream.delivered.ordinal == span.last:
            self.syncs.delivered(self.copier, span, base_offset)
        self.apply(effects)

    def commit(self):
        """Store the position: in a transaction with the records that are written in it, if any."""
        if self.why_over or self.copier.stream is None:
            return
        if self.unfenced_reason:
            run(self.committer.store([self.copier], left=False))
            return
        self.transaction.store([self.copier])
        self.perform(self.transaction.commit(Now(0.0, self.now_ms)))

    def join(self):
        """Take the partition into the transaction, if it has records for it."""
        if not self.unfenced_reason and not self.why_over and self.transaction.has_wishes:
            self.perform(self.transaction._join(Now(0.0, self.now_ms)))

    def cut(self):
        """The connection breaks: some of what was sent arrives, now or later, and no answer does."""
        for _ in range(self.chance.randint(0, len(self.flying))):
            self.leader.append(self.flying.popleft())
        self.late += self.flying
        self.flying.clear()
        for _ in range(len(self.copier.stream.in_flight) if self.copier.stream else 0):
            self.apply(self.copier.response_lost())

    def reconnect(self):
        self.cut()
        self.apply(self.copier.connected())

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


def new_rig(seed, *, now_ms=WHEN, unfenced_reason="", **of_source):
    chance = random.Random(seed)
    source = Source(chance, **of_source)
    return Copier(source, Leader(), chance, now_ms, unfenced_reason=unfenced_reason)


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
    """Also where batches are refused, within one session."""
    rig = new_rig(seed)
    steps = (rig.ask, rig.fetch, rig.send, rig.send, rig.answer, rig.commit)
    for _ in range(STEPS):
        rig.chance.choice(steps)()
        if not rig.chance.randrange(9):
            rig.answer(may_refuse=True)
    rig.settle()

    assert copied(rig.leader) == rig.source.records
    assert rig.sessions > 1 or rig.copier.records == len(rig.source.records)


@given(st.integers(0, 2**32), st.booleans())
def test_all_buffers_are_given_back(seed, strangers):
    """What a copier drops in a resync must not count against the memory of its task."""
    rig = disturbed(seed, strangers=strangers)

    assert rig.copier.packer.queued_bytes == 0


@given(st.integers(0, 2**32), st.booleans())
def test_where_nothing_is_fenced_each_record_is_copied_at_least_once(seed, has_gaps):
    """What was written behind the stored position is written again."""
    rig = disturbed(seed, now_ms=WHEN + 2 * HALF_DAY_MS, has_gaps=has_gaps, unfenced_reason=UNFENCED)

    assert list(dict.fromkeys(copied(rig.leader))) == rig.source.records


@given(st.integers(0, 2**32), st.booleans())
def test_where_nothing_is_fenced_all_batches_are_plain(seed, has_gaps):
    """Also old records, and those behind gaps: no position in a transaction has to precede them."""
    rig = new_rig(seed, now_ms=WHEN + 2 * HALF_DAY_MS, has_gaps=has_gaps, unfenced_reason=UNFENCED)
    rig.settle()

    assert copied(rig.leader) == rig.source.records
    assert not any(batch.is_transactional for batch in rig.leader.log)
    report = partition_report(rig.copier, rig.now_ms)
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


def test_a_new_connection_without_anything_in_flight_continues_in_the_same_session():
    rig = begun()
    rig.reconnect()
    rig.settle()

    assert rig.sessions == 1


def test_a_refusal_that_appended_nothing_continues_in_the_same_session():
    rig = begun(in_flight=2)
    rig.answer(may_refuse=True)
    rig.settle()

    assert rig.sessions == 1


def lose_answers(rig):
    rig.reconnect()
    rig.ask()


def append_and_refuse(rig):
    rig.leader.append(rig.flying.popleft())
    rig.apply(rig.copier.refused(20, ""))


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
def test_the_session_ends_where_it_is_not_known_what_the_target_has(happens, why):
    """The next one finds it in the log."""
    rig = begun(in_flight=2)
    happens(rig)

    assert why in rig.why_over
    rig.settle()
    assert rig.sessions == 2


def test_nothing_is_committed_after_an_election_that_the_metadata_does_not_show():
    """A position with the epoch before would look as if the target had lost what was written since."""
    rig = begun()
    rig.known_epoch = 0
    rig.leader.move()
    for step in (rig.send, rig.answer, rig.commit):
        step()

    assert "has another leader" in rig.why_over
    rig.settle()
    assert rig.sessions == 2


def test_the_first_batch_in_another_mode_is_alone_in_flight():
    """The leader may not know its producer yet, and would take a later batch instead of a refused one."""
    rig = begun()
    rig.copier.change_mode(ChangeMode(WriteMode.TRANSACTION, rig.stream.next_offset, 0), WHEN)

    assert rig.copier.single_in_flight


def test_each_response_shows_whether_the_target_sets_timestamps():
    """A topic with LogAppendTime answers with a time. Elsewhere a time means that the leader has another batch."""
    rig = begun(in_flight=2)
    topics = rig.copier.session.log_append_time_topics
    topics.add("east.orders")

    rig.acknowledge(rig.stream.delivered.target_offset + 1, WHEN)
    assert topics == {"east.orders"}
    rig.acknowledge(rig.stream.expected_target, -1)
    assert topics == set()


def test_a_batch_that_replaces_a_refused_one_is_not_counted_and_ends_the_session():
    rig = begun(in_flight=2)
    counted = rig.copier.records
    rig.apply(rig.copier.refused(NOT_ENOUGH_REPLICAS, ""))
    rig.acknowledge(rig.stream.delivered.target_offset + 1, -1)
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

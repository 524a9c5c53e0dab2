"""The target receives each source record exactly once despite injected faults.

The tests simulate connections and brokers. The copier, its task's transactions and the takeover
(`mirrorflow_core.writer.ownership`) are the product's.
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
from mirrorflow_core.copying.partition import CopierState, PartitionCopier, ResumeFacts
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.copying.transaction import TaskTransaction
from mirrorflow_core.copying.transaction_requests import (
    AddPartitions,
    AskLeaders,
    CarryOut,
    Commit,
    Drain,
    Now,
    StorePositions,
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
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS, compacted, with_leader_epoch
from tests.unit.core.wire.strategies import batch_of
from tests.unit.core.writer.logs import aborted_after

STEPS = 120
SETTLE_STEPS = 1_000  # many times as many as copying needs without faults
HALF_DAY_MS = 12 * 3_600_000  # the age from which on a record is written in transactions
ORDERS = TopicPartition("orders", 2)
PLAN = FlowPlan(
    claim=Claim(flow="east->west", process="p", source_alias="east", tasks=1, lock_epoch=16, time_ms=0),
    assignment=(),
    topic_ids={"orders": TopicIds("s", "t", "east.orders")},
)
UNFENCED = "the principal has no Write ACL"


def run_protocol(steps, respond):
    """Runs a protocol; *respond* returns the response to each request. Returns the protocol's result."""
    responses = None
    try:
        while True:
            requests = steps.send(responses)
            responses = tuple(map(respond, requests))
    except StopIteration as end:
        return end.value


def run(coroutine):
    """Runs a coroutine that never waits, and returns its result."""
    return run_protocol(coroutine, None)


class Source:
    """A source partition that serves a few batches at a time. *has_gaps*: compaction has removed some records."""

    def __init__(self, rng, *, has_gaps=False, value=b"%d"):
        self.batches = []
        self.records = []
        offset = 100
        for _ in range(rng.randint(5, 30)):
            count = rng.choice((1, 1, 1, 2, 5, 30))
            records = [Record(0, TIMESTAMP_MS + offset + i, b"k", value % (offset + i)) for i in range(count)]
            batch = batch_of(records, base_offset=offset, codec=rng.choice((0, 0, 4)))
            offset += count
            if has_gaps and not rng.randrange(6):
                batch = compacted(batch, {0, count // 2}) or batch
            offset += rng.choice((0, 0, 0, 3)) if has_gaps else 0
            self.batches.append(with_leader_epoch(batch, offset // 150))
            self.records += [record[1:] for record in decode(batch)]
        self.end = self.batches[-1].next_offset

    def fetch(self, offset, rng):
        """A response with batches from the one that has *offset* on."""
        batches = [batch for batch in self.batches if batch.next_offset > offset][: rng.randint(1, 6)]
        data = bytearray(b"".join(bytes(batch.data) for batch in batches))
        return PartitionFetchResponse(
            FetchKey(b"orders", 2), 0, self.end, self.end, 100, (), -1, memoryview(data)
        )


REQUEST_BYTES = 1 << 20


class CopierRig:
    """One partition in successive sessions of its task, with simulated source, leader and connection."""

    copier: PartitionCopier

    def __init__(self, source, leader, rng, now_ms, *, unfenced_reason=None):
        self.source, self.leader, self.rng, self.now_ms = source, leader, rng, now_ms
        self.unfenced_reason = unfenced_reason
        self.syncs: Any = None
        self.position: WriterPosition | None = None
        self.unanswered: deque[bytes] = deque()  # sent batches without a response
        self.delayed: deque[bytes] = deque()  # batches on closed connections that may still arrive
        self.sessions = 0
        self._epochs: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self.begin_session()

    # -- the task

    def begin_session(self):
        """Starts a session, after the last one has ended."""
        self.sessions += 1
        self.end_reason = ""
        self.needs_resume = False
        earlier = getattr(self, "copier", None)
        start = self._start()
        session = CopySession(start=start, source_alias="east", target_alias="west")
        self.known_epoch: int | None = None
        self.transaction = TaskTransaction(
            session, timeout_ms=60_000, metadata_epoch=self._metadata_epoch, now_s=0.0
        )
        self.committer = AtLeastOnceCommitter(self, end_session=self.end_session)  # type: ignore[arg-type]  # only `write` is used
        packer = Packer("orders", 2, "east.orders", start.producers.plain)
        self.copier = PartitionCopier(ORDERS, "east.orders", session, packer)
        self.apply(self.copier.started(earlier))
        self.apply(self.copier.connected())

    def _metadata_epoch(self, _):
        """The leader epoch in the metadata, which a test may set to an outdated one."""
        return self.leader.epoch if self.known_epoch is None else self.known_epoch

    def _start(self):
        if self.unfenced_reason:
            positions = {} if self.position is None else {ORDERS: self.position}
            producer = Producer("", 1_000 + self.sessions, 0)
            return run_protocol(
                start_unfenced(PLAN, producer, [ORDERS], positions, self.unfenced_reason), self.broker
            )
        owned = Ownership(plan=PLAN, lock=Producer(PLAN.ids.lock, 1, 16), tasks=())
        return run_protocol(recover_task(owned, PLAN.ids.task(0), [ORDERS]), self.broker)

    def broker(self, request):
        """Returns the response to a request of the ownership protocol."""
        match request:
            case InitProducerId(name):
                return self._init(name)
            case Transaction():
                for _ in request.partitions:
                    self.leader.append_marker(request.producer, commit=request.commit)
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
                    batch
                    for batch in self.leader.log
                    if start <= batch.last_offset and batch.base_offset < end
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
            self.leader.append_marker(producer, commit=False)
        return producer

    def end_session(self, reason):
        self.end_reason = self.end_reason or reason

    def apply(self, effects: Effects):
        """Carries out effects as the shell does."""
        for effect in effects:
            match effect:
                case Signal.RESUME | Signal.RESUME_LATER:
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
        """Runs the steps of a transaction; each request gets its response at once."""
        response = None
        while True:
            try:
                request = steps.send(response)
            except StopIteration:
                break
            response = self.respond(request), Now(0.0, self.now_ms)
        if self.transaction.end_reason:
            self.end_session(self.transaction.end_reason)

    def respond(self, request):
        match request:
            case Drain():
                while self.unanswered:
                    self.process_batch()
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
                    self.leader.append_marker(producer, commit=True)
            case CarryOut(_, effects):
                self.apply(effects)
            case Transaction():
                assert not request.partitions
                assert not request.positions
                return Done()
        return None

    async def write(self, positions: list[Position], *, now_ms):
        """Stores a position without fencing, as the position store does."""
        (position,) = positions
        self.position = obeyed_position(position)

    # -- events

    @property
    def stream(self):
        """The stream of the partition, which has started."""
        assert self.copier.stream is not None
        return self.copier.stream

    @property
    def is_done(self):
        stream = self.copier.stream
        return (
            not self.end_reason
            and stream is not None
            and self.copier.state is CopierState.COPYING
            and stream.delivered.source_offset == self.source.end - 1
        )

    def resume_or_restart(self):
        """Resumes the partition, or starts a new session if the last one has ended."""
        if self.end_reason:
            self.lose_connection()
            self.begin_session()
        elif self.needs_resume:
            self.needs_resume = False
            seen = ResumeFacts(True, "s", "t", self._metadata_epoch(self.copier.target))
            self.apply(self.copier.resumed(seen, self.now_ms))

    def wait(self, hours):
        self.now_ms += hours * 3_600_000

    def fetch(self):
        request = self.copier.next_fetch(REQUEST_BYTES)
        if request is not None and request.offset < self.source.end:
            self.apply(self.copier.fetched(self.source.fetch(request.offset, self.rng), request.offset))

    def send(self):
        if self.end_reason:
            return
        data, effects = self.copier.next_batch(self.now_ms, REQUEST_BYTES)
        self.apply(effects)
        if data is not None:
            self.unanswered.append(bytes(data))

    def process_batch(self, *, may_refuse=False):
        if self.unanswered:
            result = self.leader.append(self.unanswered.popleft(), may_refuse=may_refuse)
            if result.code:
                self.apply(self.copier.refused(result.code, ""))
            else:
                self.acknowledge(result.base_offset, result.append_time_ms)

    def acknowledge(self, base_offset, append_time_ms):
        span = self.stream.in_flight[0]
        effects = self.copier.acknowledged(base_offset, append_time_ms, self.now_ms)
        if self.syncs is not None and self.stream.delivered.ordinal == span.last:
            self.syncs.delivered(self.copier, span, base_offset)
        self.apply(effects)

    def commit(self):
        """Stores the position, in one transaction with the records that are written in it, if any."""
        if self.end_reason or self.copier.stream is None:
            return
        if self.unfenced_reason:
            run(self.committer.store([self.copier], left=False))
            return
        self.transaction.store([self.copier])
        self.perform(self.transaction.commit(Now(0.0, self.now_ms)))

    def join(self):
        """Adds the partition to the transaction, if it has requested that."""
        if not self.unfenced_reason and not self.end_reason and self.transaction.has_wishes:
            self.perform(self.transaction._join(Now(0.0, self.now_ms)))

    def lose_connection(self):
        """Breaks the connection: sent batches arrive now, later or never, and no response does."""
        for _ in range(self.rng.randint(0, len(self.unanswered))):
            self.leader.append(self.unanswered.popleft())
        self.delayed += self.unanswered
        self.unanswered.clear()
        for _ in range(len(self.copier.stream.in_flight) if self.copier.stream else 0):
            self.apply(self.copier.response_lost())

    def reconnect(self):
        self.lose_connection()
        self.apply(self.copier.connected())

    def kill(self):
        """Kills the process; the next one takes over the task."""
        self.lose_connection()
        self.begin_session()

    def deliver_delayed(self):
        if self.delayed:
            self.leader.append(self.delayed.popleft())

    def settle(self):
        """Runs without faults until all records are copied."""
        for _ in range(SETTLE_STEPS):
            for step in (
                self.resume_or_restart,
                self.fetch,
                self.join,
                self.send,
                self.process_batch,
                self.commit,
            ):
                step()
            if self.is_done and not self.unanswered:
                self.commit()
                return
        raise AssertionError(
            f"{self.copier.state} at {self.copier.stream and self.copier.stream.delivered} of {self.source.end}"
        )


def inject_fault(rig, *, other_writers=False):
    """Runs one random step or fault."""
    rng, leader = rig.rng, rig.leader
    draw = rng.random()
    if draw < 0.86:
        steps = (
            rig.resume_or_restart,
            rig.fetch,
            rig.join,
            rig.send,
            rig.send,
            rig.process_batch,
            rig.process_batch,
        )
        rng.choice(steps)()
    elif draw < 0.9:
        rig.commit()
    elif draw < 0.92:
        rig.reconnect()
    elif draw < 0.94:
        rig.kill()
    elif draw < 0.96:
        rig.process_batch(may_refuse=True)
    elif draw < 0.97:
        rig.deliver_delayed()
    elif draw < 0.99 and other_writers:
        leader.append_foreign()
    else:
        rig.reconnect()
        rig.delayed.clear()
        leader.change_leader()


def new_rig(seed, *, now_ms=TIMESTAMP_MS, unfenced_reason=None, **of_source):
    rng = random.Random(seed)
    source = Source(rng, **of_source)
    return CopierRig(source, Leader(), rng, now_ms, unfenced_reason=unfenced_reason)


def faulted_rig(seed, *, other_writers=False, **kind):
    """A rig that has copied its source with injected faults."""
    rig = new_rig(seed, **kind)
    for _ in range(STEPS):
        inject_fault(rig, other_writers=other_writers)
    rig.reconnect()
    rig.settle()
    return rig


def copied_contents(leader):
    """The copied records without their offsets."""
    return [record[1:] for record in leader.copied_records()]


@settings(max_examples=4 * settings().max_examples)
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_each_record_is_copied_once(seed, other_writers, has_gaps):
    """Faults: refusals, broken connections, kills, delayed batches, leaders without producer state, other writers."""
    rig = faulted_rig(seed, other_writers=other_writers, has_gaps=has_gaps)

    assert copied_contents(rig.leader) == rig.source.records


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from((100, 200, 100_000_000)))
def test_each_old_record_is_copied_once(seed, other_writers, age_ms):
    """All records are old, or those before an offset."""
    rig = faulted_rig(seed, now_ms=TIMESTAMP_MS + HALF_DAY_MS + age_ms, other_writers=other_writers)

    assert copied_contents(rig.leader) == rig.source.records


@given(st.integers(0, 2**32), st.booleans())
def test_the_stored_position_is_the_end_of_what_was_copied(seed, has_gaps):
    rig = faulted_rig(seed, has_gaps=has_gaps)

    assert rig.position is not None
    assert rig.position.next_source_offset == rig.source.end


@given(st.integers(0, 2**32))
def test_each_acknowledged_record_is_counted_once(seed):
    """This holds within a session even if batches are refused."""
    rig = new_rig(seed)
    steps = (rig.resume_or_restart, rig.fetch, rig.send, rig.send, rig.process_batch, rig.commit)
    for _ in range(STEPS):
        rig.rng.choice(steps)()
        if not rig.rng.randrange(9):
            rig.process_batch(may_refuse=True)
    rig.settle()

    assert copied_contents(rig.leader) == rig.source.records
    assert rig.sessions > 1 or rig.copier.counts.records == len(rig.source.records)


@given(st.integers(0, 2**32), st.booleans())
def test_all_buffered_bytes_are_released(seed, other_writers):
    """Batches that a copier drops in a resync must not count against the memory of its task."""
    rig = faulted_rig(seed, other_writers=other_writers)

    assert rig.copier.packer.queued_bytes == 0


@given(st.integers(0, 2**32), st.booleans())
def test_without_fencing_each_record_is_copied_at_least_once(seed, has_gaps):
    """Records after the stored position are written again."""
    rig = faulted_rig(
        seed, now_ms=TIMESTAMP_MS + 2 * HALF_DAY_MS, has_gaps=has_gaps, unfenced_reason=UNFENCED
    )

    assert list(dict.fromkeys(copied_contents(rig.leader))) == rig.source.records


@given(st.integers(0, 2**32), st.booleans())
def test_without_fencing_all_batches_are_plain(seed, has_gaps):
    """This includes old records and records after gaps: they need no position in a transaction."""
    rig = new_rig(seed, now_ms=TIMESTAMP_MS + 2 * HALF_DAY_MS, has_gaps=has_gaps, unfenced_reason=UNFENCED)
    rig.settle()

    assert copied_contents(rig.leader) == rig.source.records
    assert not any(batch.is_transactional for batch in rig.leader.log)
    report = partition_report(rig.copier, rig.now_ms)
    assert (report.guarantee, report.guarantee_reason) == (Guarantee.AT_LEAST_ONCE, UNFENCED)


LARGE = b"%d" + b"x" * 5_000  # batches of such records are not merged


def started_rig(*, in_flight=0):
    """A rig with one acknowledged batch and *in_flight* batches in flight."""
    rig = new_rig(1, value=LARGE)
    for step in (rig.resume_or_restart, rig.fetch, rig.send, rig.commit, rig.send, rig.process_batch):
        step()
    while len(rig.unanswered) < in_flight:
        rig.fetch()
        rig.send()
    return rig


def test_a_new_connection_with_nothing_in_flight_keeps_the_session():
    rig = started_rig()
    rig.reconnect()
    rig.settle()

    assert rig.sessions == 1


def test_a_refusal_that_appended_nothing_keeps_the_session():
    rig = started_rig(in_flight=2)
    rig.process_batch(may_refuse=True)
    rig.settle()

    assert rig.sessions == 1


def lose_responses(rig):
    rig.reconnect()
    rig.resume_or_restart()


def append_and_refuse(rig):
    rig.leader.append(rig.unanswered.popleft())
    rig.apply(rig.copier.refused(20, ""))


def have_duplicate_appended(rig):
    """Has the leader receive a batch with the same sequence numbers first."""
    rig.leader.append(rig.unanswered[0])
    rig.process_batch()
    rig.process_batch()
    rig.resume_or_restart()


def lose_producer_entries(rig):
    rig.leader._producers[rig.copier.packer.producer.producer_id].recent.clear()
    rig.process_batch()
    rig.process_batch()
    rig.resume_or_restart()


def change_leader(rig):
    while rig.unanswered:
        rig.process_batch()
    rig.leader.change_leader()
    rig.reconnect()
    rig.resume_or_restart()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lose_responses, "was not answered"),
        (append_and_refuse, "NOT_ENOUGH_REPLICAS_AFTER_APPEND"),
        (have_duplicate_appended, "other batches with our numbers"),
        (lose_producer_entries, "expects other sequence numbers"),
        (change_leader, "has another leader"),
    ],
)
def test_the_session_ends_when_the_contents_of_the_target_are_uncertain(fault, reason):
    """The next session reads the target's log."""
    rig = started_rig(in_flight=2)
    fault(rig)

    assert reason in rig.end_reason
    rig.settle()
    assert rig.sessions == 2


def test_nothing_is_committed_after_an_election_that_metadata_does_not_show():
    """With the older epoch, a position would look as if the target had lost the records since then."""
    rig = started_rig()
    rig.known_epoch = 0
    rig.leader.change_leader()
    for step in (rig.send, rig.process_batch, rig.commit):
        step()

    assert "has another leader" in rig.end_reason
    rig.settle()
    assert rig.sessions == 2


def test_the_first_batch_after_a_mode_change_is_alone_in_flight():
    """The leader may not know the producer yet, and would accept a later batch after it refused the first one."""
    rig = started_rig()
    rig.copier.change_mode(ChangeMode(WriteMode.TRANSACTION, rig.stream.next_offset, 0), TIMESTAMP_MS)

    assert rig.copier.single_in_flight


def test_each_response_shows_whether_the_target_sets_timestamps():
    """A LogAppendTime topic responds with a timestamp. For other topics, a timestamp means a duplicate batch."""
    rig = started_rig(in_flight=2)
    topics = rig.copier.session.log_append_time_topics
    topics.add("east.orders")

    rig.acknowledge(rig.stream.delivered.target_offset + 1, TIMESTAMP_MS)
    assert topics == {"east.orders"}
    rig.acknowledge(rig.stream.expected_target, -1)
    assert topics == set()


def test_all_batches_in_flight_are_answered_although_each_response_has_a_timestamp():
    """The target sets timestamps from now on. Until each batch has its response, the partition cannot resume."""
    rig = started_rig(in_flight=2)
    for _ in range(2):
        rig.acknowledge(rig.stream.expected_target, TIMESTAMP_MS)

    assert rig.copier.is_drained
    assert rig.needs_resume


def test_a_batch_that_replaces_a_refused_one_is_not_counted_and_ends_the_session():
    rig = started_rig(in_flight=2)
    records_before = rig.copier.counts.records
    rig.apply(rig.copier.refused(NOT_ENOUGH_REPLICAS, ""))
    rig.acknowledge(rig.stream.delivered.target_offset + 1, -1)
    rig.resume_or_restart()

    assert rig.copier.counts.records == records_before
    assert "was not answered" in rig.end_reason


def test_only_one_batch_is_in_flight_while_the_leader_may_not_know_the_producer():
    """This applies at the start, and after a pause that is longer than the producer expiration."""
    hours_paused = 13
    # The clock reaches TIMESTAMP_MS after the pause, so that the records are recent.
    rig = new_rig(1, now_ms=TIMESTAMP_MS - hours_paused * 3_600_000, value=LARGE)
    in_flight = []
    for hours in (0, hours_paused):
        rig.wait(hours)
        for step in (rig.resume_or_restart, rig.fetch, rig.send, rig.commit, rig.send, rig.send):
            step()
        in_flight.append(len(rig.unanswered))
        rig.process_batch()

    assert in_flight == [1, 1]

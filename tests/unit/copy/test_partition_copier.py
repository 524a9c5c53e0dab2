"""Lanes and a leader that keeps Kafka's rules: whatever is refused, lost, forgotten or written by others, the target gets the source.

One or two lanes of one flow write to the same log. Reader and pipe are replaced by the test, which decides what happens next;
everything between them is real.
"""

import random
from collections import deque
from functools import partial

from hypothesis import assume, given
from hypothesis import strategies as st

from mirrorflow_core.exactly_once.alignment import SEQUENCES, OffsetPair, ResumeAt
from mirrorflow_core.exactly_once.identity import Anchor
from mirrorflow_core.exactly_once.stream import known_pair
from mirrorflow_core.naming.transforms import RenameRule
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.fetch import FetchedPartition, FetchKey
from mirrorflow_core.wire.records import Record
from mirrorflow_replicator.copy.copier_context import CopierContext, CopierState
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from tests.unit.copy.leader import Leader
from tests.unit.copy.test_batch_packer import IDENTITY, WHEN
from tests.unit.core.wire.strategies import batch_of

STEPS = 120
SETTLE_STEPS = 1_000  # of one lane alone, undisturbed: many times what it needs
FIRST = SEQUENCES - 20  # the sequences wrap on the way


class Source:
    """Batches, small and large, that are fetched a few at a time."""

    def __init__(self, chance):
        self.batches = []
        offset = 100
        for _ in range(chance.randint(5, 30)):
            count = chance.choice((1, 1, 1, 2, 5, 30))
            records = [Record(0, WHEN + offset + i, b"k", b"%d" % (offset + i)) for i in range(count)]
            self.batches.append(batch_of(records, base_offset=offset, codec=chance.choice((0, 0, 4))))
            offset += count
        self.end = offset
        self.records = [(WHEN + at, b"k", b"%d" % at, ()) for at in range(100, offset)]

    def answer(self, offset, chance):
        """From the batch that holds *offset* on."""
        there = [batch for batch in self.batches if batch.next_offset > offset][: chance.randint(1, 6)]
        data = bytearray(b"".join(bytes(batch.data) for batch in there))
        return FetchedPartition(FetchKey(b"orders", 2), 0, self.end, self.end, 100, (), -1, memoryview(data))


class Copier:
    """A lane with what surrounds it: a reader and a pipe that note what they are told."""

    partition_bytes = 1 << 20
    is_connected = True

    def __init__(self, source, leader, chance, now_ms):
        self.source, self.leader, self.chance, self.now_ms = source, leader, chance, now_ms
        self.is_doubtful = False
        self.flying: deque[bytes] = deque()  # batches that the leader has not read yet
        around = CopierContext(
            read_committed=False,
            doubtful=self.doubtful,
            source_trouble=self.unexpected,
            refused=lambda *_: None,
            stopped=self.unexpected,
            changed=lambda _: None,
            clock_ms=lambda: self.now_ms,
        )
        self.lane = PartitionCopier(TopicPartition("orders", 2), RenameRule(name="east.orders"), around)
        self.lane.reader = self  # type: ignore[assignment]  # what a lane needs of it
        self.lane.pipe = self  # type: ignore[assignment]
        self.lane.anchor = Anchor(
            generation=1, topic="orders", partition=2, step=0, ordinal=FIRST, source_offset=100,
            target_offset=0, source_topic_id="s", target_topic_id="t", why="begin",
        )  # fmt: skip
        self.lane.connected()

    def ready(self, lane):
        """The pipe's."""

    def changed(self, topic, partition):
        """The reader's."""

    def doubtful(self, lane):
        self.is_doubtful = True

    def unexpected(self, lane, *why):
        raise AssertionError(why)

    @property
    def is_done(self):
        stream = self.lane.stream
        return (
            stream is not None
            and self.lane.state is CopierState.COPYING
            and stream.delivered.source_offset == self.source.end - 1
        )

    def ask(self):
        if not self.is_doubtful or self.lane.state is not CopierState.ASKING:
            return
        assert not self.lane.stream or not self.lane.stream.in_flight
        self.is_doubtful = False
        said = self.leader.verdict(self.lane.ladder(), IDENTITY.producer_epoch)
        if not isinstance(said, ResumeAt):
            self.is_doubtful = True
            return
        pair = known_pair(said, self.lane.unanswered) or OffsetPair(
            source_offset=said.known.source_offset + said.walk_records,
            ordinal=said.ordinal,
            target_offset=said.target_offset,
        )
        self.lane.resume(IDENTITY, pair, alone=said.alone)

    def wait(self, hours):
        self.now_ms += hours * 3_600_000
        self.lane.around.look_at_clock()

    def fetch(self):
        at = self.lane.wanted()
        if at is not None and at.offset < self.source.end:
            self.lane.fetched(self.source.answer(at.offset, self.chance), at.offset)

    def send(self):
        data = self.lane.next_batch()
        if data is not None:
            self.flying.append(bytes(data))

    def answer(self, *, may_refuse=False):
        if self.flying:
            code, base_offset = self.leader.append(self.flying.popleft(), may_refuse=may_refuse)
            if code:
                self.lane.refused(code, "")
            else:
                self.lane.acknowledged(base_offset, -1)

    def break_off(self):
        """The connection breaks: some of what was sent arrives, no answer does."""
        for _ in range(self.chance.randint(0, len(self.flying))):
            self.leader.append(self.flying.popleft())
        for _ in range(len(self.lane.stream.in_flight) if self.lane.stream else 0):
            self.lane.lost()
        self.flying.clear()
        self.lane.connected()

    def settle(self):
        """Undisturbed until all is there."""
        for _ in range(SETTLE_STEPS):
            for step in (self.ask, self.fetch, self.send, self.answer):
                step()
            if self.is_done and not self.flying:
                return
        raise AssertionError(
            f"{self.lane.state} at {self.lane.stream and self.lane.stream.delivered} of {self.source.end}"
        )


def disturb(copiers, leader, chance, *, now_ms, strangers):
    """One thing that happens."""
    copier = chance.choice(copiers)
    what = chance.random()
    if what < 0.9:
        chance.choice((copier.ask, copier.fetch, copier.send, copier.send, copier.answer, copier.answer))()
    elif what < 0.93:
        copier.break_off()
    elif what < 0.96:
        copier.answer(may_refuse=True)
    elif what < 0.98 and strangers:
        leader.append_foreign()
    elif now_ms == WHEN:
        # It moved to a broker, or restarted: its writer has to connect anew.
        for one in copiers:
            one.break_off()
        leader.forget()
    elif len(copiers) == 1:
        leader.forget()


def lone(seed):
    """One that has its target to itself."""
    chance = random.Random(seed)
    return Copier(Source(chance), Leader(), chance, WHEN)


def trial(seed, *, copiers, now_ms=WHEN, strangers=False):
    chance = random.Random(seed)
    source, leader = Source(chance), Leader()
    lanes = [Copier(source, leader, chance, now_ms) for _ in range(copiers)]
    for _ in range(STEPS):
        disturb(lanes, leader, chance, now_ms=now_ms, strangers=strangers)
    for lane in lanes:
        lane.break_off()
    for lane in lanes:
        lane.settle()
    assert source.records == leader.ours()
    return lanes


@given(st.integers(0, 2**32), st.booleans())
def test_one_copier_delivers_each_record_once(seed, strangers):
    """Refusals, broken connections, a leader that forgets with them, and records of others in between."""
    trial(seed, copiers=1, strangers=strangers)


@given(st.integers(0, 2**32), st.booleans())
def test_one_copier_delivers_each_old_record_once(seed, strangers):
    """A leader may forget whose records are older than a day at any moment: one batch is in flight."""
    (copier,) = trial(seed, copiers=1, now_ms=WHEN + 2 * 86_400_000, strangers=strangers)

    assert "OldTimestamps" == copier.lane.guarantee_reason


@given(st.integers(0, 2**32), st.integers(2, 3), st.booleans())
def test_several_copiers_deliver_each_record_once(seed, copiers, strangers):
    """Started twice or thawed, they write into one log: repeats and races are refused, and all continue."""
    trial(seed, copiers=copiers, strangers=strangers)


@given(st.integers(0, 2**32), st.booleans())
def test_what_was_heard_half_a_day_ago_is_asked_again_before_anything_is_written(seed, in_flight):
    """Another one has written meanwhile, and is forgotten: the leader would take the same numbers once more."""
    chance = random.Random(seed)
    source, leader = Source(chance), Leader()
    slow, other = (Copier(source, leader, chance, WHEN) for _ in range(2))
    slow.ask()
    slow.fetch()
    if in_flight:
        slow.send()
        slow.answer()
    other.settle()
    leader.forget()
    slow.wait(13)

    slow.settle()

    assert source.records == leader.ours()


@given(st.integers(0, 2**32))
def test_each_acknowledged_record_is_counted_once(seed):
    """Also one of a batch that follows a refused one, which counts only after the target was asked."""
    copier = lone(seed)
    chance = copier.chance
    refuse = partial(copier.answer, may_refuse=True)
    steps = [copier.ask, copier.fetch, copier.send, copier.send, copier.answer, copier.answer, refuse]
    for _ in range(STEPS):
        chance.choice(steps)()
    copier.settle()

    assert copier.source.records == copier.leader.ours()
    assert copier.lane.records == len(copier.source.records)


def test_a_batch_behind_a_refused_one_is_counted_when_the_target_has_it():
    """It was acknowledged, and counts as delivered only after the target was asked."""
    copier = lone(1)
    copier.ask()
    for step in (copier.fetch, copier.send, copier.answer, copier.fetch, copier.send, copier.send):
        step()
    lane, stream = copier.lane, copier.lane.stream
    behind = stream.in_flight[1]
    counted = lane.records
    lane.refused(6, "")
    lane.acknowledged(stream.delivered.target_offset + 1, -1)
    assert lane.records == counted

    pair = OffsetPair(source_offset=behind.next_offset - 1, ordinal=behind.last, target_offset=99)
    lane.resume(IDENTITY, pair, alone=True)

    assert lane.records == counted + behind.count


@given(st.integers(0, 2**32))
def test_a_lane_that_asks_again_in_time_keeps_what_it_has_fetched(seed):
    """Where a slow flow makes each batch wait for so long, it would fetch, ask and forget for ever."""
    copier = lone(seed)
    for _ in range(SETTLE_STEPS):
        copier.ask()
        copier.fetch()
        copier.wait(13)
        copier.send()
        copier.ask()
        copier.send()
        copier.answer()
        if copier.is_done:
            break

    assert copier.source.records == copier.leader.ours()


@given(st.integers(0, 2**32))
def test_what_arrives_while_a_lane_asks_again_is_kept_beside_the_rest(seed):
    """It was asked for before, and a rate limit has counted it."""
    copier = lone(seed)
    lane = copier.lane
    copier.ask()
    copier.fetch()
    at = lane.wanted()
    assert at is not None
    assume(at.offset < copier.source.end)
    copier.wait(13)
    copier.send()
    assert lane.state is CopierState.ASKING
    kept = lane.packer.queued_bytes
    lane.fetched(copier.source.answer(at.offset, copier.chance), at.offset)

    assert lane.packer.queued_bytes > kept
    copier.settle()
    assert copier.source.records == copier.leader.ours()


def test_markers_that_were_passed_before_a_lane_asks_again_are_not_passed_twice():
    """The next acknowledgement would not be where it is expected, as if another process had written, and the copier would ask about it."""
    copier = lone(1)
    lane = copier.lane
    for step in (copier.ask, copier.fetch, copier.send, copier.answer):
        step()
    assert lane.packer
    assert lane.stream is not None
    lane.pin.is_open = True
    lane.stream.pass_markers(1)
    expected = lane.stream.expected_target
    copier.wait(13)
    copier.send()

    lane.resume(IDENTITY, lane.stream.delivered, alone=False, is_open=True, grown=1)

    assert expected == lane.stream.expected_target


def test_all_buffers_are_given_back():
    """What a lane forgets in doubt must not count against the memory of the task for ever."""
    (copier,) = trial(1, copiers=1, strangers=True)

    assert (0, 0) == (copier.lane.packer.queued_bytes, copier.lane.around.buffered_bytes)


def test_a_lane_that_asks_again_and_then_waits_for_another_copier_gives_its_buffers_back():
    """For minutes, perhaps: those of many would leave no room for lanes that copy."""
    copier = lone(1)
    copier.ask()
    copier.fetch()
    copier.wait(13)
    copier.send()
    assert copier.lane.around.buffered_bytes > 0

    copier.lane.wait()

    assert (0, 0) == (copier.lane.packer.queued_bytes, copier.lane.around.buffered_bytes)

"""Lanes with old records, a leader that forgets them at every check, and a transaction that anybody commits at any moment."""

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.exactly_once.alignment import (
    SEQUENCES,
    Evidence,
    LeaderMemory,
    Need,
    OffsetPair,
    ResumeAt,
    align,
    scan_from,
)
from mirrorflow_core.exactly_once.stream import known_pair
from mirrorflow_core.wire.batch import split
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.transaction_member import BLOCKED_TIMES_MIN
from tests.unit.copy.leader import OUT_OF_ORDER, Leader
from tests.unit.copy.test_batch_packer import IDENTITY, WHEN
from tests.unit.copy.test_partition_copier import Copier, Source

DAY_MS = 86_400_000
INVALID_TXN_STATE = 48
STEPS = 200
COMMIT_TURNS = 20  # the pinning's half second


class Pinnable(Leader):
    """A leader that forgets, at a check, each producer that wrote an old record last, unless it was, or is, in a transaction.

    It remembers the sequence of a batch that it refused inside a transaction, and then refuses higher ones outside of it
    (KIP-890: ProducerStateManager.VerificationStateEntry, ProducerAppendInfo.checkSequence of Kafka 3.7 to 4.3).
    """

    def __init__(self, now_ms):
        super().__init__()
        self.lowest_refused = None
        self.now_ms = now_ms
        self.is_added = False  # to the coordinator's transaction
        self.is_open = False  # a batch of it is in the log
        self.open_from = 0  # its first offset
        self.last_ms = now_ms

    def append(self, data, *, may_refuse=False):
        (batch,) = split(bytearray(data))
        if batch.is_transactional and not (self.is_added or self.is_open):
            if self.lowest_refused is None:
                self.lowest_refused = batch.base_sequence
            return INVALID_TXN_STATE, -1
        if self.is_open and not batch.is_transactional:
            return INVALID_TXN_STATE, -1
        is_known = any(batch.base_sequence == first for first, _, _ in self.recent)
        if (
            self.lowest_refused is not None
            and not is_known
            and (batch.base_sequence - self.lowest_refused) % SEQUENCES in range(1, SEQUENCES // 2)
        ):
            return OUT_OF_ORDER, -1
        end = len(self.log)
        answer = super().append(data, may_refuse=may_refuse)
        if len(self.log) > end:
            if batch.is_transactional:
                self.lowest_refused = None
            if batch.is_transactional and not self.is_open:
                self.open_from = end
            self.is_open = batch.is_transactional
            self.last_ms = batch.max_timestamp
        return answer

    def commit(self):
        """A marker, which counts as now; a partition without records of the transaction has one as well."""
        if self.is_added or self.is_open:
            self.append_foreign()
            self.is_added = self.is_open = False
            self.lowest_refused = None
            self.last_ms = self.now_ms

    def check(self):
        """Forget whom nothing protects."""
        if not self.is_open and self.last_ms < self.now_ms - DAY_MS // 2:
            self.forget()

    def evidence(self, ladder, epoch):
        since = 0 if self.is_open else -1
        memory = (
            LeaderMemory(epoch=epoch, sequence=self.recent[-1][1], open_since=since) if self.recent else None
        )
        return Evidence(epoch=epoch, ladder=ladder, memory=memory, log_start=0, high_watermark=len(self.log))


class PinnedCopier(Copier):
    """A lane, and the part of the pinning that concerns it, one step at a time."""

    unavailable = ""

    def __init__(self, source, leader, chance, now_ms):
        self.is_wanted, self.is_emptied = False, False
        super().__init__(source, leader, chance, now_ms)
        self.lane.around.pinning = self  # type: ignore[assignment]  # what a lane needs of it

    def want(self, lane):
        self.is_wanted = True

    def emptied(self, lane):
        self.is_emptied = True

    def ended_elsewhere(self):
        """Pinning's."""

    def join(self):
        if self.is_wanted and self.lane.state is CopierState.COPYING:
            self.is_wanted = False
            self.leader.is_added = True
            self.lane.pin.join()

    def commit(self):
        """In order: nothing is in flight, and nothing is sent before the marker is there."""
        lane = self.lane
        if lane.stream is None:
            return
        lane.pin.hold()
        while lane.stream.in_flight and self.flying:
            self.answer()
        doubts, delivered = lane.doubts, lane.stream.delivered
        self.leader.commit()
        lane.pin.commit(delivered)
        is_quiet = lane.state is CopierState.COPYING and lane.is_drained and lane.doubts == doubts
        lane.pin.release(marked=is_quiet)

    def ask(self):
        if not self.is_doubtful or self.lane.state is not CopierState.ASKING:
            return
        self.is_doubtful = False
        evidence = self.leader.evidence(self.lane.ladder(), IDENTITY.producer_epoch)
        said = align(evidence)
        while said is Need.READ_TAIL:
            evidence = replace(evidence, tail=self.leader._tail(scan_from(evidence)))
            said = align(evidence)
        if not isinstance(said, ResumeAt):
            self.is_doubtful = True
            return
        pair = known_pair(said, self.lane.unanswered) or OffsetPair(
            source_offset=said.known.source_offset + said.walk_records,
            ordinal=said.ordinal,
            target_offset=said.target_offset,
        )
        grown = 0 if said.alone else evidence.high_watermark - pair.target_offset - 1
        self.lane.resume(IDENTITY, pair, alone=said.alone, is_open=self.leader.is_open, grown=grown)

    def settle(self):
        for turn in range(2_000):
            for step in (self.ask, self.fetch, self.join, self.send, self.answer):
                step()
            if self.leader.is_added and turn % COMMIT_TURNS == 0:
                self.commit()
            if self.is_done and not self.flying:
                self.commit()
                return
        raise AssertionError(f"{self.lane.state}, held: {self.lane.pin.is_held}")


@given(st.integers(0, 2**32), st.integers(1, 3))
def test_old_records_are_there_once_whichever_copier_commits_and_whenever_the_leader_forgets(seed, copiers):
    """Half of them are old: pinned and not pinned in turn. No position names what is not committed."""
    chance = random.Random(seed)
    source = Source(chance)
    now_ms = WHEN + DAY_MS // 2 + (100 + source.end) // 2
    leader = Pinnable(now_ms)
    lanes = [PinnedCopier(source, leader, chance, now_ms) for _ in range(copiers)]
    for _ in range(STEPS):
        one = chance.choice(lanes)
        what = chance.random()
        if what < 0.9:
            chance.choice((one.ask, one.fetch, one.join, one.send, one.send, one.answer, one.answer))()
        elif what < 0.93:
            one.break_off()
        elif what < 0.96:
            chance.choice((one.commit, leader.commit))()
        else:
            leader.check()
        for lane in (each.lane for each in lanes):
            settled = lane.pin.settled
            assert settled is None or not leader.is_open or settled.target_offset < leader.open_from
    for one in lanes:
        one.break_off()
    for one in lanes:
        one.settle()

    assert source.records == leader.ours()


@pytest.mark.parametrize("can_pin", [False, True])
def test_a_number_that_is_refused_again_and_again_by_a_leader_that_expects_it_blocks_where_nothing_can_commit(
    *, can_pin: bool
):
    """Once may be late: another copier has brought the leader so far since."""
    chance = random.Random(1)
    lane = Copier(Source(chance), Leader(), chance, WHEN).lane
    lane.around.pinning = SimpleNamespace(unavailable="" if can_pin else "NoTransactionalId")  # type: ignore[assignment]

    lane.pin.refused_by_a_leader_that_expects_it(6)
    blocked = []
    for _ in range(BLOCKED_TIMES_MIN):
        blocked.append(lane.pin.is_blocked_at(7))
        lane.pin.refused_by_a_leader_that_expects_it(7)

    assert not any(blocked)
    assert lane.pin.is_blocked_at(7) is not can_pin
    assert not lane.pin.is_blocked_at(8)

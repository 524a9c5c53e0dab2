"""Decides which record of a stream is the last one on the target, so that copying continues behind it.

This module does no I/O and reads no clock. `admin.target_probe` queries the target and passes the answers as
`Evidence`; `align` returns a verdict, or says what else it needs. The rules implement clauses 2, 4, 6 and 8
of docs/exactly-once.md. Each of them prevents a failure that was reproduced:

1. A leader that does not remember the identity accepts *any* sequence number. So missing memory is a case of
   its own (None, never -1): the log decides, and one batch is in flight until it is acknowledged.
2. A leader that remembers may be a former leader, or may remember records that are not replicated yet. Its
   answer is trusted without reading the log only where it names the record that was acknowledged last.
3. Nothing above the high watermark is delivered, even if a leader remembers it.
4. Each record takes one offset. If the target has fewer offsets after a known pair than the records it should
   hold, records are missing or not yet replicated. If all offsets are gone, their producer cannot be
   determined.
5. A known pair may be outdated: the target may have lost its tail since, and other producers may have written
   there. So without memory the offset of the pair is read. Another producer's record there refutes the pair,
   and the next lower pair is checked, down to the anchor. If retention or compaction removed the offset, the
   pair is accepted unless something contradicts it.

An *ordinal* is the number of a record since the anchor of its stream, without an upper limit. On the wire it
is the sequence number `ordinal mod 2^31` (KIP-98).
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

SEQUENCES = (
    1 << 31
)  # Kafka counts sequences from 0 to 2^31 - 1, then 0 again (DefaultRecordBatch.incrementSequence)


def sequence_of(ordinal: int) -> int:
    """Return the sequence number on the wire for *ordinal*; never negative, because -1 means none."""
    return ordinal % SEQUENCES


def ordinal_near(sequence: int, near: int) -> int:
    """Return the ordinal with *sequence* that is nearest to *near*; sequences repeat every 2^31 records."""
    offset = (sequence - near) % SEQUENCES
    if offset >= SEQUENCES // 2:
        offset -= SEQUENCES
    ordinal = near + offset
    return ordinal if ordinal >= 0 else ordinal + SEQUENCES


class OffsetPair(NamedTuple):
    """The source offset, ordinal and target offset of one record.

    For an anchor, which is not a record: the source offset and the ordinal before its first record, and the
    last target offset before it.
    """

    source_offset: int
    ordinal: int
    target_offset: int
    source_epoch: int = -1  # leader epoch of the source record; -1: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderMemory:
    """The producer state that the target's leader holds for the identity (DescribeProducers, KIP-664)."""

    epoch: int
    sequence: int  # -1: the epoch has begun without a record (after an empty transaction)
    # First target offset of the open transaction; -1: none is open.
    open_since: int = -1
    timestamp: int = -1  # largest of the last batch, or of a later marker


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What the target's log contains of the identity's epoch, from `scanned_from` to the high watermark."""

    scanned_from: int
    sequence: int | None  # last sequence number of our last batch; None: no batch is ours
    target_offset: int = -1  # offset of that record
    taken: bool = False  # another producer's batch, or a marker, lies at `scanned_from`
    has_gaps: bool = False  # compaction removed some offsets, ours or another producer's
    fenced: bool = False  # a batch or marker of a later epoch of the identity is there
    aborted: bool = False  # our first marker at or above `scanned_from` is an abort


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All known facts about one partition of the target."""

    epoch: int  # ours
    ladder: tuple[OffsetPair, ...]  # newest first, the anchor last; never empty
    memory: LeaderMemory | None  # None: the leader does not remember the identity
    log_start: int
    high_watermark: int
    tail: Tail | None = None  # None: not read yet
    ended: bool = False  # this copier has fenced the epoch itself, to find where it ended
    # The target's end offset when only our markers followed the newest pair; -1: unknown.
    known_end: int = -1


class Need(Enum):
    """Verdicts that do not name a record to resume at."""

    READ_TAIL = "the log of the target must be read"
    WAIT = "something of ours is in the target and not replicated yet"
    BLANK = "the leader had forgotten our numbers when a marker came, and now takes the first alone"
    FENCED = "a later epoch of the identity writes here"
    UNDECIDED = "neither log nor memory shows where to continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeAt:
    """The last record on the target has `ordinal` and lies at `target_offset`.

    The source scan starts at the pair `known`. `alone`: keep one batch in flight until it is acknowledged,
    because the leader does not remember the identity.
    """

    ordinal: int
    target_offset: int
    known: OffsetPair
    alone: bool

    @property
    def walk_records(self) -> int:
        """The number of records after `known` that the target already has."""
        return self.ordinal - self.known.ordinal


Verdict = ResumeAt | Need


def align(evidence: Evidence) -> Verdict:
    """Return where to resume, or what is needed to decide it.

    A `ResumeAt` never names an ordinal without evidence, and is always `alone` when the leader does not
    remember the identity.
    """
    if evidence.memory is not None and evidence.memory.epoch > evidence.epoch:
        return Need.FENCED
    if evidence.tail is not None and evidence.tail.fenced and not evidence.ended:
        # The leader may have forgotten the later epoch, but its log shows it. Earlier records may have been
        # aborted.
        return Need.FENCED
    memory, newest = _memory(evidence), evidence.ladder[0]
    if evidence.tail is not None:
        return _by_log(evidence, memory, evidence.tail)
    if memory is None:
        # Nothing was written since if the log still ends where it did when the newest pair was the last
        # record.
        is_at_end = evidence.high_watermark in {newest.target_offset + 1, evidence.known_end}
        # Reading refutes neither an anchor, which is not a record, nor a pair that retention has removed.
        if is_at_end and (len(evidence.ladder) == 1 or newest.target_offset < evidence.log_start):
            return _go_on(evidence, newest.ordinal, newest.target_offset, alone=True)
        return Need.READ_TAIL
    has_written = memory.sequence >= 0  # a leader can remember a marker after it has forgotten the records
    is_newest = _ordinal(memory, newest.ordinal) == newest.ordinal
    if has_written and is_newest and evidence.high_watermark > newest.target_offset:
        # The leader's last record is the one acknowledged last; other producers may have written behind it.
        return _go_on(evidence, newest.ordinal, newest.target_offset, alone=False)
    # Offsets cannot be counted: other producers' records below the high watermark look like ours above it.
    return Need.READ_TAIL


def guess(evidence: Evidence) -> ResumeAt:
    """Return a guess where to resume, for users who accept one: by the last batch, else by counting offsets.

    Only offsets that could not be read are counted: offsets that were read hold no records of the flow.
    """
    tail, last = evidence.tail, evidence.high_watermark - 1
    if tail is not None and tail.sequence is not None:
        ordinal, last = ordinal_near(tail.sequence, evidence.ladder[0].ordinal), tail.target_offset
    else:
        pair = _standing(evidence)
        if tail is not None:
            last = min(last, max(tail.scanned_from - 1, pair.target_offset))
        ordinal = max(pair.ordinal, pair.ordinal + last - pair.target_offset)
    known = next((pair for pair in evidence.ladder if pair.ordinal <= ordinal), evidence.ladder[-1])
    return ResumeAt(ordinal=max(ordinal, known.ordinal), target_offset=last, known=known, alone=True)


def scan_from(evidence: Evidence) -> int:
    """Return the lowest target offset to read: that of the newest known pair that is not refuted."""
    pair, anchor = _standing(evidence), evidence.ladder[-1]
    if pair is not anchor:
        return max(evidence.log_start, pair.target_offset)
    first = anchor.target_offset + 1
    if first > min((evidence.high_watermark, *(pair.target_offset for pair in evidence.ladder[:-1]))):
        # The target lost records from before the anchor, and the stream restarted below it.
        return evidence.log_start
    return max(evidence.log_start, first)


def _standing(evidence: Evidence) -> OffsetPair:
    """Return the newest known pair that is not refuted, else the anchor, which cannot be lost."""
    return next((pair for pair in evidence.ladder[:-1] if _stands(evidence, pair)), evidence.ladder[-1])


def _stands(evidence: Evidence, pair: OffsetPair) -> bool:
    """Return whether the record of *pair* may still be at its offset.

    Assumes that the tail held no batch of ours.
    """
    tail, at = evidence.tail, pair.target_offset
    if at >= evidence.high_watermark:
        return False  # the log was truncated below the pair
    if tail is None or at < max(evidence.log_start, tail.scanned_from):
        return True
    if at > tail.scanned_from or tail.taken:
        return False
    # Compaction removed the record. While a leader remembers a producer, the cleaner keeps the header of its
    # last batch. So a leader that remembers less than the pair, and has no such header there, never had the
    # record of the pair.
    memory = _memory(evidence)
    return memory is None or _ordinal(memory, pair.ordinal) >= pair.ordinal


def _by_log(evidence: Evidence, memory: LeaderMemory | None, tail: Tail) -> Verdict:
    newest = evidence.ladder[0]
    if tail.sequence is None:
        return _by_silence(evidence, memory, tail)
    logged = ordinal_near(tail.sequence, newest.ordinal)
    if memory is not None and memory.sequence < 0:
        return Need.BLANK
    if memory is not None:
        remembered = _ordinal(memory, logged)
        if remembered > logged:
            return Need.WAIT
        if remembered < logged:
            return Need.WAIT  # a leader of the past answered; the next question meets the new one
    return _go_on(evidence, logged, tail.target_offset, alone=memory is None)


def _by_silence(evidence: Evidence, memory: LeaderMemory | None, tail: Tail) -> Verdict:
    """Decide where no batch of ours lies between `tail.scanned_from` and the end of the log."""
    if scan_from(evidence) < tail.scanned_from:
        return Need.READ_TAIL  # the pair is refuted: read from the next lower one
    pair = _standing(evidence)
    complete = tail.scanned_from <= pair.target_offset + 1
    if memory is not None and memory.sequence >= 0:
        remembered = _ordinal(memory, pair.ordinal)
        if complete and remembered != pair.ordinal:
            return Need.WAIT
        if complete:
            return _go_on(evidence, remembered, pair.target_offset, alone=False)
        # Retention removed our records, but the leader remembers their number. Use the highest offset
        # possible: at an offset with another producer's record, the pair would be refuted as soon as the
        # leader forgets the identity.
        below = tail.scanned_from - 1
        if remembered - pair.ordinal > below - pair.target_offset:
            return Need.WAIT  # the offsets below the tail cannot hold so many records
        return _go_on(evidence, remembered, below, alone=True)
    if memory is not None and sequence_of(pair.ordinal + 1) != 0:
        return Need.BLANK
    if not complete:
        # Retention removed records without a known sequence number: ours or another producer's.
        return Need.UNDECIDED
    if pair is not evidence.ladder[0] and (pair is not evidence.ladder[-1] or tail.has_gaps):
        # The target lost its tail, but how much of it lay at the missing offsets is unknown.
        return Need.UNDECIDED
    return _go_on(evidence, pair.ordinal, pair.target_offset, alone=memory is None)


def _memory(evidence: Evidence) -> LeaderMemory | None:
    """Return the memory of our epoch.

    State of an older epoch is ignored: that epoch is fenced before we write.
    """
    memory = evidence.memory
    return None if memory is None or memory.epoch < evidence.epoch else memory


def _ordinal(memory: LeaderMemory, near: int) -> int:
    return -1 if memory.sequence < 0 else ordinal_near(memory.sequence, near)


def _go_on(evidence: Evidence, ordinal: int, target_offset: int, *, alone: bool) -> Verdict:
    known = next((pair for pair in evidence.ladder if pair.ordinal <= ordinal), None)
    if known is None:
        # Even the anchor is higher: the target lost the whole stream, so the stream restarts.
        known = evidence.ladder[-1]
        return ResumeAt(
            ordinal=known.ordinal, target_offset=evidence.high_watermark - 1, known=known, alone=True
        )
    if 0 <= target_offset - known.target_offset < ordinal - known.ordinal:
        return Need.UNDECIDED
    return ResumeAt(ordinal=ordinal, target_offset=target_offset, known=known, alone=alone)

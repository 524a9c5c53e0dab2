"""Where to go on: which record of the stream does the target have last.

Pure. The shell asks the target (`kafka.witnesses`) and brings the answers as `Evidence`; `align` gives a verdict or says
which further witness it needs. The rules are clauses 2, 4, 6 and 8 of "exactly once by sequence" and each one stands
against an attack that was run:

1. A leader that does not remember the identity accepts *any* sequence. So its absence is an answer of its own, never
   "-1" and never "as far as I know": then the log decides, and one batch is in flight until it is acknowledged.
2. A leader that remembers may still be an old one, or remember what is not replicated yet. Its word is believed at once
   only where it names what was acknowledged last; otherwise the log is read.
3. What lies above the high watermark is not delivered, whoever remembers it.
4. A record takes an offset. Where the target has fewer offsets after a known pair than records it is said to have, there
   is a hole, or not all of them are replicated; and where all offsets are gone, nobody knows whose they were.
5. A known pair is no witness of today: the target may have lost its tail since, and others may have written over it. So
   without memory the offset of the pair is read. Another's record there refutes the pair, and the next lower one is
   looked at, down to the anchor. Where retention or compaction has taken the offset, a pair is believed as long as
   nothing contradicts it.

An *ordinal* is the number of a record since the anchor of its stream, unbounded; on the wire it is the sequence
`ordinal mod 2^31` (KIP-98). Nothing here knows of time, sockets or policies.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

SEQUENCES = (
    1 << 31
)  # Kafka counts sequences from 0 to 2^31 - 1, then 0 again (DefaultRecordBatch.incrementSequence)


def sequence_of(ordinal: int) -> int:
    """The sequence on the wire of the record with *ordinal* (never negative: -1 has none)."""
    return ordinal % SEQUENCES


def ordinal_near(sequence: int, near: int) -> int:
    """The ordinal with *sequence* on the wire that is nearest to *near*; a repeat is 2^31 records away."""
    offset = (sequence - near) % SEQUENCES
    if offset >= SEQUENCES // 2:
        offset -= SEQUENCES
    ordinal = near + offset
    return ordinal if ordinal >= 0 else ordinal + SEQUENCES


class Pair(NamedTuple):
    """The record with source offset `source_offset` is number `ordinal` and lies at `target_offset`.

    For an anchor: the offset before the first record, ordinal before it, and the target's end before it.
    """

    source_offset: int
    ordinal: int
    target_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What the leader remembers of the identity (DescribeProducers, KIP-664)."""

    epoch: int
    sequence: int  # -1: the epoch has begun, nothing of it is written (after an empty transaction)
    # The target offset at which the transaction began that nobody has committed yet; -1: none is open.
    open_since: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What reading the target's log from `scanned_from` up to the high watermark has shown of the identity's epoch."""

    scanned_from: int
    sequence: int | None  # last sequence of the last batch of ours; None: no batch of ours
    target_offset: int = -1  # offset of that record
    taken: bool = False  # another producer's batch, or a marker, lies at `scanned_from`
    has_gaps: bool = False  # some offsets hold nothing: compaction took what was there, ours or others'
    fenced: bool = False  # a later epoch of the identity has left a batch or a marker
    aborted: bool = False  # the first marker of ours at or above `scanned_from` is an abort


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is known of one partition of the target."""

    epoch: int  # ours
    ladder: tuple[Pair, ...]  # newest first, the anchor last; never empty
    memory: Memory | None  # None: the leader does not remember the identity
    log_start: int
    high_watermark: int
    tail: Tail | None = None  # None: not read yet
    ended: bool = False  # we have fenced this epoch ourselves, and look for where it ended
    # Where the target ended when nothing but markers of ours lay behind the newest pair; -1: that is not known.
    known_end: int = -1


class Need(Enum):
    """Verdicts that are no answer yet."""

    READ_TAIL = "the log of the target must be read"
    WAIT = "something of ours is in the target and not replicated yet"
    BLANK = "the leader had forgotten our numbers when a marker came, and now takes the first alone"
    FENCED = "a later epoch of the identity writes here"
    UNDECIDED = "neither log nor memory tells"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """The target has the record with `ordinal` last, at `target_offset`; `known` is where to walk the source from.

    `alone`: one batch in flight until it is acknowledged, because the leader does not remember us.
    """

    ordinal: int
    target_offset: int
    known: Pair
    alone: bool

    @property
    def walk_records(self) -> int:
        """How many records after `known` the target already has."""
        return self.ordinal - self.known.ordinal


Verdict = GoOn | Need


def align(evidence: Evidence) -> Verdict:
    """Decide by the best witness at hand.

    Keeps: a verdict GoOn never names an ordinal that nothing but a guess supports; without memory it is always `alone`.
    """
    if evidence.memory is not None and evidence.memory.epoch > evidence.epoch:
        return Need.FENCED
    if evidence.tail is not None and evidence.tail.fenced and not evidence.ended:
        # The leader may have forgotten the later epoch, its log has not. What lies before that may have been aborted.
        return Need.FENCED
    memory, newest = _memory(evidence), evidence.ladder[0]
    if evidence.tail is not None:
        return _by_log(evidence, memory, evidence.tail)
    if memory is None:
        # A log that ends where it did when the newest pair was the last has had nobody since.
        is_at_end = evidence.high_watermark in {newest.target_offset + 1, evidence.known_end}
        # The anchor is no record, and what retention took cannot be read: there is nothing that could refute these two.
        if is_at_end and (len(evidence.ladder) == 1 or newest.target_offset < evidence.log_start):
            return _go_on(evidence, newest.ordinal, newest.target_offset, alone=True)
        return Need.READ_TAIL
    if evidence.high_watermark > newest.target_offset and _ordinal(memory, newest.ordinal) == newest.ordinal:
        # What was acknowledged last is what the leader has last; others may have written behind it.
        return _go_on(evidence, newest.ordinal, newest.target_offset, alone=False)
    # Counting would not do: strangers' records below the high watermark count as much as ours above it.
    return Need.READ_TAIL


def guess(evidence: Evidence) -> GoOn:
    """Where to go on if it cannot be decided and somebody wants to go on all the same: the log's word, else counting.

    Only offsets that could not be read are counted; what was read and is not ours is known not to be.
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
    return GoOn(ordinal=max(ordinal, known.ordinal), target_offset=last, known=known, alone=True)


def scan_from(evidence: Evidence) -> int:
    """Down to which offset the log is to be read: where the newest known pair lies that nothing refutes yet."""
    pair, anchor = _standing(evidence), evidence.ladder[-1]
    if pair is not anchor:
        return max(evidence.log_start, pair.target_offset)
    first = anchor.target_offset + 1
    if first > min((evidence.high_watermark, *(pair.target_offset for pair in evidence.ladder[:-1]))):
        # The target lost even what was before the anchor, and the stream began anew below it.
        return evidence.log_start
    return max(evidence.log_start, first)


def _standing(evidence: Evidence) -> Pair:
    """The newest known pair that nothing refutes; the anchor, which is no record that could be lost, if all are."""
    return next((pair for pair in evidence.ladder[:-1] if _stands(evidence, pair)), evidence.ladder[-1])


def _stands(evidence: Evidence, pair: Pair) -> bool:
    """Whether the record of *pair* may still be where it was, for all that was read (and found silent)."""
    tail, at = evidence.tail, pair.target_offset
    if at >= evidence.high_watermark:
        return False  # the log is shorter than it was
    if tail is None or at < max(evidence.log_start, tail.scanned_from):
        return True
    if at > tail.scanned_from or tail.taken:
        return False
    # Compaction took the record. While a leader remembers somebody, the cleaner keeps a header of his last batch; so who
    # remembers less than the pair, and has not that header there, never had the pair's.
    memory = _memory(evidence)
    return memory is None or _ordinal(memory, pair.ordinal) >= pair.ordinal


def _by_log(evidence: Evidence, memory: Memory | None, tail: Tail) -> Verdict:
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


def _by_silence(evidence: Evidence, memory: Memory | None, tail: Tail) -> Verdict:
    """Nothing of ours from `tail.scanned_from` to the end of the log."""
    if scan_from(evidence) < tail.scanned_from:
        return Need.READ_TAIL  # what was read refutes the pair that it was read for: on to the next lower one
    pair = _standing(evidence)
    complete = tail.scanned_from <= pair.target_offset + 1
    if memory is not None and memory.sequence >= 0:
        remembered = _ordinal(memory, pair.ordinal)
        if complete and remembered != pair.ordinal:
            return Need.WAIT
        if complete:
            return _go_on(evidence, remembered, pair.target_offset, alone=False)
        # Retention took our records, the leader still remembers their number. The offset is the last that it can be: a
        # pair at one where others lie would be refuted by them as soon as the leader forgets us.
        below = tail.scanned_from - 1
        if remembered - pair.ordinal > below - pair.target_offset:
            return Need.WAIT  # so many do not fit below what was read
        return _go_on(evidence, remembered, below, alone=True)
    if memory is not None and sequence_of(pair.ordinal + 1) != 0:
        return Need.BLANK
    if not complete:
        # Retention took records that nobody has a number of: they may be ours or others'.
        return Need.UNDECIDED
    if pair is not evidence.ladder[0] and (pair is not evidence.ladder[-1] or tail.has_gaps):
        # The target lost its tail, that much is known; how much of it lay at offsets that are gone, nobody knows.
        return Need.UNDECIDED
    return _go_on(evidence, pair.ordinal, pair.target_offset, alone=memory is None)


def _memory(evidence: Evidence) -> Memory | None:
    """What the leader remembers of our epoch: what an older one wrote says nothing of ours, and is fenced before we write."""
    memory = evidence.memory
    return None if memory is None or memory.epoch < evidence.epoch else memory


def _ordinal(memory: Memory, near: int) -> int:
    return -1 if memory.sequence < 0 else ordinal_near(memory.sequence, near)


def _go_on(evidence: Evidence, ordinal: int, target_offset: int, *, alone: bool) -> Verdict:
    known = next((pair for pair in evidence.ladder if pair.ordinal <= ordinal), None)
    if known is None:
        # Even the anchor is above: nothing of the stream is there (the target lost it all), so it begins anew.
        known = evidence.ladder[-1]
        return GoOn(ordinal=known.ordinal, target_offset=evidence.high_watermark - 1, known=known, alone=True)
    if 0 <= target_offset - known.target_offset < ordinal - known.ordinal:
        return Need.UNDECIDED
    return GoOn(ordinal=ordinal, target_offset=target_offset, known=known, alone=alone)

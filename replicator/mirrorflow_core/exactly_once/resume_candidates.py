"""Lists the source offsets at which a partition could continue, each with the evidence for it. No I/O.

`exactly_once.alignment` decides by the best evidence. These candidates are for people: the error of an
undecided partition shows them.
"""

from dataclasses import dataclass
from enum import Enum

from mirrorflow_core.exactly_once.alignment import Evidence, LeaderMemory, ordinal_near


class Witness(Enum):
    """The evidence for a candidate."""

    MEMORY = "the leader's memory"  # the flow's last sequence number that the target's leader remembers
    LOG = "the last batch in the log"  # the flow's last batch in the target's log
    POSITION = "the newest position"
    COUNT = (
        "counting"  # assumes that each target offset after the newest stored one holds a record of the flow
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A possible answer: the target's last record is `ordinal`, so copying continues at `source_offset`."""

    witness: Witness
    ordinal: int
    source_offset: int  # the next to copy
    is_exact: bool  # False: counted from the newest known record below, one source offset per record
    target_offset: int = -1  # of that record; -1: unknown

    @property
    def text(self) -> str:
        """The offset as text: exact, a lower bound, or a guess (too high if others wrote there)."""
        if self.is_exact:
            return str(self.source_offset)
        about = f"about {self.source_offset}"
        return about if self.witness is Witness.COUNT else f"{self.source_offset} or above"


def candidates(evidence: Evidence) -> tuple[Candidate, ...]:
    """Return all candidates, the one with the best evidence first."""
    ladder, memory, tail = evidence.ladder, evidence.memory, evidence.tail
    newest = ladder[0]
    found = []
    if memory is not None and memory.epoch == evidence.epoch and memory.sequence >= 0:
        ordinal = ordinal_near(memory.sequence, newest.ordinal)
        found.append(_candidate(evidence, Witness.MEMORY, ordinal))
    if tail is not None and tail.sequence is not None:
        ordinal = ordinal_near(tail.sequence, newest.ordinal)
        found.append(_candidate(evidence, Witness.LOG, ordinal, tail.target_offset))
    if len(ladder) > 1:
        found.append(_candidate(evidence, Witness.POSITION, newest.ordinal, newest.target_offset))
    written = evidence.high_watermark - 1 - newest.target_offset
    if written >= 0:
        last = evidence.high_watermark - 1
        found.append(_candidate(evidence, Witness.COUNT, newest.ordinal + written, last))
    return tuple(found)


def _candidate(evidence: Evidence, witness: Witness, ordinal: int, target_offset: int = -1) -> Candidate:
    known = next((pair for pair in evidence.ladder if pair.ordinal <= ordinal), evidence.ladder[-1])
    after = max(0, ordinal - known.ordinal)
    return Candidate(
        witness=witness,
        ordinal=ordinal,
        source_offset=known.source_offset + 1 + after,
        is_exact=after == 0,
        target_offset=target_offset,
    )


def describe_memory(memory: LeaderMemory | None) -> str:
    """Return as text what the target's leader remembers of the flow."""
    if memory is None:
        return "nothing"
    last = f"sequence {memory.sequence}" if memory.sequence >= 0 else "no record"
    transaction = f", a transaction open since offset {memory.open_since}" if memory.open_since >= 0 else ""
    return f"epoch {memory.epoch}, {last}{transaction}"


def describe_evidence(evidence: Evidence) -> str:
    """Return the target's state and the candidates as text, for the message of an undecided partition."""
    found = ", ".join(f"{one.text} by {one.witness.value}" for one in candidates(evidence))
    return (
        f"its log has offsets {evidence.log_start} to {evidence.high_watermark}, and its leader remembers "
        f"{describe_memory(evidence.memory)} of the flow; the source offset to continue at {f'could be {found}' if found else 'is shown by nothing'}"
    )

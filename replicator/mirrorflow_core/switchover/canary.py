"""What an application saw of a rehearsal: a producer and a consumer group of a canary topic, beside the real ones.

The producer writes numbers one after the other, and repeats a refused one. The group reads them on the source until writes are refused and
everything acknowledged is read. Afterwards a consumer of the group reads on the target, where it must begin with the next number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class CanaryStep(Enum):
    """What is measured; the value is its name in reports."""

    COPIED = "copied"  # from the first acknowledgement until the target has a record
    REFUSED = "refused"  # from the beginning of Fencing until the first refusal
    READ = (
        "read"  # from the last acknowledgement until the group has read and committed everything and has left
    )
    OFFSET_MOVED = "offsetMoved"  # from then on until the target has the group's offset
    ACCEPTED = "accepted"  # from the beginning of RollingBack until the first acknowledgement
    CONTINUED = "continued"  # from then on until the group has read that record on the target
    NOT_WRITTEN = "notWritten"  # from the last acknowledgement before the fence to the first one after it


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRequest:
    """The topic that a rehearsal writes and reads as an application does, and the group that reads it."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryTimeline:
    """When something happened, in seconds of one clock; None: it did not."""

    first_acknowledged: float | None = None
    copied: float | None = None
    fencing: float | None = None
    last_acknowledged: float | None = None  # before writes were refused
    refused: float | None = None
    left: float | None = None
    offset_moved: float | None = None
    rolling_back: float | None = None
    accepted: float | None = None
    continued: float | None = None

    @property
    def seconds(self) -> dict[CanaryStep, float | None]:
        """How long each step took; None: it was not reached."""
        spans = {
            CanaryStep.COPIED: (self.first_acknowledged, self.copied),
            CanaryStep.REFUSED: (self.fencing, self.refused),
            CanaryStep.READ: (self.last_acknowledged, self.left),
            CanaryStep.OFFSET_MOVED: (self.left, self.offset_moved),
            CanaryStep.ACCEPTED: (self.rolling_back, self.accepted),
            CanaryStep.CONTINUED: (self.accepted, self.continued),
            CanaryStep.NOT_WRITTEN: (self.last_acknowledged, self.accepted),
        }
        return {
            # An offset may have moved before the consumer has left the group.
            step: None if begin is None or end is None else max(0.0, end - begin)
            for step, (begin, end) in spans.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryResult:
    """What the canary's producer and group saw."""

    topic: str
    group: str
    client: str  # the versions of the client
    timeline: CanaryTimeline
    acknowledged_records: int
    refused_writes: int
    refused_with: str  # the name of the first error
    read_records: int
    source_offset: int | None
    target_offset: int | None
    read_again: int | None = (
        None  # records on the target that the group had read on the source; None: not checked
    )
    skipped: int | None = None  # records that it read on neither side
    problem: str = ""  # why the canary has failed, as a sentence; "": it has passed


def continued_from(expected: int, numbers: Sequence[int | None]) -> tuple[int, int]:
    """Returns how many records the group read again on the target, and how many it skipped.

    *expected*: the number after the last one that it has read on the source. *numbers*: what it read on the target, in order, not
    empty; None: a record of an earlier rehearsal.
    """
    own = [number for number in numbers if number is not None]
    earlier = len(numbers) - len(own)
    again = sum(number < expected for number in own) + earlier
    first_new = next((number for number in own if number >= expected), expected)
    return again, first_new - expected

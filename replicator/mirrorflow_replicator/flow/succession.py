"""Two copiers of one flow: the newer is warm and writes nothing while the older is at work (DESIGN 4.2, clause 10).

Writing together would lose nothing, but the broker logs every refused write as an error, so it is an accident and not
the plan. Pure: times are given.
"""

from dataclasses import dataclass

# Three position writes of the default five seconds: an older position was not written by a copier that lives.
POSITION_FRESH_S = 15.0
# A copier that has data and has not advanced for so long is gone or frozen. Longer than a leader election.
SILENCE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """What the newest position of a partition says of the copier that wrote it."""

    copier: str
    left: bool  # it has said good-bye
    age_s: float


def must_wait(predecessor: Predecessor | None, *, own_copier: str) -> bool:
    """Whether another copier may be at work on the partition, so that its silence has to be seen first."""
    return (
        predecessor is not None
        and not predecessor.left
        and predecessor.copier != own_copier
        and predecessor.age_s < POSITION_FRESH_S
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Watching another copier: the end of the target as last seen, and since when it has not moved."""

    target_end: int
    since_s: float
    patience_s: float = SILENCE_S  # with a random part, so that two watchers do not start together

    def seen(self, target_end: int, now_s: float) -> "Watch":
        """Look again. Where the source has nothing to copy, silence proves nothing, but a wait costs nothing either."""
        if target_end != self.target_end:
            return Watch(target_end=target_end, since_s=now_s, patience_s=self.patience_s)
        return self

    def is_over(self, now_s: float) -> bool:
        """Whether the other has been silent for long enough."""
        return now_s - self.since_s >= self.patience_s

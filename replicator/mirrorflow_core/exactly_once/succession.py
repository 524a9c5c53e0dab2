"""Decides how long a copier waits for another active copier of the flow (docs/exactly-once.md, clause 10).

The newer copier is connected but writes nothing while the older one is active. Writing together would be
safe, but the broker logs each refused write as an error. This module does no I/O and reads no clock: callers
pass the times.
"""

from dataclasses import dataclass

# Three times the default interval of 5 s for storing offsets: an older stored offset means that its copier is
# gone.
POSITION_FRESH_S = 15.0
# A copier that has data but does not advance for this long is gone or frozen. Longer than a leader election.
SILENCE_S = 3.0
# How often a copier that cannot be fenced checks for a newer generation, to stop by itself.
NOTICE_EVERY_S = 2.0
# By then it has noticed, its in-flight requests are answered and its stored offsets show that it stopped.
NOTICED_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """The copier that wrote the newest stored offset of a partition."""

    copier: str
    left: bool  # it has stopped cleanly
    age_s: float


def must_wait(predecessor: Predecessor | None, *, own_copier: str) -> bool:
    """Return whether another copier may be active on the partition, so this one must watch it first."""
    return (
        predecessor is not None
        and not predecessor.left
        and predecessor.copier != own_copier
        and predecessor.age_s < POSITION_FRESH_S
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Watches another copier: the target's last observed end offset, and since when it has not moved."""

    target_end: int
    since_s: float
    patience_s: float = SILENCE_S  # callers add a random part, so that two watchers do not start together

    def seen(self, target_end: int, now_s: float) -> "Watch":
        """Update with the observed end offset.

        With an idle source this proves nothing, but the wait then costs nothing.
        """
        if target_end != self.target_end:
            return Watch(target_end=target_end, since_s=now_s, patience_s=self.patience_s)
        return self

    def is_over(self, now_s: float) -> bool:
        """Return whether the end offset has not moved for `patience_s`."""
        return now_s - self.since_s >= self.patience_s

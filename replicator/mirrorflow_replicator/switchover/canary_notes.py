"""Notes what the threads of a rehearsal's application have seen: times and counts, in memory that does not grow with the rehearsal.

Only records that are acknowledged and not read yet, or read before their acknowledgement has arrived, are kept one by one.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Final

from mirrorflow_core.switchover.canary import CanaryTimeline
from mirrorflow_core.switchover.states import SwitchoverState

# Half an hour of writes. A group that is so far behind does not catch up within the rehearsal, and shows nothing of other groups.
UNMATCHED_MAX: Final = 100_000
_FENCING, _LIFTING = SwitchoverState.FENCING, SwitchoverState.ROLLING_BACK


class CanaryNotes:
    """What is known so far; each thread notes what it has seen. `problem` is the first one; "": none."""

    def __init__(self, now: Callable[[], float]) -> None:
        """*now*: a monotonic clock, in seconds."""
        self.problem = ""
        self.acknowledged_records = 0
        self.read_records = 0  # numbers, each once
        self.last_read: int | None = None  # the highest number
        self.refused_writes = 0
        self.refused_with = ""  # the first error
        self.target_offset: int | None = None
        self._now = now
        self._lock = threading.Lock()
        self._unread: set[int] = set()
        self._read_early: set[int] = set()  # before their acknowledgement has arrived
        self._states: dict[SwitchoverState, float] = {}
        self._first_acknowledged: float | None = None
        self._last_acknowledged: float | None = None
        self._refused: float | None = None
        self._last_before_fencing: float | None = None
        self._last_before_refusal: float | None = None
        self._first_after_fencing: float | None = None
        self._first_after_refusal: float | None = None
        self._moved: float | None = None
        self._times: dict[str, float] = {}  # of what happens once

    # -- what is seen

    def note_state(self, state: SwitchoverState) -> None:
        """Notes that the rehearsal is in *state*; the first time counts."""
        with self._lock:
            self._states.setdefault(state, self._now())

    def note_problem(self, problem: str) -> None:
        """Notes why the canary has failed; the first reason counts."""
        with self._lock:
            self.problem = self.problem or problem

    def note_acknowledged(self, number: int) -> None:
        """Notes that the record *number* was acknowledged."""
        with self._lock:
            now_s = self._last_acknowledged = self._now()
            self.acknowledged_records += 1
            if self._first_acknowledged is None:
                self._first_acknowledged = now_s
            if _FENCING not in self._states:
                self._last_before_fencing = now_s
            elif self._first_after_fencing is None:
                self._first_after_fencing = now_s
            if self._refused is None:
                self._last_before_refusal = now_s
            elif self._first_after_refusal is None:
                self._first_after_refusal = now_s
            if number in self._read_early:
                self._read_early.discard(number)
            else:
                self._unread.add(number)
            self._require_bound()

    def note_refused(self, error: str) -> None:
        """Notes that a write has failed with *error*."""
        with self._lock:
            self.refused_writes += 1
            if self._refused is None:
                self._refused, self.refused_with = self._now(), error

    def note_read(self, numbers: Iterable[int]) -> None:
        """Notes that the group has read *numbers* on the source. A group that joins again may read one twice."""
        with self._lock:
            for number in numbers:
                if self.last_read is not None and number <= self.last_read:
                    continue
                self.last_read, self.read_records = number, self.read_records + 1
                if number in self._unread:
                    self._unread.discard(number)
                else:
                    self._read_early.add(number)
            self._require_bound()

    def note_target_offset(self, offset: int) -> None:
        """Notes the offset of the group on the target."""
        with self._lock:
            if offset == self.target_offset:
                return
            self.target_offset = offset
            if _LIFTING not in self._states:
                self._moved = self._now()

    def note_once(self, event: str) -> None:
        """Notes when *event*, a field of `CanaryTimeline`, has happened: copied, left or continued."""
        with self._lock:
            self._times.setdefault(event, self._now())

    def _require_bound(self) -> None:
        if len(self._unread) + len(self._read_early) > UNMATCHED_MAX and not self.problem:
            self.problem = (
                f"The canary's group is behind its producer by more than {UNMATCHED_MAX:,} records, so the rehearsal shows nothing of it; "
                "look for what slows it down, and repeat the rehearsal."
            )

    # -- what is known

    @property
    def is_fencing(self) -> bool:
        """Whether the rehearsal has begun to refuse writes, even if they are accepted again."""
        return _FENCING in self._states

    @property
    def is_refusing(self) -> bool:
        """Whether writes are to be refused now."""
        return self.is_fencing and _LIFTING not in self._states

    def has_read_all(self, silent_s: float) -> bool:
        """Returns whether writes have ended behind the fence, and the group has read what was acknowledged.

        Where a fence leaves writes without a response, they have ended when none was acknowledged for *silent_s*.
        """
        with self._lock:
            if not self.is_refusing:
                return False
            since_s = max(self._states[_FENCING], self._last_acknowledged or 0.0)
            has_ended = self._refused is not None or self._now() - since_s >= silent_s
            return has_ended and not self._unread

    def timeline(self) -> CanaryTimeline:
        """Returns when what has happened."""
        with self._lock:
            fencing_s, lifting_s = self._states.get(_FENCING), self._states.get(_LIFTING)
            # Between the request and the moment in which brokers enforce it, writes are still accepted.
            is_known = self._refused is not None
            before_s = self._last_before_refusal if is_known else self._last_before_fencing
            after_s = self._first_after_refusal if is_known else self._first_after_fencing
            return CanaryTimeline(
                first_acknowledged=self._first_acknowledged,
                copied=self._times.get("copied"),
                fencing=fencing_s,
                last_acknowledged=before_s if fencing_s is not None else None,
                refused=self._refused,
                left=self._times.get("left"),
                offset_moved=self._moved if fencing_s is not None else None,
                rolling_back=lifting_s,
                accepted=after_s if lifting_s is not None else None,
                continued=self._times.get("continued"),
            )

"""Half windows for rates and samples: counters as of their beginning, and the samples that fell into them."""

from dataclasses import dataclass
from typing import NamedTuple

WINDOW_S = 30.0  # metrics.sample.window.ms of Kafka's clients
HALF_S = WINDOW_S / 2  # a query covers between one and two halves


class Spread(NamedTuple):
    """Minimum, maximum and average of the samples in a window."""

    minimum: float
    maximum: float
    average: float


@dataclass(slots=True, kw_only=True)
class Half:
    """One half window: the counters when it began, and the samples since."""

    begin_s: float
    records: int
    bytes: int
    value_bytes: int
    age: list[float]  # minimum, maximum, sum, count
    latency: list[float]


EMPTY = [0.0, 0.0, 0.0, 0.0]


def half_from(now_s: float, records: int, bytes_: int, value_bytes: int) -> Half:
    """Returns a half window that begins at *now_s* with these counters."""
    return Half(
        begin_s=now_s,
        records=records,
        bytes=bytes_,
        value_bytes=value_bytes,
        age=[0.0] * 4,
        latency=[0.0] * 4,
    )


def take_sample(window: list[float], sample: float) -> None:
    """Adds *sample* to *window*; ignores a negative one."""
    if sample < 0:
        return
    window[0] = sample if window[3] == 0 else min(window[0], sample)
    window[1] = max(window[1], sample)
    window[2] += sample
    window[3] += 1


def spread_of(one: list[float], other: list[float]) -> Spread | None:
    """Combines both halves; None if nothing was sampled."""
    count = one[3] + other[3]
    if count == 0:
        return None
    minimum = min(half[0] for half in (one, other) if half[3])
    return Spread(minimum, max(one[1], other[1]), (one[2] + other[2]) / count)


class Window:
    """The samples of the last one to two halves, of a value that is sampled irregularly."""

    __slots__ = ("_begin_s", "_current", "_previous")

    def __init__(self, now_s: float) -> None:
        self._begin_s = now_s
        self._current, self._previous = [0.0] * 4, [0.0] * 4

    def take(self, now_s: float, sample: float) -> None:
        """Adds *sample*, taken at *now_s*."""
        self._turn(now_s)
        take_sample(self._current, sample)

    def spread(self, now_s: float) -> Spread | None:
        """Returns the spread of the window now; None if nothing was sampled in it."""
        self._turn(now_s)
        return spread_of(self._current, self._previous)

    def _turn(self, now_s: float) -> None:
        halves = int((now_s - self._begin_s) / HALF_S)
        if halves > 0:
            self._previous = self._current if halves == 1 else [0.0] * 4
            self._current = [0.0] * 4
            self._begin_s += halves * HALF_S

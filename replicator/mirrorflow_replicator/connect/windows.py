"""A half window of one partition: counts as they stood when it began, and the samples that fell into it."""

from dataclasses import dataclass
from typing import NamedTuple

WINDOW_S = 30.0  # metrics.sample.window.ms of Kafka's clients
HALF_S = WINDOW_S / 2  # what is asked covers between one and two halves


class Spread(NamedTuple):
    """Samples of the window."""

    minimum: float
    maximum: float
    average: float


@dataclass(slots=True, kw_only=True)
class Half:
    """One half window: where the counts stood when it began, and what was sampled in it."""

    begin_s: float
    records: int
    bytes: int
    value_bytes: int
    age: list[float]  # minimum, maximum, sum, count
    latency: list[float]


EMPTY = [0.0, 0.0, 0.0, 0.0]


def half_from(now_s: float, records: int, bytes_: int, value_bytes: int) -> Half:
    """One that begins at *now_s*, with the counts as they stand."""
    return Half(
        begin_s=now_s,
        records=records,
        bytes=bytes_,
        value_bytes=value_bytes,
        age=[0.0] * 4,
        latency=[0.0] * 4,
    )


def take_sample(window: list[float], sample: float) -> None:
    """Take *sample* into *window*; one below 0 is none."""
    if sample < 0:
        return
    window[0] = sample if window[3] == 0 else min(window[0], sample)
    window[1] = max(window[1], sample)
    window[2] += sample
    window[3] += 1


def spread_of(one: list[float], other: list[float]) -> Spread | None:
    """Both halves together; None where nothing was sampled."""
    count = one[3] + other[3]
    if count == 0:
        return None
    minimum = min(half[0] for half in (one, other) if half[3])
    return Spread(minimum, max(one[1], other[1]), (one[2] + other[2]) / count)

"""Every nondeterministic choice of a run: drawn from a seed, or given as a list.

A *point* is a place where the run could go on in several ways; way 0 is the quiet one, in which nothing happens. The
random sequence behind `random` is what builds a world (how many records, how old) and what product code takes for jitter.
"""

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
JITTER_SEED = 0  # of runs whose points are enumerated: what is drawn besides is the same in all of them


class Chooser(Protocol):
    """Takes the choices of one run."""

    random: random.Random
    taken: list[int]  # the way taken at each point so far
    ways: list[int]  # how many there were

    def point(self, ways: int, weight: float) -> int:
        """Which of *ways* to take; *weight* is how likely a random run takes another one than 0."""


class Seeded:
    """All choices are drawn from *seed*."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.taken: list[int] = []
        self.ways: list[int] = []
        # Points draw from a sequence of their own: another number of them leaves the world as it was.
        self._points = random.Random(seed ^ 0x5DEECE66D)

    def point(self, ways: int, weight: float) -> int:
        """See `Chooser`."""
        way = self._points.randrange(1, ways) if ways > 1 and self._points.random() < weight else 0
        self.taken.append(way)
        self.ways.append(ways)
        return way


class Enumerated:
    """The ways at the first points are *prefix*; at all further ones nothing happens."""

    def __init__(self, prefix: Sequence[int], *, seed: int = JITTER_SEED) -> None:
        self.random = random.Random(seed)
        self.taken: list[int] = []
        self.ways: list[int] = []
        self._prefix = prefix

    def point(self, ways: int, weight: float) -> int:
        """See `Chooser`."""
        at = len(self.taken)
        way = self._prefix[at] if at < len(self._prefix) else 0
        self.taken.append(min(way, ways - 1))
        self.ways.append(ways)
        return self.taken[-1]

"""The nondeterministic choices of a run are drawn from a seed, or given as a list.

A *choice* selects one of several ways in which a run can continue. With way 0, nothing happens. `random` creates the
world (the number and age of records) and provides the jitter of product code.
"""

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")
JITTER_SEED = 0  # runs with enumerated choices share all other random values


class Chooser(Protocol):
    """Makes the choices of one run."""

    random: random.Random
    choices: list[int]  # the way taken at each choice so far
    way_counts: list[int]  # the number of ways at each choice

    def choose(self, ways: int, weight: float) -> int:
        """Chooses one of *ways*. *weight* is the probability that a random run takes a way other than 0."""


class Seeded:
    """Draws all choices from *seed*."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.choices: list[int] = []
        self.way_counts: list[int] = []
        # Choices draw from a separate sequence, so that their number does not change the world.
        self._draws = random.Random(seed ^ 0x5DEECE66D)

    def choose(self, ways: int, weight: float) -> int:
        way = self._draws.randrange(1, ways) if ways > 1 and self._draws.random() < weight else 0
        self.choices.append(way)
        self.way_counts.append(ways)
        return way


class Enumerated:
    """Takes *prefix* as its first choices, and way 0 at all further ones."""

    def __init__(self, prefix: Sequence[int], *, seed: int = JITTER_SEED) -> None:
        self.random = random.Random(seed)
        self.choices: list[int] = []
        self.way_counts: list[int] = []
        self._prefix = prefix

    def choose(self, ways: int, weight: float) -> int:
        index = len(self.choices)
        way = self._prefix[index] if index < len(self._prefix) else 0
        self.choices.append(min(way, ways - 1))
        self.way_counts.append(ways)
        return self.choices[-1]

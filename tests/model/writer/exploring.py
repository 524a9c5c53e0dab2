"""Exhaustive exploration of small worlds: every schedule with one disturbance, and as many with two as there is time for.

A schedule is a list of ways, one for each point (`tests.model.chooser`), and is run from the beginning. In the quiet way
of a point, nothing happens and the process that acted last acts again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.model.writer.running import Outcome, Scenario, run

PAIRS_MAX = 1500  # schedules with two disturbances


@dataclass
class ExploredWorld:
    """What was explored: schedules by their number of disturbances, run and left out."""

    runs: Counter[int] = field(default_factory=Counter)
    left: Counter[int] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)


def explore(scenario: Scenario, *, depth: int = 2, pairs_max: int = PAIRS_MAX) -> ExploredWorld:
    """Run the schedules of *scenario* with at most *depth* disturbances; stop at the first failure."""
    found = ExploredWorld()
    level: list[tuple[int, ...]] = [()]
    for number in range(depth + 1):
        most = pairs_max if number > 1 else len(level)
        chosen = level if len(level) <= most else [level[at * len(level) // most] for at in range(most)]
        found.left[number] = len(level) - len(chosen)
        further: list[tuple[int, ...]] = []
        for prefix in chosen:
            outcome = run(scenario, choices=prefix)
            found.runs[number] += 1
            if number < depth:
                further += successors(prefix, outcome.taken, outcome.ways)
            if not outcome.is_good:
                found.failures.append(outcome)
                return found
        level = further
    return found


def successors(prefix: tuple[int, ...], taken: Sequence[int], ways: Sequence[int]) -> list[tuple[int, ...]]:
    """The schedules that equal this one up to some point behind *prefix*, and go another way there."""
    return [(*taken[:at], way) for at in range(len(prefix), len(taken)) for way in range(1, ways[at])]

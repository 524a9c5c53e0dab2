"""Explores small worlds exhaustively: every schedule with one disturbance, and a sample of those with two.

A schedule is a list of choices (`tests.model.chooser`), run from the start of the world. In the quiet way of a choice,
nothing happens and the process that acted last acts again.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.model.writer.running import Outcome, Scenario, run

PAIRS_MAX = 1500  # schedules with two disturbances


@dataclass
class ExploredWorld:
    """The number of schedules that were run and left out, by their number of disturbances."""

    runs: Counter[int] = field(default_factory=Counter)
    skipped: Counter[int] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)


def explore(scenario: Scenario, *, depth: int = 2, pairs_max: int = PAIRS_MAX) -> ExploredWorld:
    """Runs the schedules of *scenario* with at most *depth* disturbances; stops at the first failure."""
    explored = ExploredWorld()
    level: list[tuple[int, ...]] = [()]
    for number in range(depth + 1):
        most = pairs_max if number > 1 else len(level)
        chosen = level if len(level) <= most else [level[index * len(level) // most] for index in range(most)]
        explored.skipped[number] = len(level) - len(chosen)
        further: list[tuple[int, ...]] = []
        for prefix in chosen:
            outcome = run(scenario, choices=prefix)
            explored.runs[number] += 1
            if number < depth:
                further += successors(prefix, outcome.choices, outcome.way_counts)
            if not outcome.is_good:
                explored.failures.append(outcome)
                return explored
        level = further
    return explored


def successors(
    prefix: tuple[int, ...], choices: Sequence[int], way_counts: Sequence[int]
) -> list[tuple[int, ...]]:
    """The schedules that follow this one up to a choice after *prefix* and take a different way there."""
    return [
        (*choices[:index], way)
        for index in range(len(prefix), len(choices))
        for way in range(1, way_counts[index])
    ]

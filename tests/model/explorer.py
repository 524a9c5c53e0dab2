"""Exhaustive exploration of small worlds: every schedule with at most *depth* disturbances, each once.

Stateless: a schedule is a list of ways, one for each point (`tests.model.chooser`), and is run from the beginning. First the
one in which nothing happens, then all with one disturbance, then those with two: what is found first is as short as can be.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.model.running import Outcome, run
from tests.model.scenarios import Scenario

Prefix = tuple[int, ...]

# Of each number of disturbances. All schedules with one are fewer in every small world (240 to 540); those with two are some
# 100,000, hours of work, so they are sampled evenly.
SCHEDULES_MAX = 2000


@dataclass(slots=True)
class Exploration:
    """What was explored of a scenario. `left` counts the schedules that were not run."""

    scenario: str
    runs: Counter[int] = field(default_factory=Counter)  # by the number of disturbances
    left: Counter[int] = field(default_factory=Counter)
    failures: list[Outcome] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        return not any(self.left.values())

    def is_complete_with(self, disturbances: int) -> bool:
        """Whether every schedule with at most so many disturbances was run."""
        return not any(self.left[number] for number in range(disturbances + 1))

    def __str__(self) -> str:
        shown = "; ".join(self._shown(number) for number in sorted(self.runs))
        return f"{self.scenario}: {shown} disturbances; {self.took_s:.0f} s, {len(self.failures)} broken"

    def _shown(self, number: int) -> str:
        runs, left = self.runs[number], self.left[number]
        if left:
            return f"{runs} of {runs + left} schedules with {number}"
        least = "" if self.is_complete_with(number) else "at least "
        return f"all of {least}{runs} schedules with {number}"


def explore(
    scenario: Scenario,
    *,
    depth: int,
    schedules_max: int = SCHEDULES_MAX,
    failures_max: int = 1,
    told: Callable[[Exploration], None] = lambda _: None,
) -> Exploration:
    """Run the schedules of *scenario* with at most *depth* disturbances; *schedules_max* of each number, evenly spread.

    It ends early where *failures_max* of them break a promise. *told* is called after each number of disturbances.
    """
    began = time.perf_counter()
    found = Exploration(scenario.name)
    level: list[Prefix] = [()]
    for number in range(depth + 1):
        chosen = _evenly(level, schedules_max)
        further: list[Prefix] = []
        for prefix in chosen if len(found.failures) < failures_max else ():
            outcome = run(scenario, choices=prefix)
            found.runs[number] += 1
            further += successors(prefix, outcome.taken, outcome.ways)
            if not outcome.is_good:
                found.failures.append(outcome)
                if len(found.failures) == failures_max:
                    break
        found.left[number] = len(level) - found.runs[number]
        found.took_s = time.perf_counter() - began
        told(found)
        level = further
    return found


def successors(prefix: Prefix, taken: Sequence[int], ways: Sequence[int]) -> list[Prefix]:
    """The schedules that go as this one did up to some point behind *prefix*, and there another way."""
    return [(*taken[:at], way) for at in range(len(prefix), len(taken)) for way in range(1, ways[at])]


def _evenly(level: list[Prefix], count: int) -> list[Prefix]:
    """*count* of the schedules, evenly spread; all where there are no more."""
    if len(level) <= count:
        return level
    return [level[number * len(level) // count] for number in range(count)]

"""One run of a scenario, by a seed or a list of choices; and many of them."""

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.model.chooser import Chooser, Enumerated, Seeded
from tests.model.judge import Judgement
from tests.model.scenarios import Scenario
from tests.model.world import World


class Outcome(NamedTuple):
    """What came of a run, and how to have it again."""

    scenario: str
    again: str  # the arguments
    judgement: Judgement
    happened: Sequence[str]
    trace: Sequence[str]
    taken: Sequence[int]
    ways: Sequence[int]

    @property
    def is_good(self) -> bool:
        return not self.judgement.problems

    def __str__(self) -> str:
        said = "; ".join(self.judgement.problems) or "all holds"
        happened = f" (after: {', '.join(self.happened)})" if self.happened else ""
        return f"python -m tests.model {self.again}\n  {said}{happened}"


def run(
    scenario: Scenario, *, seed: int | None = None, choices: Sequence[int] = (), traced: bool = False
) -> Outcome:
    """One run: of *seed*, or of *choices* where that is None."""
    chooser: Chooser = Enumerated(choices) if seed is None else Seeded(seed)
    world = World(chooser, scenario.options(chooser.random), traced=traced)
    judgement = world.play(scenario.play)
    again = f"--scenario {scenario.name} "
    if seed is None:
        last = max((at for at, way in enumerate(chooser.taken) if way), default=-1)
        again += "--choices " + (",".join(map(str, chooser.taken[: last + 1])) or "0")
    else:
        again += f"--seed {seed}"
    lines = world.trace.lines if world.trace is not None else []
    return Outcome(
        scenario.name, again, judgement, world.disturbances.happened, lines, chooser.taken, chooser.ways
    )


def run_seeds(scenario: Scenario, seeds: Iterable[int]) -> Iterator[Outcome]:
    """One run for each of *seeds*."""
    return (run(scenario, seed=seed) for seed in seeds)


def draws_of(seed: int) -> random.Random:
    """What a seed draws first: the options of its world."""
    return Seeded(seed).random

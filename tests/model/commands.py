"""The command line of the model."""

import argparse
import gc
import time
from collections import Counter
from collections.abc import Sequence

from tests.model.cases import undeclared
from tests.model.catalogue import SCENARIOS
from tests.model.explorer import SCHEDULES_MAX, explore
from tests.model.running import Outcome, run
from tests.model.scenarios import Scenario

SHOWN = 5  # failures of a scenario that are written out


def main(arguments: Sequence[str]) -> int:
    """Run what is asked for; 1 if the promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--scenario", action="append", choices=sorted(SCENARIOS), help="default: all")
    parser.add_argument("--seeds", type=int, default=50, help="so many runs of each scenario")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one run, with its trace")
    parser.add_argument("--choices", help="one run by its list of choices, with its trace")
    parser.add_argument(
        "--explore", action="store_true", help="every schedule of small worlds with one disturbance"
    )
    parser.add_argument("--depth", type=int, default=2, help="of an exploration: so many disturbances")
    parser.add_argument(
        "--runs", type=int, default=SCHEDULES_MAX, help="of each number of disturbances, at most"
    )
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    parser.add_argument("--quiet", action="store_true", help="no trace")
    asked = parser.parse_args(arguments)
    chosen = [SCENARIOS[name] for name in asked.scenario or SCENARIOS]
    if asked.list:
        for one in chosen:
            print(f"{one.name}\n    {one.about}")
        return 0
    if asked.seed is not None or asked.choices is not None:
        choices = [int(way) for way in (asked.choices or "").split(",") if way]
        outcomes = [run(one, seed=asked.seed, choices=choices, traced=not asked.quiet) for one in chosen]
        for outcome in outcomes:
            print(*outcome.trace, outcome, sep="\n")
        return int(not all(one.is_good for one in outcomes))
    gc.freeze()
    gc.set_threshold(50_000)
    if asked.explore:
        small = [one for one in chosen if asked.scenario or one.name.startswith("small_")]
        return int(sum(_explore(one, asked.depth, asked.runs) for one in small) > 0)
    return int(sum(_many(one, range(asked.first, asked.first + asked.seeds)) for one in chosen) > 0)


def _many(scenario: Scenario, seeds: range) -> int:
    began = time.perf_counter()
    kinds: Counter[str] = Counter()
    bad: list[Outcome] = []
    for seed in seeds:
        outcome = run(scenario, seed=seed)
        kinds.update(one.name for one in outcome.judgement.allowed)
        new = undeclared(scenario.name, outcome.judgement.allowed)
        outcome.judgement.problems += [f"{name}: the docs' table does not say so" for name in sorted(new)]
        if not outcome.is_good:
            bad.append(outcome)
    took_s = time.perf_counter() - began
    allowed = f"; allowed: {dict(kinds)}" if kinds else ""
    print(
        f"{scenario.name}: {len(seeds)} runs, {len(seeds) / took_s:.0f}/s, {len(bad)} broken{allowed}",
        flush=True,
    )
    for outcome in bad[:SHOWN]:
        print(f"  {outcome}", flush=True)
    return len(bad)


def _explore(scenario: Scenario, depth: int, schedules_max: int) -> int:
    """How many schedules break a promise; one more where those with one disturbance are not all run."""
    found = explore(
        scenario,
        depth=depth,
        schedules_max=schedules_max,
        failures_max=SHOWN,
        told=lambda sofar: print(f"  {sofar}", flush=True),
    )
    print(found, flush=True)
    for outcome in found.failures:
        print(f"  {outcome}", flush=True)
    return len(found.failures) + (not found.is_complete_with(min(depth, 1)))

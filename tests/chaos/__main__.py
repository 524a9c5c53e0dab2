"""`python -m tests.chaos --seconds 600 --seed 7`: exits 1 when the two sides differ, and keeps the evidence.

Several trials end with a line for each (seed, dimensions, result) and their number.
"""

import argparse
import random
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.chaos.dimensions import CHOICES, Dimensions, draw
from tests.chaos.trial import Result, Trial

EQUAL = "equal"
PROBLEM_MAX = 160  # of its first problem; the rest is in the evidence
EVIDENCE = Path(__file__).parents[2] / ".cache" / "chaos"


def main() -> int:
    """Runs the trials and prints their results."""
    parser = argparse.ArgumentParser(
        prog="tests.chaos",
        description="Kill and freeze replicators, tasks and brokers at random, then compare source and target.",
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="duration of each trial")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1 << 31), help="seed of the random steps"
    )
    parser.add_argument("--runs", type=int, default=1, help="number of trials, with consecutive seeds")
    parser.add_argument("--rate", type=int, default=3000, help="records per second of all producers")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a dimension to set instead of drawing it: " + ", ".join(CHOICES),
    )
    given = parser.parse_args()
    asked = dict(pair.partition("=")[::2] for pair in given.set)
    try:
        draw(0, asked)
    except ValueError as error:
        parser.error(str(error))
    lines = [_trial(given, seed, asked) for seed in range(given.seed, given.seed + given.runs)]
    print(*lines, sep="\n")
    bad = sum(not line.endswith(EQUAL) for line in lines)
    print(f"{len(lines)} runs of {given.seconds:g} s, {bad} bad")
    return bool(bad)


def _trial(given: argparse.Namespace, seed: int, asked: Mapping[str, str]) -> str:
    """Returns a line about the trial of *seed*; a trial that fails to run counts as bad, and the others follow."""
    dimensions = draw(seed, asked)
    again = f"python -m tests.chaos --seconds {given.seconds:g} --rate {given.rate} --seed {seed} {dimensions.arguments}"
    print(again)
    trial = Trial(
        seed=seed,
        seconds=given.seconds,
        records_per_s=given.rate,
        dimensions=dimensions,
        folder=EVIDENCE / str(seed),
        say=partial(print, flush=True),
    )
    try:
        result = trial.run()
    except Exception as error:  # noqa: BLE001  whatever it is, the other trials are to be run
        traceback.print_exc()
        trial.result.problems.append(f"{type(error).__name__}: {error}")
        result = trial.result
    print(result.summary())
    if result.problems:
        print(f"Evidence: {trial.folder}; again: {again}")
    return line_of(dimensions, result)


def line_of(dimensions: Dimensions, result: Result) -> str:
    """The trial in one line: seed, dimensions, what came of it."""
    said = f"NOT EQUAL: {' '.join(result.problems[0].split())[:PROBLEM_MAX]}" if result.problems else EQUAL
    return f"seed {result.seed}: {dimensions}: {result.target_records} records, {said}"


if __name__ == "__main__":
    sys.exit(main())

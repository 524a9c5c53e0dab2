"""`python -m tests.chaos --seconds 600 --seed 7` exits with 1 and keeps logs if source and target differ.

After several trials it prints a line for each (seed, dimensions, result), and their number.
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
PROBLEM_MAX = 160  # characters of the first problem in a line; the folder of the trial has the complete text
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
    arguments = parser.parse_args()
    requested = dict(pair.partition("=")[::2] for pair in arguments.set)
    try:
        draw(0, requested)
    except ValueError as error:
        parser.error(str(error))
    lines = [
        _run_trial(arguments, seed, requested)
        for seed in range(arguments.seed, arguments.seed + arguments.runs)
    ]
    print(*lines, sep="\n")
    unequal = sum(not line.endswith(EQUAL) for line in lines)
    print(f"{len(lines)} runs of {arguments.seconds:g} s, {unequal} bad")
    return bool(unequal)


def _run_trial(arguments: argparse.Namespace, seed: int, requested: Mapping[str, str]) -> str:
    """Returns a line about the trial of *seed*. A trial that raises an error counts as bad."""
    dimensions = draw(seed, requested)
    command = f"python -m tests.chaos --seconds {arguments.seconds:g} --rate {arguments.rate} --seed {seed} {dimensions.arguments}"
    print(command)
    trial = Trial(
        seed=seed,
        seconds=arguments.seconds,
        records_per_s=arguments.rate,
        dimensions=dimensions,
        folder=EVIDENCE / str(seed),
        log=partial(print, flush=True),
    )
    try:
        result = trial.run()
    except Exception as error:  # noqa: BLE001  the other trials must run after any error
        traceback.print_exc()
        trial.result.problems.append(f"{type(error).__name__}: {error}")
        result = trial.result
    print(result.summary())
    if result.problems:
        print(f"Evidence: {trial.folder}; command: {command}")
    return line_of(dimensions, result)


def line_of(dimensions: Dimensions, result: Result) -> str:
    """Returns the trial in one line: seed, dimensions and outcome."""
    outcome = f"NOT EQUAL: {' '.join(result.problems[0].split())[:PROBLEM_MAX]}" if result.problems else EQUAL
    return f"seed {result.seed}: {dimensions}: {result.target_records} records, {outcome}"


if __name__ == "__main__":
    sys.exit(main())

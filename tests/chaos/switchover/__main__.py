"""`python -m tests.chaos.switchover --seconds 30 --seed 7` exits with 1 and keeps logs if a record is lost or read
twice.

After several trials it prints a line for each (seed, dimensions, result), and their number.
"""

import argparse
import random
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.chaos.switchover.schedule import CHOICES, SwitchoverDimensions, drawn_dimensions
from tests.chaos.switchover.trial import SwitchoverResult, SwitchoverTrial

EXACT = "exact"
PROBLEM_MAX = 160  # characters of the first problem in a line; the folder of the trial has the complete text
EVIDENCE = Path(__file__).parents[3] / ".cache" / "chaos-switchover"


def main() -> int:
    """Runs the trials and prints their results."""
    parser = argparse.ArgumentParser(
        prog="tests.chaos.switchover",
        description="Move Java clients between two clusters and back while commands, flows and brokers are killed and frozen.",
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="time between the moves of each trial")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(1 << 31), help="seed of the random steps"
    )
    parser.add_argument("--runs", type=int, default=1, help="number of trials, with consecutive seeds")
    parser.add_argument("--quiet", action="store_true", help="print the lines of results only")
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
        drawn_dimensions(0, requested)
    except ValueError as error:
        parser.error(str(error))
    lines = [
        _run_trial(arguments, seed, requested)
        for seed in range(arguments.seed, arguments.seed + arguments.runs)
    ]
    if not arguments.quiet:
        print(*lines, sep="\n")
    broken = sum(not line.endswith(EXACT) for line in lines)
    print(f"{len(lines)} runs, {broken} broken")
    return bool(broken)


def _run_trial(arguments: argparse.Namespace, seed: int, requested: Mapping[str, str]) -> str:
    """Returns a line about the trial of *seed*. A trial that raises an error counts as broken."""
    dimensions = drawn_dimensions(seed, requested)
    command = f"python -m tests.chaos.switchover --seconds {arguments.seconds:g} --seed {seed} {dimensions.arguments}"
    trial = SwitchoverTrial(
        seed=seed,
        seconds=arguments.seconds,
        dimensions=dimensions,
        folder=EVIDENCE / str(seed),
        log=(lambda _: None) if arguments.quiet else partial(print, flush=True),
    )
    try:
        result = trial.run()
    except Exception as error:  # noqa: BLE001  the other trials must run after any error
        traceback.print_exc()
        trial.result.problems.append(f"{type(error).__name__}: {error}")
        result = trial.result
    line = line_of(dimensions, result)
    if result.problems or not arguments.quiet:
        print(result.summary())
    if result.problems:
        print(f"Evidence: {trial.folder}; command: {command}")
    if arguments.quiet:
        print(line, flush=True)
    return line


def line_of(dimensions: SwitchoverDimensions, result: SwitchoverResult) -> str:
    """Returns the trial in one line: seed, dimensions and outcome."""
    outcome = f"BROKEN: {' '.join(result.problems[0].split())[:PROBLEM_MAX]}" if result.problems else EXACT
    faults, commands = result.done.total(), result.commands.total()
    return (
        f"seed {result.seed}: {dimensions}: {result.moves} moves, {commands} commands, {faults} faults, "
        f"{result.acknowledged} acknowledged, {result.read} read, {result.kept} kept, {result.reread} reread, "
        f"{result.cpu_s:.0f} CPU s, {outcome}"
    )


if __name__ == "__main__":
    sys.exit(main())

"""Runs one seed of one scenario: python -m tests.model.writer SCENARIO SEED; exit status 1 if it violates a guarantee."""

import argparse
import sys

from tests.model.writer.running import run
from tests.model.writer.scenarios import SCENARIOS


def main() -> int:
    """Prints the events of the run, then the guarantees that it has violated."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.model.writer", description="Run one seed of one scenario."
    )
    parser.add_argument("scenario", choices=SCENARIOS, metavar="SCENARIO", help=", ".join(SCENARIOS))
    parser.add_argument("seed", type=int, metavar="SEED")
    arguments = parser.parse_args()
    outcome = run(SCENARIOS[arguments.scenario], seed=arguments.seed)
    print(*outcome.events, *outcome.broken, sep="\n")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.chaos --seconds 600 --seed 7`: exits 1 when the two sides differ, and keeps the evidence."""

import argparse
import random
import sys
from functools import partial
from pathlib import Path

from tests.chaos.trial import Trial

EVIDENCE = Path(__file__).parents[2] / ".cache" / "chaos"


def main() -> int:
    """Run one trial and print what came of it."""
    parser = argparse.ArgumentParser(
        prog="tests.chaos", description="Kill and freeze everybody, then compare."
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the chaos lasts")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="the same steps again")
    parser.add_argument("--copiers", type=int, default=3, help="processes of the one flow")
    parser.add_argument("--rate", type=int, default=3000, help="records a second, all producers together")
    parser.add_argument("--read-committed", action="store_true", help="leave aborted transactions out")
    parser.add_argument(
        "--old", action="store_true", help="old timestamps, and a target that forgets producers in seconds"
    )
    given = parser.parse_args()
    trial = Trial(
        seed=given.seed,
        seconds=given.seconds,
        copiers=given.copiers,
        records_per_s=given.rate,
        read_committed=given.read_committed,
        old=given.old,
        folder=EVIDENCE / str(given.seed),
        say=partial(print, flush=True),
    )
    result = trial.run()
    print(result.summary())
    if result.problems:
        print(
            f"Evidence: {trial.folder}; again: python -m tests.chaos --seconds {given.seconds:g} --seed {given.seed}"
        )
    return bool(result.problems)


if __name__ == "__main__":
    sys.exit(main())

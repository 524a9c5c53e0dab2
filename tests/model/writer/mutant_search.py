"""Counts the seeds that the model needs to find each mutant, from several first seeds on.

python -m tests.model.writer.mutant_search [NAME ...]    one line a mutant; exit status 1 if one is not found from each seed
"""

import argparse
import sys
from statistics import median

from tests.model.writer.mutants import MUTANTS, Mutant

FIRST_SEEDS = (0, 10_000, 20_000, 30_000, 40_000)


def seeds_needed(mutant: Mutant) -> list[int | None]:
    """Returns how many seeds were run from each first seed until a run failed; None: no run failed."""
    needed: list[int | None] = []
    for first_seed in FIRST_SEEDS:
        failed = mutant.find(first_seed)
        needed.append(None if failed is None else failed[0] - first_seed + 1)
    return needed


def main() -> int:
    """Searches the mutants that the command line names, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.model.writer.mutant_search", description=str(__doc__).splitlines()[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of mutants; by default all")
    names = parser.parse_args().names
    if unknown := set(names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"unknown mutants: {', '.join(sorted(unknown))}")
    is_complete = True
    for mutant in MUTANTS:
        if names and mutant.name not in names:
            continue
        needed = seeds_needed(mutant)
        counts = [count for count in needed if count is not None]
        is_complete &= len(counts) == len(needed)
        middle = f"median {median(counts):g}" if counts else "never found"
        print(f"{mutant.name}: {middle}, {needed} of {mutant.seeds}", flush=True)
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())

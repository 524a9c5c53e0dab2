"""`python -m benchmarks switchovers`: how long writes are refused while applications move, and what groups read again.

        python -m benchmarks switchovers [--runs 20] [--kills 20]

Runs the cases `switchover` (planned, there and back) and `failover-kills` (the source is killed) alone, and writes
benchmarks/SWITCHOVER.md. With fewer runs than by default it says so in the heading.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.arena import FAILURES, Arena
from benchmarks.cases import failover_kills, switchover
from benchmarks.machine import facts
from benchmarks.results import document

RUNS: Final = 20
HERE: Final = Path(__file__).parent
CACHE: Final = HERE.parent / ".cache" / "benchmarks"


def main(arguments: Sequence[str]) -> int:
    """Returns exit status 1 if a demand is missed."""
    # SIGTERM ends it like Ctrl-C, so that brokers are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks switchovers", description="Time of refused writes; records read again."
    )
    parser.add_argument("--runs", type=int, default=RUNS, metavar="N", help=f"planned switchovers ({RUNS})")
    parser.add_argument("--kills", type=int, default=RUNS, metavar="N", help=f"kills of a source ({RUNS})")
    options = parser.parse_args(arguments)
    heading = facts(" ".join(["python -m benchmarks switchovers", *arguments]))[:3]
    folder = CACHE / time.strftime("switchovers-%Y%m%d-%H%M%S")
    results = [switchover.measure(folder, options.runs)] if options.runs else []
    if options.kills:
        try:
            with Arena(folder=folder) as arena:
                results.append(failover_kills.measure(arena, options.kills))
        except FAILURES as error:
            print(f"failover-kills failed: {error}", file=sys.stderr)
            return 1
    text = document(results, heading=heading, title="Switchovers and failovers")
    place = HERE / "SWITCHOVER.md"
    place.write_text(text)
    print(f"{text}\n{place}")
    return 0 if all(demand.is_met for result in results for demand in result.demands) else 1

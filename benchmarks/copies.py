"""`python -m benchmarks copies`: compares throughput, CPU per GB and latency of this checkout with those of another.

        python -m benchmarks copies --against FOLDER [--cases none,large,lz4] [--repeat N] [--quick]

Copies alternate on the same brokers, and both checkouts use this interpreter with its packages. CPU in user mode varies least
from run to run; other processes disturb throughput and CPU in the kernel more. No file of results is written.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.arena import Arena
from benchmarks.cases import Extent, latency
from benchmarks.copiers import ROOT, Copier, mirrorflow
from benchmarks.machine import facts
from benchmarks.race import THROUGHPUT, race
from benchmarks.results import Result, number

REPEAT: Final = 9
PARTITIONS: Final = 4
LATENCY: Final = "latency"
LATENCY_S: Final = 10
CACHE: Final = ROOT / ".cache" / "benchmarks"


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    """What is copied: *records* of *record_bytes* each, from a Java producer's batches of *batch_bytes*."""

    records: int = 1_500_000
    record_bytes: int = 1000
    codec: str = "none"
    batch_bytes: int = 65_536


BACKLOGS: Final = {
    "none": Backlog(),
    "large": Backlog(batch_bytes=900_000),
    "lz4": Backlog(codec="lz4"),
    "zstd": Backlog(codec="zstd"),
    "small": Backlog(records=1_000_000, record_bytes=100, batch_bytes=1),
}
CASES: Final = (*BACKLOGS, LATENCY)


def main(arguments: Sequence[str]) -> int:
    """Prints medians, best runs and ratios of each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks copies", description="Two checkouts copy.")
    parser.add_argument(
        "--against", type=Path, metavar="FOLDER", required=True, help="another checkout to compare with"
    )
    parser.add_argument("--cases", default=",".join(CASES), help=f"of {','.join(CASES)}; all by default")
    parser.add_argument("--repeat", type=int, default=REPEAT, metavar="N", help=f"copies of each ({REPEAT})")
    parser.add_argument("--quick", action="store_true", help="a fifth of the records, for development")
    options = parser.parse_args(arguments)
    cases = options.cases.split(",")
    if unknown := set(cases) - {*CASES}:
        parser.error(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    extent = Extent(repeat=options.repeat, quick=options.quick)
    this, other = (
        mirrorflow(name=name, checkout=checkout.resolve())
        for name, checkout in (("this", ROOT), ("other", options.against))
    )
    print("\n".join(facts(" ".join(["python -m benchmarks copies", *arguments]))[:3]))
    print(f"- this is {ROOT}, other is {options.against.resolve()}", flush=True)
    with Arena(folder=CACHE / time.strftime("copies-%Y%m%d-%H%M%S")) as arena:
        for case in cases:
            result = _measure(arena, case, [this, other], extent)
            print(
                "\n".join([f"{case}: {result.setting}", *_lines(result, this.name, other.name)]), flush=True
            )
            arena.drop()
    return 0


def _measure(arena: Arena, case: str, copiers: Sequence[Copier], extent: Extent) -> Result:
    """Returns the figures of *case*."""
    if case == LATENCY:
        result = Result(name=case, title=case, setting=f"{latency.RATE_PER_S:,} records a second")
        latency.compare(arena, result, copiers, extent.of(LATENCY_S, 5), repeat=extent.repeat)
        return result
    backlog = BACKLOGS[case]
    records = extent.of(backlog.records, backlog.records // 5)
    setting = f"{records:,} records of {backlog.record_bytes} bytes in batches of {backlog.batch_bytes:,} bytes, {backlog.codec}"
    result = Result(name=case, title=case, setting=setting)
    arena.load(
        case,
        records,
        partitions=PARTITIONS,
        size_bytes=backlog.record_bytes,
        codec=backlog.codec,
        batch_bytes=backlog.batch_bytes,
    )
    race(
        arena,
        result,
        copiers,
        case,
        partitions=PARTITIONS,
        records=records,
        record_bytes=backlog.record_bytes,
        repeat=extent.repeat,
    )
    return result


def _lines(result: Result, this: str, other: str) -> list[str]:
    """Returns a line for each metric that both have, and the notes."""
    lines = []
    for metric in result.figures.get(this, {}):
        runs = {name: result.figures.get(name, {}).get(metric, []) for name in (this, other)}
        if not all(runs.values()):
            continue
        best = max if metric == THROUGHPUT else min
        figures = (
            f"{name} {number(median(values))} (best {number(best(values))}, {len(values)} copies)"
            for name, values in runs.items()
        )
        ratio, of_best = (of(runs[this]) / of(runs[other]) for of in (median, best))
        heading = metric.replace("_", " ")
        lines.append(f"  {heading:11} {', '.join(figures)}: ratio {ratio:.3f}, of the best {of_best:.3f}")
    return lines + [f"  {note}" for note in result.notes]

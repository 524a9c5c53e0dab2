"""`make bench`: compares our replicator with Java MirrorMaker 2, on real brokers.

        python -m benchmarks [case ...] [--quick] [--repeat N] [--resume FILE]
        python -m benchmarks operator [--quiescence]    # see control_plane.py
        python -m benchmarks machinery		  # see machinery.py
        python -m benchmarks executors		  # on a node: see executors.py
        python -m benchmarks startup		    # against an earlier commit: see startup.py
        python -m benchmarks copies		    # against an earlier commit: see copies.py
        python -m benchmarks console		    # see console.py
        python -m benchmarks switchovers	    # see switchovers.py

It writes benchmarks/RESULTS.md if all cases ran in full, else a file in .cache/benchmarks/, where JSON is always written. A
failed case is noted in the results, and the next case runs. The exit status is 1 if a demand is missed.
"""

import argparse
import dataclasses
import json
import signal
import sys
import time
import traceback
from pathlib import Path

from benchmarks import console, control_plane, copies, executors, machinery, startup, switchovers
from benchmarks.arena import FAILURES, Arena
from benchmarks.cases import (
    Case,
    Extent,
    archive,
    distance,
    exactly_once,
    failover,
    failover_kills,
    group_staleness,
    latency,
    memory,
    partitions,
    seed,
    small_batches,
    starting,
    switchover,
    throughput,
    verify,
)
from benchmarks.machine import facts
from benchmarks.results import Result, document, number, result_from_json

REPEAT = 3  # the smallest number with a median
HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "benchmarks"
MODULES = (
    throughput,
    small_batches,
    distance,
    latency,
    starting,
    memory,
    partitions,
    failover,
    failover_kills,
    group_staleness,
    switchover,
    exactly_once,
    seed,
    verify,
    archive,
)
CASES: dict[str, Case] = {name: case for module in MODULES for name, case in module.CASES.items()}


def main() -> int:
    # SIGTERM ends it like Ctrl-C, so that gigabytes of broker data are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if sys.argv[1:2] == ["operator"]:
        return control_plane.main(sys.argv[2:])
    if sys.argv[1:2] == ["machinery"]:
        return machinery.main(sys.argv[2:])
    if sys.argv[1:2] == ["console"]:
        return console.main(sys.argv[2:])
    if sys.argv[1:2] == ["executors"]:
        return executors.main(sys.argv[2:])
    if sys.argv[1:2] == ["startup"]:
        return startup.main(sys.argv[2:])
    if sys.argv[1:2] == ["copies"]:
        return copies.main(sys.argv[2:])
    if sys.argv[1:2] == ["switchovers"]:
        return switchovers.main(sys.argv[2:])
    options = _options()
    extent = Extent(repeat=options.repeat or (1 if options.quick else REPEAT), quick=options.quick)
    heading = facts(" ".join(["python -m benchmarks", *sys.argv[1:]]))
    stem = CACHE / time.strftime("%Y%m%d-%H%M%S")
    results: list[Result] = []
    if options.resume is not None:
        stem = options.resume.with_suffix("")
        earlier = json.loads(options.resume.read_text())
        results = [result_from_json(value) for value in earlier["results"]]
        heading = [
            *earlier["heading"],
            f"- the cases from {_first_missing(results)} on: {heading[0].removeprefix('- ')}",
        ]
    _run(options.cases or list(CASES), extent, stem, heading, results)
    text = document(results, heading=heading)
    is_whole = not options.cases and not options.quick
    place = HERE / "RESULTS.md" if is_whole else stem.with_suffix(".md")
    place.write_text(text)
    print(f"\n{text}\n{place}")
    return (
        0
        if all(result.demands and all(demand.is_met for demand in result.demands) for result in results)
        else 1
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Side by side with MirrorMaker 2."
    )
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes and one run each, for development")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="continue the run that wrote this JSON")
    parser.add_argument("--repeat", type=int, default=0, metavar="N", help=f"runs of each copier ({REPEAT})")
    options = parser.parse_args()
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}")
    return options


def _first_missing(results: list[Result]) -> str:
    """Returns the first case that *results* lack."""
    done = {result.name for result in results}
    return next((name for name in CASES if name not in done), "none")


def _run(names: list[str], extent: Extent, stem: Path, heading: list[str], results: list[Result]) -> None:
    """Adds the result of every case that *results* lack, in order, and writes all to disk after each.

    Restarts the clusters if one has failed.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    left = [name for name in names if name not in {result.name for result in results}]
    while left:
        try:
            with Arena(folder=stem) as arena:
                while left and arena.is_sound:
                    results.append(_one(left.pop(0), arena, extent))
                    raw = {"heading": heading, "results": [dataclasses.asdict(result) for result in results]}
                    stem.with_suffix(".json").write_text(json.dumps(raw, indent=1))
        except FAILURES as error:
            traceback.print_exception(error)
            results += [_failed(left.pop(0), error)] if left else []


def _failed(name: str, error: Exception) -> Result:
    traceback.print_exception(error)
    return Result(name=name, title="failed", setting=f"The case failed: {str(error)[:600]}")


def _one(name: str, arena: Arena, extent: Extent) -> Result:
    print(f"{name} ...", flush=True)
    began = time.monotonic()
    try:
        result = CASES[name](arena, extent)
    except FAILURES as error:
        result = _failed(name, error)
    try:
        arena.drop()
    except FAILURES as error:
        result.notes.append(f"Cleaning up failed: {error}")
    result.seconds = time.monotonic() - began
    for demand in result.demands:
        value = "not measured" if demand.value is None else number(demand.value)
        print(
            f"  {'pass' if demand.is_met else 'MISS'} {demand.what}: {value}, {demand.sense} {demand.limit:.3g}"
        )
    for note in result.notes:
        print(f"  {note}")
    print(f"  ({result.seconds:.0f} s)", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())

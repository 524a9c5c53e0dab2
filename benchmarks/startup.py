"""`python -m benchmarks startup`: measures `mirrorflow run -f` from the command to its first record, against another checkout.

        python -m benchmarks startup [--against FOLDER] [--repeat N]    # FOLDER: a worktree of the commit to compare with

Runs alternate on the same brokers, and both checkouts use this interpreter with its packages. *seconds* end when the target
has a record; *cpu s* is the CPU of the command and its processes until then, in ticks of 10 ms.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

from benchmarks.arena import Arena
from benchmarks.copiers import ROOT, Copier, Flow, product_of
from benchmarks.machine import facts
from benchmarks.results import number
from benchmarks.watch import until_copied
from tests.harness.kafka.processes import Child, cpu_s, start

REPEAT: Final = 9
TOPIC, PARTITIONS, RECORDS, RECORD_BYTES = "startup", 4, 1_000, 100
POLL_S: Final = 0.005
CACHE: Final = ROOT / ".cache" / "benchmarks"
FLOW: Final = """\
apiVersion: mirrorflow.io/v1alpha1
kind: MirrorFlow
metadata: {{name: {name}}}
spec:
  source: {{alias: {source_alias}, bootstrapServers: ["{source}"]}}
  target: {{alias: {target_alias}, bootstrapServers: ["{target}"]}}
  topics: {{include: ["{topic}"]}}
"""


def main(arguments: Sequence[str]) -> int:
    """Prints each run and the medians."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks startup", description="Command to first record."
    )
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout to compare with")
    parser.add_argument("--repeat", type=int, default=REPEAT, metavar="N", help=f"runs of each ({REPEAT})")
    options = parser.parse_args(arguments)
    checkouts = [ROOT] if options.against is None else [options.against.resolve(), ROOT]
    print("\n".join(facts(" ".join(["python -m benchmarks startup", *arguments]))[:2]))
    samples: dict[Path, list[tuple[float, float]]] = {checkout: [] for checkout in checkouts}
    folder = CACHE / time.strftime("startup-%Y%m%d-%H%M%S")
    with Arena(folder=folder) as arena:
        arena.load(TOPIC, RECORDS, partitions=PARTITIONS, size_bytes=RECORD_BYTES)
        # The first run of each checkout compiles its modules and warms up the brokers.
        for turn in range(-1, options.repeat):
            for checkout in checkouts:
                run = _measure(arena, checkout)
                print(
                    f"{checkout.name}: {run[0]:.2f} s, {run[1]:.2f} cpu s{'' if turn >= 0 else ' (not counted)'}",
                    flush=True,
                )
                if turn >= 0:
                    samples[checkout].append(run)
    medians = {
        checkout: [median(figures) for figures in zip(*runs, strict=True)]
        for checkout, runs in samples.items()
    }
    for checkout, (seconds, cpu) in medians.items():
        print(f"- {checkout.name}: {number(seconds)} s, {number(cpu)} cpu s")
    if options.against is not None:
        before, after = (medians[checkout] for checkout in checkouts)
        print(f"- ratio: {after[0] / before[0]:.0%} of the time, {after[1] / before[1]:.0%} of the CPU")
    return 0


def _measure(arena: Arena, checkout: Path) -> tuple[float, float]:
    """Returns the seconds and the CPU seconds of one first start, from the command to the first record."""
    flow = arena.flow(TOPIC)
    copier = Copier(name=f"mirrorflow run of {checkout.name}", launch=lambda flow: _launch(flow, checkout))
    began_s = time.perf_counter()
    with arena.running(copier, flow) as child:
        until_copied(arena.west, flow.remote(TOPIC), PARTITIONS, child, poll_s=POLL_S)
        return time.perf_counter() - began_s, cpu_s(child.pid)


def _launch(flow: Flow, checkout: Path) -> Child:
    flow.folder.mkdir(parents=True, exist_ok=True)
    file = flow.folder / f"{flow.source_alias}.yaml"
    file.write_text(
        FLOW.format(
            name=flow.source_alias,
            source_alias=flow.source_alias,
            target_alias=flow.target_alias,
            source=flow.source_bootstrap,
            target=flow.target_bootstrap,
            topic=flow.topics,
        )
    )
    log = file.with_suffix(".log")
    command = [sys.executable, "-m", "mirrorflow_cli", "run", "-f", str(file), "--log", str(log)]
    environment = {
        **product_of(checkout),
        "XDG_STATE_HOME": str(flow.folder),
    }
    return start(
        "mirrorflow run",
        command,
        log=file.with_suffix(".out"),
        environment=environment,
        directory=flow.folder,
    )

"""`python -m benchmarks executors`: compares one Spark executor with two on a real node, and measures their start.

        python -m benchmarks executors [--repeat N] [--quick]     # writes benchmarks/EXECUTORS.md

Node, operator, driver, executors and the two secured brokers share this machine's cores. So each case is measured twice:
with executors that may use all free CPU, and with executors that are limited to a part of a core each, as if they had their
own nodes. Only then does the result depend on the executors and not on the machine. Other figures are input of the
calculation for a cluster of any size (`machinery`). It needs root and what the end-to-end tests need.
"""

import argparse
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks import machinery
from benchmarks.arena import BROKER_HEAP_MIB, BROKER_JVM
from benchmarks.machine import load_average, node_facts
from benchmarks.results import Result, document
from benchmarks.watch import end_offsets
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.images import VERSION, build
from tests.harness.kubernetes.seeds import SEED_WAIT_S, SeedPods, job
from tests.harness.kubernetes.stage import FLOWS, Stage

HERE = Path(__file__).parent
CACHE = HERE.parent / ".cache" / "benchmarks"
TITLE: Final = "One Spark executor and two"
NETWORK: Final = 244  # different from those of `make cluster` and of the tests
BULK, SCATTERED = "bulk", "scattered"
PARTITIONS: Final = {BULK: 16, SCATTERED: 1_000}
RECORDS, QUICK_RECORDS = 2_000_000, 400_000
RECORD_BYTES: Final = 1_000
POLL_S: Final = 0.1  # between reads of pods or end offsets; a run takes tens of seconds
SHARE: Final = "200m"  # of a core, the limit of each limited executor
RATE, MIDDLE = "MB/s", "middle MB/s"
# With the JVM options of the tests' brokers, which use only one compiler, TLS would limit them to 20 MB/s.
BROKERS: Final = {"jvm_options": BROKER_JVM, "heap_mib": BROKER_HEAP_MIB}
VALUES: Final = {"pollSeconds": 1, "replicas": 1, "seed": {"namespaces": [FLOWS]}}
WAVE: Final = re.compile(r"a task began to copy after ([0-9.]+) s, the largest used (\d+) MiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """A number of executors with their limits, and the topic that they copy."""

    name: str
    executors: int
    limits: Mapping[str, str] = field(default_factory=dict)
    topic: str = BULK


ONE, TWO = Crew(name="1 executor", executors=1), Crew(name="2 executors", executors=2)
HELD: Final = {"cpu": SHARE}
ONE_HELD, TWO_HELD = (
    Crew(name=f"{crew.name} of 0.2 cores", executors=crew.executors, limits=HELD) for crew in (ONE, TWO)
)
# Many partitions with few records, because a session's start takes longer with more partitions.
MANY: Final = Crew(name="1 executor, 1,000 partitions of 10 records", executors=1, topic=SCATTERED)


def main(arguments: Sequence[str]) -> int:
    """Returns exit status 1 if a demand is missed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    options = _options(arguments)
    CACHE.mkdir(parents=True, exist_ok=True)
    heading = node_facts(" ".join(["python -m benchmarks executors", *arguments]))
    records = QUICK_RECORDS if options.quick else RECORDS
    result = Result(
        name="executors",
        title="the same seed by one executor and by two",
        setting=f"{records:,} records of {RECORD_BYTES} bytes in {PARTITIONS[BULK]} partitions; one slot in an"
        f" executor, TLS and SCRAM on both sides. {RATE} from the first record on the target to the last, {MIDDLE} from a"
        " quarter to three quarters of them, when all executors copy; *driver* is until an executor's container runs,"
        " *executor* from then to the first record.",
    )
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="mf-") as folder,
        Stage(
            folder=Path(folder), name="mf-executors", network=NETWORK, values=VALUES, brokers=BROKERS
        ) as stage,
    ):
        _race(stage, result, records, options.repeat)
    result.seconds = time.monotonic() - began_s
    result.notes.append(_calculated(result))
    # Executors that have enough CPU add up; the case without limits shows how two compete for two cores.
    what = "throughput of two, 0.2 cores each, against one"
    result.demand_ratio(what, RATE, TWO_HELD.name, ONE_HELD.name, sense=">=", limit=1.7)
    text = document([result], heading=heading, title=TITLE)
    target = CACHE / "executors.md" if options.quick else HERE / "EXECUTORS.md"
    target.write_text(text)
    print(f"{text}\n{target}")
    return 0 if all(demand.is_met for demand in result.demands) else 1


def _race(stage: Stage, result: Result, records: int, repeat: int) -> None:
    built = build("seed", version=VERSION)
    stage.cluster.load(built.archive)
    sizes = {BULK: records, SCATTERED: 10 * PARTITIONS[SCATTERED]}
    for topic, size in sizes.items():
        stage.east.create_topic(topic, partitions=PARTITIONS[topic])
        load(stage.east, topic, size, size_bytes=RECORD_BYTES, batch_bytes=65_536)
    for turn in range(repeat):
        for number, crew in enumerate((ONE, TWO, ONE_HELD, TWO_HELD, *([] if turn else [MANY]))):
            figures = _run(stage, built.name, f"run{turn}{number}", crew, sizes[crew.topic])
            print(f"  {crew.name}: {figures}, load {load_average():.1f}", flush=True)
            result.add(crew.name, **figures)


def _run(stage: Stage, image: str, flow: str, crew: Crew, records: int) -> dict[str, float]:
    """Runs one seed from its creation to its end, and deletes its copies."""
    copy = f"{flow}.{crew.topic}"
    spec: dict[str, Any] = {
        "max": crew.executors,
        "resources": {"requests": {"cpu": "100m"}, "limits": dict(crew.limits)},
    }
    asked_s = time.monotonic()
    with job(stage, image, flow, [crew.topic], run_id="1", settings={"lag.max": "0"}, executors=spec) as seed:
        runs_s = _moment("an executor runs", lambda: bool(seed.executors()))
        _moment("its topic exists", lambda: copy in stage.west.topics())
        counts = (1, records // 4, 3 * records // 4, records)
        first_s, quarter_s, three_quarters_s, last_s = (
            _moment_of(stage, crew, copy, count) for count in counts
        )
        report = seed.wait_for_report()
        waves = _waves(seed)
    for name in stage.west.topics():
        if name.startswith(f"{flow}."):
            stage.west.delete_topic(name)
    return {
        RATE: records * RECORD_BYTES / 1e6 / (last_s - first_s),
        MIDDLE: records * RECORD_BYTES / 2e6 / max(POLL_S, three_quarters_s - quarter_s),
        "executor_s/GB": report["cost"]["executorSeconds"] / (records * RECORD_BYTES / 1e9),
        "driver_s": runs_s - asked_s,
        "executor_s": first_s - runs_s,
        "task_s": max(after_s for after_s, _ in waves),
        "task_MiB": max(mib for _, mib in waves),
    }


def _moment_of(stage: Stage, crew: Crew, copy: str, count: int) -> float:
    partitions = PARTITIONS[crew.topic]
    return _moment(f"{copy} has {count}", lambda: end_offsets(stage.west, copy, partitions) >= count)


def _moment(what: str, is_so: Callable[[], bool]) -> float:
    """Returns the time at which *is_so* was first true."""
    wait_until(what, is_so, timeout_s=SEED_WAIT_S, poll_s=POLL_S)
    return time.monotonic()


def _waves(seed: SeedPods) -> list[tuple[float, int]]:
    """Returns for each wave of tasks the seconds until a task began to copy, and the MiB of the largest task."""
    return [(float(match[1]), int(match[2])) for match in WAVE.finditer(seed.driver_logs())]


def _calculated(result: Result) -> str:
    """Calculates the large seed from the measured figures."""
    few_s, many_s = (result.middle(crew.name, "task_s") for crew in (ONE, MANY))
    rate = result.middle(ONE.name, RATE)
    if rate is None or few_s is None or many_s is None:
        return "Nothing can be calculated."
    grows_s = max(0.0, (many_s - few_s) / (PARTITIONS[SCATTERED] - PARTITIONS[BULK]))
    begin_s = round(few_s + grows_s * (machinery.PARTITIONS - PARTITIONS[BULK]), 2)
    return " ".join(machinery.sentences(machinery.costs(), rate_mb_per_s=rate, begin_s=begin_s))


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks executors", description=TITLE)
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs of each (3)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the records")
    return parser.parse_args(arguments)

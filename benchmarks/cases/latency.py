"""A steady 10,000 records a second: the time at which a consumer of the target has a record, minus that of the source."""

import json
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks import copiers
from benchmarks.arena import FAILURES, Arena
from benchmarks.cases import Case, Extent
from benchmarks.copiers import Copier, Flow
from benchmarks.results import Result
from benchmarks.watch import until_copied
from tests.harness.kafka.installation import java_command, write_properties
from tests.harness.kafka.processes import Child, HarnessError, cpu_s, start
from tests.harness.kafka.tools import load

PARTITIONS = 4
RECORD_BYTES = 200
RATE_PER_S = 10_000
WARM_RECORDS = 50_000  # copied before the measured records, to warm up the copier's compiler
SKIPPED_S = 3  # of the measured records, while Load and Probe warm up
FIRST = 1_000_000_000  # number of the first measured record, above those of earlier records
PATIENCE_S = 60
PROBE = Path(__file__).parents[1] / "java" / "Probe.java"
PEERS_SHARE = 1 / 3


def latency(arena: Arena, extent: Extent) -> Result:
    seconds = extent.of(15, 8)
    result = Result(
        name="latency",
        title=f"{RATE_PER_S:,} records a second",
        setting=f"{RATE_PER_S * (seconds - SKIPPED_S):,} records of {RECORD_BYTES} bytes, {PARTITIONS} partitions, for each run."
        " Added latency: seen by a Java consumer of the target minus seen by one of the source, in one process.",
    )
    # Without tuned MM2, which is tuned to wait 100 ms for each batch.
    competitors = [copiers.mirrorflow(), copiers.mm2()]
    compare(arena, result, competitors, seconds, repeat=extent.repeat)
    for metric in ("p50_ms", "p99_ms"):
        result.demand_ratio(
            f"added latency, {metric[:3]}, against MM2",
            metric,
            "MirrorFlow",
            "MM2",
            sense="<=",
            limit=PEERS_SHARE,
        )
    return result


def compare(
    arena: Arena, result: Result, competitors: Sequence[Copier], seconds: int, *, repeat: int
) -> None:
    """Adds each run's latency to *result*; a failed run is noted there. The order rotates with each repetition."""
    for turn in range(repeat):
        begin = turn % len(competitors)
        for copier in (*competitors[begin:], *competitors[:begin]):
            topic = f"latency-{turn}-{begin}-{copier.name.replace(' ', '-')}"
            try:
                measure(arena, result, copier, topic, seconds)
            except FAILURES as error:
                result.notes.append(f"{copier.name} failed once: {str(error)[:600]}")


def measure(
    arena: Arena,
    result: Result,
    copier: Copier,
    topic: str,
    seconds: int,
    *,
    isolation: str = "read_uncommitted",
    timestamp_ms: int = -1,
) -> None:
    """Measures one run of *copier* with readers of *isolation*; records have *timestamp_ms*, or -1 for now."""
    arena.load(topic, WARM_RECORDS, partitions=PARTITIONS, size_bytes=RECORD_BYTES)
    flow = arena.flow(topic)
    with arena.running(copier, flow) as child:
        until_copied(arena.west, flow.remote(topic), PARTITIONS, child, least=WARM_RECORDS)
        probe = _probe(arena, flow, topic, child, seconds, isolation, timestamp_ms)
    result.add(
        copier.name,
        p50_ms=probe["p50"],
        p99_ms=probe["p99"],
        p999_ms=probe["p999"],
        cores_used=probe["cores"],
    )


def _probe(
    arena: Arena, flow: Flow, topic: str, child: Child, seconds: int, isolation: str, timestamp_ms: int
) -> dict[str, float]:
    folder = flow.folder
    files = [
        str(
            write_properties(
                folder / f"probe-{cluster.name}.properties",
                {**cluster.java_client("INTERNAL"), "isolation.level": isolation},
            )
        )
        for cluster in (arena.east, arena.west)
    ]
    records = RATE_PER_S * seconds
    arguments = [files[0], topic, files[1], flow.remote(topic), str(FIRST), str(records)]
    arguments += [str(RATE_PER_S * SKIPPED_S), str(seconds + PATIENCE_S)]
    command = java_command(
        str(PROBE),
        *arguments,
        log=folder / "probe.log4j",
        jvm_options=("-XX:+UseSerialGC",),
        archived=False,
    )
    probe = start("Probe", command, log=folder / "probe.log", stdout=subprocess.PIPE)
    assert probe.process.stdout is not None
    with probe.process.stdout as probe_output:
        try:
            if probe_output.readline() != b"ready\n":
                raise HarnessError(f"The probe has failed.\n{probe.tail()}")
            writer = threading.Thread(target=_write, args=(arena, topic, records, timestamp_ms))
            cpu_began, began = cpu_s(child.pid), time.perf_counter()
            writer.start()
            line = probe_output.readline()
            cores = (cpu_s(child.pid) - cpu_began) / (time.perf_counter() - began)
            writer.join()
            child.must_run()
        finally:
            probe.kill()
    if not line:
        raise HarnessError(f"The probe has failed.\n{probe.tail()}")
    return {**json.loads(line), "cores": cores}


def _write(arena: Arena, topic: str, records: int, timestamp_ms: int) -> None:
    load(
        arena.east,
        topic,
        records,
        size_bytes=RECORD_BYTES,
        first=FIRST,
        rate=RATE_PER_S,
        timestamp_ms=timestamp_ms,
    )


CASES: dict[str, Case] = {"latency": latency}

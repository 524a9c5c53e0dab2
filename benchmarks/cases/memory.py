"""The proportional set size of all processes of a copier with one task, which is the memory that its end would free."""

import time

from benchmarks import copiers
from benchmarks.arena import FAILURES, Arena
from benchmarks.cases import Case, Extent
from benchmarks.copiers import Copier
from benchmarks.results import Result
from benchmarks.watch import end_offsets, until_copied
from tests.harness.kafka.processes import Child, HarnessError, pss_bytes

PARTITIONS = 4
RECORD_BYTES = 1000
IDLE_S = 10.0  # after the last record, two of our intervals for storing offsets
LOAD_MAX_S = 60.0
SAMPLE_S = 0.2
MIB = 1 << 20
LOADED_MIB, IDLE_MIB = 112, 64


def memory(arena: Arena, extent: Extent) -> Result:
    records = extent.of(2_000_000, 300_000)
    result = Result(
        name="memory",
        title="one task, under load and idle",
        setting=f"Proportional set size of the whole process family. Under load: the greatest of a sample each {SAMPLE_S:g} s"
        f" while {records:,} records of {RECORD_BYTES} bytes are copied; idle: {IDLE_S:g} s after the last one; fresh: with"
        " nothing to copy since the start.",
    )
    arena.load("memory", records, partitions=PARTITIONS, size_bytes=RECORD_BYTES)
    arena.make("memory-idle", 1)
    for copier in (copiers.mirrorflow(), copiers.mm2()):
        try:
            fresh = _fresh(arena, copier)
            loaded, idle = _loaded(arena, copier, records)
        except FAILURES as error:
            result.notes.append(f"{copier.name} failed: {str(error)[:600]}")
            continue
        result.add(
            copier.name, load_MiB=loaded / MIB, idle_after_load_MiB=idle / MIB, idle_fresh_MiB=fresh / MIB
        )
    for what, metric, limit in (
        ("under load", "load_MiB", LOADED_MIB),
        ("idle after load", "idle_after_load_MiB", IDLE_MIB),
        ("idle since the start", "idle_fresh_MiB", IDLE_MIB),
    ):
        result.demand(what, metric, "MirrorFlow", sense="<=", limit=limit, unit="MiB")
    return result


def _fresh(arena: Arena, copier: Copier) -> int:
    flow = arena.flow("memory-idle")
    with arena.running(copier, flow) as child:
        _until_made(arena, flow.remote("memory-idle"), child)
        time.sleep(IDLE_S)
        child.must_run()
        return pss_bytes(child.pid)


def _until_made(arena: Arena, remote: str, child: Child) -> None:
    deadline = time.monotonic() + LOAD_MAX_S
    while remote not in arena.west.topics():
        child.must_run()
        if time.monotonic() > deadline:
            raise HarnessError(f"{child.name} made no {remote}.\n{child.tail()}")
        time.sleep(SAMPLE_S)


def _loaded(arena: Arena, copier: Copier, records: int) -> tuple[int, int]:
    flow = arena.flow("memory")
    remote = flow.remote("memory")
    with arena.running(copier, flow) as child:
        until_copied(arena.west, remote, PARTITIONS, child)
        most, deadline = pss_bytes(child.pid), time.monotonic() + LOAD_MAX_S
        while end_offsets(arena.west, remote, PARTITIONS) < records and time.monotonic() < deadline:
            child.must_run()
            most = max(most, pss_bytes(child.pid))
            time.sleep(SAMPLE_S)
        time.sleep(IDLE_S)
        child.must_run()
        return most, pss_bytes(child.pid)


CASES: dict[str, Case] = {"memory": memory}

"""The time from the start of the process to the first record that can be read on the target."""

import time

from benchmarks import copiers
from benchmarks.arena import FAILURES, Arena
from benchmarks.cases import Case, Extent
from benchmarks.copiers import Copier, Flow, end
from benchmarks.results import Result
from benchmarks.watch import end_offsets, until_copied
from tests.harness.kafka.tools import load

PARTITIONS = 4
RECORDS = 1000
POLL_S = 0.005
LIMIT_S = 1.5


def starting(arena: Arena, extent: Extent) -> Result:
    result = Result(
        name="start",
        title="start to first replicated record",
        setting=f"{RECORDS} records wait in {PARTITIONS} partitions of a source that has been up for a while. *first*: the"
        " copier has never run, so that all topics are made on the way; *again*: after a kill -9, to the first new record.",
    )
    topic = "start"
    arena.load(topic, RECORDS, partitions=PARTITIONS, size_bytes=100)
    for turn in range(extent.repeat):
        for copier in (copiers.mirrorflow(), copiers.mm2()):
            try:
                first, again = _measure(arena, copier, arena.flow(topic), topic)
            except FAILURES as error:
                result.notes.append(f"{copier.name} failed in run {turn + 1}: {str(error)[:600]}")
                continue
            result.add(copier.name, first_s=first, again_s=again)
    result.demand("first start", "first_s", "MirrorFlow", sense="<=", limit=LIMIT_S, unit="s")
    result.demand("start after a kill", "again_s", "MirrorFlow", sense="<=", limit=LIMIT_S, unit="s")
    return result


def _measure(arena: Arena, copier: Copier, flow: Flow, topic: str) -> tuple[float, float]:
    """Measures the first start and the next one in seconds; adds RECORDS to *topic*."""
    remote = flow.remote(topic)
    began = time.perf_counter()
    with arena.running(copier, flow) as child:
        until_copied(arena.west, remote, PARTITIONS, child, poll_s=POLL_S)
        first = time.perf_counter() - began
        until_copied(arena.west, remote, PARTITIONS, child, least=end_offsets(arena.east, topic, PARTITIONS))
        end(child)
        load(arena.east, topic, RECORDS, size_bytes=100)
        seen = end_offsets(arena.west, remote, PARTITIONS)
        began = time.perf_counter()
        next_child = copier.launch(flow)
        try:
            until_copied(arena.west, remote, PARTITIONS, next_child, least=seen + 1, poll_s=POLL_S)
            again = time.perf_counter() - began
        finally:
            end(next_child)
    return first, again


CASES: dict[str, Case] = {"start": starting}

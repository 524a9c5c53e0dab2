"""Both with exactly-once: throughput, latency for readers of committed records, and records repeated after a kill -9.

MM2 runs in its dedicated mode with `exactly.once.source.support=enabled`; MirrorFlow needs no setting. It writes old records in
transactions, so they are measured in addition to fresh ones.
"""

import time

from benchmarks import copiers
from benchmarks.arena import FAILURES, Arena
from benchmarks.cases import Case, Extent
from benchmarks.cases.latency import measure
from benchmarks.copiers import Copier, end
from benchmarks.race import CPU, THROUGHPUT, race
from benchmarks.results import Result
from benchmarks.watch import until_copied
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import digest

PARTITIONS = 4
RECORD_BYTES = 1000
BATCH_BYTES = 65_536
OLD_MS = 40 * 86_400_000
KILLED_RECORDS = 200_000  # at 20 MB/s or more, a kill at a quarter interrupts both copies
COPIED_S = 120.0
PINNED_SHARE_MIN = 0.8  # of the throughput without transactions
MIRRORFLOW, OLD = "MirrorFlow", "MirrorFlow, old records"


def exactly_once(arena: Arena, extent: Extent) -> Result:
    records = extent.of(1_000_000, 300_000)
    result = Result(
        name="exactly-once",
        title="with exactly-once on both",
        setting=f"{records:,} records of {RECORD_BYTES} bytes, {PARTITIONS} partitions; then 10,000 records a second for readers of"
        f" committed records; then {KILLED_RECORDS:,} records with a kill -9 on the way. Markers of commits count as records"
        " in the throughput (less than one in a hundred).",
    )
    fresh, old = "exactly-once-fresh", "exactly-once-old"
    old_ms = time.time_ns() // 1_000_000 - OLD_MS
    for topic, timestamp_ms in ((fresh, -1), (old, old_ms)):
        arena.load(
            topic,
            records,
            partitions=PARTITIONS,
            size_bytes=RECORD_BYTES,
            batch_bytes=BATCH_BYTES,
            timestamp_ms=timestamp_ms,
        )
    for topic, competitors in (
        (fresh, [copiers.mirrorflow(), copiers.exactly_once_mm2()]),
        (old, [copiers.mirrorflow(name=OLD)]),
    ):
        race(
            arena,
            result,
            competitors,
            topic,
            partitions=PARTITIONS,
            records=records,
            record_bytes=RECORD_BYTES,
            repeat=extent.repeat,
            markers=True,
        )
    seconds = extent.of(15, 8)
    for copier, timestamp_ms in (
        (copiers.mirrorflow(), -1),
        (copiers.mirrorflow(name=OLD), old_ms),
        (copiers.exactly_once_mm2(), -1),
    ):
        try:
            topic = f"exactly-once-latency-{_name(copier)}"
            measure(
                arena,
                result,
                copier,
                topic,
                seconds,
                isolation="read_committed",
                timestamp_ms=timestamp_ms,
            )
            result.add(copier.name, repeats=_repeats(arena, copier, timestamp_ms))
        except FAILURES as error:
            result.notes.append(f"{copier.name} failed once: {str(error)[:600]}")
    _demand(result)
    return result


def _demand(result: Result) -> None:
    peer = copiers.EXACTLY_ONCE_MM2
    result.demand_ratio(f"throughput against {peer}", THROUGHPUT, MIRRORFLOW, peer, sense=">=", limit=4.5)
    result.demand_ratio(f"CPU per GB against {peer}", CPU, MIRRORFLOW, peer, sense="<=", limit=1 / 16)
    result.demand_ratio(
        f"added latency, p99, against {peer}", "p99_ms", MIRRORFLOW, peer, sense="<=", limit=1 / 3
    )
    result.demand_ratio(
        "throughput of old records against fresh",
        THROUGHPUT,
        OLD,
        MIRRORFLOW,
        sense=">=",
        limit=PINNED_SHARE_MIN,
    )
    result.demand(
        "added latency in transactions, p99",
        "p99_ms",
        OLD,
        sense="<=",
        limit=300,
        unit="ms",
    )
    for name in (MIRRORFLOW, OLD):
        result.demand(f"repeats after kill -9, {name}", "repeats", name, sense="<=", limit=0, unit="records")


def _name(copier: Copier) -> str:
    """Returns the copier's name as part of a topic's name."""
    return copier.name.replace(",", "").replace(" ", "-")


def _repeats(arena: Arena, copier: Copier, timestamp_ms: int) -> float:
    """Returns how many records more than the source readers of committed records get, after a kill -9 during the copy."""
    topic = f"exactly-once-killed-{_name(copier)}"
    arena.load(
        topic,
        KILLED_RECORDS,
        partitions=PARTITIONS,
        size_bytes=RECORD_BYTES,
        batch_bytes=BATCH_BYTES,
        timestamp_ms=timestamp_ms,
    )
    flow = arena.flow(topic)
    first = copier.launch(flow)
    try:
        until_copied(arena.west, flow.remote(topic), PARTITIONS, first, least=KILLED_RECORDS // 4)
    finally:
        end(first)
    with arena.running(copier, flow):

        def copied() -> int:
            copied_digest = digest(arena.west, flow.remote(topic), isolation="read_committed")
            return sum(count for count, _ in copied_digest.values())

        wait_until(
            "all records are copied", lambda: copied() >= KILLED_RECORDS, timeout_s=COPIED_S, poll_s=2.0
        )
        return float(copied() - KILLED_RECORDS)


CASES: dict[str, Case] = {"exactly-once": exactly_once}

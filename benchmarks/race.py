"""The common part of most cases: several copiers copy one backlog in turn, several times, on the same brokers."""

from collections.abc import Sequence

from benchmarks.arena import FAILURES, Arena
from benchmarks.copiers import Copier, relay
from benchmarks.results import Result
from benchmarks.watch import watch

BUDGET_S = 90.0  # 2 GB at 22 MB/s; a slower copier is measured by what it has copied by then
THROUGHPUT = "MB/s"
CPU = "CPU-s/GB"
USER_CPU, SYSTEM_CPU = "user-s/GB", "system-s/GB"


def race(
    arena: Arena,
    result: Result,
    copiers: Sequence[Copier],
    topic: str,
    *,
    partitions: int,
    records: int,
    record_bytes: int,
    repeat: int,
    source: str = "",
    target: str = "",
    budget_s: float = BUDGET_S,
    markers: bool = False,
) -> None:
    """Adds each run's throughput and cost to *result*; a failed run is noted there, and the other runs continue.

    GB and MB are of record values before compression; *markers* of transactions are among the records. *source* and *target* are
    names of listeners. The order rotates with each repetition. The relay first copies once without a measurement, to warm up the
    brokers' compilers.
    """
    for turn in range(-1, repeat):
        begin = turn % len(copiers)
        for copier in (relay(),) if turn < 0 else (*copiers[begin:], *copiers[:begin]):
            flow = arena.flow(topic, records=records, source=source, target=target)
            try:
                with arena.running(copier, flow) as child:
                    copy = watch(
                        arena.west,
                        flow.remote(topic),
                        partitions,
                        child,
                        expected=records,
                        budget_s=budget_s,
                        markers=markers,
                    )
            except FAILURES as error:
                result.notes.append(f"{copier.name} failed once: {str(error)[:600]}")
                continue
            if turn < 0:
                continue
            gigabytes = copy.records * record_bytes / 1e9
            figures = {
                THROUGHPUT: gigabytes * 1000 / copy.seconds,
                CPU: copy.cpu_s / gigabytes,
                USER_CPU: copy.user_s / gigabytes,
                SYSTEM_CPU: copy.system_s / gigabytes,
            }
            result.add(copier.name, **figures)
            if not copy.complete:
                result.notes.append(
                    f"{copier.name} had copied {copy.records:,} of {records:,} records when {budget_s:g} s were over."
                )

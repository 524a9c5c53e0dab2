"""The cost of idle partitions: 5,000 partitions, 100 of them active."""

import threading
import time

from benchmarks import copiers
from benchmarks.arena import FAILURES, Arena
from benchmarks.cases import Case, Extent
from benchmarks.copiers import Copier
from benchmarks.results import Result
from benchmarks.watch import end_offsets
from tests.harness.kafka.processes import Child, HarnessError, cpu_s, pss_bytes
from tests.harness.kafka.tools import load

PARTITIONS_OF_A_TOPIC = 100
RATE_PER_S = 2000
RECORD_BYTES = 200
READY_WAIT_S = 180.0  # MM2 creates 50 topics in one request, then its task seeks in 5,000 partitions
SETTLE_S = 5.0
SPARE_S = 20  # the load starts this long before the measurement and ends this long after it
RATE_MIN_SHARE = 0.8  # below this share of the load, a slow copier would look cheap
CHECK_S = 1.0
GROWTH_MAX = 1.1  # "no growth", within the difference between two equal runs
ACTIVE = "active"


def partitions(arena: Arena, extent: Extent) -> Result:
    seconds = extent.of(60, 15)
    topics_many, topics_few = extent.of(50, 10), extent.of(5, 2)
    many, few = topics_many * PARTITIONS_OF_A_TOPIC, topics_few * PARTITIONS_OF_A_TOPIC
    result = Result(
        name="partitions",
        title=f"{many:,} partitions, {PARTITIONS_OF_A_TOPIC} of them active",
        setting=f"{topics_many} topics of {PARTITIONS_OF_A_TOPIC} partitions; {RATE_PER_S:,} records of {RECORD_BYTES} bytes a"
        f" second into one of them; CPU over {seconds} s, once everything has been made and the first records are through.",
    )
    arena.make(ACTIVE, PARTITIONS_OF_A_TOPIC)
    idle = [f"idle-{number:02}" for number in range(topics_many - 1)]
    for topic in idle:
        arena.make(topic, PARTITIONS_OF_A_TOPIC)
    all_, some = ".*", "|".join([ACTIVE, *idle[: topics_few - 1]])
    for copier, topics, count in (
        (copiers.mirrorflow(), some, few),
        (copiers.mirrorflow(), all_, many),
        (copiers.mm2(), all_, many),
    ):
        label = f"{copier.name}, {count:,} partitions"
        try:
            _measure(arena, result, copier, topics, count, label, seconds)
        except FAILURES as error:
            result.notes.append(f"{label} failed: {str(error)[:600]}")
    mirrorflow, mm2 = f"MirrorFlow, {many:,} partitions", f"MM2, {many:,} partitions"
    result.demand_ratio("CPU against MM2", "CPU_s", mirrorflow, mm2, sense="<=", limit=1 / 5)
    result.demand_ratio(
        f"CPU with {many:,} partitions against {few:,}",
        "CPU_s",
        mirrorflow,
        f"MirrorFlow, {few:,} partitions",
        sense="<=",
        limit=GROWTH_MAX,
    )
    return result


def _measure(
    arena: Arena, result: Result, copier: Copier, topics: str, count: int, label: str, seconds: int
) -> None:
    flow = arena.flow(topics)
    remote = flow.remote(ACTIVE)
    before = end_offsets(arena.east, ACTIVE, PARTITIONS_OF_A_TOPIC)
    began = time.monotonic()
    with arena.running(copier, flow) as child:
        _until_made(arena, flow.source_alias, count, child)
        made_s = time.monotonic() - began
        _until_copied(arena, remote, before, child)
        writer = threading.Thread(target=_write, args=(arena, RATE_PER_S * (seconds + SPARE_S)))
        writer.start()
        try:
            _until_copied(arena, remote, before + 1, child)
            time.sleep(SETTLE_S)
            cpu_began, measured_from = cpu_s(child.pid), time.perf_counter()
            seen_from = end_offsets(arena.west, remote, PARTITIONS_OF_A_TOPIC)
            time.sleep(seconds)
            child.must_run()
            cpu, took = cpu_s(child.pid) - cpu_began, time.perf_counter() - measured_from
            seen = end_offsets(arena.west, remote, PARTITIONS_OF_A_TOPIC) - seen_from
            memory_mib = pss_bytes(child.pid) / (1 << 20)
        finally:
            writer.join()
    if seen < RATE_MIN_SHARE * RATE_PER_S * took:
        raise HarnessError(
            f"only {seen / took:,.0f} of {RATE_PER_S:,} records a second were copied: nothing is measured"
        )
    result.add(label, CPU_s=cpu, records_per_s=seen / took, topics_made_s=made_s, PSS_MiB=memory_mib)


def _until_made(arena: Arena, alias: str, count: int, child: Child) -> None:
    """Waits until all *count* partitions exist on the target."""
    deadline = time.monotonic() + READY_WAIT_S
    while True:
        made = sum(number for name, number in arena.west.topics().items() if name.startswith(f"{alias}."))
        if made >= count:
            return
        child.must_run()
        if time.monotonic() > deadline:
            raise HarnessError(
                f"{child.name} made {made} of {count} partitions in {READY_WAIT_S:g} s.\n{child.tail()}"
            )
        time.sleep(CHECK_S)


def _until_copied(arena: Arena, remote: str, least: int, child: Child) -> None:
    """Waits until *least* records are copied."""
    deadline = time.monotonic() + READY_WAIT_S
    while end_offsets(arena.west, remote, PARTITIONS_OF_A_TOPIC) < least:
        child.must_run()
        if time.monotonic() > deadline:
            raise HarnessError(
                f"{child.name} copied too little to {remote} in {READY_WAIT_S:g} s.\n{child.tail()}"
            )
        time.sleep(CHECK_S)


def _write(arena: Arena, records: int) -> None:
    load(arena.east, ACTIVE, records, size_bytes=RECORD_BYTES, rate=RATE_PER_S)


CASES: dict[str, Case] = {"partitions": partitions}

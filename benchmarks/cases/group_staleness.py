"""How long after a commit on the source the target's group has it, and the processor time of groups that rest."""

import asyncio
import os
import random
import statistics
import time
from collections.abc import Sequence
from functools import partial

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks import copiers
from benchmarks.arena import FAILURES, Arena
from benchmarks.cases import Case, Extent
from benchmarks.results import Result
from benchmarks.watch import until_copied
from mirrorflow_core.offsets.offset_translation import Committed
from mirrorflow_core.partitions import TopicPartition as Partition
from mirrorflow_kafka.admin import groups
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import Child, HarnessError, cpu_s, wait_until
from tests.integration.kafka.flows import call_cluster

COPIER = "MirrorFlow"
TOPIC = "staleness"
RECORDS = 20  # before each commit
POLL_S = 0.01
LIMIT_S = 120.0
PAUSE_MAX_S = (
    0.7  # between a sample and the next, at random, so that samples do not follow the steps of the connector
)
STALENESS_LIMIT_S = 2.0
REST_S = 120.0  # two passes
CORE_LIMIT_PERCENT = 5.0


def group_staleness(arena: Arena, extent: Extent) -> Result:
    samples, resting = extent.of(300, 40), extent.of(10_000, 1_000)
    result = Result(
        name="group-staleness",
        title="time until the target's group has a commit",
        setting=f"An application writes {RECORDS} records, reads them, and commits; what counts is the time from the commit's"
        f" acknowledgement until the idle group of the target is at the same record. {samples} commits at random times, default"
        f" intervals of a minute. Then {resting:,} groups rest for {REST_S:g} s.",
    )
    for turn in range(extent.repeat):
        topic, own = f"{TOPIC}-{turn}-{time.time_ns()}", f"s{turn}-{time.time_ns()}"
        arena.make(topic, 1)
        flow = arena.flow(topic)
        moved = copiers.mirrorflow(groups=f"{own}.*", moved=copiers.GROUPS_BY_DEFAULT)
        try:
            with arena.running(moved, flow) as child:
                _measure_staleness(arena, result, child, topic, flow.remote(topic), f"{own}-moving", samples)
                _measure_rest(
                    arena, result, child, topic, [f"{own}-rests-{number}" for number in range(resting)]
                )
        except FAILURES as error:
            result.notes.append(f"It failed in run {turn + 1}: {str(error)[:600]}")
        result.notes.append(f"Load of the machine after run {turn + 1}: {os.getloadavg()[0]:.1f}.")
    result.demand("staleness p99", "p99 s", COPIER, sense="<=", limit=STALENESS_LIMIT_S, unit="s")
    what = f"{resting:,} groups that rest"
    result.demand(what, "% of a core", COPIER, sense="<=", limit=CORE_LIMIT_PERCENT, unit="% of a core")
    return result


def _measure_staleness(
    arena: Arena, result: Result, child: Child, topic: str, remote: str, group: str, samples: int
) -> None:
    producer = Producer({"bootstrap.servers": arena.east.internal_bootstrap, "linger.ms": 0})
    source, target = _reader(arena.east, group), _reader(arena.west, group)
    staleness_s, end = [], 0
    for number in range(samples + 1):
        for _ in range(RECORDS):
            producer.produce(topic, b"x" * 100)
        producer.flush(LIMIT_S)
        end += RECORDS
        wait_until("the source commits", partial(_commits, source, topic, end), poll_s=POLL_S)
        began_s = time.monotonic()
        while _committed(target, remote) < end:
            if not child.running or time.monotonic() - began_s > LIMIT_S:
                raise HarnessError(f"{group} does not reach {end}\n{child.tail()}")
            time.sleep(POLL_S)
        if number:  # the first one waits for the group to be listed
            staleness_s.append(time.monotonic() - began_s)
        time.sleep(random.uniform(0, PAUSE_MAX_S))
    source.close()
    target.close()
    until_copied(arena.west, remote, 1, child, least=end, wait_s=LIMIT_S)
    result.add(
        COPIER,
        **{
            "p50 s": statistics.median(staleness_s),
            "p99 s": _percentile(staleness_s, 99),
            "max s": max(staleness_s),
        },
    )


def _measure_rest(arena: Arena, result: Result, child: Child, topic: str, names: Sequence[str]) -> None:
    """Commits once for each of *names*, waits for a pass over them, and measures while nothing moves."""

    async def commit_all(cluster: Cluster) -> None:
        turn = asyncio.Semaphore(32)

        async def commit(name: str) -> None:
            async with turn:
                await groups.commit_offsets(cluster, name, {Partition(topic, 0): Committed(offset=RECORDS)})

        await asyncio.gather(*map(commit, names))

    call_cluster(arena.east, commit_all)

    async def moved(cluster: Cluster) -> bool:
        fetched = await groups.fetch_offsets_of(cluster, names)
        return all(isinstance(its, dict) and its for its in fetched.values())

    began_s = time.monotonic()
    while not call_cluster(arena.west, moved):
        if not child.running or time.monotonic() - began_s > 10 * LIMIT_S:
            raise HarnessError(f"not all groups are moved\n{child.tail()}")
        time.sleep(5)
    used_s, began_s = _cpu_s(child), time.monotonic()
    time.sleep(REST_S)
    passed_s = time.monotonic() - began_s
    result.add(COPIER, **{"% of a core": 100 * (_cpu_s(child) - used_s) / passed_s})


def _cpu_s(child: Child) -> float:
    return cpu_s(child.pid)


def _reader(cluster: KafkaCluster, group: str) -> Consumer:
    return Consumer(
        {"bootstrap.servers": cluster.internal_bootstrap, "group.id": group, "enable.auto.commit": False}
    )


def _commits(reader: Consumer, topic: str, offset: int) -> bool:
    """Commits *offset*; returns False while the group has no coordinator."""
    try:
        reader.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    except KafkaException:
        return False
    return True


def _committed(reader: Consumer, topic: str) -> int:
    """Returns the committed offset; -1: none, or the group has no coordinator yet."""
    try:
        return int(reader.committed([TopicPartition(topic, 0)], timeout=LIMIT_S)[0].offset)
    except KafkaException:
        return -1


def _percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


CASES: dict[str, Case] = {"group-staleness": group_staleness}

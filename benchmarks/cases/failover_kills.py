"""What a group reads again after its source is killed at a random moment: no more than was committed in the last two seconds."""

import random
import threading
import time
from dataclasses import replace

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from benchmarks import copiers
from benchmarks.arena import BROKER_JVM, FAILURES, Arena
from benchmarks.cases import Case, Extent
from benchmarks.results import Demand, Result
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import Child, HarnessError, wait_until
from tests.integration.kafka.groups import group_offsets

COPIER = "MirrorFlow"
TOPIC = "failover-kills"
RECORDS = 20  # before each commit
PAUSE_MAX_S = 0.4  # between two commits, at random
RUNS_MIN_S, RUNS_MAX_S = 3.0, 9.0  # from the group's first move on the target to the kill
STALENESS_S = 2.0
SETTLED_S = (
    6.0  # without a change on the target: what the copier has read of the source, it has written by then
)
LIMIT_S = 120.0
POLL_S = 0.2
REQUEST_TIMEOUT_S = 5.0


def failover_kills(arena: Arena, extent: Extent) -> Result:
    return measure(arena, extent.of(20, 3))


def measure(arena: Arena, kills: int) -> Result:
    """Kills *kills* sources, one after the other. Their flows write to the west cluster of *arena*."""
    result = Result(
        name="failover-kills",
        title="records read again after the source is killed",
        setting=f"An application writes {RECORDS} records, reads them, commits, and pauses for {PAUSE_MAX_S:g} s at most. SIGKILL ends the"
        f" broker of the source at a random moment, in {kills} runs. What counts is where the idle group stands on the target, beside"
        f" its last acknowledged commit, and beside the last one of at least {STALENESS_S:g} s before the kill. Default intervals.",
    )
    for turn in range(kills):
        try:
            with KafkaCluster(name=f"lost{turn}", jvm_options=BROKER_JVM) as source:
                _measure(arena, result, source, turn)
        except FAILURES as error:
            result.notes.append(f"It failed in run {turn + 1}: {str(error)[:600]}")
    figures = result.figures.get(COPIER, {})
    for what, metric in (
        (f"records read again that were committed {STALENESS_S:g} s before the kill", "again older"),
        ("records skipped", "skipped"),
    ):
        values = figures.get(metric, [])
        worst = max(values) if len(values) == kills else None
        demand = Demand(
            what=f"{what}, the most of {kills} kills", sense="<=", limit=0, value=worst, unit="records"
        )
        result.demands.append(demand)
    return result


class _Application(threading.Thread):
    """Writes, reads and commits until the source is gone. `commits` has offset and monotonic time of each acknowledged commit."""

    def __init__(self, source: KafkaCluster, group: str) -> None:
        super().__init__(daemon=True)
        self.commits: list[tuple[int, float]] = []
        self.requested = 0  # the offset of the last commit that was sent
        self._stopping = threading.Event()
        # Level 0: the source is killed, and each lost connection would be a line of the log.
        client = {"bootstrap.servers": source.internal_bootstrap, "log_level": 0}
        self._producer = Producer({**client, "linger.ms": 0, "delivery.timeout.ms": 5_000})
        self._consumer = Consumer({**client, "group.id": group, "enable.auto.commit": False})

    def run(self) -> None:
        end = 0
        while not self._stopping.is_set():
            written: list[KafkaError | None] = []
            for _ in range(RECORDS):
                self._producer.produce(
                    TOPIC, b"x" * 100, on_delivery=lambda error, _, into=written: into.append(error)
                )
            if self._producer.flush(REQUEST_TIMEOUT_S) or any(written):
                break
            end += RECORDS
            self.requested = end
            try:
                self._consumer.commit(offsets=[TopicPartition(TOPIC, 0, end)], asynchronous=False)
            except KafkaException:
                if self.commits:
                    break
                continue  # the group has no coordinator yet
            self.commits.append((end, time.monotonic()))
            time.sleep(random.uniform(0, PAUSE_MAX_S))

    def stop(self) -> None:
        self._stopping.set()
        self.join(LIMIT_S)


def _measure(arena: Arena, result: Result, source: KafkaCluster, turn: int) -> None:
    group = f"killed-{turn}-{time.time_ns()}"
    source.create_topic(TOPIC)
    copier = copiers.mirrorflow(groups=group, moved=copiers.GROUPS_BY_DEFAULT)
    flow = replace(arena.flow(TOPIC), source=source)
    application = _Application(source, group)
    application.start()
    try:
        with arena.running(copier, flow) as child:
            copy = flow.remote(TOPIC), 0
            wait_until(
                "the group moves on the target",
                lambda: copy in group_offsets(arena.west, group),
                timeout_s=LIMIT_S,
            )
            time.sleep(random.uniform(RUNS_MIN_S, RUNS_MAX_S))
            killed_s = time.monotonic()
            source.broker(1).kill()
            application.stop()
            stands = _settled(arena, child, group)[copy]
    finally:
        application.stop()
    acknowledged = [offset for offset, at_s in application.commits if at_s <= killed_s]
    older = [offset for offset, at_s in application.commits if at_s <= killed_s - STALENESS_S]
    result.add(
        COPIER,
        **{
            "again": float(max(0, acknowledged[-1] - stands)),
            "again older": float(max(0, older[-1] - stands)),
            "skipped": float(max(0, stands - application.requested)),
            "commits": float(len(acknowledged)),
        },
    )


def _settled(arena: Arena, child: Child, group: str) -> dict[tuple[str, int], int]:
    """Returns the group's offsets on the target once they have not changed for SETTLED_S."""
    began = changed = time.monotonic()
    offsets: dict[tuple[str, int], int] = {}
    while time.monotonic() - changed < SETTLED_S:
        if not child.running or time.monotonic() - began > LIMIT_S:
            raise HarnessError(f"the offsets of {group} on the target kept changing: {offsets}")
        now = group_offsets(arena.west, group)
        if now != offsets:
            offsets, changed = now, time.monotonic()
        time.sleep(POLL_S)
    return offsets


CASES: dict[str, Case] = {"failover-kills": failover_kills}

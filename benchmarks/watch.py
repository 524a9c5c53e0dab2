"""Measures a copy from outside: the end offsets of the target topic, and the cost of the copier's processes.

Time and CPU are measured from the first record on the target to the last, so that the start of a JVM or of an interpreter does
not count (`cases.starting` measures it).
"""

import time
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tests.harness.kafka.cluster import ADMIN_WAIT_S, KafkaCluster
from tests.harness.kafka.processes import Child, HarnessError, cpu_times

POLL_S = 0.02
START_WAIT_S = 180.0  # MM2 takes 6 s on an idle machine and a minute on a busy one
# Errors of a client for a topic that was created a moment ago.
_NOT_YET = {
    KafkaError._NOENT,  # noqa: SLF001 librdkafka's own codes have such names
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 librdkafka's own codes have such names
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 librdkafka's own codes have such names
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """*records* were copied in *seconds* with *user_s* and *system_s* of CPU; *complete* unless the time limit was reached."""

    records: int
    seconds: float
    user_s: float
    system_s: float
    complete: bool

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


def end_offsets(cluster: KafkaCluster, topic: str, partitions: int) -> int:
    """Returns the sum of the end offsets of *topic*; 0 while it does not exist."""
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
    total = 0
    for future in cluster.admin.list_offsets(wanted, request_timeout=ADMIN_WAIT_S).values():
        try:
            total += future.result(ADMIN_WAIT_S).offset
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET:
                raise
    return total


def until_copied(
    cluster: KafkaCluster,
    topic: str,
    partitions: int,
    child: Child,
    *,
    least: int = 1,
    wait_s: float = START_WAIT_S,
    poll_s: float = POLL_S,
) -> int:
    """Waits for *least* records in *topic*, and returns their number by then."""
    deadline = time.monotonic() + wait_s
    # Offsets are requested only after the topic exists, because a client remembers its absence for long.
    while topic not in cluster.admin.list_topics(timeout=ADMIN_WAIT_S).topics:
        child.must_run()
        if time.monotonic() > deadline:
            raise HarnessError(f"{child.name} made no {topic} in {wait_s:g} s.\n{child.tail()}")
        time.sleep(poll_s)
    while (records := end_offsets(cluster, topic, partitions)) < least:
        child.must_run()
        if time.monotonic() > deadline:
            raise HarnessError(
                f"{child.name} copied {records} of {least} records to {topic} in {wait_s:g} s.\n{child.tail()}"
            )
        time.sleep(poll_s)
    return records


def watch(
    cluster: KafkaCluster,
    topic: str,
    partitions: int,
    child: Child,
    *,
    expected: int,
    budget_s: float,
    markers: bool = False,
) -> Copy:
    """Measures the copy of *expected* records, or the part of *budget_s* after its first; *markers* may be among them."""
    first = until_copied(cluster, topic, partitions, child)
    began, cpu_began = time.perf_counter(), cpu_times(child.pid)
    ended, cpu_ended, seen = began, cpu_began, first
    while seen < expected and time.perf_counter() - began < budget_s:
        time.sleep(POLL_S)
        if (records := end_offsets(cluster, topic, partitions)) > seen:
            seen, ended, cpu_ended = records, time.perf_counter(), cpu_times(child.pid)
        elif not child.running:
            break
    if seen > expected and not markers:
        raise HarnessError(f"{child.name} wrote {seen} records where the source has {expected}.")
    if seen < expected:
        child.must_run()
    if ended == began:
        raise HarnessError(
            f"{child.name} had copied all records before the first was measured: the case is too small."
        )
    return Copy(
        records=seen - first,
        seconds=ended - began,
        user_s=cpu_ended.user_s - cpu_began.user_s,
        system_s=cpu_ended.system_s - cpu_began.system_s,
        complete=seen >= expected,
    )

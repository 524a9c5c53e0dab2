"""Triggers compaction.

A record with a later timestamp closes a segment, and the cleaner's checkpoint shows its progress. A broker checks for
logs to clean every 15 s; use QUICK_CLEANER for its cluster and COMPACTED for the topic.
"""

import itertools
import time
from pathlib import Path

from confluent_kafka import Producer

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until

QUICK_CLEANER = {"log.cleaner.backoff.ms": "100"}
SEGMENT_MS = 1_000
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.0",
    "segment.ms": str(SEGMENT_MS),
    "delete.retention.ms": "0",
}
ROLL_KEY = b"roll"  # the key of the records that close segments
# Later than all records of a test, but within the hour that a broker accepts (message.timestamp.after.max.ms).
ROLL_AHEAD_MS = 1_800_000
CLEANED_WAIT_S = 120.0
_rolls = itertools.count(1)


def roll_segment(cluster: KafkaCluster, topic: str, partition: int = 0) -> int:
    """Closes the active segment, which is never cleaned, with a record of ROLL_KEY, and returns the record's offset."""
    producer = Producer({"bootstrap.servers": cluster.internal_bootstrap, "log_level": 2})
    offsets: list[int] = []
    timestamp = time.time_ns() // 1_000_000 + ROLL_AHEAD_MS + 2 * SEGMENT_MS * next(_rolls)
    producer.produce(
        topic,
        b"",
        ROLL_KEY,
        partition=partition,
        timestamp=timestamp,
        on_delivery=lambda _, message: offsets.append(message.offset()),
    )
    assert producer.flush(CLEANED_WAIT_S) == 0
    return offsets[0]


def wait_until_cleaned(cluster: KafkaCluster, topic: str, offset: int, partition: int = 0) -> None:
    """Waits until the cleaners of all replicas have reached *offset*, which must be in the active segment or at its start."""
    metadata = cluster.admin.list_topics(topic, timeout=CLEANED_WAIT_S).topics[topic].partitions[partition]
    files = [cluster.broker(id_).folder / "data" / "cleaner-offset-checkpoint" for id_ in metadata.replicas]

    def cleaned() -> bool:
        return all(_first_dirty(file, topic, partition) >= offset for file in files)

    wait_until(f"{topic}-{partition} is cleaned up to {offset}", cleaned)


def force_compaction(cluster: KafkaCluster, topic: str, partition: int = 0) -> None:
    """Compacts all current records, and adds a record of ROLL_KEY after them."""
    wait_until_cleaned(cluster, topic, roll_segment(cluster, topic, partition), partition)


def _first_dirty(checkpoint: Path, topic: str, partition: int) -> int:
    """Returns the offset up to which a broker's cleaner has cleaned, or -1 if it has not cleaned the partition yet."""
    lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
    entries = [line.split() for line in lines if line.startswith(f"{topic} {partition} ")]
    return int(entries[0][2]) if entries else -1

"""What any producer writes arrives as it was: every codec, by Java and by librdkafka, and every odd record in it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import FOREVER, load
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied, produce

ALIAS = "batches"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LONG_AGO_MS = 1_400_000_000_000

Odd = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def odd_records(count: int, partitions: int) -> Iterator[Odd]:
    """Nulls, empty keys and values, headers that repeat, are null, empty or large; timestamps that go back and forth."""
    now_ms = time.time_ns() // 1_000_000
    values = (b"v" * 300, None, b"", b"\0\xff" * 50, b"x")
    keys = (b"key", None, b"")
    headers: tuple[list[tuple[str, bytes | None]], ...] = (
        [],
        [("a", b"1"), ("a", None), ("", b""), ("z", b"2"), ("a", b"3")],
        [("größe", b"\xc3\x28")],
        [("large", b"h" * 5000)],
    )
    for number in range(count):
        yield (
            number % partitions,
            now_ms - (number * 7919) % 60_000,
            keys[number % 3],
            values[number % 5],
            headers[number % 4],
        )


def every_shape(codec: str) -> Callable[[KafkaCluster, str], None]:
    """By Java small batches of keys, repeated names and null values; by librdkafka odd records, and large batches."""

    def write(cluster: KafkaCluster, topic: str) -> None:
        load(cluster, topic, 1500, codec=codec, keys=True, headers=6, null_every=7, batch_bytes=3_000)
        idempotent = str(codec in {"gzip", "zstd"}).lower()
        properties = {"compression.type": codec, "linger.ms": "20", "enable.idempotence": idempotent}
        produce(cluster, topic, odd_records(3000, 2), properties)
        # The next codec in the same partition.
        other = CODECS[CODECS.index(codec) - 1]
        produce(cluster, topic, odd_records(50, 2), {"compression.type": other})

    return write


def from_long_ago(cluster: KafkaCluster, topic: str) -> None:
    """Timestamps of years ago, and then of the first second of 1970."""
    load(cluster, topic, 500, keys=True, timestamp_ms=LONG_AGO_MS, timestamp_step_ms=86_400_000)
    load(cluster, topic, 100, keys=True, timestamp_ms=0, timestamp_step_ms=1, first=500)


def one_record(cluster: KafkaCluster, topic: str) -> None:
    """A topic with one record, one partition empty."""
    load(cluster, topic, 1, partition=1, headers=1)


WRITERS: dict[str, tuple[Callable[[KafkaCluster, str], None], int]] = {
    **{codec: (every_shape(codec), 4550) for codec in CODECS},
    "long-ago": (from_long_ago, 600),
    "one-record": (one_record, 1),
}


@pytest.fixture(scope="module")
def copied(east: KafkaCluster, west: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every writer's topic, copied by one process."""
    for name, (write, _) in WRITERS.items():
        write(east, east.create_topic(f"shape-{name}", partitions=2, config=FOREVER))
    folder = tmp_path_factory.mktemp("batches")
    with Replicator.standalone(
        east,
        west,
        topics="shape-.*",
        folder=folder,
        connector={"source.cluster.alias": ALIAS},
    ) as replicator:
        replicator.wait_until_caught_up(partitions=2 * len(WRITERS))
        assert replicator.stop() == 0
    return folder


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.usefixtures("copied")
def test_what_a_producer_writes_arrives_as_it_was(east: KafkaCluster, west: KafkaCluster, name: str) -> None:
    """Partition, order, key, value, headers in their order and timestamp of each record are the source's."""
    assert_copied(east, f"shape-{name}", west, f"{ALIAS}.shape-{name}", count=WRITERS[name][1])

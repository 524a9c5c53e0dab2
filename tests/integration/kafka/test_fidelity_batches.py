"""Records of any producer are copied unchanged.

They are written by Java and librdkafka, in every codec, and with unusual contents.
"""

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

UnusualRecord = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]


def unusual_records(count: int, partitions: int) -> Iterator[UnusualRecord]:
    """Yields records with null and empty parts, repeated, null, empty or large headers, and unordered timestamps."""
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
    """Java writes small batches with repeated header names and null values.

    librdkafka writes unusual records and large batches.
    """

    def write(cluster: KafkaCluster, topic: str) -> None:
        load(cluster, topic, 1500, codec=codec, keys=True, headers=6, null_every=7, batch_bytes=3_000)
        idempotent = str(codec in {"gzip", "zstd"}).lower()
        properties = {"compression.type": codec, "linger.ms": "20", "enable.idempotence": idempotent}
        produce(cluster, topic, unusual_records(3000, 2), properties)
        # Batches of a different codec in the same partitions.
        other = CODECS[CODECS.index(codec) - 1]
        produce(cluster, topic, unusual_records(50, 2), {"compression.type": other})

    return write


def old_timestamps(cluster: KafkaCluster, topic: str) -> None:
    """Writes timestamps of years ago, and then of the first second of 1970."""
    load(cluster, topic, 500, keys=True, timestamp_ms=LONG_AGO_MS, timestamp_step_ms=86_400_000)
    load(cluster, topic, 100, keys=True, timestamp_ms=0, timestamp_step_ms=1, first=500)


def one_record(cluster: KafkaCluster, topic: str) -> None:
    """Creates a topic with one record and an empty partition."""
    load(cluster, topic, 1, partition=1, headers=1)


WRITERS: dict[str, tuple[Callable[[KafkaCluster, str], None], int]] = {
    **{codec: (every_shape(codec), 4550) for codec in CODECS},
    "long-ago": (old_timestamps, 600),
    "one-record": (one_record, 1),
}


@pytest.fixture(scope="module")
def copied(east: KafkaCluster, west: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies every writer's topic with one process."""
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
def test_records_of_a_producer_are_copied_unchanged(
    east: KafkaCluster, west: KafkaCluster, name: str
) -> None:
    """The partition, order, key, value, ordered headers and timestamp of each record equal those of the source."""
    assert_copied(east, f"shape-{name}", west, f"{ALIAS}.shape-{name}", count=WRITERS[name][1])

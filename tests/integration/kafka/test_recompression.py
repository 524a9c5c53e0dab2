"""Copies to targets that recompress records, with a different codec or with none. Brokers then check the recompressed
size.

A batch that is small when it is sent may be many times larger when it is stored (UnifiedLog.append checks both sizes).
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.codecs import NAMES, NONE, ZSTD
from mirrorflow_core.wire.records import Record, encode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.integration.kafka.comparing import assert_copied
from tests.integration.kafka.flows import DAY_MS, Flow, call_cluster
from tests.integration.kafka.seeding import files_of, seed
from tests.integration.kafka.test_failures_access import allow_target, client, lines

pytestmark = pytest.mark.more

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

Names = Callable[[], str]
COMPRESSION_TYPES = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
# Keeps the target topic's own settings.
OWN_SETTINGS = {"sync.topic.configs.enabled": "false"}
LARGE = {"max.message.bytes": str(8 << 20)}  # the limit of source topics with a batch of 3 MB
HUGE, SMALL = 0, 1  # partitions: one batch of 3,000 records, and 300 batches of eight
HUGE_RECORDS, SMALL_BATCHES, SMALL_RECORDS = 3_000, 300, 8
NOISE = random.Random(1).randbytes(100_000)
NOW_MS = time.time_ns() // 1_000_000


def compressible(first: int, count: int, age_ms: int = 0) -> list[Record]:
    """Returns records of 1 kB that repeat after 100 kB. Only the window of zstd is large enough to compress them."""
    return [
        Record(0, NOW_MS - age_ms + n, b"k%d" % n, NOISE[n % 100 * 1000 : n % 100 * 1000 + 1000])
        for n in range(first, first + count)
    ]


def write(
    cluster: KafkaCluster, topic: str, partition: int, codec: int, batches: Iterable[list[Record]]
) -> None:
    """Appends each of *batches* as one batch compressed with *codec*."""

    async def append(connected: Cluster) -> None:
        await connected.refresh([topic])
        for records in batches:
            data = encode(records, codec=codec, producer_id=-1, producer_epoch=-1, base_sequence=-1)
            error_codes = await admin.produce(
                connected, {TopicPartition(topic, partition): data}, timeout_ms=30_000
            )
            assert not any(error_codes.values()), error_codes

    call_cluster(cluster, append)


def write_huge_and_small(cluster: KafkaCluster, topic: str, codec: int, age_ms: int = 0) -> None:
    """Writes one huge batch into one partition and many small batches into the other."""
    write(cluster, topic, HUGE, codec, [compressible(0, HUGE_RECORDS, age_ms)])
    starts = range(0, SMALL_BATCHES * SMALL_RECORDS, SMALL_RECORDS)
    write(cluster, topic, SMALL, codec, (compressible(start, SMALL_RECORDS, age_ms) for start in starts))


@pytest.mark.parametrize("compression_type", COMPRESSION_TYPES)
def test_every_codec_is_copied_to_a_topic_that_recompresses(
    compression_type: str, flow: Flow, unique_topic: Names
) -> None:
    """At most one write of each partition is refused. Afterwards, the topic's settings are known."""
    stem = unique_topic()
    topics = [f"{stem}-{name}" for name in NAMES]
    for codec, topic in enumerate(topics):
        flow.source.create_topic(topic, partitions=2, config=LARGE)
        flow.target.create_topic(
            flow.remote(topic), partitions=2, config={"compression.type": compression_type}
        )
        write_huge_and_small(flow.source, topic, codec)

    with flow.replicator(f"{stem}-.*", OWN_SETTINGS) as replicator:
        replicator.wait_until_caught_up(partitions=2 * len(topics))
        refused = replicator.progress()["refusedWrites"]

    assert refused <= 2 * len(topics)
    for topic in topics:
        assert_copied(flow.source, topic, flow.target, flow.remote(topic), count=5_400)


def test_old_records_are_copied_to_a_topic_that_recompresses(flow: Flow, unique_topic: Names) -> None:
    """Old records are written inside a transaction. Batches that are refused there because of their size are split."""
    topic = flow.source.create_topic(unique_topic(), partitions=2, config=LARGE)
    flow.target.create_topic(flow.remote(topic), partitions=2, config={"compression.type": "uncompressed"})
    write_huge_and_small(flow.source, topic, ZSTD, age_ms=2 * DAY_MS)
    write_huge_and_small(flow.source, topic, ZSTD)

    with flow.replicator(topic, OWN_SETTINGS) as replicator:
        replicator.wait_until_caught_up(partitions=2)

    flow.assert_exact(topic)


def test_a_seed_fills_a_topic_that_recompresses(
    flow: Flow, unique_topic: Names, spark: "SparkSession"
) -> None:
    """Spark's tasks pack batches and learn the limits like the connector."""
    topic = flow.source.create_topic(unique_topic(), partitions=2, config=LARGE)
    flow.target.create_topic(flow.remote(topic), partitions=2, config={"compression.type": "uncompressed"})
    write_huge_and_small(flow.source, topic, ZSTD)

    status, _ = seed(files_of(flow, topic, OWN_SETTINGS), spark)

    assert status == 0
    flow.assert_exact(topic)


def test_a_record_too_large_after_recompression_stops_with_the_settings_to_change(
    flow: Flow, unique_topic: Names
) -> None:
    """The error names recompression. With compression.type=producer, the partition continues without a restart."""
    topic = flow.source.create_topic(unique_topic())
    copy = flow.target.create_topic(flow.remote(topic), config={"compression.type": "uncompressed"})
    large = Record(0, NOW_MS, b"large", bytes(2_000_000))
    write(flow.source, topic, 0, ZSTD, [compressible(0, 10), [large], compressible(10, 10)])

    with flow.replicator(topic, OWN_SETTINGS) as replicator:
        status = replicator.wait_for_phase("stopped", topic)
        flow.target.alter_topic(copy, {"compression.type": "producer"})
        replicator.wait_until_caught_up()

    assert ("RecordTooLarge", 10) == (status["reason"], status["sourceOffset"])
    assert "takes 20000" in status["message"]
    assert f"after recompression (compression.type=uncompressed of {copy})" in status["message"]
    assert f"raise max.message.bytes of {copy}, or set its compression.type=producer" in status["message"]
    flow.assert_exact(topic)


def test_a_record_that_fits_only_after_recompression_is_copied(flow: Flow, unique_topic: Names) -> None:
    """A record of 2 MB exceeds the limit without compression, but is small with gzip."""
    topic = flow.source.create_topic(unique_topic(), config=LARGE)
    flow.target.create_topic(flow.remote(topic), config={"compression.type": "gzip"})
    large = Record(0, NOW_MS, b"large", bytes(2_000_000))
    write(flow.source, topic, 0, NONE, [compressible(0, 10), [large], compressible(10, 10)])

    with flow.replicator(topic, OWN_SETTINGS) as replicator:
        replicator.wait_until_caught_up()
        refused = replicator.progress()["refusedWrites"]

    assert refused <= 2  # batches in flight after it are refused as well
    flow.assert_exact(topic)


def test_a_segment_size_below_max_message_bytes_limits_batches(flow: Flow, unique_topic: Names) -> None:
    """A broker refuses a batch larger than a segment (RECORD_LIST_TOO_LARGE), regardless of max.message.bytes."""
    topic = flow.source.create_topic(unique_topic(), partitions=2, config=LARGE)
    limits = {"segment.bytes": str(1 << 20), "compression.type": "uncompressed"}
    flow.target.create_topic(flow.remote(topic), partitions=2, config={**LARGE, **limits})
    write_huge_and_small(flow.source, topic, ZSTD)

    with flow.replicator(topic, OWN_SETTINGS) as replicator:
        replicator.wait_until_caught_up(partitions=2)
        refused = replicator.progress()["refusedWrites"]

    assert refused <= 2
    flow.assert_exact(topic)


def test_a_running_flow_follows_lowered_and_raised_limits(flow: Flow, unique_topic: Names) -> None:
    """The next refusal shows a lowered limit.

    After it is raised, batches are copied unchanged again without a restart.
    """
    topic = flow.source.create_topic(unique_topic())
    copy = flow.target.create_topic(flow.remote(topic), config={"compression.type": "uncompressed"})

    with flow.replicator(topic, OWN_SETTINGS) as replicator:

        def batches(path: str) -> int:
            return int(replicator.partition(topic).get("batches", {}).get(path, 0))

        write(flow.source, topic, 0, ZSTD, [compressible(0, 100)])
        wait_until("a batch is copied unchanged", lambda: batches("raw") == 1)
        flow.target.alter_topic(copy, {"max.message.bytes": "20000"})
        write(flow.source, topic, 0, ZSTD, [compressible(100, 100)])
        replicator.wait_for_copy(flow.target, copy, 200)
        wait_until("a batch is split", lambda: batches("reencoded") >= 1)
        raw, refused = batches("raw"), replicator.progress()["refusedWrites"]
        flow.target.alter_topic(copy, {"max.message.bytes": "1000000"})

        def is_copied_unchanged() -> bool:
            write(flow.source, topic, 0, ZSTD, [compressible(1000, 50)])
            return batches("raw") > raw

        wait_until("batches are copied unchanged again", is_copied_unchanged, poll_s=1)
        replicator.wait_until_caught_up()

    assert refused <= 2
    flow.assert_exact(topic)


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    """A target whose brokers store everything uncompressed and check ACLs."""
    settings = {"compression.type": "uncompressed"}
    with KafkaCluster(
        name="guarded", listeners=("SASL_PLAINTEXT",), authorizer=True, config=settings
    ) as cluster:
        yield cluster


def secured_flow(source: KafkaCluster, target: KafkaCluster, folder: Path, *, reads_settings: bool) -> Flow:
    """Returns a flow to *target* with all required permissions.

    *reads_settings* adds the permission to read settings of copies.
    """
    flow = Flow.new(source, target, folder, connector=lines("target", target), worker=client(target))
    allow_target(target, flow.alias)
    if not reads_settings:
        # The permission to alter settings would include the one to read them.
        target.allow("DESCRIBE_CONFIGS", "TOPIC", f"{flow.alias}.", prefixed=True, deny=True)
    return flow


def test_a_compression_type_of_the_broker_has_the_same_effect_as_one_of_the_topic(
    secured: KafkaCluster, east: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    flow = secured_flow(east, secured, tmp_path, reads_settings=True)
    topic = east.create_topic(unique_topic(), partitions=2, config=LARGE)
    secured.create_topic(flow.remote(topic), partitions=2)
    write_huge_and_small(east, topic, ZSTD)

    with flow.replicator(topic, OWN_SETTINGS) as replicator:
        replicator.wait_until_caught_up(partitions=2)
        refused = replicator.progress()["refusedWrites"]

    assert 0 < refused <= 2
    flow.assert_exact(topic)


@pytest.mark.parametrize(("limit", "refusals"), [("", 1), ("100000", 5)])
def test_without_permission_to_read_settings_limits_are_learned_from_refusals(
    limit: str, refusals: int, secured: KafkaCluster, east: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Learned limits stay, so that no later huge batch is refused."""
    flow = secured_flow(east, secured, tmp_path, reads_settings=False)
    topic = east.create_topic(unique_topic(), partitions=2, config=LARGE)
    secured.create_topic(
        flow.remote(topic), partitions=2, config={"max.message.bytes": limit} if limit else {}
    )
    write_huge_and_small(east, topic, ZSTD)

    with flow.replicator(topic, OWN_SETTINGS) as replicator:
        replicator.wait_until_caught_up(partitions=2)
        first = replicator.progress()["refusedWrites"]
        write_huge_and_small(east, topic, ZSTD)
        replicator.wait_until_caught_up(partitions=2)
        second = replicator.progress()["refusedWrites"]

    assert 0 < first <= 2 * refusals
    assert first == second
    flow.assert_exact(topic)


def test_without_permission_to_read_settings_a_record_too_large_is_retried_until_it_fits(
    secured: KafkaCluster, east: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    flow = secured_flow(east, secured, tmp_path, reads_settings=False)
    topic = east.create_topic(unique_topic())
    copy = secured.create_topic(flow.remote(topic))
    large = Record(0, NOW_MS, b"large", bytes(2_000_000))
    write(east, topic, 0, ZSTD, [compressible(0, 10), [large], compressible(10, 10)])

    with flow.replicator(topic, OWN_SETTINGS) as replicator:
        status = replicator.wait_for_phase("stopped", topic)
        secured.alter_topic(copy, LARGE)
        replicator.wait_until_caught_up()

    assert ("RecordTooLarge", 10) == (status["reason"], status["sourceOffset"])
    assert "the size counts after recompression unless its compression.type is producer" in status["message"]
    flow.assert_exact(topic)

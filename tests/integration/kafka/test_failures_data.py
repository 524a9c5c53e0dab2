"""Data is damaged or deleted, or a disk is full.

The affected partition stops with a reason, and all others continue.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrorflow_core.wire.batch import Batch, split
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied, contents
from tests.integration.kafka.disks import small_disk

pytestmark = pytest.mark.faults

INTO_RECORDS = 80  # bytes: after the header of a batch

Names = Callable[[], str]


def flow(
    source: KafkaCluster, target: KafkaCluster, topics: str, alias: str, folder: Path, **connector: str
) -> Replicator:
    """Returns a flow with *alias*. *connector* has underscores instead of dots."""
    lines = {"source.cluster.alias": alias} | {
        key.replace("_", "."): value for key, value in connector.items()
    }
    return Replicator.standalone(source, target, topics=topics, folder=folder, connector=lines)


def test_a_topic_deleted_while_it_is_copied_is_reported_and_others_continue(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Its partitions stop with TopicGone, and their copies stay. No earlier topic discovery could detect it."""
    stem = unique_topic()
    for name in (f"{stem}-doomed", f"{stem}-other"):
        load(east, east.create_topic(name, partitions=2), 500, keys=True)
    copied = contents(records(east, f"{stem}-doomed"))

    with flow(east, west, f"{stem}.*", "deleting", tmp_path, refresh_topics_enabled="false") as replicator:
        replicator.wait_until_caught_up(partitions=4)
        east.delete_topic(f"{stem}-doomed")
        status = replicator.wait_for_phase("stopped", f"{stem}-doomed")
        load(east, f"{stem}-other", 500, keys=True, first=500)
        replicator.wait_for_copy(west, f"deleting.{stem}-other", 1000)
        log = replicator.log_text()

    assert status["reason"] == "TopicGone"
    assert "no longer exists on cluster deleting" in status["message"]
    assert status["message"] in log
    assert_copied(east, f"{stem}-other", west, f"deleting.{stem}-other", count=1000)
    assert copied == contents(records(west, f"deleting.{stem}-doomed"))


@pytest.fixture(scope="module")
def disposable_source() -> Iterator[KafkaCluster]:
    """A source whose disk a test may damage."""
    with KafkaCluster(name="frail") as cluster:
        yield cluster


def damage(cluster: KafkaCluster, topic: str, number: int) -> Batch:
    """Flips a bit in batch *number* of partition 0 while the broker is down, and returns the undamaged batch."""
    cluster.broker(1).stop()
    segment = Path(cluster.home) / "1" / "data" / f"{topic}-0" / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    batches = split(bytearray(data))
    position = sum(batch.size_bytes for batch in batches[:number])
    data[position + INTO_RECORDS] ^= 0x10
    segment.write_bytes(data)
    cluster.broker(1).start()
    return batches[number]


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_batch_that_is_damaged_on_the_source_is_never_copied(
    disposable_source: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path, codec: str
) -> None:
    """The partition stops before the batch and reports its offset. Earlier records and other partitions are copied.

    Merging small batches must not hide the damage. After the damaged batch is deleted, the flow continues.
    """
    topic = disposable_source.create_topic(unique_topic(), partitions=2)
    load(disposable_source, topic, 2000, codec=codec, keys=True, headers=1, batch_bytes=600)
    whole = contents(records(disposable_source, topic))
    damaged = damage(disposable_source, topic, 20)

    with flow(
        disposable_source, west, topic, topic.upper(), tmp_path, mirrorflow_source_loss_policy="alert"
    ) as replicator:
        status = replicator.wait_for_phase("stopped", topic)
        wait_until(
            "the other partition is copied", lambda: replicator.partition(topic, 1).get("records") == 1000
        )
        ends = west.end_offsets(f"{topic.upper()}.{topic}")
        log = replicator.log_text()
        disposable_source.delete_records(topic, {0: damaged.next_offset})
        wait_until(
            "the partition continues after the damaged batch",
            lambda: replicator.partition(topic).get("sourceOffset") == 1000,
        )

    assert status["reason"] == "CorruptBatch"
    assert f"the batch at source offset {damaged.base_offset} is corrupt" in status["message"]
    assert status["message"] in log
    assert {0: damaged.base_offset, 1: 1000} == ends
    first, second = whole[:1000], whole[1000:]
    assert [*first[: damaged.base_offset], *first[damaged.next_offset :], *second] == contents(
        records(west, f"{topic.upper()}.{topic}")
    )


def test_a_target_whose_disk_was_full_is_filled_after_the_disk_has_grown(
    east: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The broker stops with a truncated batch at the end of its log. With a larger disk, the copy continues exactly."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 50_000, size_bytes=1000, keys=True, content="random")

    with (
        small_disk(tmp_path / "disk", 24) as disk,
        KafkaCluster(name="brim", config=disk.config) as brim,
        flow(east, brim, topic, "full", tmp_path) as replicator,
    ):
        wait_until("the disk is full and the broker has stopped", lambda: not brim.broker(1).running)
        wait_until("the failure is reported", lambda: replicator.progress()["reasons"])
        disk.grow()
        brim.broker(1).start()
        replicator.wait_until_caught_up(partitions=2)
        replicator.kill()
        assert_copied(east, topic, brim, f"full.{topic}", count=50_000)

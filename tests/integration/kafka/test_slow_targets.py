"""Slow targets, because of quotas, a narrow link, a slow disk, a distant coordinator or large batches.

A slow response is not an error. A sent batch is not written again, which a read_uncommitted consumer would detect.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrorflow_core.writer.claim import claims_topic
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load
from tests.integration.kafka.disks import slow_disk
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms, reassign
from tests.integration.kafka.quotas import client_quota, throttle_ms

pytestmark = pytest.mark.faults

Names = Callable[[], str]
RECORDS = 4_000
QUOTA_BYTES_PER_S = 100_000.0  # a broker allows the bytes of ten seconds at once
UPLINK_BYTES_PER_S = 100_000
NARROW_BYTES_PER_S = 20_000
REQUEST_PERCENT = 0.1  # percentage of one broker thread's time
MANY_PARTITIONS = 2_000
TOPICS = 20  # twice as many as a quota of one per second allows at once
FAR_MS, VERY_FAR_MS = 150, 1_000  # delay in each direction
LARGE_BYTES = 1_000_000
PATIENCE_S = 180.0


@pytest.fixture(scope="module")
def slow_cluster() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="slow", proxied=True) as cluster:
        yield cluster


@pytest.fixture
def flow(east: KafkaCluster, slow_cluster: KafkaCluster, tmp_path: Path) -> Iterator[Flow]:
    """A flow whose processes connect through the proxy."""
    route, bootstrap = slow_cluster.proxy(1), slow_cluster.proxied_bootstrap
    yield Flow.new(
        east,
        slow_cluster,
        tmp_path,
        connector={"target.cluster.bootstrap.servers": bootstrap},
        worker={"bootstrap.servers": bootstrap},
    )
    route.delay(0)
    route.throttle(0)


def old_topic(
    flow: Flow,
    name: str,
    records: int = RECORDS,
    *,
    size_bytes: int = 1_000,
    partitions: int = 1,
    days: int = 2,
) -> str:
    """Creates a topic with records of two days ago, which are written in transactions."""
    topic = flow.source.create_topic(name, partitions=partitions, config=FOREVER)
    load_old(flow, topic, records, size_bytes=size_bytes, days=days)
    return topic


def load_old(
    flow: Flow, topic: str, records: int, *, size_bytes: int = 1_000, days: int = 2, first: int = 0
) -> None:
    load(
        flow.source,
        topic,
        records,
        size_bytes=size_bytes,
        content="random",
        timestamp_ms=now_ms() - days * DAY_MS,
        timestamp_step_ms=1,
        first=first,
    )


def wait_until_copied(flow: Flow, topic: str, records: int = RECORDS) -> None:
    """Waits until *records* are committed, each of them written once."""
    wait_until("all records are committed", lambda: flow.copied(topic) >= records, timeout_s=PATIENCE_S)
    flow.assert_exact(topic)


def test_transactions_with_a_produce_quota_are_written_once(flow: Flow, unique_topic: Names) -> None:
    topic = old_topic(flow, unique_topic())

    with (
        client_quota(flow.target, producer_byte_rate=QUOTA_BYTES_PER_S),
        flow.replicator(topic) as replicator,
    ):
        wait_until_copied(flow, topic)
        waited_ms = throttle_ms(replicator)

    assert waited_ms > 0


def test_transactions_over_a_narrow_link_are_written_once(flow: Flow, unique_topic: Names) -> None:
    topic = old_topic(flow, unique_topic())
    flow.target.proxy(1).throttle(UPLINK_BYTES_PER_S)

    with flow.replicator(topic):
        wait_until_copied(flow, topic)


@pytest.mark.parametrize("days", [0, 2])
def test_a_batch_that_takes_longer_than_the_response_timeout_is_written_once(
    flow: Flow, unique_topic: Names, days: int
) -> None:
    """A record of a megabyte is sent at 20 kB/s, once in a plain batch and once in a transaction."""
    topic = old_topic(flow, unique_topic(), 1, size_bytes=LARGE_BYTES, days=days)

    with flow.replicator(topic) as replicator:
        wait_until("the copy exists", lambda: flow.target.has_topic(flow.remote(topic)))
        flow.target.proxy(1).throttle(NARROW_BYTES_PER_S)
        wait_until_copied(flow, topic, 1)
        assert "what was written to" not in replicator.log_text()


def test_a_graceful_stop_over_a_narrow_link_writes_nothing_twice(flow: Flow, unique_topic: Names) -> None:
    topic = old_topic(flow, unique_topic())
    flow.target.proxy(1).throttle(UPLINK_BYTES_PER_S)

    with flow.replicator(topic) as replicator:
        wait_until("some records are copied", lambda: flow.copied(topic) > RECORDS // 10)
        assert replicator.stop() == 0
        replicator.start()
        wait_until_copied(flow, topic)


def test_transactions_with_a_request_quota_are_written_once(flow: Flow, unique_topic: Names) -> None:
    """Every request blocks its connection for seconds."""
    topic = old_topic(flow, unique_topic(), 1_000)

    with client_quota(flow.target, request_percentage=REQUEST_PERCENT), flow.replicator(topic) as replicator:
        wait_until_copied(flow, topic, 1_000)
        waited_ms = throttle_ms(replicator)

    assert waited_ms > 0


def test_transactions_of_a_distant_coordinator_are_written_once(flow: Flow, unique_topic: Names) -> None:
    topic = old_topic(flow, unique_topic())
    flow.target.proxy(1).delay(FAR_MS)

    with flow.replicator(topic):
        wait_until_copied(flow, topic)


@pytest.fixture
def distant_coordinator(
    east: KafkaCluster, tmp_path: Path, unique_topic: Names
) -> Iterator[tuple[Flow, str]]:
    """A flow and its topic.

    Two brokers have all data that it writes, and the third one coordinates its transactions.
    """
    config = {"transaction.state.log.num.partitions": "1"}
    with KafkaCluster(name="spread", brokers=3, proxied=True, config=config) as target:
        properties = {"bootstrap.servers": target.proxied_bootstrap}
        connector = {"target.cluster.bootstrap.servers": target.proxied_bootstrap}
        flow = Flow.new(east, target, tmp_path, connector=connector, worker=properties)
        topic = old_topic(flow, unique_topic(), RECORDS // 4, partitions=2)
        own = {claims_topic(flow.alias): 1, f"mm2-offsets.{flow.alias}.internal": 1, flow.remote(topic): 2}
        for name, partitions in own.items():
            config_of_topic = FOREVER if name == flow.remote(topic) else {"cleanup.policy": "compact"}
            target.create_topic(name, partitions=partitions, config=config_of_topic)
            for partition in range(partitions):
                reassign(target, name, [partition + 1], partition)
        yield flow, topic


def move_coordinator(flow: Flow, topic: str) -> None:
    """Makes the third broker coordinate all transactions. The first transaction creates their topic."""
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=2)
        assert replicator.stop() == 0
    reassign(flow.target, "__transaction_state", [3])


def test_transactions_are_written_once_when_only_the_coordinator_is_distant(
    distant_coordinator: tuple[Flow, str],
) -> None:
    """The delay in each direction is first 150 ms and then a second, also at the start and after a graceful stop."""
    flow, topic = distant_coordinator
    move_coordinator(flow, topic)
    load_old(flow, topic, 2 * RECORDS, first=RECORDS // 4)
    flow.target.proxy(3).delay(FAR_MS)

    with flow.replicator(topic) as replicator:
        wait_until("some records are copied", lambda: flow.copied(topic) > RECORDS // 2)
        assert replicator.stop() == 0
        flow.target.proxy(3).delay(VERY_FAR_MS)
        replicator.start()
        wait_until_copied(flow, topic, RECORDS // 4 + 2 * RECORDS)


@pytest.mark.parametrize("days", [0, 2])
def test_records_on_a_slow_disk_are_written_once(flow: Flow, unique_topic: Names, days: int) -> None:
    topic = old_topic(flow, unique_topic(), days=days)

    with slow_disk(flow.target.broker(1)), flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        log = replicator.log_text()

    flow.assert_exact(topic)
    assert "was not answered" not in log


def test_a_batch_whose_fetch_takes_longer_than_the_response_timeout_is_copied(
    west: KafkaCluster, slow_cluster: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """A record of a megabyte is fetched over a link of 20 kB/s."""
    bootstrap = slow_cluster.proxied_bootstrap
    flow = Flow.new(slow_cluster, west, tmp_path, connector={"source.cluster.bootstrap.servers": bootstrap})
    topic = slow_cluster.create_topic(unique_topic())

    with flow.replicator(topic):
        wait_until("the copy exists", lambda: west.has_topic(flow.remote(topic)))
        slow_cluster.proxy(1).throttle(NARROW_BYTES_PER_S)
        load(slow_cluster, topic, 1, size_bytes=LARGE_BYTES, content="random")
        wait_until_copied(flow, topic, 1)
    slow_cluster.proxy(1).throttle(0)


def test_topics_are_created_with_a_controller_mutation_quota(flow: Flow, unique_topic: Names) -> None:
    """The controller refuses some topics at first."""
    stem = unique_topic()
    topics = [flow.source.create_topic(f"{stem}-{number}") for number in range(TOPICS)]
    for topic in topics:
        load(flow.source, topic, 10)

    with client_quota(flow.target, controller_mutation_rate=1.0), flow.replicator(f"{stem}-.*"):
        for topic in topics:
            wait_until_copied(flow, topic, 10)


@pytest.mark.more
def test_thousands_of_partitions_are_committed_together(flow: Flow, unique_topic: Names) -> None:
    topic = old_topic(flow, unique_topic(), 2 * MANY_PARTITIONS, size_bytes=100, partitions=MANY_PARTITIONS)

    with flow.replicator(topic):
        wait_until_copied(flow, topic, 2 * MANY_PARTITIONS)

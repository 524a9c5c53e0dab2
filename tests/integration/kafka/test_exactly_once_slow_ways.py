"""Exactly-once over slow connections to the target, with late requests and slow commits.

A proxy holds requests of a copier, and the copier is frozen. A second process takes over, catches up and is idle until
the leader has dropped its producer state. A leader without that state accepts any sequence number that then arrives.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.kafka.broker_settings import alter_brokers
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import HarnessError, wait_until
from tests.harness.kafka.tools import FOREVER, load
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms
from tests.integration.kafka.test_old_records import wait_until_forgotten

pytestmark = pytest.mark.faults

SHORT_MS = 6_000  # records older than half of it count as old
FRESH_FOR_MS = 60_000
NEVER = {"offset.flush.interval.ms": "3600000"}
HELD = {"mirrorflow.bytes.per.second": "512Ki", **NEVER}  # the backlog lasts for sixteen seconds
OTHER = {"mirrorflow.bytes.per.second": "2Mi", **NEVER}  # the backlog lasts for four seconds
BACKLOG = 40_000
HELD_BYTES = 10_000
HELD_WAIT_S = (
    5.0  # a copier that waits for a response sends nothing, so the proxy heals and the test tries again
)
DELAY_MS = 100  # delay in each direction
OLD_PER_S, OLD_RECORDS = 2_000, 20_000
UNCOMMITTED = OLD_PER_S // 4


@pytest.fixture(scope="module")
def slow_cluster() -> Iterator[KafkaCluster]:
    config = {"producer.id.expiration.check.interval.ms": "200"}
    with KafkaCluster(name="slow", proxied=True, config=config) as cluster:
        yield cluster


@pytest.fixture
def slow(slow_cluster: KafkaCluster) -> KafkaCluster:
    """A target that expires producers after a day unless a test reduces that time. It checks five times a second."""
    slow_cluster.proxy(1).heal()
    slow_cluster.proxy(1).delay(0)
    alter_brokers(slow_cluster, {"producer.id.expiration.ms": str(DAY_MS)})
    return slow_cluster


@pytest.fixture
def flow(east: KafkaCluster, slow: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, slow, tmp_path)


def through_the_proxy(flow: Flow, topic: str) -> Replicator:
    """Returns a copier whose connections to the target go through the proxy."""
    bootstrap = flow.target.proxied_bootstrap
    flow.worker = {**flow.worker, "bootstrap.servers": bootstrap}
    held = flow.replicator(topic, {**HELD, "target.cluster.bootstrap.servers": bootstrap})
    flow.worker = {key: value for key, value in flow.worker.items() if key != "bootstrap.servers"}
    return held


def hold_requests(flow: Flow, topic: str, held: Replicator) -> None:
    """Makes the proxy hold the copier's requests while it copies the backlog, and freezes the copier when enough are
    held.
    """
    proxy = flow.target.proxy(1)
    held.wait_for_copy(flow.target, flow.remote(topic), 1_000)

    def is_held_up() -> bool:
        proxy.blackhole()
        try:
            wait_until(
                "the proxy holds enough bytes", lambda: proxy.held_bytes() > HELD_BYTES, timeout_s=HELD_WAIT_S
            )
        except HarnessError:
            proxy.heal()
            return False
        held.freeze()
        return True

    wait_until("the copier is frozen with requests in flight", is_held_up)


def release_requests(flow: Flow, topic: str, held: Replicator, other: Replicator) -> None:
    """Releases the held requests, resumes the frozen copier, and adds new records to copy."""
    flow.target.proxy(1).heal()
    held.thaw()
    load(flow.source, topic, 100, first=1_000_000)
    other.wait_until_caught_up()


def test_requests_that_arrive_after_the_leader_expired_the_producer_repeat_nothing(
    flow: Flow, unique_topic: Callable[[], str]
):
    """The target expires producers within seconds."""
    alter_brokers(flow.target, {"producer.id.expiration.ms": str(SHORT_MS)})
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, BACKLOG, size_bytes=200, timestamp_ms=now_ms() + FRESH_FOR_MS)
    with ExitStack() as stack:
        held = stack.enter_context(through_the_proxy(flow, topic))
        hold_requests(flow, topic, held)
        other = stack.enter_context(flow.replicator(topic, OTHER))
        load(flow.source, topic, 1_000)
        other.wait_until_caught_up()
        flow.wait_until_committed(topic)  # markers count as written from this time on
        wait_until_forgotten(flow, now_ms())
        release_requests(flow, topic, held, other)
        flow.assert_committed(topic)


def test_a_kill_inside_a_transaction_of_old_records_repeats_nothing_for_read_committed_consumers(
    flow: Flow, unique_topic: Callable[[], str]
):
    """Commits are slow, so that many records are uncommitted when the process is killed.

    The next process has a different isolation level.
    """
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    old = {
        "size_bytes": 100,
        "rate": OLD_PER_S,
        "timestamp_ms": now_ms() - 2 * DAY_MS,
        "timestamp_step_ms": 1,
    }
    writer = threading.Thread(target=load, args=(flow.source, topic, OLD_RECORDS), kwargs=old)
    writer.start()
    flow.target.proxy(1).delay(DELAY_MS)
    with through_the_proxy(flow, topic) as killed:
        killed.wait_for_copy(flow.target, flow.remote(topic), OLD_PER_S)

        def many_are_uncommitted() -> bool:
            committed = flow.target.end_offsets(flow.remote(topic), isolation="read_committed")[0]
            return flow.target.end_offsets(flow.remote(topic))[0] - committed > UNCOMMITTED

        wait_until("many records are not committed", many_are_uncommitted)
        killed.kill()
    with flow.replicator(topic, {**NEVER, "consumer.isolation.level": "read_committed"}) as new:
        writer.join()
        new.wait_until_caught_up()
        flow.assert_committed(topic)


def test_a_new_fence_is_written_when_leaders_will_expire_producers_earlier(
    flow: Flow, unique_topic: Callable[[], str]
):
    """The setting is reduced while the flow is idle. A fence as old as its records could expire."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 10)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        end = flow.target.end_offsets(flow.remote(topic))
        alter_brokers(flow.target, {"producer.id.expiration.ms": str(DAY_MS // 4)})
        wait_until("a marker is written", lambda: flow.target.end_offsets(flow.remote(topic)) != end)
        load(flow.source, topic, 10, first=10)
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)

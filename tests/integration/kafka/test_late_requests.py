"""A proxy holds requests, so that their connection breaks and they arrive late."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mirrorflow_core.writer.transactional_ids import TransactionalIds
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms

pytestmark = pytest.mark.faults

END_TXN = 26
RECORDS, PER_S = 15_000, 500
DELAY_MS = 10  # in each direction; commits take longer, so a transaction is open for most of a second
HELD_COMMITS = 5


@pytest.fixture(scope="module")
def proxied() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="late", proxied=True) as cluster:
        yield cluster


@pytest.fixture
def flow(east: KafkaCluster, proxied: KafkaCluster, tmp_path: Path) -> Flow:
    properties = {"bootstrap.servers": proxied.proxied_bootstrap}
    connector = {f"target.cluster.{key}": value for key, value in properties.items()}
    return Flow.new(east, proxied, tmp_path, connector=connector, worker=properties)


def hold_commit(flow: Flow, topic: str) -> None:
    """Holds a commit of the task, and delivers it when a later transaction has records."""
    proxy, copy = flow.target.proxy(1), flow.remote(topic)
    proxy.hold_next(END_TXN, TransactionalIds(flow.alias).task(0).transactional)
    wait_until("a commit is held", proxy.is_holding)
    held_at = flow.target.end_offsets(copy)[0]

    def is_next_open() -> bool:
        committed = flow.target.end_offsets(copy, isolation="read_committed")[0]
        return committed > held_at and flow.target.end_offsets(copy)[0] > committed

    wait_until("a later transaction has records", is_next_open, poll_s=0.02)
    proxy.deliver()


def test_a_late_commit_does_not_end_a_later_transaction(flow: Flow, unique_topic: Callable[[], str]):
    """The connection of the commit was lost. A coordinator cannot distinguish the transactions of one producer epoch."""
    topic = flow.source.create_topic(unique_topic(), config=FOREVER)
    old = {"rate": PER_S, "timestamp_ms": now_ms() - 2 * DAY_MS, "timestamp_step_ms": 1}
    writer = threading.Thread(target=load, args=(flow.source, topic, RECORDS), kwargs=old)
    writer.start()
    flow.target.proxy(1).delay(DELAY_MS)
    with flow.replicator(topic) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), PER_S)
        for _ in range(HELD_COMMITS):
            hold_commit(flow, topic)
        assert writer.is_alive()
        writer.join()
        replicator.wait_until_caught_up()
        flow.assert_committed(topic)


def test_a_lost_commit_of_the_lock_does_not_end_the_ownership(flow: Flow, unique_topic: Callable[[], str]):
    """The lock is checked again and is still held.

    Processes of a group also end each other's transactions of the lock.
    """
    topic, proxy = flow.source.create_topic(unique_topic()), flow.target.proxy(1)
    load(flow.source, topic, PER_S)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        for _ in range(2):
            proxy.hold_next(END_TXN, TransactionalIds(flow.alias).lock)
            wait_until("a commit is held", proxy.is_holding)
            load(flow.source, topic, PER_S)
            replicator.wait_until_caught_up()
            proxy.deliver()
        load(flow.source, topic, PER_S)
        replicator.wait_until_caught_up()
        flow.assert_exact(topic)
        log = replicator.log_text()

    assert "lost the ownership" not in log
    assert "Restarting the task" not in log

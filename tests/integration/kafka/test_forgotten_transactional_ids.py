"""The coordinator has expired the flow's transactional ids, and assigns new producer ids to the next process.

An epoch of the new producer ids does not fence earlier processes.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_replicator.connectors.source_connector import STANDBY_WARNING
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow, call_cluster, wait_until_ready
from tests.integration.kafka.test_old_records import transactions

pytestmark = pytest.mark.faults

NEVER = {"offset.flush.interval.ms": "3600000"}
COMMITTED = {"consumer.isolation.level": "read_committed"}


@pytest.fixture(scope="module")
def brisk() -> Iterator[KafkaCluster]:
    """A target that expires transactional ids after ten unused seconds.

    An owner uses its own ids every five seconds.
    """
    config = {
        "connections.max.idle.ms": "30000",
        "transactional.id.expiration.ms": "10000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    }
    with KafkaCluster(name="brisk", config=config) as cluster:
        yield cluster


@pytest.fixture
def flow(east: KafkaCluster, brisk: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, brisk, tmp_path)


def wait_until_expired(flow: Flow) -> None:
    prefix = TransactionalIds(flow.alias).prefix
    wait_until(
        "the transactional ids have expired",
        lambda: (
            not any(
                transactional_id.startswith(prefix)
                for transactional_id in call_cluster(flow.target, transactions)
            )
        ),
    )


def test_a_process_suspended_while_its_transactional_ids_expired_repeats_nothing(
    flow: Flow, unique_topic: Callable[[], str]
):
    """It resumes after a new process with a different isolation level has continued."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 1_000)
    with ExitStack() as stack:
        old = stack.enter_context(flow.replicator(topic, NEVER))
        old.wait_until_caught_up()
        old.freeze()
        wait_until_expired(flow)
        new = stack.enter_context(flow.replicator(topic, {**NEVER, **COMMITTED}))
        load(flow.source, topic, 1_500, first=1_000)
        new.wait_until_caught_up()
        old.thaw()
        wait_until("the old process waits", lambda: STANDBY_WARNING in str(old.progress()))
        load(flow.source, topic, 100, first=2_500)
        new.wait_until_caught_up()

    flow.assert_exact(topic)


def test_a_rollout_after_the_ids_have_expired_repeats_nothing(flow: Flow, unique_topic: Callable[[], str]):
    """The flow is stopped until its ids have expired. Then a rollout happens while it copies."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 100)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
    wait_until_expired(flow)
    with flow.replicator(topic) as old:
        wait_until_ready(old)
        load(flow.source, topic, 1_000, first=100)
        with flow.replicator(topic, COMMITTED) as new:
            wait_until_ready(new)
            load(flow.source, topic, 1_000, first=1_100)
            old.wait_until_caught_up()
            load(flow.source, topic, 1_000, first=2_100)
            assert old.stop() == 0
            new.wait_until_caught_up()

    flow.assert_exact(topic)

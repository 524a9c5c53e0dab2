"""The coordinator has forgotten the flow's transactional id, and gives another producer id to who asks again.

The new epoch then fences no copier: those of the earlier generation write with an id that is still theirs.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mirrorflow_core.exactly_once.identity import transactional_id
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow, asking, rolled
from tests.integration.kafka.test_pin import transactions

pytestmark = pytest.mark.faults

NEVER = {"offset.flush.interval.ms": "3600000"}
COMMITTED = {"consumer.isolation.level": "read_committed"}


@pytest.fixture(scope="module")
def brisk() -> Iterator[KafkaCluster]:
    """Its coordinator forgets a transactional id that is not used for four seconds."""
    config = {
        "transactional.id.expiration.ms": "4000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
    }
    with KafkaCluster(name="brisk", config=config) as cluster:
        yield cluster


@pytest.fixture
def flow(east: KafkaCluster, brisk: KafkaCluster, tmp_path: Path) -> Flow:
    return Flow.new(east, brisk, tmp_path)


def wait_until_expired(flow: Flow) -> None:
    wait_until(
        "the transactional id is forgotten",
        lambda: transactional_id(flow.alias) not in asking(flow.target, transactions),
    )


def is_settled(replicator: Replicator, topic: str, end: int) -> bool:
    """It has copied up to *end*, waits, has stopped, or does not run the connector any more."""
    said = replicator.partition(topic)
    state = replicator.rest("/connectors/MirrorSourceConnector/status")[1]["connector"]["state"]
    return (
        state == "FAILED"
        or said.get("phase") in {"waiting", "stopped"}
        or (said.get("sourceOffset") or 0) >= end
    )


def test_who_was_frozen_while_the_id_expired_and_the_settings_changed_repeats_nothing(
    flow: Flow, unique_topic: Callable[[], str]
):
    """It thaws when a newcomer with another isolation level has copied on."""
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
        wait_until("the old process has settled", lambda: is_settled(old, topic, 2_500))
        load(flow.source, topic, 100, first=2_500)
        new.wait_until_caught_up()

    flow.assert_exact(topic)


def test_settings_rolled_after_the_id_has_expired_repeat_nothing(flow: Flow, unique_topic: Callable[[], str]):
    """The flow was stopped for longer than the id is remembered; then its settings are rolled while it copies."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 100)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
    wait_until_expired(flow)
    written = itertools.count(100, 200)
    with flow.replicator(topic) as old:

        def copy_more() -> None:
            first = next(written)
            load(flow.source, topic, 200, first=first)
            old.wait_for_copy(flow.target, flow.remote(topic), first + 200)

        with rolled(flow, topic, old, COMMITTED, copy_more=copy_more) as new:
            new.wait_until_caught_up()

    flow.assert_exact(topic)

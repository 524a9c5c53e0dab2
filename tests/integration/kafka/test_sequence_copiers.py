"""Two copiers of one flow, strangers on its target, and claims that do not agree: facts of "exactly once by sequence".

Each test breaks the plan on purpose; what a Java consumer reads must not show it.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from mirrorflow_core.exactly_once.alignment import SEQUENCES
from mirrorflow_core.exactly_once.identity import Anchor, Claim, stream_definition
from mirrorflow_core.settings import TRANSACTION_TIMEOUT_MS
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog, new_identity
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.flows import Flow, asking, contents

BACKLOG = 60_000
# A backlog of 12 MB then lasts some seconds, long enough to be attacked while it is copied.
SLOW = {"mirrorflow.bytes.per.second": "2Mi"}
# Twice that, for two processes started one after the other; and a position soon, by which the second knows the first.
SLOWER = {"mirrorflow.bytes.per.second": "1Mi", "offset.flush.interval.ms": "300"}


@pytest.fixture
def topic(east: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    return east.create_topic(unique_topic())


@pytest.mark.faults
def test_a_frozen_copier_that_thaws_repeats_nothing(flow: Flow, topic: str):
    """Requests of the first are in its sockets when it freezes; the second takes over; then the first continues."""
    load(flow.source, topic, BACKLOG, size_bytes=200)
    with ExitStack() as stack:
        first = stack.enter_context(flow.replicator(topic, SLOWER))
        first.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        second = stack.enter_context(flow.replicator(topic, SLOWER))
        second.wait_for_phase("waiting", topic)
        first.freeze()
        at = sum(flow.target.end_offsets(flow.remote(topic)).values())
        second.wait_for_copy(flow.target, flow.remote(topic), at + 10_000)
        first.thaw()
        second.wait_for_copy(flow.target, flow.remote(topic), BACKLOG)
        load(flow.source, topic, 500, first=BACKLOG)
        second.wait_for_copy(flow.target, flow.remote(topic), BACKLOG + 500)

    flow.assert_exact(topic)


def test_two_copiers_started_at_once_copy_each_record_once(flow: Flow, topic: str):
    """Neither has a position yet, so neither knows of the other."""
    load(flow.source, topic, BACKLOG, size_bytes=200)
    with flow.replicator(topic, SLOW) as first, flow.replicator(topic, SLOW) as second:
        first.wait_for_copy(flow.target, flow.remote(topic), BACKLOG)
        assert second.running

    flow.assert_exact(topic)


def test_the_second_copier_takes_over_at_once_when_the_first_says_good_bye(flow: Flow, topic: str):
    """A clean stop is a good-bye in the position: the successor, warm, does not wait for silence to prove it."""
    load(flow.source, topic, BACKLOG, size_bytes=200)
    with ExitStack() as stack:
        first = stack.enter_context(flow.replicator(topic, SLOWER))
        first.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        second = stack.enter_context(flow.replicator(topic, SLOWER))
        second.wait_for_phase("waiting", topic)
        assert first.stop() == 0
        second.wait_for_phase("copying", topic)
        second.wait_for_copy(flow.target, flow.remote(topic), BACKLOG)

    flow.assert_exact(topic)


def test_a_killed_task_and_a_killed_process_repeat_nothing(flow: Flow, topic: str):
    """kill -9 of the task, then of everything, without a position ever written."""
    load(flow.source, topic, BACKLOG, size_bytes=200)
    never = {**SLOW, "offset.flush.interval.ms": "3600000"}
    with flow.replicator(topic, never) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 5_000)
        replicator.kill_task()
        replicator.wait_for_copy(flow.target, flow.remote(topic), 15_000)
        replicator.kill()
        replicator.start()
        replicator.wait_for_copy(flow.target, flow.remote(topic), BACKLOG)

    flow.assert_exact(topic)


def test_foreign_producers_and_an_open_transaction_change_nothing(flow: Flow, topic: str):
    """Others write between our batches, one of them in a transaction that is never ended; ours stay exact, also after kill -9."""
    remote = flow.target.create_topic(flow.remote(topic))
    load(flow.source, topic, BACKLOG // 2, size_bytes=200)
    with flow.replicator(topic, SLOW) as replicator:
        replicator.wait_for_copy(flow.target, remote, 2_000)
        load(
            flow.target,
            remote,
            300,
            size_bytes=33,
            transactional_id=f"stranger-{flow.alias}",
            leave_open=True,
            producer={"transaction.timeout.ms": "600000"},
        )
        load(flow.target, remote, 400, size_bytes=33, single_record_batches=True)
        at = sum(flow.target.end_offsets(remote).values())
        # However far the copy is by now: there is more of ours behind the strangers'.
        load(flow.source, topic, 5_000, first=BACKLOG // 2, size_bytes=200)
        replicator.wait_for_copy(flow.target, remote, at + 2_000)
        replicator.kill()
        replicator.start()
        load(flow.target, remote, 300, size_bytes=33, single_record_batches=True)
        replicator.wait_for_copy(flow.target, remote, BACKLOG // 2 + 6_000)

    found = [one for one in records(flow.target, remote) if len(one.value or b"") != 33]
    assert contents(records(flow.source, topic)) == contents(found)


def test_sequences_begin_again_after_two_thousand_million_records(flow: Flow, topic: str):
    """An anchor shortly before 2^31 makes the sequence wrap within batches; kill -9 and restart behind it change nothing."""
    count = 20_000
    remote = flow.target.create_topic(flow.remote(topic))

    async def decide(target: Cluster) -> None:
        log = DecisionLog(target, flow.alias, replication_factor=1)
        claim = Claim(
            source_cluster_id=flow.source.cluster_id,
            target_cluster_id=flow.target.cluster_id,
            policy="default .",
            flow=f"{flow.alias}->{flow.target.name}",
            stream=stream_definition(read_committed=False),
        )
        await log.ensure()
        identity = await new_identity(
            log,
            target,
            flow.alias,
            claim,
            earlier=None,
            generation=1,
            why="begin",
            timeout_ms=TRANSACTION_TIMEOUT_MS,
        )
        assert identity is not None
        await target.refresh([remote])
        anchor = Anchor(
            generation=1,
            topic=topic,
            partition=0,
            step=0,
            ordinal=SEQUENCES - 1_003,
            source_offset=0,
            target_offset=0,
            source_topic_id="",
            target_topic_id="",
            why="test",
        )
        await log.decide([identity, anchor], now_ms=int(time.time() * 1000))

    asking(flow.target, decide)
    load(flow.source, topic, count, size_bytes=200)
    flush = {**SLOW, "offset.flush.interval.ms": "300"}
    with flow.replicator(topic, flush) as replicator:
        replicator.wait_for_copy(flow.target, remote, 3_000)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up()  # the copy may have been complete before: the process takes signals now
        replicator.wait_for_copy(flow.target, remote, count)
        assert replicator.stop() == 0
        load(flow.source, topic, 1_000, first=count)
        replicator.start()
        replicator.wait_for_copy(flow.target, remote, count + 1_000)

    flow.assert_exact(topic)
    decided = flow.decisions().identity
    assert decided is not None
    assert (1, "begin") == (decided.generation, decided.why)
    assert flow.memory(topic) == (decided.producer_epoch, count - 4)


def test_another_flow_may_not_take_the_same_alias(flow: Flow, topic: str):
    """The second flow is refused by name, and the first continues."""
    load(flow.source, topic, 1_000)
    with ExitStack() as stack:
        first = stack.enter_context(flow.replicator(topic))
        first.wait_until_caught_up()
        second = stack.enter_context(flow.replicator(topic, {"mirrorflow.flow": "another-flow"}))

        def refused() -> str:
            return str(
                second.rest("/connectors/MirrorSourceConnector/status")[1]["connector"].get("trace", "")
            )

        trace = wait_until("the other flow is refused", refused)
        load(flow.source, topic, 500, first=1_000)
        first.wait_for_copy(flow.target, flow.remote(topic), 1_500)
        assert 0 == second.progress()["records"]

    assert f"already receives source {flow.alias} from flow {flow.alias}->{flow.target.name}" in trace
    flow.assert_exact(topic)


def test_a_renamed_flow_continues_where_it_names_its_earlier_name(flow: Flow, topic: str):
    """Each record once, and the flow under its earlier name is refused from then on."""
    load(flow.source, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
    owner = f"{flow.alias}->{flow.target.name}"
    load(flow.source, topic, 500, first=1_000)
    renamed = {"mirrorflow.flow": "renamed@payments.0f3c", "mirrorflow.takeover.from": owner}
    with flow.replicator(topic, renamed) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 1_500)
        name = replicator.progress()["flow"]

    flow.assert_exact(topic)
    decided = flow.decisions().identity
    assert decided is not None
    assert ("renamed@payments.0f3c", f"takeover of {owner}", "renamed") == (decided.flow, decided.why, name)


def test_another_cluster_at_a_known_address_is_refused(flow: Flow, topic: str):
    """The same alias with another source cluster would mix two topics in one: it copies nothing and says which id it met."""
    load(flow.source, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
    flow.target.create_topic(topic)
    load(flow.target, topic, 2_000)
    with flow.replicator(topic, source=flow.target) as replicator:

        def refused() -> str:
            status = replicator.rest("/connectors/MirrorSourceConnector/status")[1]
            return str(status["connector"].get("trace", ""))

        trace = wait_until("the other cluster is refused", refused)

    assert f"was {flow.source.cluster_id} and is now {flow.target.cluster_id}" in trace
    flow.assert_exact(topic)

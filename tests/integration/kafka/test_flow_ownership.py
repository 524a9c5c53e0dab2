"""Two processes of one flow, other producers on its target, and flows that claim the same alias.

Each test violates the intended set-up. A Java consumer of the copy must not receive wrong records.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import NONE
from mirrorflow_core.wire.records import encode
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.distributed import NAME, Site
from tests.integration.kafka.flows import Flow, call_cluster, contents, now_ms, numbered, wait_until_ready
from tests.integration.kafka.nodes import GROUP

BACKLOG = 40_000
# With this rate, a backlog of 8 MB lasts some seconds, long enough for a test to interfere.
SLOW = {"mirrorflow.bytes.per.second": "2Mi"}
# Half of that rate, for two processes that start one after the other.
SLOWER = {"mirrorflow.bytes.per.second": "1Mi"}


@pytest.fixture
def topic(east: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    return east.create_topic(unique_topic())


def wait_for_trace(replicator: Replicator) -> str:
    """Waits until the connector has failed, and returns its error."""

    def trace() -> str:
        connector = replicator.rest("/connectors/MirrorSourceConnector/status")[1]["connector"]
        return str(connector.get("trace", "")) if connector["state"] == "FAILED" else ""

    return wait_until("the connector is refused", trace)


@pytest.mark.parametrize("handovers", [1, pytest.param(3, marks=pytest.mark.faults)])
def test_a_process_or_a_group_that_waits_for_the_flow_is_ready(flow: Flow, topic: str, handovers: int):
    """A Deployment ends earlier pods only when the next ones are ready. These pods may have had tasks before."""
    load(flow.source, topic, BACKLOG, size_bytes=200)
    site = Site(source=flow.source, target=flow.target, alias=flow.alias, folder=flow.folder)
    with ExitStack() as stack:
        alone = stack.enter_context(flow.replicator(topic, SLOWER))
        alone.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        node = stack.enter_context(site.worker({"name": NAME, **site.connector(topic), **SLOWER}, **GROUP))
        for owner, successor in ((alone, node), (node, alone), (alone, node))[:handovers]:
            if not successor.running:
                successor.start()
            wait_until("the successor waits for the flow", partial(is_standby, successor))
            assert successor.rest("/readyz")[0] == 200
            assert owner.stop() == 0
            successor.wait_for_phase("copying", topic)
            assert not is_standby(successor)
        node.wait_until_caught_up()

    flow.assert_exact(topic)


def is_standby(replicator: Replicator) -> bool:
    """Returns whether its connector waits until a different process releases the flow."""
    return any(
        connector["standby"] for connector in replicator.rest("/progress/partitions")[1].get("connectors", ())
    )


@pytest.mark.faults
def test_a_process_suspended_while_it_copies_repeats_nothing(flow: Flow, topic: str):
    """Requests of the first process are in its sockets when it is frozen.

    The second process takes over, and then the first one resumes.
    """
    load(flow.source, topic, BACKLOG, size_bytes=200)
    with ExitStack() as stack:
        first = stack.enter_context(flow.replicator(topic, SLOWER))
        first.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        second = stack.enter_context(flow.replicator(topic, SLOWER))
        wait_until_ready(second)
        first.freeze()
        second.wait_for_phase("copying", topic)
        first.thaw()
        second.wait_until_caught_up()
        load(flow.source, topic, 500, first=BACKLOG)
        second.wait_until_caught_up()

    flow.assert_exact(topic)


def test_two_processes_started_at_once_copy_each_record_once(flow: Flow, topic: str):
    load(flow.source, topic, BACKLOG, size_bytes=200)
    with flow.replicator(topic, SLOW) as first, flow.replicator(topic, SLOW) as second:
        wait_until("all records are copied", lambda: flow.copied(topic) >= BACKLOG)
        assert first.running
        assert second.running

    flow.assert_exact(topic)


def test_the_second_process_continues_where_the_first_stopped(flow: Flow, topic: str):
    """The first process stops while it copies a backlog."""
    load(flow.source, topic, BACKLOG, size_bytes=200)
    with ExitStack() as stack:
        first = stack.enter_context(flow.replicator(topic, SLOWER))
        first.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        second = stack.enter_context(flow.replicator(topic, SLOWER))
        wait_until_ready(second)
        assert first.stop() == 0
        second.wait_until_caught_up()

    flow.assert_exact(topic)


def test_a_killed_task_and_a_killed_process_repeat_nothing(flow: Flow, topic: str):
    """The task is killed with kill -9, and then all processes, before any position is stored."""
    load(flow.source, topic, BACKLOG, size_bytes=200)
    never = {**SLOW, "offset.flush.interval.ms": "3600000"}
    with flow.replicator(topic, never) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 5_000)
        replicator.kill_task()
        replicator.wait_for_copy(flow.target, flow.remote(topic), 15_000)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)


def test_foreign_producers_and_an_open_transaction_do_not_affect_the_copy(flow: Flow, topic: str):
    """Other producers write between the batches of the flow, one of them in a transaction that stays open.

    The copy is exact, even after kill -9.
    """
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
        end = sum(flow.target.end_offsets(remote).values())
        # Regardless of the progress, more records of the flow follow after those of the other producers.
        load(flow.source, topic, 5_000, first=BACKLOG // 2, size_bytes=200)
        replicator.wait_for_copy(flow.target, remote, end + 2_000)
        replicator.kill()
        replicator.start()
        load(flow.target, remote, 300, size_bytes=33, single_record_batches=True)
        replicator.wait_until_caught_up()

    copied = [record for record in records(flow.target, remote) if len(record.value or b"") != 33]
    assert contents(records(flow.source, topic)) == contents(copied)


def test_a_foreign_batch_with_the_flows_next_sequence_loses_nothing_and_is_reported(flow: Flow, topic: str):
    """The leader treats the next batch of the flow as a repeat of the foreign one.

    Producer ids are unique only within a cluster.
    """
    copy = TopicPartition(flow.remote(topic), 0)

    async def write_next(target: Cluster) -> None:
        await target.refresh([copy.topic])
        described = (await admin.describe_producers(target, [copy]))[copy].producers
        writer = next(producer for producer in described if producer.last_sequence >= 0)
        data = encode(
            numbered(0, 1, timestamp=now_ms()),
            codec=0,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=writer.last_sequence + 1,
        )
        assert (await admin.produce(target, {copy: data}, timeout_ms=30_000))[copy] == NONE

    load(flow.source, topic, 10)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        call_cluster(flow.target, write_next)
        load(flow.source, topic, 1, first=10)
        replicator.wait_for_copy(flow.target, copy.topic, 12)
        load(flow.source, topic, 500, first=11)
        replicator.wait_until_caught_up()
        log = replicator.log_text()

    (foreign_value,) = [record.value for record in numbered(0, 1, timestamp=0)]
    copied = [record for record in records(flow.target, copy.topic) if record.value != foreign_value]
    assert contents(records(flow.source, topic)) == contents(copied)
    assert f"Another producer writes to {copy}" in log


def test_a_different_flow_with_the_same_alias_is_refused(flow: Flow, topic: str):
    """The error contains the owner, and the first flow continues."""
    load(flow.source, topic, 1_000)
    with ExitStack() as stack:
        first = stack.enter_context(flow.replicator(topic))
        first.wait_until_caught_up()
        second = stack.enter_context(flow.replicator(topic, {"mirrorflow.flow": "another-flow"}))
        trace = wait_for_trace(second)
        load(flow.source, topic, 500, first=1_000)
        first.wait_for_copy(flow.target, flow.remote(topic), 1_500)
        assert 0 == second.progress()["records"]

    assert f"already receives source {flow.alias} from flow {flow.alias}->{flow.target.name}" in trace
    flow.assert_exact(topic)


def test_a_renamed_flow_that_names_its_earlier_name_continues(flow: Flow, topic: str):
    """Each record is copied once. Afterwards the flow with the earlier name is refused."""
    load(flow.source, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
    owner = f"{flow.alias}->{flow.target.name}"
    load(flow.source, topic, 500, first=1_000)
    renamed = {"mirrorflow.flow": "renamed@payments.0f3c", "mirrorflow.takeover.from": owner}
    with flow.replicator(topic, renamed) as replicator:
        replicator.wait_until_caught_up()
        name = replicator.progress()["flow"]
        assert replicator.stop() == 0
    with flow.replicator(topic) as replicator:
        trace = wait_for_trace(replicator)

    flow.assert_exact(topic)
    assert name == "renamed"
    assert f"already receives source {flow.alias} from flow renamed@payments.0f3c" in trace


def test_a_different_source_cluster_with_the_same_alias_is_refused(flow: Flow, topic: str):
    """Two source clusters would mix two topics in one copy. Nothing is copied, and the error has both cluster ids."""
    load(flow.source, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
    flow.target.create_topic(topic)
    load(flow.target, topic, 2_000)
    with flow.replicator(topic, source=flow.target) as replicator:
        trace = wait_for_trace(replicator)

    assert f"was {flow.source.cluster_id} and is now {flow.target.cluster_id}" in trace
    flow.assert_exact(topic)

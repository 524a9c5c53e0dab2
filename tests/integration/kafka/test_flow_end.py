"""A switchover ends a flow. No process copies until the end is cleared; then the flow continues at its last position.

A Java consumer compares source and copy record by record.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mirrorflow_core.errors import FlowEndedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.connectors.flow_owner import FlowOwner
from mirrorflow_replicator.switchover.flow_end import ended_by
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.distributed import NAME, Site
from tests.integration.kafka.flows import Flow, call_cluster, wait_until_ready
from tests.integration.kafka.nodes import GROUP
from tests.integration.kafka.switching import call_clusters, clear, end, settings_of

BACKLOG = 24_000  # 5 MB take five seconds at this rate, and the flow is ended during that time
SLOWER = {"mirrorflow.bytes.per.second": "1Mi"}
PARTITIONS = 3


@pytest.fixture
def topic(east: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    return east.create_topic(unique_topic(), partitions=PARTITIONS)


def ended_warning(replicator: Replicator) -> str:
    """Returns the warning of a process that waits because its flow was ended, or "" if it does not wait."""
    connectors = replicator.rest("/progress/partitions")[1].get("connectors", ())
    warnings = (
        warning for connector in connectors if connector["standby"] for warning in connector["warnings"]
    )
    return next((warning for warning in warnings if "was ended by switchover" in warning), "")


def wait_until_standby(replicator: Replicator) -> str:
    return str(wait_until("the process waits for the end to be cleared", partial(ended_warning, replicator)))


def test_an_ended_flow_copies_nothing_until_the_end_is_cleared(flow: Flow, topic: str):
    """This holds for its running process and for one that is started later. Both are ready and report the reason."""
    load(flow.source, topic, BACKLOG, size_bytes=200)
    with ExitStack() as stack:
        first = stack.enter_context(flow.replicator(topic, SLOWER))
        first.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        ended = end(first, flow.target)
        ends = flow.target.end_offsets(flow.remote(topic))
        second = stack.enter_context(flow.replicator(topic, SLOWER))
        assert "ended by switchover to-west" in wait_until_standby(first)
        wait_until_standby(second)
        wait_until_ready(second)
        load(flow.source, topic, 500, first=BACKLOG)
        assert ends == flow.target.end_offsets(flow.remote(topic))
        assert clear(first, flow.target)
        wait_until("a process copies", lambda: not (ended_warning(first) and ended_warning(second)))
        wait_until("all records are copied", lambda: flow.copied(topic) >= BACKLOG + 500)

    flow.assert_exact(topic)
    assert ended.positions.keys() == {TopicPartition(topic, number) for number in range(PARTITIONS)}
    assert not ended.stopped
    assert not ended.unfenced


@pytest.mark.faults
def test_a_suspended_process_appends_nothing_after_the_flow_was_ended(flow: Flow, topic: str):
    """Its requests are in its sockets when it is suspended."""
    load(flow.source, topic, BACKLOG, size_bytes=200)
    with flow.replicator(topic, SLOWER) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        replicator.freeze()
        ended = end(replicator, flow.target)
        ends = flow.target.end_offsets(flow.remote(topic))
        replicator.thaw()
        wait_until_standby(replicator)
        load(flow.source, topic, 500, first=BACKLOG)
        assert ends == flow.target.end_offsets(flow.remote(topic))
        assert ended == end(replicator, flow.target)
        assert clear(replicator, flow.target)
        replicator.wait_until_caught_up(partitions=PARTITIONS)

    flow.assert_exact(topic)


def test_the_final_positions_are_those_of_the_copy(flow: Flow, topic: str):
    load(flow.source, topic, 1_000)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=PARTITIONS)
        ended = end(replicator, flow.target)

    source_ends = flow.source.end_offsets(topic)
    assert source_ends == {key.partition: it.next_source_offset for key, it in ended.positions.items()}
    # Only markers follow.
    ends = {record.partition: record.offset + 1 for record in records(flow.target, flow.remote(topic))}
    assert ended.target_ends == {TopicPartition(flow.remote(topic), key): end for key, end in ends.items()}


def test_a_different_switchover_neither_ends_the_flow_again_nor_clears_the_end(flow: Flow, topic: str):
    load(flow.source, topic, 10)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=PARTITIONS)
        ended = end(replicator, flow.target)
        with pytest.raises(FlowEndedError, match="was ended by switchover to-west"):
            end(replicator, flow.target, "another")
        with pytest.raises(FlowEndedError, match="was ended by switchover to-west"):
            clear(replicator, flow.target, "another")
        name = call_cluster(flow.target, lambda cluster: ended_by(settings_of(replicator), cluster))
        assert ended == end(replicator, flow.target)
        assert clear(replicator, flow.target)
        assert not clear(replicator, flow.target)

    assert name == "to-west"


def test_neither_a_seed_nor_a_restore_takes_an_ended_flow(flow: Flow, topic: str):
    """Both of them would otherwise take the flow from a running process."""
    load(flow.source, topic, 10)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=PARTITIONS)
        end(replicator, flow.target)
        owner = FlowOwner(settings_of(replicator), on_lost=lambda: None, group="seed")

        async def take(source: Cluster, target: Cluster) -> None:
            await owner.own((source, target), ((),), preempts=True)

        with pytest.raises(FlowEndedError, match="was ended by switchover to-west"):
            call_clusters(flow.source, flow.target, take)


def test_a_process_with_positions_in_a_file_stops_at_the_end_of_the_flow(
    flow: Flow, topic: str, tmp_path: Path
):
    """Such a process does not own the flow, and would otherwise copy everything again."""
    load(flow.source, topic, 100)
    in_file = {"offset.storage.store": "file", "offset.storage.file.filename": str(tmp_path / "positions")}
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up(partitions=PARTITIONS)
        end(replicator, flow.target)
        assert replicator.stop() == 0
    ends = flow.target.end_offsets(flow.remote(topic))
    with replace(flow, worker=in_file).replicator(topic) as without_owner:
        wait_until_standby(without_owner)
        wait_until_ready(without_owner)
        assert ends == flow.target.end_offsets(flow.remote(topic))
        assert clear(replicator, flow.target)
        without_owner.wait_until_caught_up(partitions=PARTITIONS)


def test_a_group_does_not_copy_while_its_flow_is_ended(flow: Flow, topic: str):
    load(flow.source, topic, BACKLOG, size_bytes=200)
    site = Site(source=flow.source, target=flow.target, alias=flow.alias, folder=flow.folder)
    alone = flow.replicator(topic)  # it has the settings of the flow
    with site.worker({"name": NAME, **site.connector(topic), **SLOWER}, **GROUP) as node:
        node.wait_for_copy(flow.target, flow.remote(topic), 3_000)
        end(alone, flow.target)
        ends = flow.target.end_offsets(flow.remote(topic))
        wait_until_standby(node)
        wait_until_ready(node)
        load(flow.source, topic, 500, first=BACKLOG)
        assert ends == flow.target.end_offsets(flow.remote(topic))
        assert clear(alone, flow.target)
        node.wait_until_caught_up(partitions=PARTITIONS)

    flow.assert_exact(topic)

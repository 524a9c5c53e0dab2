"""The group leader decides which connector file is written to the config topic, and writes session keys."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect.session_keys import SessionKey
from mirrorflow_core.connect.worker_records import ConfigRecord, ConnectorConfig
from mirrorflow_core.connect.worker_state import WorkerConfigs
from mirrorflow_core.errors import FilesDifferError
from mirrorflow_core.settings import SessionKeySettings
from mirrorflow_replicator.worker.group_node import GroupLeader

OLD, NEW = ({"name": "x", "topics": text} for text in ("old", "new"))


class ConfigTopicStub:
    """A config topic that all nodes read immediately."""

    def __init__(self) -> None:
        self.configs = WorkerConfigs()
        self.written: list[Mapping[str, str] | None] = []
        self.keys = 0

    async def put(self, *records: ConfigRecord, now_ms: int) -> None:
        for record in records:
            self.configs.take(record)
            if isinstance(record, ConnectorConfig):
                self.written.append(record.properties)
            self.keys += isinstance(record, SessionKey)


def group_leader(topic: ConfigTopicStub, file: Mapping[str, str]) -> GroupLeader:
    return GroupLeader(cast("Any", topic), SessionKeySettings(), [file])


def lead(leader: GroupLeader, followers: list[GroupLeader]) -> None:
    for follower in followers:
        follower.follow()
    asyncio.run(leader.lead())
    for node in (leader, *followers):
        node.note_files()


def problem(node: GroupLeader) -> FilesDifferError | None:
    node.compare()
    return node.problem


def test_a_file_is_written_once_even_if_the_leader_changes() -> None:
    topic = ConfigTopicStub()
    first, second = group_leader(topic, OLD), group_leader(topic, OLD)
    lead(first, [second])
    lead(second, [first])
    assert [OLD] == topic.written
    assert 1 == topic.keys
    assert None is problem(first) is problem(second)


def test_a_replaced_file_is_not_written_again() -> None:
    """A leader that still has the replaced file reports the connector instead."""
    topic = ConfigTopicStub()
    first, second = group_leader(topic, OLD), group_leader(topic, OLD)
    lead(first, [second])
    renewed = group_leader(topic, NEW)
    lead(renewed, [second])
    lead(second, [renewed])
    assert [OLD, NEW] == topic.written
    error = problem(second)
    assert error is not None
    assert ("FilesDiffer", ("x",)) == (error.reason, error.connectors)
    assert None is problem(renewed)


RUNNING = {"name": "x", "topics": "a"}
PAUSED = {**RUNNING, "mirrorflow.state": "paused"}


@given(st.permutations(range(3)), st.lists(st.integers(min_value=0, max_value=2), min_size=3, max_size=3))
def test_a_state_is_written_once_the_files_of_all_nodes_have_it(order: list[int], leaders: list[int]) -> None:
    """The kubelet updates the files one by one and leaders change. No leader reverts the state."""
    topic = ConfigTopicStub()
    nodes = [group_leader(topic, RUNNING) for _ in range(3)]
    lead(nodes[0], nodes[1:])
    for file in (PAUSED, RUNNING):
        for number, leader in zip(order, leaders, strict=True):
            nodes[number].renew([file])
            lead(nodes[leader], [node for node in nodes if node is not nodes[leader]])
        for node in nodes:
            lead(node, [])
            assert problem(node) is None
    assert [RUNNING, PAUSED, RUNNING] == topic.written


def test_files_that_differ_only_in_the_state_cause_no_error() -> None:
    topic = ConfigTopicStub()
    first, second = group_leader(topic, RUNNING), group_leader(topic, RUNNING)
    lead(first, [second])
    first.renew([PAUSED])
    lead(first, [second])
    assert [RUNNING, PAUSED] == topic.written
    assert None is problem(first) is problem(second)


@given(st.lists(st.integers(min_value=0, max_value=2), max_size=4), st.permutations(range(3)), st.data())
def test_a_rolling_restart_never_returns_to_the_old_file(
    before: list[int], order: list[int], data: st.DataObject
) -> None:
    """At each step, any node may lead except the one that restarts."""
    topic = ConfigTopicStub()
    nodes = [group_leader(topic, OLD) for _ in range(3)]
    leader = 0
    for number in [0, *before]:
        leader = number
        lead(nodes[number], [node for node in nodes if node is not nodes[number]])
    for number in order:
        if number == leader:  # the node leaves, and another one leads
            leader = data.draw(st.sampled_from([node for node in range(3) if node != number]))
            lead(nodes[leader], [node for node in nodes if node not in (nodes[leader], nodes[number])])
        nodes[number] = group_leader(topic, NEW)
    assert NEW == topic.written[-1]
    assert topic.written == sorted(topic.written, key=lambda properties: properties == NEW)

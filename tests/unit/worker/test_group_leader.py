"""The leader's own duties: whose file counts in a group, and when there is another session key."""

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


class Topic:
    """A config topic that all nodes read at once."""

    def __init__(self) -> None:
        self.configs = WorkerConfigs()
        self.said: list[Mapping[str, str] | None] = []
        self.keys = 0

    async def put(self, *records: ConfigRecord, now_ms: int) -> None:
        for record in records:
            self.configs.take(record)
            if isinstance(record, ConnectorConfig):
                self.said.append(record.properties)
            self.keys += isinstance(record, SessionKey)


def leading(topic: Topic, file: Mapping[str, str]) -> GroupLeader:
    return GroupLeader(cast("Any", topic), SessionKeySettings(), [file])


def lead(one: GroupLeader, others: list[GroupLeader]) -> None:
    for other in others:
        other.follow()
    asyncio.run(one.lead())
    for each in (one, *others):
        each.note_files()


def problem(one: GroupLeader) -> FilesDifferError | None:
    one.compare()
    return one.problem


def test_who_comes_to_lead_writes_its_file_once() -> None:
    topic = Topic()
    one, other = leading(topic, OLD), leading(topic, OLD)
    lead(one, [other])
    lead(other, [one])
    assert [OLD] == topic.said
    assert 1 == topic.keys
    assert None is problem(one) is problem(other)


def test_a_file_that_was_replaced_does_not_come_back() -> None:
    """The node that still has it says so, by name, even where it leads."""
    topic = Topic()
    first, second = leading(topic, OLD), leading(topic, OLD)
    lead(first, [second])
    renewed = leading(topic, NEW)
    lead(renewed, [second])
    lead(second, [renewed])
    assert [OLD, NEW] == topic.said
    error = problem(second)
    assert error is not None
    assert ("FilesDiffer", ("x",)) == (error.reason, error.connectors)
    assert None is problem(renewed)


RUNNING = {"name": "x", "topics": "a"}
PAUSED = {**RUNNING, "mirrorflow.state": "paused"}


@given(st.permutations(range(3)), st.lists(st.integers(min_value=0, max_value=2), min_size=3, max_size=3))
def test_a_state_in_the_files_of_all_nodes_is_written(order: list[int], leaders: list[int]) -> None:
    """The kubelet updates them one after the other, and leaders change meanwhile: the change is never taken back."""
    topic = Topic()
    nodes = [leading(topic, RUNNING) for _ in range(3)]
    lead(nodes[0], nodes[1:])
    for file in (PAUSED, RUNNING):
        for number, leader in zip(order, leaders, strict=True):
            nodes[number].renew([file])
            lead(nodes[leader], [one for one in nodes if one is not nodes[leader]])
        for node in nodes:
            lead(node, [])
            assert problem(node) is None
    assert [RUNNING, PAUSED, RUNNING] == topic.said


def test_nodes_whose_files_differ_in_the_state_alone_report_nothing() -> None:
    topic = Topic()
    first, second = leading(topic, RUNNING), leading(topic, RUNNING)
    lead(first, [second])
    first.renew([PAUSED])
    lead(first, [second])
    assert [RUNNING, PAUSED] == topic.said
    assert None is problem(first) is problem(second)


@given(st.lists(st.integers(min_value=0, max_value=2), max_size=4), st.permutations(range(3)), st.data())
def test_a_rolling_restart_ends_with_the_new_file_and_never_goes_back(
    before: list[int], order: list[int], data: st.DataObject
) -> None:
    """Any node may lead at each step, except the one that restarts: the last leader has restarted."""
    topic = Topic()
    nodes = [leading(topic, OLD) for _ in range(3)]
    leader = 0
    for number in [0, *before]:
        leader = number
        lead(nodes[number], [one for one in nodes if one is not nodes[number]])
    for number in order:
        if number == leader:  # it leaves, and another one leads
            leader = data.draw(st.sampled_from([one for one in range(3) if one != number]))
            lead(nodes[leader], [one for one in nodes if one not in (nodes[leader], nodes[number])])
        nodes[number] = leading(topic, NEW)
    assert NEW == topic.said[-1]
    assert topic.said == sorted(topic.said, key=lambda one: one == NEW)

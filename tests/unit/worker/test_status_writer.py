"""A node writes the statuses of its units to the status topic, and rewrites those that other nodes overwrote."""

import asyncio
from typing import Any, cast

from mirrorflow_core.connect.group_assignment import Unit
from mirrorflow_core.connect.worker_records import WorkerState, WorkerStatus
from mirrorflow_core.connect.worker_state import LatestStatuses
from mirrorflow_core.reports import ConnectorReport, TaskReport
from mirrorflow_replicator.worker.status_writer import SharedStatuses

UNITS = frozenset({Unit(connector="x"), Unit(connector="x", task=0)})


class StatusTopicStub:
    """A status topic that all nodes read immediately."""

    def __init__(self) -> None:
        self.statuses = LatestStatuses()
        self.written: list[WorkerStatus] = []

    async def read_new(self) -> None:
        """Does nothing: `put` applies each status immediately."""

    async def put(self, *statuses: WorkerStatus, now_ms: int) -> None:
        for status in statuses:
            self.statuses.take(status)
            self.written.append(status)


def publish(
    topic: StatusTopicStub,
    node: SharedStatuses,
    *,
    wanted: frozenset[Unit] | None = None,
    generation: int = 1,
) -> list[WorkerStatus]:
    """Returns the statuses that *node*, which holds all units, writes."""
    written_before = len(topic.written)
    report = ConnectorReport(
        name="x",
        connector_class="MirrorSourceConnector",
        flow="f",
        source_alias="a",
        target_alias="b",
        properties={},
        state="RUNNING",
        tasks=(TaskReport(task=0, state="RUNNING"),),
    )
    asyncio.run(node.publish([report], held=UNITS, wanted=wanted, generation=generation))
    return topic.written[written_before:]


def status_writer(topic: StatusTopicStub, name: str = "here:1") -> SharedStatuses:
    return SharedStatuses(cast("Any", topic), worker_id=lambda: name)


def test_an_unchanged_status_is_not_written_again() -> None:
    topic = StatusTopicStub()
    member = status_writer(topic)
    assert UNITS == {
        Unit(connector="x", task=-1 if status.task is None else status.task)
        for status in publish(topic, member)
    }
    assert [] == publish(topic, member, generation=2)


def test_status_of_a_task_unknown_to_the_leader_is_written_again() -> None:
    topic = StatusTopicStub()
    member, leader = status_writer(topic), SharedStatuses(cast("Any", topic), worker_id=lambda: "there:1")
    publish(topic, member)
    asyncio.run(leader.publish([], held=frozenset(), wanted=frozenset({Unit(connector="x")}), generation=1))
    assert WorkerState.DESTROYED is topic.written[-1].state

    assert [0] == [status.task for status in publish(topic, member)]
    assert WorkerState.RUNNING is topic.statuses.tasks("x")[0].state
    assert [] == publish(topic, member)


def test_a_node_of_an_older_generation_does_not_overwrite_newer_statuses() -> None:
    topic = StatusTopicStub()
    old, new = status_writer(topic), status_writer(topic, "there:1")
    publish(topic, old, generation=1)
    publish(topic, new, generation=2)
    assert [] == publish(topic, old, generation=1)
    assert [] == publish(topic, new, generation=2)

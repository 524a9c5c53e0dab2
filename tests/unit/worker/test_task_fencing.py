"""The steps of fencing have a fixed order when a node claims a task, and when a claim fails.

tests/integration/kafka/test_nodes_with_java.py tests it with real Kafka and Java.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.connect.group_assignment import Unit
from mirrorflow_core.connect.worker_state import WorkerConfigs
from mirrorflow_replicator.worker import task_fencing
from mirrorflow_replicator.worker.group_context import GroupContext
from mirrorflow_replicator.worker.task_fencing import NotAssignedError, TaskFencing

NAME, TASK = "MirrorSourceConnector", 1


class GroupNodeStub:
    """A node that leads or follows. *done* lists its steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, leads: bool = False) -> None:
        self.done: list[str] = []
        self.configs = WorkerConfigs()
        self.node = SimpleNamespace(
            is_rebalancing=False,
            acts_for_leader=leads,
            leader_url="http://leader",
            signs=True,
            held={Unit(connector=NAME, task=TASK)},
        )
        self.on_read = lambda: None

        async def init(_: object, transactional_id: str, **__: object) -> tuple[int, int]:
            self.done.append(f"take {transactional_id}")
            return 9, 4

        monkeypatch.setattr(task_fencing, "init_producer_id", init)

    async def fence(self, *_: object) -> None:
        self.done.append("fence")

    async def request_fencing(self, url: str, *_: object) -> None:
        self.done.append(f"ask {url}")

    def transactional_id(self, name: str, task: int) -> str:
        return f"A-mm2-{name}-{task}"

    async def read(self) -> None:
        self.done.append("read")
        self.on_read()

    def claim(self) -> None:
        node = GroupContext(
            cluster=cast("Any", None),
            configs=cast("Any", SimpleNamespace(configs=self.configs)),
            member=cast("Any", self.node),
            peers=cast("Any", self),
            read=self.read,
        )
        fencing = TaskFencing(NAME, node, fences_java=False)
        asyncio.run(fencing.claim(TASK))


@pytest.mark.parametrize(("leads", "first"), [(True, "fence"), (False, "ask http://leader")])
def test_a_claim_fences_earlier_tasks_takes_the_id_and_then_checks_the_assignment(
    monkeypatch: pytest.MonkeyPatch,
    leads: bool,  # noqa: FBT001
    first: str,
) -> None:
    group = GroupNodeStub(monkeypatch, leads=leads)
    group.claim()
    assert group.done == [first, f"take A-mm2-{NAME}-{TASK}", "read"]


def test_a_claim_fails_if_the_task_was_revoked_or_reconfigured_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    revoked = GroupNodeStub(monkeypatch)
    revoked.on_read = revoked.node.held.clear
    with pytest.raises(NotAssignedError):
        revoked.claim()
    reconfigured = GroupNodeStub(monkeypatch)
    reconfigured.on_read = lambda: reconfigured.configs.tasks.update({NAME: ({},)})
    with pytest.raises(NotAssignedError):
        reconfigured.claim()


def test_a_claim_fails_during_a_rebalance(monkeypatch: pytest.MonkeyPatch) -> None:
    group = GroupNodeStub(monkeypatch)
    group.node.is_rebalancing = True
    with pytest.raises(NotAssignedError):
        group.claim()
    assert group.done == []

"""Stores the task configs of a node's connectors in the group's config topic.

The leader writes them itself. A follower sends them to the leader by HTTP; where the leader serves no HTTP, as Java's
MirrorMaker, `GroupMember.acts_for_leader` holds and the follower writes to the topic. Two nodes never write the tasks of one
connector, because only the node of the connector stores them.

Guarantees: storing is retried as long as this node has the connector, also while the leader is gone or busy. Configs that are
stored already are not written again. Values are written as in the connector's config, so references stay references.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.connect import worker_state
from mirrorflow_core.connect.group_assignment import Unit
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_replicator.process import now_ms
from mirrorflow_replicator.worker import config_decisions
from mirrorflow_replicator.worker.group_context import GroupContext

log = logging.getLogger("mirrorflow.group")

# Short at first, as in Connect, because a rebalance takes a second; then as often as a new leader may appear.
RETRY_MIN_S, RETRY_MAX_S = 0.25, 10.0


Make = Callable[[Mapping[str, str]], tuple[dict[str, str], ...]]


class TaskConfigWriter:
    """Stores the task configs of this node's connectors; *arrange* starts and stops what they define."""

    def __init__(self, node: GroupContext, *, arrange: Callable[[], None]) -> None:
        self._node = node
        self._arrange = arrange

    async def store_assignment(self, name: str, assignment: Assignment, initial: bool) -> None:  # noqa: FBT001 Publish
        """Stores tasks of source connector *name* that share *assignment*."""
        await self._put(
            name, lambda properties: worker_state.source_task_configs(properties, assignment, initial=initial)
        )

    async def store_single_task(self, name: str) -> None:
        """Stores that connector *name* has one task."""
        await self._put(name, worker_state.single_task_config)

    async def write(self, name: str, tasks: Sequence[Mapping[str, str]]) -> None:
        """Writes *tasks* to the config topic. Raises ClusterError."""
        if records := config_decisions.new_tasks(name, tasks, self._node.configs.configs):
            await self._node.configs.put(*records, now_ms=now_ms())
        self._arrange()

    async def _put(self, name: str, make: Make) -> None:
        topic, node = self._node.configs, self._node.member
        async for _ in Backoff(min_s=RETRY_MIN_S, max_s=RETRY_MAX_S):
            if Unit(connector=name) not in node.held or name not in topic.configs.connectors:
                return
            properties = topic.configs.connectors[name]
            tasks = config_decisions.with_task_class(properties.get("connector.class", ""), make(properties))
            stored = topic.configs.tasks.get(name)
            if worker_state.are_same_tasks(tasks, stored) and name not in topic.configs.inconsistent:
                return
            try:
                if node.acts_for_leader:
                    await self.write(name, tasks)
                    return
                if node.leader_url and not node.is_rebalancing:
                    key = topic.configs.session_key if node.signs else None
                    await self._node.peers.post_tasks(node.leader_url, name, tasks, key)
                await self._node.read()
            except MirrorFlowError as error:
                log.warning("%s: the task configs are not stored yet: %s", name, error)

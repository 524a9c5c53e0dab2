"""Stores a connector's task configs in the config topic: through the leader, or directly on it.

Directly, too, where the leader serves no HTTP: only the node of a connector stores its tasks, so no two write.

Guarantees: it retries for as long as the connector is this node's, also while the leader is gone or busy.
Nothing is written that is stored already. Values are the connector's own, so that references stay references.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from mirrorflow_core.connect import worker_state
from mirrorflow_core.connect.group_assignment import Unit
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_kafka.stores.worker_topics import ConfigTopic
from mirrorflow_replicator.http import command_decisions
from mirrorflow_replicator.process.clock import now_ms
from mirrorflow_replicator.worker.group_member import GroupMember
from mirrorflow_replicator.worker.internal_rest import PeerClient

# Short at first, as in Connect, because a rebalance takes a second; then as often as a new leader may appear.
RETRY_MIN_S, RETRY_MAX_S = 0.25, 10.0

log = logging.getLogger("mirrorflow.group")

Make = Callable[[Mapping[str, str]], tuple[dict[str, str], ...]]


class TaskConfigWriter:
    """Stores the task configs of this node's connectors.

    *read* reads the config topic to its end; *arrange* starts and stops what it then defines.
    """

    def __init__(
        self,
        configs: ConfigTopic,
        node: GroupMember,
        others: PeerClient,
        *,
        read: Callable[[], Awaitable[None]],
        arrange: Callable[[], None],
    ) -> None:
        self._topic = configs
        self._node = node
        self._others = others
        self._read = read
        self._arrange = arrange

    async def assignment(self, name: str, assignment: Assignment, initial: bool) -> None:  # noqa: FBT001 Publish
        """Stores tasks of source connector *name* that share *assignment*."""
        await self._put(
            name, lambda properties: worker_state.source_task_configs(properties, assignment, initial=initial)
        )

    async def one(self, name: str) -> None:
        """Stores that connector *name* has one task."""
        await self._put(name, worker_state.single_task_config)

    async def write(self, name: str, tasks: Sequence[Mapping[str, str]]) -> None:
        """Writes *tasks* to the config topic. Raises ClusterError."""
        if records := command_decisions.new_tasks(name, tasks, self._topic.configs):
            await self._topic.put(*records, now_ms=now_ms())
        self._arrange()

    async def _put(self, name: str, make: Make) -> None:
        topic, node, pause_s = self._topic, self._node, RETRY_MIN_S
        while Unit(connector=name) in node.held and name in topic.configs.connectors:
            properties = topic.configs.connectors[name]
            tasks = command_decisions.with_task_class(properties.get("connector.class", ""), make(properties))
            written = topic.configs.tasks.get(name)
            if worker_state.are_same_tasks(tasks, written) and name not in topic.configs.inconsistent:
                return
            try:
                if node.acts_for_leader:
                    await self.write(name, tasks)
                    return
                if node.leader_url and not node.meeting:
                    key = topic.configs.session_key if node.signs else None
                    await self._others.post_tasks(node.leader_url, name, tasks, key)
                await self._read()
            except MirrorFlowError as error:
                log.warning("%s: its tasks are not written down yet: %s", name, error)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

"""Which tasks a connector has, written down in the config topic: by the leader, or through the leader for another node.

Promises: it goes on for as long as the connector is this node's, a leader that is gone or busy included; nothing is written
that says what is written already; values are the connector's own, so that references stay references.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from mirrorflow_replicator.connect import herd, task_configs
from mirrorflow_replicator.connect.group_protocol import Unit
from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.assignment import Assignment
from mirrorflow_replicator.kafka.worker_topics import ConfigTopic
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.runtime.node import Node
from mirrorflow_replicator.runtime.others import Others

# Soon at first, as in Connect, for a meeting takes a second; then as often as a new leader may be there.
RETRY_MIN_S, RETRY_MAX_S = 0.25, 10.0

log = logging.getLogger("mirrorflow.group")

Make = Callable[[Mapping[str, str]], tuple[dict[str, str], ...]]


class TaskWriting:
    """See the module. *read* reads the config topic to its end, *arrange* lets run what it says."""

    def __init__(
        self,
        configs: ConfigTopic,
        node: Node,
        others: Others,
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
        """The tasks of source connector *name* share *assignment*."""
        await self._put(
            name, lambda properties: task_configs.of_source(properties, assignment, initial=initial)
        )

    async def one(self, name: str) -> None:
        """Connector *name* has one task."""
        await self._put(name, task_configs.of_one)

    async def write(self, name: str, tasks: Sequence[Mapping[str, str]]) -> None:
        """The leader's part. Raises ClusterError."""
        if records := herd.new_tasks(name, tasks, self._topic.configs):
            await self._topic.put(*records, now_ms=now_ms())
        self._arrange()

    async def _put(self, name: str, make: Make) -> None:
        topic, node, pause_s = self._topic, self._node, RETRY_MIN_S
        while Unit(connector=name) in node.held and name in topic.configs.connectors:
            properties = topic.configs.connectors[name]
            tasks = herd.with_task_class(properties.get("connector.class", ""), make(properties))
            written = topic.configs.tasks.get(name)
            if task_configs.are_same(tasks, written) and name not in topic.configs.inconsistent:
                return
            try:
                if node.leads:
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

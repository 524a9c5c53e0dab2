"""What a node of a group does for the tasks of its connectors: it stores their configs, and fences their earlier owners.

A follower sends task configs to the leader, which stores them. A node stores them itself if it leads, or if the leader serves
no HTTP: only the node that has a connector stores its tasks, so no two write.

Before a task begins, no earlier owner of its partitions may write (KIP-618):

    the leader fences earlier tasks ──> the task's own id is taken ──> is it still ours? ──> it begins

Earlier owners may be Java's tasks. It works as Java's worker does, by transactional ids `GROUP-CONNECTOR-TASK`. The leader's
round covers tasks that were re-created since, whose partitions may have been under another number; taking the id covers the
earlier owner of this number. Then the offsets topic holds all that they have committed, and what they left open is aborted.

Guarantees: storing is retried while the connector is this node's, also while the leader is gone or busy. Configs that are
stored already are not written again. Values stay as the connector has them, so references stay references. When a claim
returns, all earlier owners were fenced, the task still is this node's, and its stored partitions are the same.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from mirrorflow_core.backoff import Backoff
from mirrorflow_core.connect import worker_state
from mirrorflow_core.connect.group_assignment import Unit
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_kafka.admin.transactions import init_producer_id
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.worker_topics import ConfigTopic
from mirrorflow_replicator.http import commands
from mirrorflow_replicator.process import now_ms
from mirrorflow_replicator.worker.group_member import GroupMember
from mirrorflow_replicator.worker.internal_rest import FENCE_TIMEOUT_MS, PeerClient

log = logging.getLogger("mirrorflow.group")


class NotAssignedError(MirrorFlowError):
    """The task to claim belongs to another node, or the group is rebalancing."""

    reason = "NotOurs"
    retriable = True

    def __init__(self, connector: str, task: int) -> None:
        super().__init__(f"Task {task} of {connector} is not assigned to this node, or not yet.")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """What tasks need of their node's group. *read* reads the config topic to its end, and applies what it defines."""

    cluster: Cluster
    configs: ConfigTopic
    member: GroupMember
    peers: PeerClient
    read: Callable[[], Awaitable[None]]


class TaskFencing:
    """Fences earlier tasks of connector *name*.

    *read* reads the config topic to its end and applies what it defines.
    """

    def __init__(self, name: str, node: GroupContext, *, fences_java: bool) -> None:
        self._name = name
        self._node = node
        self._fences_java = fences_java
        self._warned = False

    @property
    def group_id(self) -> str:
        return self._node.peers.group_id

    @property
    def is_needed(self) -> bool:
        """Whether Java's tasks may have, or may have had, a part of the connector."""
        return self._fences_java and self._name in self._node.configs.configs.fenced

    async def claim(self, task: int) -> None:
        """Fences the earlier owners of *task*. Raises MirrorFlowError if it must not begin yet."""
        name, node = self._name, self._node
        self.check(task)
        await self._fence()
        producer_id, epoch = await init_producer_id(
            node.cluster, node.peers.transactional_id(name, task), timeout_ms=FENCE_TIMEOUT_MS
        )
        stored = node.configs.configs.tasks.get(name)
        await node.read()
        self.check(task)
        if stored != node.configs.configs.tasks.get(name):
            raise NotAssignedError(name, task)
        if not self._warned:
            self._warned = True
            log.warning(
                "Connector %s has had tasks on Java workers. If a task of this worker is killed, a Java task that takes over "
                "copies the records since the last stored offset again.",
                name,
            )
        log.info("Claimed task %d of %s with producer id %d, epoch %d", task, name, producer_id, epoch)

    async def _fence(self) -> None:
        node, name = self._node, self._name
        if node.member.acts_for_leader:
            await node.peers.fence(name, node.cluster, node.configs)
        else:
            key = node.configs.configs.session_key if node.member.signs else None
            await node.peers.request_fencing(node.member.leader_url, name, key)

    def check(self, task: int) -> None:
        """Raises NotAssignedError unless the group has assigned the task to this node."""
        node, unit = self._node.member, Unit(connector=self._name, task=task)
        if node.is_rebalancing or not node.leader_url or unit not in node.held:
            raise NotAssignedError(self._name, task)


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
        if records := commands.new_tasks(name, tasks, self._node.configs.configs):
            await self._node.configs.put(*records, now_ms=now_ms())
        self._arrange()

    async def _put(self, name: str, make: Make) -> None:
        topic, node = self._node.configs, self._node.member
        async for _ in Backoff(min_s=RETRY_MIN_S, max_s=RETRY_MAX_S):
            if Unit(connector=name) not in node.held or name not in topic.configs.connectors:
                return
            properties = topic.configs.connectors[name]
            tasks = commands.with_task_class(properties.get("connector.class", ""), make(properties))
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

"""Fences earlier tasks before a node of a group starts a task (KIP-618), as Java's worker does.

    the leader fences earlier tasks ──> InitProducerId for this task ──> does this node still have it? ──> it starts

A task uses the transactional id `GROUP-CONNECTOR-TASK`. The leader fences the ids of all tasks that the connector had: after its
tasks were created anew, a partition may have been under another task number. InitProducerId then fences the earlier task with this
number, which may be Java's. After both, the offsets topic has all positions that they committed, and their open transactions are
aborted.

Guarantee: `claim` returns only if, after the fencing, the group still assigns the task to this node, and the stored task config
is still the one from before.
"""

import logging

from mirrorflow_core.connect.group_assignment import Unit
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_kafka.admin.transactions import init_producer_id
from mirrorflow_replicator.worker.group_context import GroupContext
from mirrorflow_replicator.worker.internal_rest import FENCE_TIMEOUT_MS

log = logging.getLogger("mirrorflow.group")


class NotAssignedError(MirrorFlowError):
    """The task to claim belongs to another node, or the group is rebalancing."""

    reason = "NotOurs"
    retriable = True

    def __init__(self, connector: str, task: int) -> None:
        super().__init__(f"Task {task} of {connector} is not assigned to this node, or not yet.")


class TaskFencing:
    """Fences earlier tasks of connector *name*. *fences_java*: they may be Java's."""

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

"""The states of a flow's ownership in this process, and what each allows.

    UnownedFlow    nothing: another process owns the flow, or no process does
    OwnedFlow      renew the claim, store positions, and start tasks that fence other writers
    UnfencedFlow   start tasks that fence no writer, because the target cannot fence producers; they copy at least once

`flow_takeover` turns an UnownedFlow into an OwnedFlow. `flow_owner` turns it back when the flow is lost or given up, and takes an
UnfencedFlow as soon as the target can fence.
"""

import logging
from collections.abc import Mapping
from dataclasses import field, replace

from mirrorflow_core.errors import FlowTakenError
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.flow_lock import Fenced, holds_lock
from mirrorflow_core.writer.flow_plan import FlowPlan, SessionStart
from mirrorflow_core.writer.ownership import Ownership, recover_task, renew_claim
from mirrorflow_core.writer.position import WriterPosition, decode_value
from mirrorflow_core.writer.stored_positions import read_positions
from mirrorflow_core.writer.takeover import start_unfenced
from mirrorflow_core.writer.transactional_ids import WriterIds
from mirrorflow_kafka.admin import admin
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.connectors.task_messages import Assign, TaskAssignment

log = logging.getLogger("mirrorflow.worker")


@dataclass(frozen=True, slots=True)
class UnownedFlow:
    """A flow that this process does not own: not yet, not any more, or because another of its group does."""

    clusters: FlowClusters


@dataclass(frozen=True, slots=True)
class UnfencedFlow:
    """A flow that has no owner, for the reason *why*: its tasks copy at least once."""

    clusters: FlowClusters
    why: str

    async def start_task(self, wanted: TaskAssignment, plan: FlowPlan) -> Assign:
        """Returns *wanted* with a start after the stored positions. Raises MirrorFlowError."""
        clusters, partitions = self.clusters, wanted.partitions
        producer_id, epoch = await admin.init_producer_id(
            clusters.target, None, timeout_ms=clusters.settings.transaction_timeout_ms
        )
        topic_ids = await clusters.topic_ids(partitions)
        plan = replace(plan, topic_ids=topic_ids, unavailable=await clusters.unavailable(partitions))
        positions, producer = await clusters.stored_positions(), Producer("", producer_id, epoch)
        start = await clusters.runner.run(start_unfenced(plan, producer, partitions, positions, self.why))
        return Assign(assignment=wanted, start=start)


@dataclass(frozen=True, slots=True)
class OwnedFlow:
    """A flow that this process, or its group, owns. *starts*: by task, found when the flow was taken and not used yet."""

    clusters: FlowClusters
    ownership: Ownership
    starts: dict[int, SessionStart] = field(default_factory=dict)

    async def renew(self, *, left: bool = False) -> bool:
        """Stores the claim again; with *left*, a successor need not wait. False: another process may own the flow."""
        return await self.clusters.runner.run(renew_claim(self.ownership, left=left))

    async def holds_lock(self) -> bool:
        """Returns whether no other process has taken the flow."""
        return await self.clusters.runner.run(holds_lock(self.ownership.lock))

    async def start_task(self, task: int, wanted: TaskAssignment, ids: WriterIds | None) -> Assign | Fenced:
        """Returns *wanted* with the start of a session, which writes with *ids*, or its own. Raises MirrorFlowError."""
        start = self.starts.pop(task, None)
        if start is None or {*start.points, *start.problems, *start.waiting} != {*wanted.partitions}:
            recovered = await self._recover(ids or self.ownership.plan.ids.task(task), wanted)
            if isinstance(recovered, Fenced):
                return recovered
            start = recovered
        transactions = self.clusters.runner.transactions
        return Assign(
            assignment=wanted,
            start=start,
            sequences=transactions.sequences(start.producers.transactional),
            transaction_timeout_ms=transactions.timeout_ms,
            offsets_topic=self.clusters.offsets_topic.known,
        )

    async def _recover(self, ids: WriterIds, wanted: TaskAssignment) -> SessionStart | Fenced:
        clusters, partitions = self.clusters, wanted.partitions
        topic_ids = await clusters.topic_ids(partitions)
        unavailable = await clusters.unavailable(partitions)
        plan = replace(self.ownership.plan, topic_ids=topic_ids, unavailable=unavailable)
        ownership = replace(self.ownership, plan=plan)
        await clusters.begin_lookup(partitions)
        acknowledged = [
            decode_value(TopicPartition(position.topic, position.partition), position.value.encode())
            for position in wanted.acknowledged
        ]
        recovered = await clusters.runner.run(recover_task(ownership, ids, partitions, acknowledged))
        if isinstance(recovered, SessionStart) and recovered.producers.ids != ids:
            log.warning(
                "%s: the last transaction of %s cannot end, because a partition of it has no leader; %s is used instead.",
                clusters.settings.name,
                ids.transactional,
                recovered.producers.transactional.transactional_id,
            )
        return recovered

    async def positions(self) -> dict[TopicPartition, WriterPosition]:
        """Returns the stored position of each partition of the flow. Raises MirrorFlowError."""
        newest = await self._newest_positions()
        return {
            partition: position for partition, position in newest.items() if position.next_source_offset >= 0
        }

    async def _newest_positions(self) -> dict[TopicPartition, WriterPosition]:
        """Returns the newest position of each partition, also where it was deleted."""
        positions = (await self.clusters.runner.run(read_positions(self.ownership.lock))).committed
        return {position.topic_partition: position for position in positions}

    async def store_starts(self, starts: Mapping[TopicPartition, int]) -> None:
        """Stores where partitions start that have no position yet: what the source deletes from there on is a loss.

        Raises MirrorFlowError.
        """
        known = await self._newest_positions()
        deleted = {
            partition: position.revision or 0
            for partition, position in known.items()
            if position.next_source_offset < 0
        }
        new = {
            partition: offset
            for partition, offset in starts.items()
            if partition in deleted or partition not in known
        }
        if not new:
            return
        topic_ids = await self.clusters.topic_ids(new)
        positions = [
            WriterPosition(
                topic=partition.topic,
                partition=partition.partition,
                next_source_offset=offset,
                java_offset=offset - 1,
                target_topic=topic_ids[partition.topic].copy,
                source_topic_id=topic_ids[partition.topic].source,
                target_topic_id=topic_ids[partition.topic].target,
                writer=self.ownership.plan.ids.task(0),
                left=True,
                revision=deleted.get(partition, 0) + 1,
            )
            for partition, offset in new.items()
        ]
        if not await self.clusters.runner.store_positions(self.ownership.lock, positions):
            raise FlowTakenError(source=self.clusters.settings.source_alias)

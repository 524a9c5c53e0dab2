"""Starts the flow back after a switchover: it copies only what applications have written since the other flow has ended.

The reverse flow reads the cluster that is active now, and writes to the one that was. Its starts are stored under its lock, as
positions, before it runs (`mirrorflow_core.writer.flow_start`).
Guarantee: no record before a start is copied back, and none behind it is left out.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace

from mirrorflow_core.errors import FlowInUseError, FlowTakenError, StartConflictError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.error_codes import partition_error
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_core.writer.flow_plan import FlowPlan, TopicIds
from mirrorflow_core.writer.flow_start import (
    ConflictingStarts,
    FlowRuns,
    FlowStart,
    StartConflict,
    conflict_of,
    hold_flow,
    start_flow,
)
from mirrorflow_core.writer.ownership import wait_for_turn
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.stored_positions import read_positions
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.connectors.flow_fencing import OWNER_WAIT_S
from mirrorflow_replicator.connectors.flow_takeover import newest_claim, refuse_changed_clusters
from mirrorflow_replicator.switchover.flow_end import NO_BARRIER, open_flow, ownerless_plan

Conflicts = Mapping[TopicPartition, tuple[WriterPosition, StartConflict]]


async def hold_reverse(
    settings: SourceSettings,
    source: Cluster,
    target: Cluster,
    switchover: str,
    starts: Mapping[TopicPartition, int],
    *,
    abandoned: Claim | None = None,
) -> None:
    """Keeps the reverse flow from running until `start_reverse`; does nothing if a switchover has ended it.

    Without that, a process of it that someone starts would copy all copies back, because no start is stored. *settings* and clusters
    are as in `start_reverse`, *starts* as in `require_no_conflict`, which raises the same. Raises FlowInUseError, too, if it runs;
    *abandoned* is a claim whose owner does not.
    `flow_end.clear_end` undoes it. It can be called again after each error, and after a crash.
    """
    clusters = await open_flow(settings, source, target)
    plan = await _plan(clusters, starts)
    if (newest := await newest_claim(clusters)) is not None and newest.has_run:
        refuse_changed_clusters(newest, plan.claim, settings)
    allowed = {partition: FlowStart(offset) for partition, offset in starts.items()}
    match await clusters.runner.run(hold_flow(plan, switchover, allowed, abandoned=abandoned)):
        case Fenced():
            raise FlowTakenError(source=settings.source_alias)
        case FlowRuns():
            raise FlowInUseError(source=settings.source_alias)
        case ConflictingStarts(conflicts):
            raise _conflict_error(settings, starts, conflicts)


async def start_reverse(
    settings: SourceSettings,
    source: Cluster,
    target: Cluster,
    switchover: str,
    starts: Mapping[TopicPartition, int],
) -> bool:
    """Stores where the reverse flow starts, and lets its process run; returns whether that is new.

    *settings* are those of the reverse flow, *source* is its source: the active cluster. *starts* has the next offset to copy of
    each partition that the other flow has copied (`EndedFlow.target_ends`). Others start as in any flow that is not new: at their
    earliest record. Raises StartConflictError if a stored position contradicts a start, FlowInUseError if a process of the flow
    runs, FlowTakenError if one takes it meanwhile, FlowUnfencedError, FlowExistsError, ClusterChangedError and ClusterError.
    Nothing has started then, and it can be called again, as after a crash.
    """
    clusters = await open_flow(settings, source, target)
    newest, plan = await newest_claim(clusters), await _plan(clusters, starts)
    if newest is not None and newest.has_run and newest.started != switchover:
        refuse_changed_clusters(newest, plan.claim, settings)
        if newest.ended is None and not newest.left:
            await _wait_for_owner(clusters, plan)
    outcome = await clusters.runner.run(start_flow(plan, switchover, await _with_epochs(source, starts)))
    match outcome:
        case Fenced():
            raise FlowTakenError(source=settings.source_alias)
        case ConflictingStarts(conflicts):
            raise _conflict_error(settings, starts, conflicts)
    return outcome.is_new


async def require_no_conflict(
    settings: SourceSettings, source: Cluster, target: Cluster, starts: Mapping[TopicPartition, int]
) -> None:
    """Raises what `start_reverse` would raise with *starts* because of stored positions or claims; changes nothing.

    Before the other flow has ended, *starts* are the ends of its copies: later starts conflict with the same positions, but for
    those that are ahead of *starts*.
    """
    clusters = await open_flow(settings, source, target)
    newest, plan = await newest_claim(clusters), await _plan(clusters, starts)
    if newest is not None and newest.has_run:
        refuse_changed_clusters(newest, plan.claim, settings)
    stored = (await clusters.runner.run(read_positions(NO_BARRIER))).committed
    positions = {position.topic_partition: position for position in stored}
    conflicts = {
        key: (positions[key], conflict)
        for key, start in starts.items()
        if (conflict := _conflict(plan, newest, FlowStart(start), positions.get(key)))
    }
    if conflicts:
        raise _conflict_error(settings, starts, conflicts)


async def started_by(settings: SourceSettings, source: Cluster, target: Cluster) -> str:
    """Returns the id of the switchover that has stored where the flow starts; "" if none has. Raises ClusterError."""
    claim = await newest_claim(await open_flow(settings, source, target))
    return "" if claim is None else claim.started or ""


def _conflict(
    plan: FlowPlan, newest: Claim | None, start: FlowStart, position: WriterPosition | None
) -> StartConflict | None:
    ids = TopicIds() if position is None else plan.topic_ids.get(position.topic, TopicIds())
    return conflict_of(start, position, ids, was_ended=newest is not None and newest.ended is not None)


async def _plan(clusters: FlowClusters, partitions: Iterable[TopicPartition]) -> FlowPlan:
    plan, topic_ids = await ownerless_plan(clusters), await clusters.topic_ids(partitions)
    claim = replace(plan.claim, source_cluster_id=clusters.source.cluster_id)
    return replace(plan, claim=claim, topic_ids=topic_ids)


async def _wait_for_owner(clusters: FlowClusters, plan: FlowPlan) -> None:
    """Waits until the owner has left, or is known to be dead. Raises FlowInUseError if it runs."""
    try:
        async with asyncio.timeout(OWNER_WAIT_S):
            await clusters.runner.run(wait_for_turn(plan))
    except TimeoutError:
        raise FlowInUseError(source=clusters.settings.source_alias) from None


async def _with_epochs(
    source: Cluster, starts: Mapping[TopicPartition, int]
) -> dict[TopicPartition, FlowStart]:
    """Returns *starts* with the epochs of the leaders, by which the flow notices that the source has lost records since."""
    listed = await admin.list_offsets(source, starts, LATEST)
    for partition, result in listed.items():
        if result.error:
            raise partition_error(
                result.error, cluster=source.alias, request="ListOffsets", partition=partition
            )
    return {key: FlowStart(offset, listed[key].leader_epoch) for key, offset in starts.items()}


def _conflict_error(
    settings: SourceSettings, starts: Mapping[TopicPartition, int], conflicts: Conflicts
) -> StartConflictError:
    return StartConflictError(
        source=settings.source_alias,
        target=settings.target_alias,
        partitions={
            str(
                key
            ): f"is at offset {position.next_source_offset} and has to start at {starts[key]}, and {conflict.value}"
            for key, (position, conflict) in conflicts.items()
        },
    )

"""Ends a flow for a switchover, so that no process copies anything of it any more, and clears the end.

    take the lock and all ids ──> fence each partition, wait for its marker ──> final positions ──> the claim `ended`

The order is that of a takeover (`mirrorflow_core.writer.flow_end`), and so is the proof: a copier that was frozen before the end
and wakes up later is refused by the target's brokers. Only the target is needed, because the source may be lost.
Writes are refused meanwhile, so the partitions are known before the lock is taken, and taken together with it.
Guarantee: when `end_flow` has returned, no record of the flow is appended to a partition in `EndedFlow.positions`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NoReturn

from mirrorflow_core.errors import (
    FlowEndedError,
    FlowExistsError,
    FlowTakenError,
    FlowUnfencedError,
    MirrorFlowError,
    TopicGoneError,
)
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.settings import LossPolicy, SourceSettings
from mirrorflow_core.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_core.writer import flow_end
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.claim import Claim, is_end_pending
from mirrorflow_core.writer.claim import ended_by as ended_by_claims
from mirrorflow_core.writer.flow_lock import Fenced, read_claims
from mirrorflow_core.writer.flow_plan import FlowPlan, SessionStart, TaskProducers, TopicIds, WritePoint
from mirrorflow_core.writer.ownership import FlowEnded, Ownership, recover_task, renew_claim, take_flow
from mirrorflow_core.writer.partition_start import MARKER_WAIT_MS
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.stored_positions import read_positions
from mirrorflow_kafka.admin.transaction_log_reader import MARKER_POLL_S, LogCache
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.fencing import why_unfenced
from mirrorflow_kafka.writer.partition_availability import unwritable_copies
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.connectors.flow_owner import LEAVE_S, RENEW_S
from mirrorflow_replicator.connectors.flow_takeover import last_claim, newest_claim
from mirrorflow_replicator.copy.task_parts import flow_topics
from mirrorflow_replicator.named_process import new_process_name

NO_BARRIER: Final = Producer("", UNKNOWN, UNKNOWN)  # nothing is taken from a flow that runs
RETRY_S: Final = 1.0  # until partitions that could not be fenced are examined again
WaitingPartitions = Mapping[
    TopicPartition, MirrorFlowError
]  # by the partition of the source, with the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedFlow:
    """Where a flow ended. Partitions are named as on the source.

    `positions` are final: nothing was written after them. Copying of `stopped` partitions had stopped before, because of a loss
    that the flow reports. `unfenced` ones have a position of Java MM2, of a process that copies at least once, or of a user:
    such a writer cannot be fenced. Partitions whose copies no longer exist are in none of them.
    """

    switchover: str
    positions: Mapping[TopicPartition, WriterPosition]
    stopped: tuple[TopicPartition, ...] = ()
    unfenced: tuple[TopicPartition, ...] = ()
    copies: Mapping[TopicPartition, TopicPartition] = field(default_factory=dict)  # by their source

    @property
    def target_ends(self) -> dict[TopicPartition, int]:
        """Returns by partition of the target the offset after the last record that the flow has copied."""
        return {self.copies[key]: position.target_end for key, position in self.positions.items()}


async def end_flow(
    settings: SourceSettings,
    target: Cluster,
    switchover: str,
    *,
    on_waiting: Callable[[WaitingPartitions], None] = lambda _: None,
    opened: FlowClusters | None = None,
) -> None:
    """Ends the flow; does nothing if *switchover* has ended it before. Its running process waits as a standby from then on.

    It waits for partitions that cannot be fenced, for example because they have no leader: *on_waiting* is called with them each
    time. *opened*: what `open_ending` has returned. Raises FlowUnfencedError where the target fences no writer, FlowEndedError if
    another switchover has ended the flow, FlowExistsError, FlowTakenError if another process takes the flow meanwhile, and
    ClusterError. It can be called again after each of them, and after a crash.
    """
    clusters = opened or await open_ending(settings, target)
    plan = await _with_partitions(clusters, await ownerless_plan(clusters))
    taken = await clusters.runner.run(take_flow(plan))
    match taken:
        case Fenced():
            raise FlowTakenError(source=settings.source_alias)
        case FlowEnded(claim):
            if claim.ended != switchover:
                raise _ended_error(settings, claim)
            return
    try:
        async with _renewing(clusters, taken):
            fenced = await _fence_partitions(clusters, taken, on_waiting)
    except BaseException:
        # The flow has not ended: its process continues at once, instead of after 15 s.
        with contextlib.suppress(MirrorFlowError, TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await clusters.runner.run(renew_claim(taken, left=True))
        raise
    # The lock stores nothing else from here on: a claim that follows the end would remove it, also if its response is lost.
    stored = flow_end.store_end(taken, fenced.producers, fenced.points, fenced.topic_ids, switchover)
    if not await clusters.runner.run(stored):
        raise FlowTakenError(source=settings.source_alias)


def give_up(partitions: WaitingPartitions) -> NoReturn:
    """Ends a call of `end_flow` that waits: between two calls, the switchover can be rolled back."""
    raise partitions[min(partitions)]


async def ended_flow(settings: SourceSettings, target: Cluster, switchover: str) -> EndedFlow:
    """Returns where the flow has ended, which *switchover* has ended. Raises FlowTakenError if it runs, ClusterError.

    The marker of the claim is written after `end_flow` has returned: it is waited for, for at most MARKER_WAIT_MS.
    """
    clusters = await open_ending(settings, target)
    now = asyncio.get_running_loop().time
    until_s = now() + MARKER_WAIT_MS / 1000
    claims = await clusters.runner.run(read_claims())
    while is_end_pending(claims) and now() < until_s:
        await asyncio.sleep(MARKER_POLL_S)
        claims = await clusters.runner.run(read_claims())
    if ended_by_claims(claims) != switchover:
        raise FlowTakenError(source=settings.source_alias)
    return await _read_end(clusters, switchover)


async def clear_end(settings: SourceSettings, target: Cluster, switchover: str) -> bool:
    """Clears the end of the flow, so that it continues where it was; returns whether *switchover* had ended it.

    Raises FlowEndedError if another switchover has ended it, FlowTakenError if another process changes the claim meanwhile, and
    ClusterError. It can be called again after each of them, and after a crash.
    """
    clusters = await open_ending(settings, target)
    cleared = await clusters.runner.run(flow_end.clear_end(await ownerless_plan(clusters), switchover))
    match cleared:
        case Fenced():
            raise FlowTakenError(source=settings.source_alias)
        case FlowEnded(claim):
            raise _ended_error(settings, claim)
    return cleared


async def ended_by(settings: SourceSettings, target: Cluster) -> str:
    """Returns the id of the switchover that has ended the flow; "" if none has. Raises ClusterError."""
    claim = await newest_claim(await open_ending(settings, target))
    return "" if claim is None else claim.ended or ""


async def open_ending(
    settings: SourceSettings, target: Cluster, *, logs: LogCache | None = None
) -> FlowClusters:
    """Opens the flow to end it. Raises as `open_flow`."""
    # Nothing is asked of the source: the plan says so.
    return await open_flow(settings, target, target, logs=logs)


async def open_flow(
    settings: SourceSettings, source: Cluster, target: Cluster, *, logs: LogCache | None = None
) -> FlowClusters:
    """Opens the flow's own topics. Raises FlowUnfencedError if the target fences no writer; ClusterError."""
    if (why := await why_unfenced(target, settings.source_alias, settings.offsets.store)) is not None:
        raise FlowUnfencedError(source=settings.source_alias, why=why)
    clusters = FlowClusters(settings, source, target, initial=set(), logs=logs)
    await clusters.open(has_claims=True)
    return clusters


async def ownerless_plan(clusters: FlowClusters) -> FlowPlan:
    """Returns the plan of a process that takes the flow and copies nothing. Raises FlowExistsError, ClusterError.

    It continues the newest claim, so that the next owner fences as many tasks, and compares both clusters. A loss is not decided:
    the flow reports it if it continues.
    """
    settings, newest = clusters.settings, await last_claim(clusters)
    if newest is not None and newest.flow not in {settings.flow, *settings.takes_over}:
        raise FlowExistsError(
            source=settings.source_alias,
            target=settings.target_alias,
            owner=newest.flow,
            claimant=settings.flow,
            process=newest.running_process,
        )
    claim = Claim(
        flow=settings.flow,
        process=new_process_name(),
        source_alias=settings.source_alias,
        tasks=1 if newest is None else newest.tasks,
        lock_epoch=-1,
        source_cluster_id=None if newest is None else newest.source_cluster_id,
        target_cluster_id=clusters.target.cluster_id,
        time_ms=0,
    )
    return FlowPlan(claim=claim, assignment=(), loss_policy=LossPolicy.FAIL, reads_source=False)


async def _with_partitions(clusters: FlowClusters, plan: FlowPlan) -> FlowPlan:
    """Returns *plan* with the partitions that have a position now. The owner may store more before it loses the flow."""
    stored = await _positions(clusters)
    partitions = _fenceable(stored)
    topic_ids, unwritable, _ = await asyncio.gather(
        _topic_ids(clusters, (stored[key] for key in partitions)),
        unwritable_copies(clusters.target, _copies(clusters.settings, partitions)),
        clusters.begin_lookup(partitions),
    )
    return replace(plan, assignment=(tuple(partitions),), topic_ids=topic_ids, unavailable=unwritable)


def _fenceable(stored: Mapping[TopicPartition, WriterPosition]) -> list[TopicPartition]:
    return [key for key, position in stored.items() if position.writer is not None]


@dataclass(frozen=True, slots=True)
class _FencedPartitions:
    """What the end stores: the arguments of `store_end`."""

    producers: TaskProducers
    points: Mapping[TopicPartition, WritePoint]
    topic_ids: Mapping[str, TopicIds]


async def _fence_partitions(
    clusters: FlowClusters, owned: Ownership, on_waiting: Callable[[WaitingPartitions], None]
) -> _FencedPartitions:
    settings, run = clusters.settings, clusters.runner.run
    stored = await _positions(clusters, owned.lock)
    topic_ids, (session,) = owned.plan.topic_ids, owned.tasks
    points = dict(session.points)
    waiting = _waiting(session)
    late = [key for key in _fenceable(stored) if key not in owned.plan.assignment[0]]
    if late:
        topic_ids = await _topic_ids(clusters, (stored[key] for key in _fenceable(stored)))
    while waiting or late:
        if waiting:
            on_waiting(waiting)
            await asyncio.sleep(RETRY_S)
        remaining, late = [*waiting, *late], []
        unwritable = await unwritable_copies(clusters.target, _copies(settings, remaining))
        plan = replace(owned.plan, topic_ids=topic_ids, unavailable=unwritable)
        await clusters.begin_lookup(remaining)
        recovered = await run(recover_task(replace(owned, plan=plan), plan.ids.task(0), remaining))
        if isinstance(recovered, Fenced):
            raise FlowTakenError(source=settings.source_alias)
        session = recovered
        points |= session.points
        waiting = _waiting(session)
    return _FencedPartitions(session.producers, points, topic_ids)


def _waiting(session: SessionStart) -> WaitingPartitions:
    return {key: error for key, error in session.waiting.items() if not isinstance(error, TopicGoneError)}


async def _read_end(clusters: FlowClusters, switchover: str) -> EndedFlow:
    positions = await _positions(clusters)
    copies = _copies(clusters.settings, positions)
    await clusters.target.refresh({copy.topic for copy in copies.values()})
    known = clusters.target.metadata.topics
    present = {
        key: position
        for key, position in positions.items()
        if (copy := known.get(copies[key].topic)) is not None and copy.error != UNKNOWN_TOPIC_OR_PARTITION
    }
    fenced = {key: position for key, position in present.items() if position.writer is not None}
    return EndedFlow(
        switchover=switchover,
        positions={key: position for key, position in fenced.items() if position.left},
        stopped=tuple(sorted(key for key, position in fenced.items() if not position.left)),
        unfenced=tuple(sorted(present.keys() - fenced.keys())),
        copies=copies,
    )


async def _positions(
    clusters: FlowClusters, barrier: Producer = NO_BARRIER
) -> dict[TopicPartition, WriterPosition]:
    """Returns the newest position of each partition that was copied; all of those from before the last barrier of *barrier*."""
    committed = (await clusters.runner.run(read_positions(barrier))).committed
    newest = {position.topic_partition: position for position in committed}
    return {key: position for key, position in newest.items() if position.next_source_offset >= 0}


async def _topic_ids(clusters: FlowClusters, positions: Iterable[WriterPosition]) -> dict[str, TopicIds]:
    """Returns the ids of the copies; those of their sources are as stored."""
    target, source_ids = clusters.target, {position.topic: position.source_topic_id for position in positions}
    on_target = flow_topics(clusters.settings).target_topic
    copies = {topic: on_target(topic) for topic in source_ids}
    await target.refresh(copies.values())
    return {
        topic: TopicIds(source_ids[topic], target.metadata.topic_id(copy), copy)
        for topic, copy in copies.items()
    }


def _copies(
    settings: SourceSettings, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, TopicPartition]:
    on_target = flow_topics(settings).on_target
    return {partition: on_target(partition) for partition in partitions}


def _ended_error(settings: SourceSettings, claim: Claim) -> FlowEndedError:
    assert claim.ended is not None, "it is called for the claim of an ended flow"
    return FlowEndedError(source=settings.source_alias, target=settings.target_alias, switchover=claim.ended)


@contextlib.asynccontextmanager
async def _renewing(clusters: FlowClusters, owned: Ownership) -> AsyncIterator[None]:
    """Renews the claim meanwhile, so that no standby takes the flow. What is refused shows at the next step of the block.

    At the end of the block no renewal is under way: a cancelled one could be stored after what follows.
    """
    is_over = asyncio.Event()

    async def renew_until_over() -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), RENEW_S)
            if is_over.is_set():
                return
            with contextlib.suppress(MirrorFlowError):
                await clusters.runner.run(renew_claim(owned))

    renewing = asyncio.create_task(renew_until_over(), name=f"end-{clusters.settings.name}")
    try:
        yield
        is_over.set()
        await renewing
    finally:
        await cancel_and_wait(renewing)

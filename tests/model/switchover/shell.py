"""The shell of the model. It observes the world like the product's shell observes clusters, and carries out one action
at a time.

It guarantees what the product's shell must guarantee (`mirrorflow_core.switchover.observation` and `actions`). It
observes and acts only while it holds the lock, and in order. Each action may be repeated.
"""

from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.actions import (
    ClampGroups,
    ClearEnd,
    EndFlow,
    FenceCluster,
    FinishGroups,
    HoldReverse,
    LiftFence,
    ReleaseReverse,
    StartReverse,
    SwitchEndpoint,
    SwitchoverAction,
    TryFence,
    TryToFence,
    VerifySeal,
    WriteRecord,
)
from mirrorflow_core.switchover.loss import EndEvidence, LossAssessment, PartitionCut, PartitionLoss
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FenceState,
    FlowEnd,
    GroupClamp,
    GroupPass,
    PartitionEnd,
    ReadinessCheck,
    ReverseFlow,
    SealVerification,
    SwitchoverObservation,
    SwitchoverSide,
    TailDigest,
    TailDigests,
)
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.seal import Seal
from mirrorflow_core.switchover.states import FENCED, SwitchoverState
from tests.model.switchover.world import (
    LIMITS,
    PARTITIONS,
    Flow,
    Kept,
    Log,
    Reverse,
    World,
    data,
    journal_with,
    kept,
    kept_record,
    last_stable,
)

TOPIC_PARTITIONS: Final = tuple(TopicPartition("orders", number) for number in range(PARTITIONS))
_FENCES: Final = (FenceState.ABSENT, FenceState.PARTIAL, FenceState.COMPLETE)
_PASSED: Final = tuple(ReadinessCheck)
_FENCE: Final = ReadinessCheck.FENCE
_FAILED: Final = MappingProxyType({ReadinessCheck.LAG: "lag: 9,000 s; wait until the flow has caught up."})
_RUNNING: Final = MappingProxyType({ReadinessCheck.FLOWS: "flow west-to-east runs; stop it."})


class Part(NamedTuple):
    """A part of an action that a crash can separate from the other parts."""

    action: SwitchoverAction
    number: int


def visible(world: World) -> World:
    """Returns *world* without the facts that no process can read. Worlds that are then equal lead to the same step."""
    return world._replace(
        runs=(),
        troubles=(),
        to_start=(),
        producers=(),
        copiers=(),
        happened=frozenset(),
        lock="",
        runs_started=0,
    )


def observe(
    first_part: World, world: World, name: str, *, gives_up_target: bool = False
) -> SwitchoverObservation:
    """Returns what the run *name* reads: the fields up to `source` from *first_part*, and the others from *world*.

    A run that gives up the target reads nothing there.
    """
    if gives_up_target:
        first_part, world = without_target(first_part), without_target(world)
    is_behind = world.group_target < world.group_source
    groups = GroupPass(active=("group",) if world.has_members else (), behind=("group",) if is_behind else ())
    is_both_up = world.is_source_up and world.is_target_up
    return SwitchoverObservation(
        runner=name,
        rollback_requested=first_part.is_rollback_requested or gives_up_target,
        gives_up_target=gives_up_target,
        checks=_checks(first_part),
        endpoint=first_part.endpoint,
        flow_end=_flow_end(first_part) if first_part.is_target_up else None,
        source=_source(first_part) if first_part.is_source_up else ClusterObservation(),
        copied=dict(zip(TOPIC_PARTITIONS, world.copied, strict=True)) if world.is_target_up else None,
        verification=None if world.verification is None else world.verification.value,
        groups=groups if is_both_up else None,
        target=_target(world) if world.is_target_up else ClusterObservation(),
        reverse=ReverseFlow(
            started_by=world.reverse.started_by,
            is_copying=world.reverse.is_copying,
            held_by=world.reverse.held_by,
        )
        if world.is_source_up
        else None,
    )


def without_target(world: World) -> World:
    """Returns *world* as observed by a process that uses only the source."""
    return world._replace(is_target_up=False)


def observe_alone(
    first_part: World, world: World, name: str, record: SwitchoverRecord
) -> SwitchoverObservation:
    """Returns what the run *name* reads for an unplanned switchover: like `observe`, without the journal of the source.

    A user who rolls back refers to the first switchover.
    """
    fence = None if first_part.is_fence_noted else FenceState.ABSENT
    if first_part.is_source_up:
        fence = _FENCES[first_part.source_fence]
    return SwitchoverObservation(
        runner=name,
        rollback_requested=first_part.is_rollback_requested and record.id == "first",
        endpoint=first_part.endpoint,
        flow_end=_flow_end(first_part) if first_part.is_target_up else None,
        source=ClusterObservation(fence=fence),
        loss=_loss(world) if world.is_target_up else None,
        can_fence_source=first_part.is_source_up,
        cuts=_cuts(world) if world.is_target_up else None,
        clamp=GroupClamp() if world.clamped_by == name else None,
        target=_target(world) if world.is_target_up else ClusterObservation(),
    )


def _loss(world: World) -> LossAssessment:
    """Returns the loss. Without the source, its ends are unknown."""
    is_up = world.is_source_up
    return LossAssessment(
        partitions=tuple(
            PartitionLoss(
                topic=partition.topic,
                partition=partition.partition,
                copied=copied,
                source_end=len(log) if is_up else None,
                evidence=EndEvidence.SOURCE if is_up else EndEvidence.NONE,
            )
            for partition, copied, log in zip(TOPIC_PARTITIONS, world.copied, world.source, strict=True)
        ),
        is_source_answering=is_up,
    )


def _cuts(world: World) -> tuple[PartitionCut, ...]:
    return tuple(
        PartitionCut(
            topic=partition.topic,
            partition=partition.partition,
            source_topic_id="id",
            copied=copied,
            target_topic_id="id",
            target_end=len(log),
        )
        for partition, copied, log in zip(TOPIC_PARTITIONS, world.copied, world.target, strict=True)
    )


def _source(world: World) -> ClusterObservation:
    return ClusterObservation(
        records=_records(world.source_journal),
        fence=_FENCES[world.source_fence],
        ends=_ends(world.source),
        unchanged_ms=LIMITS.quiet_ms if world.is_quiet else 0,
        tails=_tails(
            world.source
        ),  # read as soon as two observations agree, which is before the ends are quiet
    )


def _target(world: World) -> ClusterObservation:
    return ClusterObservation(
        records=_records(world.target_journal),
        fence=_FENCES[world.target_fence],
        ends=_ends(world.target),
    )


def _flow_end(world: World) -> FlowEnd:
    return FlowEnd(switchover=world.flow.ended_by)


def _checks(world: World) -> dict[ReadinessCheck, str]:
    failed = _FAILED if world.has_failed_check else {}
    if world.reverse.is_copying:
        failed = _RUNNING
    passed = {check: "" for check in _PASSED if check is not _FENCE or world.is_canary_tried}
    return {**passed, **failed}


@cache
def _tails(logs: tuple[Log, ...]) -> TailDigests:
    tails = {
        partition: TailDigest(records=len(log), digest=f"{len(log)}")
        for partition, log in zip(TOPIC_PARTITIONS, logs, strict=True)
    }
    return TailDigests(key="key", partitions=tails)


@cache
def _ends(logs: tuple[Log, ...]) -> dict[TopicPartition, PartitionEnd]:
    return {
        partition: PartitionEnd(topic_id="id", end=len(log), last_stable=last_stable(log))
        for partition, log in zip(TOPIC_PARTITIONS, logs, strict=True)
    }


def _records(journal: tuple[Kept, ...]) -> tuple[Any, ...]:
    return tuple(record.value for record in journal)


def parts(actions: tuple[SwitchoverAction, ...]) -> Kept:
    """Returns *actions* as parts between which the process can die."""
    counts = {
        WriteRecord: 2,
        FenceCluster: PARTITIONS,
        TryToFence: PARTITIONS,
        LiftFence: PARTITIONS,
    }
    kept_actions = [
        WriteRecord(kept_record(action.record).value) if isinstance(action, WriteRecord) else action
        for action in actions
    ]
    return kept(
        tuple(
            Part(action, number) for action in kept_actions for number in range(counts.get(type(action), 1))
        )
    )


def is_unordered(pending: tuple[Part, ...]) -> bool:
    """Returns whether the next two parts are sent concurrently: a record for both journals that is neither a promotion
    nor a rollback.
    """
    first = pending[0]
    is_whole = len(pending) > 1 and pending[1].action is first.action
    return is_whole and isinstance(first.action, WriteRecord) and first.action.record.state in FENCED


def carry_out(world: World, part: Part) -> World:
    """Returns the world after *part*. The part has no effect if a cluster that it needs does not respond."""
    match part.action:
        case WriteRecord(record):
            return _write_record(world, kept_record(record), part.number)
        case TryFence():
            return world._replace(is_canary_tried=True) if world.is_source_up else world
        case FenceCluster(side):
            return _set_fence(world, side, max(part.number + 1, _fence(world, side)))
        case TryToFence():
            fenced = max(part.number + 1, world.source_fence)
            tried = world if world.refuses_fence else _set_fence(world, SwitchoverSide.SOURCE, fenced)
            return tried._replace(is_fence_noted=True)
        case LiftFence(SwitchoverSide.SOURCE) if world.is_source_up and part.number == PARTITIONS - 1:
            return _set_fence(world, SwitchoverSide.SOURCE, 0)._replace(is_fence_noted=False)
        case LiftFence(side):
            return _set_fence(world, side, min(PARTITIONS - 1 - part.number, _fence(world, side)))
        case VerifySeal(seal):
            return _verify(world, seal)
        case FinishGroups():
            moved = max(world.group_target, min(world.group_source, len(world.target[0])))
            is_possible = world.is_source_up and world.is_target_up
            return world._replace(group_target=moved) if is_possible else world
        case ClampGroups():
            placed = max(world.group_target, min(world.checkpoint, len(world.target[0])))
            done = world._replace(group_target=placed, clamped_by=world.lock)
            return done if world.is_target_up else world
        case EndFlow(switchover):
            return _end_flow(world, switchover)
        case ClearEnd(switchover):
            is_own = world.is_target_up and world.flow.ended_by == switchover
            return world._replace(flow=world.flow._replace(ended_by="")) if is_own else world
        case SwitchEndpoint(member):
            return world._replace(endpoint=member)
        case HoldReverse(switchover):
            is_refused = world.reverse.is_copying or world.reverse.held_by
            held = world._replace(reverse=world.reverse._replace(held_by=switchover))
            is_possible = world.is_source_up and world.is_target_up and not is_refused
            return held if is_possible else world
        case ReleaseReverse(switchover):
            is_own = world.is_source_up and world.reverse.held_by == switchover
            return world._replace(reverse=world.reverse._replace(held_by="")) if is_own else world
        case StartReverse(switchover, starts):
            if not world.is_source_up or world.reverse.started_by == switchover:
                return world
            offsets = tuple(start.offset for start in starts)
            has_process = world.reverse.has_process
            started = Reverse(started_by=switchover, next=offsets, has_process=has_process)
            return world._replace(reverse=started)


def _write_record(world: World, record: Kept, number: int) -> World:
    """Writes a record to both journals, concurrently or one after the other.

    For an unplanned switchover, writes only to the target's.
    """
    if record.value.is_unplanned and number:
        return world
    is_target_first = record.value.written_first == world.target_name
    is_concurrent = record.value.state in FENCED
    if is_target_first == (number == 1):
        is_acknowledged = number == 0 or is_concurrent or record in world.target_journal
        journal = journal_with(world.source_journal, record)
        return world._replace(source_journal=journal) if world.is_source_up and is_acknowledged else world
    is_acknowledged = number == 0 or is_concurrent or record in world.source_journal
    if not world.is_target_up or not is_acknowledged:
        return world
    ends = world.promoted_ends
    if ends is None and record.value.state is SwitchoverState.PROMOTING:
        ends = tuple(map(len, world.source)), tuple(map(len, world.target))
    return world._replace(target_journal=journal_with(world.target_journal, record), promoted_ends=ends)


def _fence(world: World, side: SwitchoverSide) -> int:
    return world.source_fence if side is SwitchoverSide.SOURCE else world.target_fence


def _set_fence(world: World, side: SwitchoverSide, fenced: int) -> World:
    """Fences the first *fenced* partitions."""
    if side is SwitchoverSide.TARGET:
        return world._replace(target_fence=fenced) if world.is_target_up else world
    if not world.is_source_up or fenced == world.source_fence:
        return world
    return world._replace(source_fence=fenced, is_quiet=False, is_enforced=False)


def _verify(world: World, seal: Seal) -> World:
    if not world.is_source_up or not world.is_target_up:
        return world
    expected = [data(log[:end]) for log, end in zip(world.source, seal.ends.values(), strict=True)]
    differences = () if expected == [*world.target] else ("orders-0 differs",)
    verification = SealVerification(seal_sha256=seal.sha256, differences=differences)
    return world._replace(verification=kept(verification))


def _end_flow(world: World, switchover: str) -> World:
    """Increases the epoch, has the markers written and commits the claim.

    Before the claim, this is the takeover of a copier that then stops.
    """
    if not world.is_target_up or world.flow.ended_by:  # the end of another switchover stays
        return world
    epoch = world.flow.epoch + 1
    return world._replace(flow=Flow(epoch=epoch, marked_epoch=epoch, ended_by=switchover))

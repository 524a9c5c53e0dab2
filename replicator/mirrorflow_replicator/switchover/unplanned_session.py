"""Carries out an unplanned switchover, which needs the target alone: its journal, its lock, its claims and its logs count.

A planned switchover that has promoted needs no more either, so `complete_alone` continues it in the same session when the source
is lost then: up to the state REVERSING, as the flow back writes to the source.
The source is used only while it answers: its ends are shown, and it is fenced. Nothing waits for it for longer than seconds.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.actions import ClampGroups, SwitchoverAction
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FlowEnd,
    GroupClamp,
    PartitionEnd,
    SwitchoverObservation,
)
from mirrorflow_core.switchover.record import SwitchoverRecord, newest_record
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_core.switchover.states import AT_REST, PROMOTED, SwitchoverState
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.named_process import new_process_name
from mirrorflow_replicator.switchover.final_groups import FinalGroup, GroupOutcome, clamp_groups
from mirrorflow_replicator.switchover.flow_mover import observed_end
from mirrorflow_replicator.switchover.journal import ClusterJournal, SwitchoverJournal
from mirrorflow_replicator.switchover.loss_assessment import (
    CopiedPartitions,
    FlowProgress,
    assess_loss,
    read_cuts,
)
from mirrorflow_replicator.switchover.lost_source_fence import LostSourceFence
from mirrorflow_replicator.switchover.observer import SwitchoverObserver
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings
from mirrorflow_replicator.switchover.quiescence import settled_ends
from mirrorflow_replicator.switchover.session import (
    fence_of_cluster,
    renewing,
    require_same_method,
    wait_until_free,
)
from mirrorflow_replicator.switchover.source_probe import SourceProbe, source_probe
from mirrorflow_replicator.switchover.switchover_actions import LostFlow, SwitchoverActions
from mirrorflow_replicator.switchover.switchover_runner import SwitchoverRunner
from mirrorflow_replicator.switchover.write_fences import WriteFence

_S = SwitchoverState
_WITH_FLOW_END: Final = frozenset({_S.FORWARD_ENDED, _S.GROUPS_CLAMPED, _S.ROLLING_BACK})
_WITH_SOURCE_FENCE: Final = _WITH_FLOW_END | {_S.PROMOTING}
ENDS_ALONE: Final = AT_REST | {_S.REVERSING}  # states up to which the target alone is needed


def needs_target_alone(newest: SwitchoverRecord, settings: SwitchoverSettings) -> bool:
    """Returns whether *newest*, in the target's journal, is a planned switchover to the target that has promoted and is not complete."""
    return (
        newest.to == settings.to and newest.state in PROMOTED and not (newest.is_unplanned or newest.is_final)
    )


async def journal_of_target(settings: SwitchoverSettings) -> SwitchoverJournal:
    """Returns the target's journal, read without its lock, so that nothing can be written. Raises SettingError, ClusterError.

    A source that responds in part cannot fail it: from promoting on, the target's records count.
    """
    forward = settings.forward
    target = await Cluster.connect(forward.target_admin, resolve=Resolver(forward.providers).resolve_client)
    try:
        journal = SwitchoverJournal([ClusterJournal(target, settings.pair)])
        await journal.read()
        return journal
    finally:
        await target.close()


async def complete_alone(session: "UnplannedSession", promoted: SwitchoverRecord) -> SwitchoverRecord:
    """Continues *promoted* as far as that needs no source; returns its last revision.

    *promoted* was read before the session had the lock, so its newest revision counts. Raises SwitchoverTakenError if a later
    switchover has begun since.
    """
    known = newest_record(record for record in session.journal.records if record.id == promoted.id)
    return await session.runner.run(known or promoted, until=ENDS_ALONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplannedParts:
    """What the observer and the actions of an unplanned switchover share."""

    settings: SwitchoverSettings
    target: Cluster
    journal: SwitchoverJournal
    probe: SourceProbe
    source_fence: LostSourceFence
    target_fence: WriteFence
    partitions: CopiedPartitions
    progress: FlowProgress


class UnplannedObserver(SwitchoverObserver):
    """Observes the target, and the source while it answers. `groups` are those that this process has placed; None: not yet."""

    def __init__(self, parts: UnplannedParts, *, runner: str) -> None:
        super().__init__(runner=runner)
        self.groups: tuple[FinalGroup, ...] | None = None
        self._parts = parts

    def note_groups(self, groups: tuple[FinalGroup, ...]) -> None:
        """Notes that *groups* were placed, all that there are."""
        self.groups = groups

    async def observe(self, record: SwitchoverRecord) -> SwitchoverObservation:
        self.problem = ""
        state, parts = record.state, self._parts
        has_fence = state in _WITH_SOURCE_FENCE
        endpoint = parts.journal.active or record.source
        flow_end = await self._known(self._flow_end()) if state in _WITH_FLOW_END else None
        source_fence = await self._known(parts.source_fence.state()) if has_fence else None
        loss = cuts = ends = None
        if state is _S.ASSESSING:
            source = await parts.probe.wait_for_result()
            loss = await self._known(assess_loss(parts.partitions, source, parts.progress))
        records = await self._known(parts.journal.records_on(parts.settings.to))
        target_fence = await self._known(parts.target_fence.state()) if state is _S.PROMOTING else None
        if state is _S.GROUPS_CLAMPED:
            ends = await self._known(self._ends())
            cuts = None if ends is None else await self._known(read_cuts(parts.partitions, ends))
        return SwitchoverObservation(
            runner=self._runner,
            rollback_requested=self._rollback_requested,
            endpoint=endpoint,
            flow_end=flow_end,
            source=ClusterObservation(fence=source_fence),
            loss=loss,
            can_fence_source=has_fence and parts.source_fence.can_be_tried,
            cuts=cuts,
            clamp=self._clamp(),
            target=ClusterObservation(records=records, fence=target_fence, ends=ends),
        )

    def _clamp(self) -> GroupClamp | None:
        if self.groups is None:
            return None
        refused = [group.group for group in self.groups if group.outcome is GroupOutcome.REFUSED]
        return GroupClamp(refused=tuple(refused))

    async def _ends(self) -> dict[TopicPartition, PartitionEnd]:
        parts = self._parts
        return await settled_ends(parts.target, await parts.partitions.partitions())

    async def _flow_end(self) -> FlowEnd | None:
        return await observed_end(self._parts.target, self._parts.settings.forward)


class UnplannedActions(SwitchoverActions):
    """The actions of an unplanned switchover."""

    def __init__(self, parts: UnplannedParts, observer: UnplannedObserver) -> None:
        settings, target = parts.settings, parts.target
        super().__init__(
            settings,
            parts.journal,
            fences={settings.source: parts.source_fence, settings.to: parts.target_fence},
            partitions=parts.partitions,
            flow=LostFlow(settings.forward, target),
        )
        self._observer = observer
        self._target = target

    async def act(self, action: SwitchoverAction) -> None:
        if not isinstance(action, ClampGroups):
            await super().act(action)
            return
        await self._journal.confirm(self._settings.to)
        groups = self._settings.forward_groups
        self._observer.note_groups(() if groups is None else await clamp_groups(groups, self._target))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplannedSession:
    """Everything that one process needs for an unplanned switchover."""

    journal: SwitchoverJournal
    observer: UnplannedObserver
    runner: SwitchoverRunner


@contextlib.asynccontextmanager
async def unplanned_session(
    settings: SwitchoverSettings,
    *,
    on_step: Callable[[SwitchoverStep, str], None],
    progress: FlowProgress | None = None,
) -> AsyncIterator[UnplannedSession]:
    """Opens a session that holds the lock on the target. Raises SwitchoverHeldError, SettingError, ClusterError."""
    forward = settings.forward
    async with contextlib.AsyncExitStack() as stack:
        probe = await stack.enter_async_context(source_probe(settings))
        target = await Cluster.connect(
            forward.target_admin, resolve=Resolver(forward.providers).resolve_client
        )
        stack.push_async_callback(target.close)
        journal = SwitchoverJournal(
            [ClusterJournal(target, settings.pair, replication_factor=forward.replication_factor)]
        )
        await wait_until_free(journal)
        await journal.take()
        require_same_method(settings, journal)
        runner_id = new_process_name()
        parts = UnplannedParts(
            settings=settings,
            target=target,
            journal=journal,
            probe=probe,
            source_fence=LostSourceFence(settings, journal, probe),
            target_fence=fence_of_cluster(settings, target, journal),
            partitions=CopiedPartitions(forward, target),
            progress=progress or FlowProgress(),
        )
        observer = UnplannedObserver(parts, runner=runner_id)
        runner = SwitchoverRunner(observer, UnplannedActions(parts, observer), on_step=on_step)
        await stack.enter_async_context(renewing(journal, runner_id))
        yield UnplannedSession(journal=journal, observer=observer, runner=runner)

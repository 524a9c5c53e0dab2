"""Carries out an unplanned switchover, which needs the target alone: its journal, its lock, its claims and its logs count.

The source is used only while it answers: its ends are shown, and it is fenced. Nothing waits for it for longer than seconds.
"""

import asyncio
import contextlib
import os
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.actions import (
    ClampGroups,
    ClearEnd,
    EndFlow,
    LiftFence,
    SwitchEndpoint,
    SwitchoverAction,
    TryToFence,
    WriteRecord,
)
from mirrorflow_core.switchover.loss import PartitionCut
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    FlowEnd,
    GroupClamp,
    PartitionEnd,
    SwitchoverObservation,
    SwitchoverSide,
)
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.state_machine import SwitchoverStep, step
from mirrorflow_core.switchover.states import SwitchoverState
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.switchover.errors import SwitchoverError, SwitchoverTakenError
from mirrorflow_replicator.switchover.final_groups import FinalGroup, GroupOutcome, clamp_groups
from mirrorflow_replicator.switchover.flow_end import clear_end, end_flow, give_up
from mirrorflow_replicator.switchover.flow_mover import newest_claim
from mirrorflow_replicator.switchover.hooks import HookAction, run_hook
from mirrorflow_replicator.switchover.journal import ClusterJournal, SwitchoverJournal
from mirrorflow_replicator.switchover.loss_assessment import (
    CopiedPartitions,
    FlowProgress,
    assess_loss,
    read_cuts,
)
from mirrorflow_replicator.switchover.lost_source_fence import LostSourceFence
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings
from mirrorflow_replicator.switchover.quiescence import settled_ends
from mirrorflow_replicator.switchover.session import fence_of_cluster, renewing, wait_until_free
from mirrorflow_replicator.switchover.source_probe import SourceProbe, source_probe
from mirrorflow_replicator.switchover.switchover_runner import POLL_S, RETRY_S
from mirrorflow_replicator.switchover.write_fences import WriteFence

_S = SwitchoverState
T = TypeVar("T")
_WITH_FLOW_END: Final = frozenset({_S.FORWARD_ENDED, _S.GROUPS_CLAMPED, _S.ROLLING_BACK})
_WITH_SOURCE_FENCE: Final = _WITH_FLOW_END | {_S.PROMOTING}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplannedParts:
    """What the observer and the runner of an unplanned switchover share."""

    settings: SwitchoverSettings
    target: Cluster
    journal: SwitchoverJournal
    probe: SourceProbe
    source_fence: LostSourceFence
    target_fence: WriteFence
    partitions: CopiedPartitions
    progress: FlowProgress


class UnplannedObserver:
    """Observes the target, and the source while it answers. *runner* is unique for each start of a process."""

    def __init__(self, parts: UnplannedParts, *, runner: str) -> None:
        self.problem = ""  # why something is None in the last observation
        self.groups: tuple[FinalGroup, ...] | None = None  # as placed by this process
        self._parts = parts
        self._runner = runner
        self._rollback_requested = False

    def request_rollback(self) -> None:
        """Rolls back from the next observation on, unless the switchover has promoted."""
        self._rollback_requested = True

    def note_groups(self, groups: tuple[FinalGroup, ...]) -> None:
        """Notes that *groups* were placed, all that there are."""
        self.groups = groups

    async def observe(self, record: SwitchoverRecord) -> SwitchoverObservation:
        """Returns what *record*'s state needs, in the order of the fields. Raises SwitchoverError."""
        self.problem = ""
        state, parts = record.state, self._parts
        has_fence = state in _WITH_SOURCE_FENCE
        endpoint = parts.journal.active or record.source
        flow_end = await self._known(self._flow_end()) if state in _WITH_FLOW_END else None
        fence = await self._known(parts.source_fence.state()) if has_fence else None
        loss = None
        if state is _S.ASSESSING:
            source = await parts.probe.wait_for_result()
            loss = await self._known(assess_loss(parts.partitions, source, parts.progress))
        cuts, target = await self._target(state)
        return SwitchoverObservation(
            runner=self._runner,
            rollback_requested=self._rollback_requested,
            endpoint=endpoint,
            flow_end=flow_end,
            source=ClusterObservation(fence=fence),
            loss=loss,
            can_fence_source=has_fence and parts.source_fence.can_be_tried,
            cuts=cuts,
            clamp=self._clamp(),
            target=target,
        )

    async def _target(
        self, state: SwitchoverState
    ) -> tuple[tuple[PartitionCut, ...] | None, ClusterObservation]:
        parts = self._parts
        records = await self._known(parts.journal.records_on(parts.settings.to))
        fence = await self._known(parts.target_fence.state()) if state is _S.PROMOTING else None
        ends = cuts = None
        if state is _S.GROUPS_CLAMPED:
            ends = await self._known(self._ends())
            cuts = None if ends is None else await self._known(read_cuts(parts.partitions, ends))
        return cuts, ClusterObservation(records=records, fence=fence, ends=ends)

    def _clamp(self) -> GroupClamp | None:
        if self.groups is None:
            return None
        refused = [group.group for group in self.groups if group.outcome is GroupOutcome.REFUSED]
        return GroupClamp(refused=tuple(refused))

    async def _ends(self) -> dict[TopicPartition, PartitionEnd]:
        parts = self._parts
        return await settled_ends(parts.target, await parts.partitions.partitions())

    async def _flow_end(self) -> FlowEnd:
        claim = await newest_claim(self._parts.target, self._parts.settings.forward)
        ended = "" if claim is None else claim.ended
        # The claim is written after the last marker.
        return FlowEnd(switchover=ended, has_all_markers=bool(ended))

    async def _known(self, reading: Awaitable[T]) -> T | None:
        try:
            return await reading
        except SwitchoverError:
            raise
        except MirrorFlowError as error:
            self.problem = str(error)
            return None


class UnplannedRunner:
    """Runs one unplanned switchover until it rests. `observer.request_rollback` rolls it back, unless it has promoted."""

    def __init__(
        self,
        parts: UnplannedParts,
        observer: UnplannedObserver,
        *,
        on_step: Callable[[SwitchoverStep, str], None],
    ) -> None:
        """*on_step* is called with each step, and the error that is repeated; "" without one."""
        self._parts = parts
        self._observer = observer
        self._on_step = on_step

    async def run(self, record: SwitchoverRecord) -> SwitchoverRecord:
        """Carries *record* out; returns its last revision. Raises SwitchoverTakenError."""
        while True:
            observation = await self._observer.observe(record)
            result = step(record, observation, time.time_ns() // 1_000_000)
            if result.is_superseded:
                raise SwitchoverTakenError(pair=record.pair)
            if result.record.is_at_rest and not result.actions:
                self._on_step(result, "")
                return result.record
            is_waiting = not result.actions and result.record is record
            record = result.record
            problem = await self._carry_out(result) or self._observer.problem
            self._on_step(result, problem)
            await asyncio.sleep(RETRY_S if problem else POLL_S if is_waiting else 0)

    async def _carry_out(self, result: SwitchoverStep) -> str:
        """Does the actions of a step in their order; returns the first error, "" without one. A fence that fails stops no other action."""
        problem = ""
        for action in result.actions:
            try:
                await self._act(action)
            except SwitchoverTakenError:
                raise
            except MirrorFlowError as error:
                problem = problem or str(error)
                if not isinstance(action, TryToFence):
                    break
        return problem

    async def _act(self, action: SwitchoverAction) -> None:
        parts = self._parts
        settings, journal = parts.settings, parts.journal
        match action:
            case WriteRecord(record):
                await journal.write(record)
            case TryToFence():
                await parts.source_fence.set(await parts.partitions.topics())
            case LiftFence(side):
                await journal.confirm(settings.to)
                fence = parts.source_fence if side is SwitchoverSide.SOURCE else parts.target_fence
                await fence.lift()
            case EndFlow(switchover):
                await journal.confirm(settings.to)
                await end_flow(settings.forward, parts.target, switchover, on_waiting=give_up)
            case ClearEnd(switchover):
                # A successor of this process may have promoted: the flow must not run again then.
                await journal.confirm(settings.to)
                await clear_end(settings.forward, parts.target, switchover)
            case ClampGroups():
                await journal.confirm(settings.to)
                self._observer.note_groups(await self._clamped())
            case SwitchEndpoint(to):
                await journal.confirm(to)
                if settings.endpoint_hook is not None:
                    await run_hook(settings.endpoint_hook, HookAction.PROMOTE, settings.variables)
                await journal.write_endpoint(to)
            case _:
                raise AssertionError(f"{action} needs the source")

    async def _clamped(self) -> tuple[FinalGroup, ...]:
        groups = self._parts.settings.forward_groups
        return () if groups is None else await clamp_groups(groups, self._parts.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplannedSession:
    """Everything that one process needs for an unplanned switchover."""

    journal: SwitchoverJournal
    observer: UnplannedObserver
    runner: UnplannedRunner


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
        runner_id = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
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
        runner = UnplannedRunner(parts, observer, on_step=on_step)
        await stack.enter_async_context(renewing(journal, runner_id))
        yield UnplannedSession(journal=journal, observer=observer, runner=runner)

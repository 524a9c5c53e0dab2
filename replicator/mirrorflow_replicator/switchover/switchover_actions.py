"""Carries out the actions of a switchover that needs both clusters; those that every type has need the target alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.switchover import guards
from mirrorflow_core.switchover.actions import (
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
from mirrorflow_core.switchover.observation import SwitchoverObservation, SwitchoverSide
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover.endpoint import lead_clients
from mirrorflow_replicator.switchover.flow_end import clear_end, end_flow, give_up
from mirrorflow_replicator.switchover.flow_mover import FlowMover
from mirrorflow_replicator.switchover.journal import SwitchoverJournal
from mirrorflow_replicator.switchover.loss_assessment import CopiedPartitions
from mirrorflow_replicator.switchover.lost_source_fence import LostSourceFence
from mirrorflow_replicator.switchover.observer import PlannedParts
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings
from mirrorflow_replicator.switchover.sealed_partitions import SealedPartitions
from mirrorflow_replicator.switchover.write_fences import WriteFence


@dataclass(frozen=True, slots=True)
class LostFlow:
    """The forward flow, of which only the target is known to respond."""

    settings: SourceSettings
    target: Cluster

    async def end(self, switchover: str) -> None:
        """Ends it for *switchover*. Raises MirrorFlowError, also of a partition that cannot be fenced now: the caller tries again."""
        await end_flow(self.settings, self.target, switchover, on_waiting=give_up)

    async def clear_end(self, switchover: str) -> None:
        """Lets it run again, if *switchover* has ended it. Raises MirrorFlowError."""
        await clear_end(self.settings, self.target, switchover)


class SwitchoverActions:
    """The actions of every type of switchover. Each may be repeated, and cancelled while it waits."""

    def __init__(
        self,
        settings: SwitchoverSettings,
        journal: SwitchoverJournal,
        *,
        fences: Mapping[str, WriteFence | LostSourceFence],
        partitions: SealedPartitions | CopiedPartitions,
        flow: FlowMover | LostFlow,
    ) -> None:
        """*fences*: by the alias of their cluster."""
        self._settings = settings
        self._journal = journal
        self._fences = fences
        self._partitions = partitions
        self._flow = flow
        self._aliases = {SwitchoverSide.SOURCE: settings.source, SwitchoverSide.TARGET: settings.to}

    async def act(self, action: SwitchoverAction) -> None:
        """Carries *action* out. Raises SwitchoverTakenError, MirrorFlowError."""
        journal = self._journal
        match action:
            case WriteRecord(record):
                await journal.write(record)
            case FenceCluster(side):
                await self._fences[self._aliases[side]].set(await self._partitions.topics())
            case TryToFence():
                await self._fences[self._settings.source].set(await self._partitions.topics())
            case LiftFence(side):
                await journal.confirm(self._aliases[side])
                await self._fences[self._aliases[side]].lift()
            case EndFlow(switchover):
                await journal.confirm(self._settings.to)
                await self._flow.end(switchover)
            case ClearEnd(switchover):
                # A successor of this process may have promoted: the flow must not run again then.
                await journal.confirm(self._settings.to)
                await self._flow.clear_end(switchover)
            case SwitchEndpoint(to):
                await journal.confirm(to)
                await lead_clients(self._settings)
                await journal.write_endpoint(to)
            case _:
                raise AssertionError(f"{action} is of another type of switchover")

    async def work_ahead(self, observation: SwitchoverObservation) -> None:
        """Does nothing ahead."""


class PlannedActions(SwitchoverActions):
    """The actions of a planned switchover and of a rehearsal."""

    def __init__(self, parts: PlannedParts) -> None:
        super().__init__(
            parts.settings, parts.journal, fences=parts.fences, partitions=parts.partitions, flow=parts.flows
        )
        self._flows = parts.flows
        self._checks = parts.checks

    async def act(self, action: SwitchoverAction) -> None:
        match action:
            case TryFence():
                await self._checks.try_fence()
            case VerifySeal(seal):
                await self._flows.verify(seal, self._journal.starts_on(self._settings.source))
            case FinishGroups():
                await self._journal.confirm(self._settings.to)
                await self._flows.finish_groups()
            case HoldReverse(switchover):
                await self._journal.confirm(self._settings.source)
                await self._flows.hold_reverse(switchover)
            case ReleaseReverse(switchover):
                await self._journal.confirm(self._settings.source)
                await self._flows.release_reverse(switchover)
            case StartReverse(switchover, starts):
                await self._journal.confirm(self._settings.to)
                await self._flows.start_reverse(switchover, starts)
            case _:
                await super().act(action)

    async def work_ahead(self, observation: SwitchoverObservation) -> None:
        """Compares the copies up to the ends that will probably be sealed. Raises ClusterError."""
        if (ends := guards.copied_ends(observation)) is not None:
            await self._flows.verify_ahead(ends, self._journal.starts_on(self._settings.source))

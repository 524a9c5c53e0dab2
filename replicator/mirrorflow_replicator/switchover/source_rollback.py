"""Rolls a planned switchover back with the source alone, when the target is lost and nothing was promoted.

Applications can write again then. What may be left on the target, an end of the flow, is cleared by the next rollback, when
that responds. `guards.may_give_up_target` says why the source's journal is enough.
"""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.switchover import guards
from mirrorflow_core.switchover.actions import LiftFence, ReleaseReverse, SwitchoverAction, WriteRecord
from mirrorflow_core.switchover.observation import (
    ClusterObservation,
    ReverseFlow,
    SwitchoverObservation,
    SwitchoverSide,
)
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.named_process import new_process_name
from mirrorflow_replicator.switchover.errors import RollbackOvertakenError
from mirrorflow_replicator.switchover.flow_end import clear_end
from mirrorflow_replicator.switchover.flow_mover import observed_reverse
from mirrorflow_replicator.switchover.journal import ClusterJournal, SwitchoverJournal
from mirrorflow_replicator.switchover.observer import SwitchoverObserver
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings
from mirrorflow_replicator.switchover.session import (
    fence_of_cluster,
    renewing,
    require_same_method,
    wait_until_free,
)
from mirrorflow_replicator.switchover.switchover_runner import SwitchoverRunner
from mirrorflow_replicator.switchover.write_fences import WriteFence


class SourceRollbackObserver(SwitchoverObserver):
    """Observes the source of a switchover that is rolled back without its target."""

    def __init__(
        self, settings: SwitchoverSettings, source: Cluster, journal: SwitchoverJournal, fence: WriteFence
    ) -> None:
        super().__init__(runner=new_process_name())
        self._settings = settings
        self._source = source
        self._journal = journal
        self._fence = fence

    @property
    def runner(self) -> str:
        """The id of this process."""
        return self._runner

    async def observe(self, record: SwitchoverRecord) -> SwitchoverObservation:
        self.problem = ""
        return SwitchoverObservation(
            runner=self._runner,
            rollback_requested=True,
            gives_up_target=True,
            source=ClusterObservation(
                records=await self._known(self._journal.records_on(self._settings.source)),
                fence=await self._known(self._fence.state()),
            ),
            reverse=await self._known(self._reverse()),
        )

    async def _reverse(self) -> ReverseFlow | None:
        return await observed_reverse(self._source, self._settings.back)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRollbackActions:
    """The actions of a rollback that need the source alone. *back* is the flow that writes to it."""

    back: SourceSettings
    source: Cluster
    journal: SwitchoverJournal
    fence: WriteFence

    async def act(self, action: SwitchoverAction) -> None:
        """Carries *action* out. Raises SwitchoverTakenError, MirrorFlowError."""
        match action:
            case WriteRecord(record):
                await self.journal.write(record)
            case LiftFence(SwitchoverSide.SOURCE):
                await self.journal.confirm(self.source.alias)
                await self.fence.lift()
            case ReleaseReverse(switchover):
                await self.journal.confirm(self.source.alias)
                await clear_end(self.back, self.source, switchover)
            case _:
                raise AssertionError(f"{action} needs the target")

    async def work_ahead(self, observation: SwitchoverObservation) -> None:
        """Does nothing ahead."""


@contextlib.asynccontextmanager
async def source_rollback(
    settings: SwitchoverSettings, switchover: str, *, on_step: Callable[[SwitchoverStep, str], None]
) -> AsyncIterator[tuple[SwitchoverRecord, SwitchoverRunner]]:
    """Opens a session that holds the lock of the source, to roll back the one with the id *switchover*, and returns its record.

    Raises RollbackOvertakenError if that is not the newest one any more, or may have promoted; SwitchoverHeldError, SettingError,
    ClusterError.
    """
    back = settings.back
    source = await Cluster.connect(back.target_admin, resolve=Resolver(back.providers).resolve_client)
    try:
        journal = SwitchoverJournal(
            [ClusterJournal(source, settings.pair, replication_factor=back.replication_factor)]
        )
        await wait_until_free(journal)
        await journal.take()
        # Before the lock was taken, another process may have completed it, or begun another one.
        newest = journal.newest
        if newest is None or newest.id != switchover or not guards.is_unpromoted(newest):
            raise RollbackOvertakenError(switchover=switchover, newest=newest)
        require_same_method(settings, journal)
        fence = fence_of_cluster(settings, source, journal)
        observer = SourceRollbackObserver(settings, source, journal, fence)
        actions = SourceRollbackActions(back=back, source=source, journal=journal, fence=fence)
        async with renewing(journal, observer.runner):
            yield newest, SwitchoverRunner(observer, actions, on_step=on_step)
    finally:
        await source.close()

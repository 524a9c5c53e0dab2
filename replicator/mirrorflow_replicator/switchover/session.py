"""Opens the switchovers of a pair for one process: connects, waits for a process that carries one out, and takes the lock.

A process renews a note in the journal while it works. Another one waits until the note has not changed for a while, by its own
monotonic clock, so that two commands do not take the switchover from each other. The lock alone makes it safe.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.errors import ClusterError, MirrorFlowError
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.named_process import has_ended, new_process_name
from mirrorflow_replicator.switchover.errors import (
    FenceUnavailableError,
    SwitchoverHeldError,
    SwitchoverTakenError,
)
from mirrorflow_replicator.switchover.flow_mover import FlowMover
from mirrorflow_replicator.switchover.journal import ClusterJournal, SwitchoverJournal
from mirrorflow_replicator.switchover.observer import PlannedObserver, PlannedParts
from mirrorflow_replicator.switchover.pair_settings import FenceKind, SwitchoverSettings, pair_clusters
from mirrorflow_replicator.switchover.readiness import ReadinessChecks
from mirrorflow_replicator.switchover.sealed_partitions import SealedPartitions
from mirrorflow_replicator.switchover.switchover_actions import PlannedActions
from mirrorflow_replicator.switchover.switchover_runner import SwitchoverRunner
from mirrorflow_replicator.switchover.write_fences import DenyAclFence, NotedFence, WriteFence

RENEW_S: Final = 2.0
ABANDONED_S: Final = 8.0  # several renewals, each of which may wait for an election
WATCH_POLL_S: Final = 0.5
STATUS_TIMEOUT_S: Final = 10.0  # to connect to a cluster that may be lost
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverSession:
    """Everything that one process needs for the switchovers of a pair in one direction."""

    journal: SwitchoverJournal
    observer: PlannedObserver
    checks: ReadinessChecks
    flows: FlowMover
    fences: Mapping[str, WriteFence]  # by the alias of their cluster
    runner: SwitchoverRunner


@contextlib.asynccontextmanager
async def switchover_session(
    settings: SwitchoverSettings, *, on_step: Callable[[SwitchoverStep, str], None]
) -> AsyncIterator[SwitchoverSession]:
    """Opens a session that holds the lock. Raises SwitchoverHeldError, SettingError, ClusterError."""
    async with pair_clusters(settings) as clusters:
        journal = journal_of(settings, clusters.source, clusters.target)
        await wait_until_free(journal)
        await journal.take()
        require_same_method(settings, journal)
        runner_id = new_process_name()
        fences = {
            cluster.alias: fence_of_cluster(settings, cluster, journal)
            for cluster in (clusters.source, clusters.target)
        }
        for fence in fences.values():
            with contextlib.suppress(ClusterError):  # it is read again where it counts
                await fence.state()
        partitions = SealedPartitions(settings, clusters)
        flows = FlowMover(settings, clusters, partitions)
        checks = ReadinessChecks(
            settings, clusters, fence=fences[settings.source], flows=flows, partitions=partitions
        )
        parts = PlannedParts(
            settings=settings,
            clusters=clusters,
            journal=journal,
            fences=fences,
            flows=flows,
            checks=checks,
            partitions=partitions,
        )
        observer = PlannedObserver(parts, runner=runner_id)
        runner = SwitchoverRunner(observer, PlannedActions(parts), on_step=on_step)
        async with renewing(journal, runner_id):
            yield SwitchoverSession(
                journal=journal, observer=observer, checks=checks, flows=flows, fences=fences, runner=runner
            )


def journal_of(settings: SwitchoverSettings, source: Cluster, target: Cluster) -> SwitchoverJournal:
    """Returns the journal of the pair on both clusters, not read yet."""
    factors = {source: settings.back.replication_factor, target: settings.forward.replication_factor}
    return SwitchoverJournal(
        [
            ClusterJournal(cluster, settings.pair, replication_factor=factor)
            for cluster, factor in factors.items()
        ]
    )


def require_same_method(settings: SwitchoverSettings, journal: SwitchoverJournal) -> None:
    """Raises FenceUnavailableError if a cluster has a fence of another method, which the present one would not lift.

    Method None has set nothing, so any other one may follow it.
    """
    liftable = {settings.fence.value, FenceKind.NONE.value}
    for alias in (settings.source, settings.to):
        for method in sorted(journal.fence_of(alias).methods - liftable):
            raise FenceUnavailableError(
                cluster=alias,
                problem=f"it has a fence of method {method}, which method {settings.fence.value} does not lift",
                action="set spec.fence back to what it was until that fence is lifted",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadableJournal:
    """The journal on the clusters that respond, by their aliases, and why it was not read on others."""

    journal: SwitchoverJournal
    clusters: Mapping[str, Cluster]
    problems: Mapping[str, str]

    async def fence_state(self, settings: SwitchoverSettings, alias: str) -> FenceState | None:
        """Returns how much of the fence of cluster *alias* is there; None if there may be one, and the cluster does not respond."""
        note = self.journal.fence_of(alias)
        if settings.fence is not FenceKind.DENY_ACL or (note.state is FenceState.ABSENT and not note.acls):
            return note.state
        if alias not in self.clusters:
            return None
        try:
            return await fence_of_cluster(settings, self.clusters[alias], self.journal).state()
        except ClusterError:
            return None


@contextlib.asynccontextmanager
async def readable_journal(settings: SwitchoverSettings) -> AsyncIterator[ReadableJournal]:
    """Reads the journal on each cluster that responds.

    It takes no lock, so nothing may be written. Raises ClusterError if no cluster responds.
    """
    flows = {settings.source: settings.back, settings.to: settings.forward}
    async with contextlib.AsyncExitStack() as stack:

        async def connect(flow: SourceSettings) -> Cluster:
            resolve = Resolver(flow.providers).resolve_client
            cluster = await Cluster.connect(flow.target_admin, resolve=resolve, timeout_s=STATUS_TIMEOUT_S)
            stack.push_async_callback(cluster.close)
            return cluster

        connected = await asyncio.gather(*map(connect, flows.values()), return_exceptions=True)
        problems: dict[str, str] = {}
        clusters: dict[str, Cluster] = {}
        for alias, result in zip(flows, connected, strict=True):
            if isinstance(result, Cluster):
                clusters[alias] = result
            elif not isinstance(result, ClusterError):
                raise result
            else:
                problems[alias] = str(result)
        if not clusters and isinstance(connected[0], ClusterError):
            raise connected[0]
        journal = SwitchoverJournal([ClusterJournal(cluster, settings.pair) for cluster in clusters.values()])
        await journal.read()
        yield ReadableJournal(journal=journal, clusters=clusters, problems=problems)


def fence_of_cluster(
    settings: SwitchoverSettings, cluster: Cluster, journal: SwitchoverJournal
) -> WriteFence:
    """Returns the fence of *cluster* by the method of the pair."""
    if settings.fence is FenceKind.DENY_ACL:
        principals = settings.except_principals
        return DenyAclFence(cluster, journal, except_principals=principals, flow=settings.forward)
    return NotedFence(
        cluster.alias,
        journal,
        hook=settings.fence_hook,
        variables=settings.variables,
        method=settings.fence,
    )


async def wait_until_free(journal: SwitchoverJournal) -> None:
    """Waits until no process renews its note. Raises SwitchoverHeldError if one does, ClusterError."""
    await journal.read()
    newest = journal.newest
    if newest is None or newest.is_at_rest or has_ended(newest.runner):
        return
    renewals, now = journal.renewals, asyncio.get_running_loop().time
    deadline_s = now() + ABANDONED_S
    while now() < deadline_s:
        await asyncio.sleep(WATCH_POLL_S)
        await journal.read()
        if journal.renewals != renewals:
            raise SwitchoverHeldError(record=journal.newest or newest)


@contextlib.asynccontextmanager
async def renewing(journal: SwitchoverJournal, runner_id: str) -> AsyncIterator[None]:
    """Renews the note meanwhile, also after an error. What is refused shows at the next record; another error is logged once."""

    async def renew() -> None:
        number, logged = 0, ""
        while True:
            try:
                await journal.write_renewal(runner_id, number)
            except (ClusterError, SwitchoverTakenError):
                pass
            except MirrorFlowError as error:
                # Such as a Secret that is being replaced. Without renewals, another process takes the switchover over.
                if str(error) != logged:
                    logged = str(error)
                    log.warning("The note of this process was not renewed: %s", error)
            number += 1
            await asyncio.sleep(RENEW_S)

    task = asyncio.create_task(renew(), name="renew-switchover")
    try:
        yield
    finally:
        await cancel_and_wait(task)

"""Runs one MirrorCheckpointConnector: schedules its passes, and reports its state.

    connect both ──> read checkpoints, syncs ──> list groups, write checkpoints, move groups when due ──┐
        ^                                              ^──── follow groups that move in the meantime ───┘
        └── any error: reported, retried after a backoff

Guarantees: what it knew before a restart is read back from the checkpoints topic; an error of a cluster is
reported and retried forever, one of a single group, topic or permission stops only that
(`connectors.checkpoint_passes`). While a switchover has ended the flow, nothing is written: the groups of the target belong to
applications alone then. Passes that a slow one has
delayed are not repeated. There is no task process: a few requests a second do not need one.
"""

import asyncio
import logging
import time
from collections import Counter
from dataclasses import replace

from mirrorflow_core.errors import ClusterError, FlowEndedError, MirrorFlowError, SameClusterError
from mirrorflow_core.reports import ConnectorReport, GroupsReport, TaskReport
from mirrorflow_core.settings import CheckpointSettings, ClientSettings, ConnectorSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.clients import shared
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.checkpoint_passes import CheckpointPasses
from mirrorflow_replicator.connectors.claim_reader import FlowEndWatch
from mirrorflow_replicator.connectors.connector_state import ClusterClients, RetryState, report_of
from mirrorflow_replicator.connectors.known_offsets import OffsetReaders

# The first pause is short: brokers restart in seconds, and the source connector creates the offset-syncs
# topic within one.
RETRY_MAX_S = 30.0  # after many failures in a row
# A failed listing of groups is retried after this, instead of the ten minutes of a refresh.
REFRESH_RETRY_S = 10.0
NEVER = float("inf")

log = logging.getLogger("mirrorflow.worker")


class CheckpointConnector:
    """One checkpoint connector in this process.

    `run` ends only by cancellation; everything else is safe at any time.
    """

    def __init__(self, connector: ConnectorSettings, settings: CheckpointSettings) -> None:
        self._connector = connector
        self._settings = settings
        self._resolve = Resolver(settings.providers).resolve_client
        self._started_at_s = time.monotonic()
        self._clusters: dict[frozenset[tuple[str, str]], Cluster] = {}
        self._sides = ClusterClients(settings.source_alias, settings.target_alias)
        self._passed_s: float | None = None  # end of the last whole pass, monotonic clock
        self._passes: CheckpointPasses | None = None  # set once both clusters were reached
        self._end: FlowEndWatch | None = None  # set with it
        self._opened = False
        self._retry = RetryState(connector.name, pause_max_s=RETRY_MAX_S)
        self._errors: Counter[str] = Counter()
        self._warned: frozenset[str] = frozenset()
        self._followed_by: str | None = None  # as last logged
        self.target_cluster_id: str | None = None
        self.has_reported_all = False  # whether a whole pass has succeeded

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._follow(await self._open())
                except MirrorFlowError as error:
                    self._note(error)
                await asyncio.sleep(self._retry.pause_s)
        finally:
            await asyncio.gather(*(cluster.close() for cluster in self._clusters.values()))

    async def stop(self, grace_s: float) -> None:
        """Does nothing: the next process translates again, and writes what was not written."""

    async def _open(self) -> CheckpointPasses:
        if self._passes is None:
            settings = self._settings
            target = await self._cluster(settings.target_admin)
            source = await self._cluster(settings.source_admin)
            if (
                source.cluster_id is not None
                and source.cluster_id == target.cluster_id
                and make_naming(settings).keeps_names
            ):
                raise SameClusterError(source=source.alias, target=target.alias, cluster_id=target.cluster_id)
            self.target_cluster_id = target.cluster_id
            self._end = FlowEndWatch(settings.source_alias, await self._cluster(settings.target_consumer))
            self._passes = CheckpointPasses(
                settings,
                OffsetReaders(
                    source=source,
                    syncs=await self._cluster(
                        settings.source_consumer if settings.syncs_on_source else settings.target_consumer
                    ),
                    target=target,
                    reader=await self._cluster(settings.target_consumer),
                ),
                await self._cluster(settings.target_producer),
                follows_groups=settings.sync_s is not None,
                end=self._end,
            )
        if not self._opened:
            await self._passes.open()
            self._opened = True
        return self._passes

    async def _cluster(self, client: ClientSettings) -> Cluster:
        """Returns one client for all settings with the same connection and user."""
        connection = frozenset({"alias": client.alias, **shared(client.properties)}.items())
        if connection not in self._clusters:
            self._clusters[connection] = await Cluster.connect(client, resolve=self._resolve)
            self._sides.connected(self._clusters[connection])
        return self._clusters[connection]

    async def _follow(self, passes: CheckpointPasses) -> None:
        """Runs passes until a cluster fails."""
        settings = self._settings
        now = asyncio.get_running_loop().time
        refresh_at = emit_at = sync_at = now()
        if settings.emit_s is None:
            emit_at = NEVER
        if settings.sync_s is None:
            sync_at = NEVER
        while True:
            if now() >= refresh_at:
                wait_s = await self._refresh(passes)
                refresh_at = now() + wait_s
            emits, syncs = now() >= emit_at, now() >= sync_at
            if (emits or syncs) and await passes.may_write():
                await passes.translate_groups()
                # Even if only groups are due: no group is moved to an offset without a checkpoint.
                await passes.write_checkpoints()
                if syncs:
                    await passes.sync_groups()
            if emits:
                emit_at = now() + (settings.emit_s or NEVER)
            if syncs:
                sync_at = now() + (settings.sync_s or NEVER)
            self._log_warnings(passes)
            self._retry.succeeded()
            self.has_reported_all = True
            self._passed_s = time.monotonic()
            if await self._follow_groups(passes, min(refresh_at, emit_at, sync_at)):
                refresh_at = sync_at = now()

    async def _follow_groups(self, passes: CheckpointPasses, until: float) -> bool:
        """Follows groups in steps; returns True as soon as new groups are to be listed, and False at *until*."""
        now = asyncio.get_running_loop().time
        list_at = NEVER if self._settings.refresh_groups_s is None else now() + REFRESH_RETRY_S
        has_new = False
        while (left_s := until - now()) > 0:
            await asyncio.sleep(min(left_s, await passes.follow()))
            self._log_warnings(passes)
            has_new |= passes.lists_new_groups
            if has_new and now() >= list_at:
                return True
        return False

    async def _refresh(self, passes: CheckpointPasses) -> float:
        """Lists the groups; returns the seconds until the next listing."""
        try:
            is_complete = await passes.refresh()
        except ClusterError as error:
            if not self.has_reported_all:
                raise
            # The known groups are still processed: a broker that is down must not delay them.
            self._errors[error.reason] += 1
            log.warning("%s: groups cannot be listed: %s", self._connector.name, error)
            return REFRESH_RETRY_S
        return (self._settings.refresh_groups_s or NEVER) if is_complete else REFRESH_RETRY_S

    def _log_warnings(self, passes: CheckpointPasses) -> None:
        """Logs each warning once, until it is over."""
        warnings = passes.warnings
        for warning in warnings:
            if warning not in self._warned:
                log.warning("%s: %s", self._connector.name, warning)
        self._warned = frozenset(warnings)
        if passes.followed_by != self._followed_by:
            self._followed_by = passes.followed_by
            log.info("%s: follows groups of the source by %s", self._connector.name, self._followed_by)

    def _note(self, error: MirrorFlowError) -> None:
        self._retry.failed(error)
        if self._passes is None:
            self._sides.note(error)
        self._errors[error.reason] += 1

    @property
    def _warnings(self) -> tuple[str, ...]:
        passes = () if self._passes is None else self._passes.warnings
        clusters = (warning for cluster in self._clusters.values() for warning in cluster.warnings)
        return (*self._end_warning, *passes, *dict.fromkeys(clusters))

    @property
    def _end_warning(self) -> tuple[str, ...]:
        if self._end is None or self._end.ended_by is None:
            return ()
        source, target = self._settings.source_alias, self._settings.target_alias
        return (str(FlowEndedError(source=source, target=target, switchover=self._end.ended_by)),)

    def _groups(self, passes: CheckpointPasses) -> GroupsReport:
        due = [every_s for every_s in (self._settings.emit_s, self._settings.sync_s) if every_s is not None]
        # A connector that writes nothing misses no pass.
        is_well = self.has_reported_all and self._retry.problem is None
        passed_s = time.monotonic() if is_well and not due else self._passed_s
        return replace(passes.report, passed_s=passed_s, interval_s=min(due, default=None))

    def report(self) -> ConnectorReport:
        problem = self._retry.problem
        state = "RUNNING" if self._opened else "UNASSIGNED"
        report = report_of(
            self._connector,
            self._settings,
            state=state if problem is None else "FAILED",
            problem=problem,
            started_at_s=self._started_at_s,
        )
        task = TaskReport(
            task=0, state=report.state, trace=report.trace, reason=report.reason, errors=dict(self._errors)
        )
        source, target = self._sides.reports(self._clusters.values())
        return replace(
            report,
            tasks=(task,),
            topics=(self._passes.topic,)
            if self._passes is not None and self._passes.report.checkpoints
            else (),
            warnings=self._warnings,
            groups=None if self._passes is None else self._groups(self._passes),
            source=source,
            target=target,
        )

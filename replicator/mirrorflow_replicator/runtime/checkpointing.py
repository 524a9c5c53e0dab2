"""One MirrorCheckpointConnector in this process: when it does what, and what it says of itself.

    connect both ──> read checkpoints, read offset syncs ──> groups, checkpoints, groups of the target, each when due ──┐
        ^                                                                ^──────────────────────────────────────────────┘
        └── any error: told, then again after a back-off

Promises: what it knew before a restart is read back from the checkpoints topic; an error of a cluster is told and tried
again for ever, one of a single group, topic or permission stops only that (`runtime.checkpoint_passes`). Checkpoints that
a slow pass missed are not made up for. There is no task process: a few requests a minute do not need one.
"""

import asyncio
import logging
import time
from collections import Counter
from dataclasses import replace

from mirrorflow_replicator.connect.clients import shared
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.errors import ClusterError, MirrorFlowError
from mirrorflow_replicator.flow.report import ConnectorReport, GroupsReport, TaskReport
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.runtime.checkpoint_passes import Clusters, Passes
from mirrorflow_replicator.runtime.sides import Sides, missing_of
from mirrorflow_replicator.settings import CheckpointSettings, ClientSettings, ConnectorSettings

CONNECT_TIMEOUT_S = 20.0  # then the failure is told; the attempts go on
# Soon at first, for brokers restart in seconds and the source connector makes the offset-syncs topic within one.
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 30.0
# A list of groups that failed is asked for again after this, not after the ten minutes of a refresh.
REFRESH_RETRY_S = 10.0
NEVER = float("inf")

log = logging.getLogger("mirrorflow.worker")


class HostedCheckpoints:
    """See the module. `run` ends only by cancellation; everything else is always safe to ask."""

    def __init__(self, connector: ConnectorSettings, settings: CheckpointSettings) -> None:
        self._connector = connector
        self._settings = settings
        self._resolve = Resolver(settings.providers).resolve_client
        self._started_at_s = time.time()
        self._clusters: dict[frozenset[tuple[str, str]], Cluster] = {}
        self._sides = Sides(settings.source_alias, settings.target_alias)
        self._passed_s: float | None = None  # wall clock, of the last whole pass
        self._passes: Passes | None = None  # once both clusters were reached
        self._opened = False
        self._problem: MirrorFlowError | None = None  # of the last pass; None while all is well
        self._failures = 0  # in a row
        self._errors: Counter[str] = Counter()
        self._warned: frozenset[str] = frozenset()
        self.target_cluster_id = ""
        self.heard_of_all = False  # whether every group was looked at once

    async def run(self) -> None:
        """Work until cancelled."""
        try:
            while True:
                try:
                    await self._follow(await self._open())
                except MirrorFlowError as error:
                    self._note(error)
                await asyncio.sleep(min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(self._failures - 1, 10)))
        finally:
            await asyncio.gather(*(cluster.close() for cluster in self._clusters.values()))

    async def stop(self, grace_s: float) -> None:
        """Nothing has to be ended in order: what was not written is found again by who comes next."""

    async def _open(self) -> Passes:
        if self._passes is None:
            settings = self._settings
            target = await self._cluster(settings.target_admin)
            self.target_cluster_id = target.cluster_id
            self._passes = Passes(
                settings,
                Clusters(
                    source=await self._cluster(settings.source_admin),
                    syncs=await self._cluster(
                        settings.source_consumer if settings.syncs_on_source else settings.target_consumer
                    ),
                    target=target,
                    reader=await self._cluster(settings.target_consumer),
                    writer=await self._cluster(settings.target_producer),
                ),
            )
        if not self._opened:
            await self._passes.open()
            self._opened = True
        return self._passes

    async def _cluster(self, client: ClientSettings) -> Cluster:
        """One for all clients that come in by the same way as the same user."""
        way = frozenset({"alias": client.alias, **shared(client.properties)}.items())
        if way not in self._clusters:
            self._clusters[way] = await Cluster.connect(
                client, resolve=self._resolve, timeout_s=CONNECT_TIMEOUT_S
            )
            self._sides.connected(self._clusters[way])
        return self._clusters[way]

    async def _follow(self, passes: Passes) -> None:
        """Passes for ever, until a cluster fails."""
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
            if emits or syncs:
                await passes.look()
                # Also where only groups are due: none is moved to where no checkpoint says that it stands.
                await passes.write()
            if emits:
                emit_at = now() + (settings.emit_s or NEVER)
            if syncs:
                await passes.sync()
                sync_at = now() + (settings.sync_s or NEVER)
            self._tell(passes)
            self._problem, self._failures, self.heard_of_all = None, 0, True
            self._passed_s = time.time()
            await asyncio.sleep(max(0.0, min(refresh_at, emit_at, sync_at) - now()))

    async def _refresh(self, passes: Passes) -> float:
        """Seconds until the next one."""
        try:
            await passes.refresh()
        except ClusterError as error:
            if not self.heard_of_all:
                raise
            # The groups of before are still looked at: a broker that is down must not hold them up.
            self._errors[error.reason] += 1
            log.warning("%s: groups cannot be listed: %s", self._connector.name, error)
            return REFRESH_RETRY_S
        return self._settings.refresh_groups_s or NEVER

    def _tell(self, passes: Passes) -> None:
        """Each warning once, until it is over."""
        warnings = passes.warnings
        for warning in warnings:
            if warning not in self._warned:
                log.warning("%s: %s", self._connector.name, warning)
        self._warned = frozenset(warnings)

    def _note(self, error: MirrorFlowError) -> None:
        if self._problem is None or self._problem.reason != error.reason:
            # By its reason: what a lost connection says changes from one attempt to the next.
            log.warning("%s: %s", self._connector.name, error)
        self._problem = error
        if self._passes is None:
            self._sides.note(error)
        self._errors[error.reason] += 1
        self._failures += 1

    @property
    def _warnings(self) -> tuple[str, ...]:
        passes = () if self._passes is None else self._passes.warnings
        clusters = (warning for cluster in self._clusters.values() for warning in cluster.warnings)
        return (*passes, *dict.fromkeys(clusters))

    def _groups(self, passes: Passes) -> GroupsReport:
        due = [every_s for every_s in (self._settings.emit_s, self._settings.sync_s) if every_s is not None]
        # Who is to write nothing misses no pass.
        passed_s = time.time() if self.heard_of_all and not due and self._problem is None else self._passed_s
        return replace(passes.report, passed_s=passed_s, interval_s=min(due, default=None))

    def report(self) -> ConnectorReport:
        """The connector now."""
        settings, problem = self._settings, self._problem
        state = "RUNNING" if self._opened else "UNASSIGNED"
        trace = reason = ""
        if problem is not None:
            state, trace, reason = "FAILED", str(problem), problem.reason
        task = TaskReport(task=0, state=state, trace=trace, reason=reason, errors=dict(self._errors))
        source, target = self._sides.reports(self._clusters.values())
        return ConnectorReport(
            name=self._connector.name,
            connector_class=self._connector.connector_class,
            flow=settings.flow,
            source_alias=settings.source_alias,
            target_alias=settings.target_alias,
            properties=self._connector.properties,
            state=state,
            trace=trace,
            reason=reason,
            started_at_s=self._started_at_s,
            now_s=time.time(),
            tasks=(task,),
            task_properties=(dict(self._connector.properties),),
            topics=(self._passes.topic,)
            if self._passes is not None and self._passes.report.checkpoints
            else (),
            warnings=self._warnings,
            groups=None if self._passes is None else self._groups(self._passes),
            source=source,
            target=target,
            missing=missing_of(problem),
        )

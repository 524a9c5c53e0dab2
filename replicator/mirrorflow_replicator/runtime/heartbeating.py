"""One MirrorHeartbeatConnector in this process: a heartbeat each interval, and what it says of itself.

    connect ──> topic there? create it ──> write ──> sleep until the next is due ──┐
       ^                                    ^──────────────────────────────────────┘
       └── any error: told, then again after a back-off

Promises: Java's bytes (`connect.mirror_records`) at Java's place, partition 0 of the policy's heartbeats topic; what was
missed is never written later, for a heartbeat says when it was written; one cluster's failure does not hold up another's.
There is no task process: one record each second does not need one.
"""

import asyncio
import logging
import time
from collections import Counter

from mirrorflow_replicator.connect.mirror_records import (
    Heartbeat,
    encode_heartbeat_key,
    encode_heartbeat_value,
)
from mirrorflow_replicator.connect.plugins import make_replication_policy
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.errors import MirrorFlowError, UnreachableError
from mirrorflow_replicator.flow.report import (
    ConnectorReport,
    HeartbeatReport,
    SideReport,
    TaskReport,
    worst_side,
)
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.credentials import Resolve
from mirrorflow_replicator.kafka.mirror_log import append, create_mirror_topic
from mirrorflow_replicator.runtime.sides import Sides, missing_of
from mirrorflow_replicator.settings import BeatSettings, ClientSettings, ConnectorSettings, HeartbeatSettings
from mirrorflow_replicator.wire.records import Record

CONNECT_TIMEOUT_S = 20.0  # then the failure is told; the attempts go on
# A frozen broker would otherwise be waited for until the connection's own limit, and nothing would be told meanwhile.
WRITE_TIMEOUT_S = 10.0
# Soon at first, for brokers restart in seconds; and not as rarely as elsewhere, for who watches heartbeats takes a long
# silence after a cluster's return for a loss. One attempt costs a few small requests.
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 5.0
REPLICATION_FACTOR_KEY = "heartbeats.topic.replication.factor"

log = logging.getLogger("mirrorflow.worker")


class Beats:
    """The heartbeats to one cluster. `run` ends only by cancellation; everything else is always safe to ask."""

    def __init__(
        self,
        settings: BeatSettings,
        *,
        name: str,
        topic: str,
        replication_factor: int,
        interval_s: float,
        resolve: Resolve,
    ) -> None:
        self.settings = settings
        self.topic = topic
        self.newest_ms = -1  # of the last heartbeat that was acknowledged
        self.problem: MirrorFlowError | None = None  # of the last attempt; None while all is well
        self.errors: Counter[str] = Counter()
        self.cluster_id = ""
        self._name = name  # of the connector, for the log
        self._replication_factor = replication_factor
        self._interval_s = interval_s
        self._resolve = resolve
        self._failures = 0  # in a row
        self._cluster: Cluster | None = None
        self._sides = Sides(settings.source_alias, settings.target_alias)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What its connections say of themselves."""
        return () if self._cluster is None else self._cluster.warnings

    async def run(self) -> None:
        """Write until cancelled."""
        try:
            while True:
                try:
                    await self._beat()
                except MirrorFlowError as error:
                    self._note(error)
                await asyncio.sleep(min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(self._failures - 1, 10)))
        finally:
            if self._cluster is not None:
                await self._cluster.close()

    async def _beat(self) -> None:
        """Heartbeats for ever, until one fails."""
        if self._cluster is None:
            self._cluster = await self._connect(self.settings.producer)
            self._sides.connected(self._cluster)
            self.cluster_id = self._cluster.cluster_id
        cluster = self._cluster
        await self._ensure_topic(cluster)
        now = asyncio.get_running_loop().time
        due = now()
        while True:
            await self._write(cluster)
            self.problem, self._failures = None, 0
            # From the last one due, so that the interval is kept; from now where that has passed, so that none is made up for.
            due = max(due + self._interval_s, now())
            await asyncio.sleep(due - now())

    @property
    def side(self) -> SideReport:
        """Whether the cluster can be used."""
        return self._sides.reports(() if self._cluster is None else (self._cluster,))[1]

    async def _connect(self, client: ClientSettings) -> Cluster:
        return await Cluster.connect(client, resolve=self._resolve, timeout_s=CONNECT_TIMEOUT_S)

    async def _ensure_topic(self, cluster: Cluster) -> None:
        """By the admin client alone, and only where it is needed: who only writes needs no right to create."""
        await cluster.refresh([self.topic])
        if cluster.leader(self.topic, 0) is not None:
            return
        admin = await self._connect(self.settings.admin)
        try:
            await create_mirror_topic(
                admin, self.topic, replication_factor=self._replication_factor, key=REPLICATION_FACTOR_KEY
            )
        finally:
            await admin.close()
        await cluster.refresh([self.topic])

    async def _write(self, cluster: Cluster) -> None:
        now_ms = time.time_ns() // 1_000_000
        beat = Heartbeat(
            source_alias=self.settings.source_alias,
            target_alias=self.settings.target_alias,
            timestamp_ms=now_ms,
        )
        record = Record(0, now_ms, encode_heartbeat_key(beat), encode_heartbeat_value(beat))
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await append(cluster, self.topic, [record])
        except TimeoutError:
            raise UnreachableError(
                cluster=cluster.alias,
                addresses=self.settings.producer.bootstrap_servers,
                problem=f"a heartbeat was not acknowledged within {WRITE_TIMEOUT_S:g} s",
            ) from None
        self.newest_ms = now_ms

    def _note(self, error: MirrorFlowError) -> None:
        if self.problem is None or self.problem.reason != error.reason:
            # By its reason: what a lost connection says changes from one attempt to the next.
            log.warning("%s: %s", self._name, error)
        self.problem = error
        if self._cluster is None:
            self._sides.note(error)
        self.errors[error.reason] += 1
        self._failures += 1


class HostedHeartbeats:
    """See the module."""

    heard_of_all = True  # there is no partition to be heard of; `report` tells whether it works

    def __init__(self, connector: ConnectorSettings, settings: HeartbeatSettings) -> None:
        self._connector = connector
        self._settings = settings
        self._started_at_s = time.time()
        resolve = Resolver(settings.providers).resolve_client
        topic = make_replication_policy(settings).heartbeats_topic()
        self._beats = tuple(
            Beats(
                beat,
                name=connector.name,
                topic=topic,
                replication_factor=settings.replication_factor,
                interval_s=settings.interval_s,
                resolve=resolve,
            )
            for beat in settings.beats
        )

    async def run(self) -> None:
        """Write to every cluster until cancelled."""
        async with asyncio.TaskGroup() as group:
            for beats in self._beats:
                group.create_task(beats.run(), name=f"heartbeats-{beats.settings.target_alias}")

    async def stop(self, grace_s: float) -> None:
        """Nothing has to be ended in order: a heartbeat that was not acknowledged is as good as none."""

    @property
    def target_cluster_id(self) -> str:
        """The target's own id; "" before it was reached, or where nothing is written to it."""
        target = self._settings.target_alias
        ids = (one.cluster_id for one in self._beats if one.settings.target_alias == target)
        return next(ids, "")

    def report(self) -> ConnectorReport:
        """The connector now. Its state is the first cluster's, the target; another one's failure is a warning."""
        first, *others = self._beats
        state = "UNASSIGNED" if first.newest_ms < 0 else "RUNNING"
        trace = reason = ""
        if first.problem is not None:
            state, trace, reason = "FAILED", str(first.problem), first.problem.reason
        errors: Counter[str] = Counter()
        for beats in self._beats:
            errors.update(beats.errors)
        written = tuple(
            HeartbeatReport(cluster=one.settings.target_alias, topic=one.topic, timestamp_ms=one.newest_ms)
            for one in self._beats
            if one.newest_ms >= 0
        )
        return ConnectorReport(
            name=self._connector.name,
            connector_class=self._connector.connector_class,
            flow=self._settings.flow,
            source_alias=self._settings.source_alias,
            target_alias=self._settings.target_alias,
            properties=self._connector.properties,
            state=state,
            trace=trace,
            reason=reason,
            started_at_s=self._started_at_s,
            now_s=time.time(),
            tasks=(TaskReport(task=0, state=state, trace=trace, reason=reason, errors=dict(errors)),),
            task_properties=(dict(self._connector.properties),),
            topics=tuple(dict.fromkeys(one.topic for one in written)),
            warnings=(
                *(
                    f"No heartbeats to {one.settings.target_alias}: {one.problem}"
                    for one in others
                    if one.problem
                ),
                *(warning for one in self._beats for warning in one.warnings),
            ),
            heartbeats=written,
            source=self._side(self._settings.source_alias),
            target=self._side(self._settings.target_alias),
            missing=missing_of(first.problem),
        )

    def _side(self, alias: str) -> SideReport:
        return worst_side(one.side for one in self._beats if one.settings.target_alias == alias)

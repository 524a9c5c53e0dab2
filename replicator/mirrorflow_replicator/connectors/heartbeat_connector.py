"""Writes heartbeats (MirrorHeartbeatConnector), and monitors those that a source connector has copied.

    connect ──> topic missing? create it ──> write ──> sleep until the next is due ──┐
       ^                                       ^─────────────────────────────────────┘
       └── any error: reported, retried after a backoff

Guarantees: Java's bytes (`connect.mirror_records`) where Java writes them, in partition 0 of the policy's heartbeats topic; a
missed heartbeat is never written later, because a heartbeat carries the time of its writing; a failure of one cluster does not
delay another's heartbeats. There is no task process: one record each second does not need one.

    source: `heartbeats`, `B.heartbeats` ── copied like any topic ──> target: `A.heartbeats`, `A.B.heartbeats`

The monitor reads the end of each copy every few seconds, independently of the copying: a check where records are copied would
show that something is sent, not that it arrives. What cannot be read keeps its last heartbeat, which grows old, as it should.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from mirrorflow_core.connect.mirror_records import (
    Heartbeat,
    decode_heartbeat,
    encode_heartbeat_key,
    encode_heartbeat_value,
)
from mirrorflow_core.errors import MirrorFlowError, UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import (
    ConnectorReport,
    HeartbeatReport,
    SideReport,
    TaskReport,
    worst_side,
)
from mirrorflow_core.settings import BeatSettings, ClientSettings, ConnectorSettings, HeartbeatSettings
from mirrorflow_core.wire import error_codes
from mirrorflow_core.wire.records import Record
from mirrorflow_core.wire.records import decode as decode_records
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import append, create_mirror_topic
from mirrorflow_replicator.config.plugins import make_replication_policy
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.connector_state import ClusterClients, RetryState, report_of
from mirrorflow_replicator.connectors.topic_discovery import TopicDiscovery

# Without it, a frozen broker would delay the report of the failure until the connection times out.
WRITE_TIMEOUT_S = 10.0
# Short at first, because brokers restart in seconds. The longest pause is shorter than elsewhere, because
# monitors take a long silence after a cluster's return for a loss. One attempt costs a few small requests.
RETRY_MAX_S = 5.0
REPLICATION_FACTOR_KEY = "heartbeats.topic.replication.factor"

MONITOR_INTERVAL_S = 3.0  # interval of the monitor; heartbeats come each second by default
MONITORED_TOPICS_MAX = 50  # one for each upstream cluster; of more, the first by name are shown
# The last offset may be a transaction marker, or removed by compaction. Heartbeats are 100 bytes, and a batch
# is returned whole.
LOOK_BACK_RECORDS = 32
LOOK_BACK_BYTES = 16 << 10

log = logging.getLogger("mirrorflow.worker")


class HeartbeatWriter:
    """Writes heartbeats to one cluster.

    `run` ends only by cancellation; everything else is safe to read at any time.
    """

    def __init__(self, name: str, beat: BeatSettings, settings: HeartbeatSettings) -> None:
        self.settings = beat
        self.topic = make_replication_policy(settings).heartbeats_topic()
        # Timestamp of the last heartbeat that was acknowledged; None: none was yet.
        self.newest_ms: int | None = None
        self.errors: Counter[str] = Counter()
        self.cluster_id: str | None = None
        self._retry = RetryState(name, pause_max_s=RETRY_MAX_S)
        self._replication_factor = settings.replication_factor
        self._interval_s = settings.interval_s
        self._resolve = Resolver(settings.providers).resolve_client
        self._cluster: Cluster | None = None
        self._sides = ClusterClients(beat.source_alias, beat.target_alias)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of its connection."""
        return () if self._cluster is None else self._cluster.warnings

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._write_heartbeats()
                except MirrorFlowError as error:
                    self._note(error)
                await asyncio.sleep(self._retry.pause_s)
        finally:
            if self._cluster is not None:
                await self._cluster.close()

    async def _write_heartbeats(self) -> None:
        """Writes heartbeats until one fails."""
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
            self._retry.succeeded()
            # From the last due time, to keep the interval; from now if that has passed, so that missed ones
            # are not made up for.
            due = max(due + self._interval_s, now())
            await asyncio.sleep(due - now())

    @property
    def problem(self) -> MirrorFlowError | None:
        return self._retry.problem

    @property
    def side(self) -> SideReport:
        return self._sides.reports(() if self._cluster is None else (self._cluster,))[1]

    async def _connect(self, client: ClientSettings) -> Cluster:
        return await Cluster.connect(client, resolve=self._resolve)

    async def _ensure_topic(self, cluster: Cluster) -> None:
        """Creates the topic with the admin client if it is missing. A producer alone needs no right to create."""
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
        self._retry.failed(error)
        if self._cluster is None:
            self._sides.note(error)
        self.errors[error.reason] += 1


class HeartbeatConnector:
    """Runs the heartbeats of one connector to each of its clusters."""

    has_reported_all = True  # it has no partitions; `report` shows whether it works

    def __init__(self, connector: ConnectorSettings, settings: HeartbeatSettings) -> None:
        self._connector = connector
        self._settings = settings
        self._started_at_s = time.monotonic()
        self._writers = tuple(HeartbeatWriter(connector.name, beat, settings) for beat in settings.beats)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for writer in self._writers:
                group.create_task(writer.run(), name=f"heartbeats-{writer.settings.target_alias}")

    async def stop(self, grace_s: float) -> None:
        """Does nothing: an unacknowledged heartbeat is as good as none."""

    @property
    def target_cluster_id(self) -> str | None:
        target = self._settings.target_alias
        ids = (writer.cluster_id for writer in self._writers if writer.settings.target_alias == target)
        return next(ids, None)

    def report(self) -> ConnectorReport:
        """Returns the current report.

        Its state is that of the first cluster, the target; failures of others are warnings.
        """
        first, *others = self._writers
        state = "UNASSIGNED" if first.newest_ms is None else "RUNNING"
        report = report_of(
            self._connector,
            self._settings,
            state=state if first.problem is None else "FAILED",
            problem=first.problem,
            started_at_s=self._started_at_s,
        )
        errors: Counter[str] = Counter()
        for writer in self._writers:
            errors.update(writer.errors)
        written = tuple(
            HeartbeatReport(
                cluster=writer.settings.target_alias, topic=writer.topic, timestamp_ms=writer.newest_ms
            )
            for writer in self._writers
            if writer.newest_ms is not None
        )
        return replace(
            report,
            tasks=(
                TaskReport(
                    task=0, state=report.state, trace=report.trace, reason=report.reason, errors=dict(errors)
                ),
            ),
            topics=tuple(dict.fromkeys(report.topic for report in written)),
            warnings=(
                *(
                    f"No heartbeats to {other.settings.target_alias}: {other.problem}"
                    for other in others
                    if other.problem
                ),
                *(warning for writer in self._writers for warning in writer.warnings),
            ),
            heartbeats=written,
            source=self._side(self._settings.source_alias),
            target=self._side(self._settings.target_alias),
        )

    def _side(self, alias: str) -> SideReport:
        return worst_side(writer.side for writer in self._writers if writer.settings.target_alias == alias)


class HeartbeatMonitor:
    """Reads the copied heartbeats of one flow. `run` ends only by cancellation; everything else is safe at any time."""

    def __init__(self, name: str, is_heartbeats_topic: Callable[[str], bool]) -> None:
        self.problem: MirrorFlowError | None = None  # of the last check; None while all is well
        self._name = name
        self._is_heartbeats_topic = is_heartbeats_topic
        self._newest: dict[str, int] = {}  # target topic -> timestamp in ms
        self._read_to: dict[TopicPartition, int] = {}

    def report(self, cluster: str) -> tuple[HeartbeatReport, ...]:
        return tuple(
            HeartbeatReport(cluster=cluster, topic=topic, timestamp_ms=timestamp)
            for topic, timestamp in sorted(self._newest.items())
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the reported heartbeats may not be the newest."""
        return () if self.problem is None else (f"Reading copied heartbeats failed: {self.problem}",)

    async def run(self, copying: TopicDiscovery) -> None:
        while True:
            await asyncio.sleep(MONITOR_INTERVAL_S)
            copies = sorted(
                target for source, target in copying.names.items() if self._is_heartbeats_topic(source)
            )[:MONITORED_TOPICS_MAX]
            for gone in self._newest.keys() - set(copies):
                del self._newest[gone]
            if not copies:
                continue
            try:
                await self.read_ends(copying.clusters[1], copies)
            except MirrorFlowError as error:
                if self.problem is None or self.problem.reason != error.reason:
                    log.warning("%s: reading copied heartbeats failed: %s", self._name, error)
                self.problem = error
            else:
                self.problem = None

    async def read_ends(self, cluster: Cluster, topics: Sequence[str]) -> None:
        """Reads the ends of *topics* where they have moved. Heartbeats are in partition 0.

        Raises ClusterError; whatever could be read was read by then.
        """
        wanted = [TopicPartition(topic, 0) for topic in topics]
        ends = await admin.list_offsets(cluster, wanted, LATEST)
        moved = {
            partition: end.offset
            for partition, end in ends.items()
            if not end.error and self._read_to.get(partition) != end.offset
        }
        # Never read, or the topic was re-created since.
        unread = [
            partition for partition, end in moved.items() if self._read_to.get(partition, end + 1) > end
        ]
        starts = await admin.list_offsets(cluster, unread, EARLIEST) if unread else {}
        for partition, end in moved.items():
            begin = starts[partition].offset if partition in starts else self._read_to[partition]
            # Removed until it has been read: if its beginning was deleted meanwhile, the first offset is
            # requested again.
            self._read_to.pop(partition, None)
            newest = await _newest(cluster, partition, max(begin, end - LOOK_BACK_RECORDS), end)
            self._read_to[partition] = end
            if newest is not None and newest >= 0:
                self._newest[partition.topic] = newest
        for partition, listed in ends.items():
            if not error_codes.is_retriable(listed.error):
                error_codes.raise_for(
                    listed.error, cluster=cluster.alias, request="ListOffsets", subject=partition.topic
                )


async def _newest(cluster: Cluster, partition: TopicPartition, start: int, end: int) -> int | None:
    """Returns the latest timestamp of the heartbeats between two offsets; None if there are none."""
    newest: int | None = None
    batches = batches_between(
        cluster, partition, start, end, max_bytes=LOOK_BACK_BYTES, unserved_max_s=MONITOR_INTERVAL_S
    )
    async for batch, _ in batches:
        if batch.is_control:
            continue
        for record in decode_records(batch):
            try:
                heartbeat = decode_heartbeat(record.key, record.value)
            except ValueError:
                continue  # records of other applications
            newest = heartbeat.timestamp_ms if newest is None else max(newest, heartbeat.timestamp_ms)
    return newest

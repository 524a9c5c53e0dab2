"""Hosts the connectors of a worker: their common interface, how each class is created, and connectors that copy nothing.

`create_connector` is the only place that knows all classes: it maps settings to the object that runs them.

A paused source connector writes nothing, but still reports the lag:

    connect both ──> stored offsets, topics, end offsets ──> sleep ──┐
        ^                    ^───────────────────────────────────────┘
        └── any error: reported, retried after a backoff

It reports for each partition the stored offset, where the next copier begins, and the current end of the source.
The offsets topic is created if it is missing, as by any worker that starts.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.replication_policy import flow_name
from mirrorflow_core.reports import ConnectorReport, PartitionPhase, PartitionReport, TaskReport, known_number
from mirrorflow_core.settings import ClientSettings, ConnectorSettings, SourceSettings, StartPosition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.position_store import PositionStore, position_store
from mirrorflow_replicator.config.connector_classes import simple_name
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.checkpoint_connector import CheckpointConnector
from mirrorflow_replicator.connectors.connector_state import ClusterClients, RetryState, report_of
from mirrorflow_replicator.connectors.heartbeat_connector import HeartbeatConnector
from mirrorflow_replicator.connectors.source_connector import SourceConnector
from mirrorflow_replicator.http.partition_rates import Samples

# Maximum age of the reported lag. It costs a few requests, however many partitions there are.
LAG_INTERVAL_S = 5.0
RETRY_MAX_S = 30.0  # after many failures in a row
PAUSED = "PAUSED"


class PausedSource:
    """One paused source connector. `run` ends only by cancellation; everything else is safe to read at any time."""

    def __init__(self, connector: ConnectorSettings, settings: SourceSettings, *, samples: Samples) -> None:
        self._connector = connector
        self._settings = settings
        self._samples = samples
        self._selection = make_selection(settings)
        self._resolve = Resolver(settings.providers).resolve_client
        self._started_at_s = time.monotonic()
        self._clusters: dict[str, Cluster] = {}
        self._store: PositionStore | None = None
        self._sides = ClusterClients(settings.source_alias, settings.target_alias)
        self._partitions: tuple[PartitionReport, ...] = ()
        self._retry = RetryState(connector.name, pause_max_s=RETRY_MAX_S)
        self.has_reported_all = False  # whether every partition was read once

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._read_lag()
                except MirrorFlowError as error:
                    self._retry.failed(error)
                    await asyncio.sleep(self._retry.pause_s)
                else:
                    self._retry.succeeded()
                    self.has_reported_all = True
                    await asyncio.sleep(LAG_INTERVAL_S)
        finally:
            await asyncio.gather(*(cluster.close() for cluster in self._clusters.values()))

    async def stop(self, grace_s: float) -> None:
        """Does nothing: no work is in progress."""

    @property
    def target_cluster_id(self) -> str | None:
        target = self._clusters.get("target")
        return None if target is None else target.cluster_id

    async def _read_lag(self) -> None:
        settings = self._settings
        source = await self._connect("source", settings.source_admin)
        target = await self._connect("target", settings.target_producer)
        if self._store is None:
            store = position_store(settings, target)
            await store.open()
            self._store = store
        else:
            await self._store.read_new()
        await source.refresh()
        partitions = sorted(
            TopicPartition(topic, number)
            for topic, metadata in source.metadata.topics.items()
            if not metadata.error
            and self._selection.selects(topic)
            and self._selection.obstacle(topic) is None
            for number in metadata.partitions
        )
        committed = settings.read_committed
        ends = await admin.list_offsets(source, partitions, LATEST, read_committed=committed)
        start_offsets = await self._start_offsets(source, partitions, self._store.positions)
        self._partitions = tuple(
            self._report(
                partition,
                self._store.positions.get(partition),
                start_offsets.get(partition),
                known_number(ends[partition].offset),
            )
            for partition in partitions
            if not ends[partition].error
        )
        self._samples.observe(self._connector.name, self._task(), time.monotonic())
        self._samples.retain(self._connector.name, self._partitions)

    async def _connect(self, side: str, client: ClientSettings) -> Cluster:
        if side not in self._clusters:
            try:
                cluster = await Cluster.connect(client, resolve=self._resolve)
            except MirrorFlowError as error:
                self._sides.note(error)
                raise
            self._sides.connected(cluster)
            self._clusters[side] = cluster
        return self._clusters[side]

    async def _start_offsets(
        self, source: Cluster, partitions: list[TopicPartition], positions: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, int]:
        """Returns the start offsets of partitions without a stored offset, where they are known before copying."""
        new = [partition for partition in partitions if partition not in positions]
        if not new or self._settings.start is not StartPosition.EARLIEST:
            return {}
        begins = await admin.list_offsets(source, new, EARLIEST)
        return {partition: begin.offset for partition, begin in begins.items() if not begin.error}

    def _report(
        self, partition: TopicPartition, position: Position | None, start_offset: int | None, end: int | None
    ) -> PartitionReport:
        return PartitionReport(
            topic=partition.topic,
            target_topic=self._selection.target_topic(partition.topic),
            partition=partition.partition,
            phase=PartitionPhase.WAITING,
            source_offset=start_offset if position is None else position.source_offset + 1,
            source_end_offset=end,
            # The records not copied came after that, unless the copier was behind already: the best estimate
            # without reading them.
            record_timestamp_ms=None if position is None else position.written_ms,
        )

    def _task(self) -> TaskReport:
        return TaskReport(task=0, state=PAUSED, partitions=self._partitions)

    def report(self) -> ConnectorReport:
        source, target = self._sides.reports(self._clusters.values())
        report = report_of(
            self._connector,
            self._settings,
            state=PAUSED,
            problem=self._retry.problem,
            started_at_s=self._started_at_s,
        )
        return replace(report, tasks=(self._task(),), source=source, target=target)


class IdleConnector:
    """Reports *state* for the connector with *properties* and for its tasks. *error* is why it failed."""

    has_reported_all = True
    target_cluster_id: str | None = None

    def __init__(
        self,
        name: str,
        properties: Mapping[str, str],
        *,
        state: str,
        tasks: Sequence[Mapping[str, str]] = (),
        error: MirrorFlowError | None = None,
    ) -> None:
        self._name = name
        self._properties = properties
        self._state = state
        self._tasks = tuple(tasks)
        self._error = error
        self._started_at_s = time.monotonic()

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def stop(self, grace_s: float) -> None:
        """Does nothing: no work is in progress."""

    def report(self) -> ConnectorReport:
        properties, error = self._properties, self._error
        source, target = (properties.get(f"{side}.cluster.alias", "") for side in ("source", "target"))
        return ConnectorReport(
            name=self._name,
            connector_class=simple_name(properties.get("connector.class", "")),
            flow=flow_name(properties.get("mirrorflow.flow", f"{source}->{target}")),
            source_alias=source,
            target_alias=target,
            properties=properties,
            state=self._state,
            trace=None if error is None else str(error),
            reason=None if error is None else error.reason,
            started_at_s=self._started_at_s,
            tasks=tuple(TaskReport(task=number, state=self._state) for number in range(len(self._tasks))),
            task_properties=self._tasks,
            has_reported_all=True,
        )


class RunningConnector(Protocol):
    """One connector in this process. It survives every MirrorFlowError, reports it, and retries."""

    async def run(self) -> None:
        """Runs until cancelled. If it ends by itself, the process ends: a bug must not go unnoticed."""

    async def stop(self, grace_s: float) -> None:
        """Stops its work gracefully; `run` is cancelled afterwards."""

    def report(self) -> ConnectorReport:
        """Returns the current report of the connector; safe at any time."""

    @property
    def has_reported_all(self) -> bool:
        """Whether everything it does was reported once; before that, nothing may count as caught up."""

    @property
    def target_cluster_id(self) -> str | None:
        """The target's cluster id; None before it was reached."""


@runtime_checkable
class RestartsTasks(Protocol):
    """A connector whose tasks have processes of their own."""

    def restart_task(self, task: int) -> None:
        """Restarts the process of one task gracefully; the new one continues from the stored offsets."""


def create_connector(connector: ConnectorSettings, *, samples: Samples) -> RunningConnector:
    """Returns what runs *connector*; an idle one if it is not enabled."""
    if connector.source is not None and connector.is_paused:
        return PausedSource(connector, connector.source, samples=samples)
    if connector.is_paused and connector.is_enabled:
        properties = connector.properties
        return IdleConnector(connector.name, properties, state=PAUSED, tasks=(properties,))
    if connector.source is not None:
        return SourceConnector(connector, connector.source, samples=samples)
    if connector.heartbeat is not None:
        return HeartbeatConnector(connector, connector.heartbeat)
    if connector.checkpoint is not None:
        return CheckpointConnector(connector, connector.checkpoint)
    if connector.schema is not None:
        # Most flows have no registries.
        from mirrorflow_replicator.connectors.schema_connector import SchemaConnector  # noqa: PLC0415

        return SchemaConnector(connector, connector.schema)
    return IdleConnector(connector.name, connector.properties, state="RUNNING")

"""A source connector that is paused: it copies, creates and writes nothing, and still says how far behind the target is.

    connect both ──> positions, topics, end offsets ──> sleep ──┐
        ^                    ^──────────────────────────────────┘
        └── any error: told, then again after a back-off

What it says of a partition is what the next copier will find: where the last one has left its position, and how far the
source has got since. The topic of positions is made if it is missing, as by any worker that starts.
"""

import asyncio
import logging
import time
from collections.abc import Mapping

from mirrorflow_replicator.connect.plugins import make_selection
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.connect.samples import Samples
from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.position import Position
from mirrorflow_replicator.flow.report import ConnectorReport, PartitionReport, Phase, TaskReport
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.known_positions import PositionStore
from mirrorflow_replicator.kafka.stores import position_store
from mirrorflow_replicator.kafka.witnesses import EARLIEST, LATEST
from mirrorflow_replicator.runtime.sides import Sides, missing_of
from mirrorflow_replicator.settings import ClientSettings, ConnectorSettings, SourceSettings, StartPosition

CONNECT_TIMEOUT_S = 20.0  # then the failure is told; the attempts go on
# How old the lag may be that is shown: a few requests, however many partitions there are.
LOOK_S = 5.0
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 30.0
PAUSED = "PAUSED"

log = logging.getLogger("mirrorflow.worker")


class PausedSource:
    """See the module. `run` ends only by cancellation; everything else is always safe to ask."""

    def __init__(self, connector: ConnectorSettings, settings: SourceSettings, *, samples: Samples) -> None:
        self._connector = connector
        self._settings = settings
        self._samples = samples
        self._selection = make_selection(settings)
        self._resolve = Resolver(settings.providers).resolve_client
        self._started_at_s = time.time()
        self._clusters: dict[str, Cluster] = {}
        self._store: PositionStore | None = None
        self._sides = Sides(settings.source_alias, settings.target_alias)
        self._partitions: tuple[PartitionReport, ...] = ()
        self._problem: MirrorFlowError | None = None
        self._failures = 0  # in a row
        self.heard_of_all = False  # whether every partition was looked at once

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                try:
                    await self._look()
                except MirrorFlowError as error:
                    self._note(error)
                    await asyncio.sleep(min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(self._failures - 1, 10)))
                else:
                    self._problem, self._failures, self.heard_of_all = None, 0, True
                    await asyncio.sleep(LOOK_S)
        finally:
            await asyncio.gather(*(cluster.close() for cluster in self._clusters.values()))

    async def stop(self, grace_s: float) -> None:
        """There is nothing under way."""

    @property
    def target_cluster_id(self) -> str:
        """The target's own id; "" before it was reached."""
        target = self._clusters.get("target")
        return "" if target is None else target.cluster_id

    async def _look(self) -> None:
        settings = self._settings
        source = await self._reach("source", settings.source_admin)
        target = await self._reach("target", settings.target_producer)
        if self._store is None:
            store = position_store(settings, target)
            await store.open()
            self._store = store
        else:
            await self._store.read_new()
        await source.refresh()
        partitions = sorted(
            TopicPartition(topic, number)
            for topic, found in source.metadata.topics.items()
            if not found.error and self._selection.selects(topic) and not self._selection.obstacle(topic)
            for number in found.partitions
        )
        committed = settings.read_committed
        ends = await admin.list_offsets(source, partitions, LATEST, read_committed=committed)
        begins = await self._begins(source, partitions, self._store.positions)
        self._partitions = tuple(
            self._report(one, self._store.positions.get(one), begins.get(one, -1), ends[one].offset)
            for one in partitions
            if not ends[one].error
        )
        self._samples.observe(self._connector.name, self._task(), time.time())
        self._samples.retain(self._connector.name, self._partitions)

    async def _reach(self, side: str, client: ClientSettings) -> Cluster:
        if side not in self._clusters:
            try:
                cluster = await Cluster.connect(client, resolve=self._resolve, timeout_s=CONNECT_TIMEOUT_S)
            except MirrorFlowError as error:
                self._sides.note(error)
                raise
            self._sides.connected(cluster)
            self._clusters[side] = cluster
        return self._clusters[side]

    async def _begins(
        self, source: Cluster, partitions: list[TopicPartition], positions: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, int]:
        """Where those begin that were never copied, as far as it is known before somebody begins with them."""
        new = [one for one in partitions if one not in positions]
        if not new or self._settings.start is not StartPosition.EARLIEST:
            return {}
        found = await admin.list_offsets(source, new, EARLIEST)
        return {one: answer.offset for one, answer in found.items() if not answer.error}

    def _report(
        self, partition: TopicPartition, position: Position | None, begin: int, end: int
    ) -> PartitionReport:
        return PartitionReport(
            topic=partition.topic,
            target_topic=self._selection.target_topic(partition.topic),
            partition=partition.partition,
            phase=Phase.WAITING,
            source_offset=begin if position is None else position.source_offset + 1,
            source_end_offset=end,
            target_offset=-1
            if position is None or position.target_offset < 0
            else position.target_offset + 1,
            # What is not copied has come since then, unless it was behind already: the best that is known without reading it.
            record_timestamp_ms=-1 if position is None else position.written_ms,
        )

    def _task(self) -> TaskReport:
        return TaskReport(task=0, state=PAUSED, partitions=self._partitions)

    def _note(self, error: MirrorFlowError) -> None:
        if self._problem is None or self._problem.reason != error.reason:
            # By its reason: what a lost connection says changes from one attempt to the next.
            log.warning("%s: %s", self._connector.name, error)
        self._problem = error
        self._failures += 1

    def report(self) -> ConnectorReport:
        """The connector now."""
        settings, problem = self._settings, self._problem
        source, target = self._sides.reports(self._clusters.values())
        return ConnectorReport(
            name=self._connector.name,
            connector_class=self._connector.connector_class,
            flow=settings.flow,
            source_alias=settings.source_alias,
            target_alias=settings.target_alias,
            properties=self._connector.properties,
            state=PAUSED,
            trace="" if problem is None else str(problem),
            reason="" if problem is None else problem.reason,
            started_at_s=self._started_at_s,
            now_s=time.time(),
            tasks=(self._task(),),
            task_properties=(dict(self._connector.properties),),
            source=source,
            target=target,
            missing=missing_of(problem),
        )

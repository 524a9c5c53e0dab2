"""Claims the flow for a seed or a restore, creates its target topics and reads its offsets.

The driver owns the flow in the name of its job (`connectors.flow_owner`): a running connector waits meanwhile, and
continues where the job ended. While the driver owns the flow, the job's tasks are the only writers of its partitions.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from mirrorflow_core.errors import ClusterError, MirrorFlowError, NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings, StartPosition
from mirrorflow_core.writer.flow_plan import was_recreated
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import consumed_batches
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster, connect_both
from mirrorflow_kafka.stores.identity_topic import HoldLog
from mirrorflow_replicator.config.connector_properties import offset_syncs_topic
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.flow_owner import FlowOwner
from mirrorflow_replicator.connectors.topic_sync import Arrangement, TopicSync
from mirrorflow_replicator.copy.offset_sync_writer import SyncsTopic
from mirrorflow_seed.errors import ForeignRecordsError
from mirrorflow_seed.seed.seed_plan import SeedLog, SeedRange

NAMED_MAX = 10  # topics in an error
FENCE_S = 20.0  # a stopped pod has one minute

log = logging.getLogger("mirrorflow.seed")


@dataclass(slots=True, kw_only=True)
class ClaimedFlow:
    """The flow that a driver fills: its connections to both clusters, and its ownership. Methods raise MirrorFlowError."""

    settings: SourceSettings
    source: Cluster
    target: Cluster
    hold_log: HoldLog
    group: str  # the job's name in the claim of the flow
    owner: FlowOwner
    # Jobs that held retention before this one owned the flow. They have ended, because it fences them.
    ended_holders: frozenset[str] = frozenset()
    # As of the last `read_positions`, without those of topics that were deleted since.
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    copied: set[TopicPartition] = field(default_factory=set)  # partitions that this flow may have written

    @classmethod
    async def open(cls, settings: SourceSettings, job: str) -> "ClaimedFlow":
        """Connects to both clusters with the flow's admin clients; *job* is its kind and run id.

        Raises ClusterError, SettingError, SameClusterError.
        """
        source, target = await connect_both(
            settings.source_admin, settings.target_admin, resolve=Resolver(settings.providers).resolve_client
        )
        flow = cls.over(settings, source, target, job)
        try:
            flow.require_no_loop()
        except MirrorFlowError:
            await flow.close()
            raise
        return flow

    @classmethod
    def over(cls, settings: SourceSettings, source: Cluster, target: Cluster, job: str) -> "ClaimedFlow":
        """Returns the flow over existing connections, which `close` closes."""
        # Unique, so that tasks of an earlier driver with the same run id do not continue under this one's claim.
        group = f"{job}-{secrets.token_hex(4)}"
        return cls(
            settings=settings,
            source=source,
            target=target,
            hold_log=HoldLog(
                target, settings.source_alias, replication_factor=settings.offsets.replication_factor
            ),
            group=group,
            owner=FlowOwner(settings, on_lost=lambda: None, group=group),
        )

    def require_no_loop(self) -> None:
        """Raises SameClusterError if both clusters are one and the copies keep their names."""
        self._topics().require_no_loop()

    async def close(self) -> None:
        """Releases the flow, so that its connector continues, and closes all connections."""
        await self.owner.leave(with_group=True)
        await asyncio.gather(self.source.close(), self.target.close())

    async def fence_tasks(self) -> None:
        """Aborts what cancelled tasks leave open, for which readers of committed records would wait.

        It takes the flow again under another name, so these tasks write no more. If that fails, the next owner does it.
        """
        try:
            async with asyncio.timeout(FENCE_S):
                await self.owner.require_lock()  # else another job has taken the flow, and fenced them
                await self.owner.leave()
                self.owner = FlowOwner(self.settings, on_lost=lambda: None, group=f"{self.group}-stopped")
                await self.owner.own((self.source, self.target), ((),), preempts=True)
        except (MirrorFlowError, TimeoutError) as error:
            log.warning(
                "Cancelled tasks are not fenced yet: %s", error or f"no response within {FENCE_S:g} s"
            )

    async def arrange(self) -> Arrangement:
        """Creates and grows the target topics as the connector does, and creates the offset-syncs topic.

        Raises SameClusterError before it writes anything.
        """
        arrangement = await self._topics().arrange()
        settings = self.settings
        if settings.syncs is not None:
            resolve = Resolver(settings.providers).resolve_client
            await SyncsTopic(
                settings.syncs,
                offset_syncs_topic(settings, on_source=settings.syncs.on_source),
                resolve=resolve,
            ).ensure()
        return arrangement

    async def sync_configs(self, names: Mapping[str, str], *, held: Collection[str]) -> None:
        """Syncs the topic settings of *names* once, as the connector does, if the flow enables it."""
        if self.settings.sync_configs_s is not None:
            for sentence in await self._topics().sync_configs(names, held=held):
                log.warning("%s", sentence)

    def _topics(self) -> TopicSync:
        selection = make_selection(self.settings)
        return TopicSync(self.source, self.target, settings=self.settings, selection=selection)

    async def claim(self) -> bool:
        """Takes the flow, also from a running process; returns whether it had no owner before."""
        # Read before: a job that takes the flow from this one is not among them. One that may not read holds nothing either.
        with contextlib.suppress(NotAuthorizedError):
            if await self.hold_log.exists():
                self.ended_holders = (await self.hold_log.read()).holders
        await self.owner.own((self.source, self.target), ((),), preempts=True)
        await self.hold_log.ensure()
        await self.read_positions()
        return self.owner.is_first

    async def read_positions(self) -> None:
        """Reads how far each partition is copied, whichever process has stored that.

        Topics have the ids of the last `arrange`. Where one was deleted since its position was stored, nothing is known to be copied:
        the partition goes to a task, which continues, or refuses, as the loss policy says.
        """
        positions = await self.owner.positions()
        self.next_offsets = {
            partition: position.next_source_offset
            for partition, position in positions.items()
            if not self._is_of_deleted_topic(position)
        }
        self.copied = {
            partition
            for partition, position in positions.items()
            if not position.is_of_empty_copy and not self._is_of_deleted_copy(position)
        }

    def _is_of_deleted_topic(self, position: WriterPosition) -> bool:
        """Returns whether a topic of *position*, on either side, was created again since it was stored."""
        return self._is_of_deleted_copy(position) or was_recreated(
            position.source_topic_id, self.source.metadata.topic_id(position.topic)
        )

    def _is_of_deleted_copy(self, position: WriterPosition) -> bool:
        """Returns whether the copy was created again: that in *position*, as a flow continues in another one if its naming changes."""
        return was_recreated(position.target_topic_id, self.target.metadata.topic_id(position.target_topic))

    async def store_starts(self, ranges: Iterable[SeedRange]) -> None:
        """Stores the start offsets of partitions that were never copied.

        Without them, a task that begins hours later would not notice records that the source deleted meanwhile.
        """
        await self.owner.store_starts(
            {
                seed_range.source: seed_range.start
                for seed_range in ranges
                if seed_range.start < seed_range.end
            }
        )

    async def source_logs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, SeedLog]:
        """Returns the offsets and sizes of *partitions* on the source, up to its isolation level's end."""
        wanted = tuple(partitions)
        starts = await admin.offsets_at(self.source, wanted, EARLIEST)
        ends = await admin.offsets_at(
            self.source, wanted, LATEST, read_committed=self.settings.read_committed
        )
        sizes = await self._sizes()
        return {
            partition: SeedLog(
                start=starts[partition],
                end=max(starts[partition], ends[partition]),
                bytes=sizes.get(partition),
            )
            for partition in wanted
        }

    async def _sizes(self) -> Mapping[TopicPartition, int]:
        try:
            return await admin.log_sizes(self.source)
        except ClusterError:
            return {}  # not permitted, or not supported by the broker: the plan then estimates sizes

    async def start_offsets(
        self, logs: Mapping[TopicPartition, SeedLog], *, initial: bool
    ) -> dict[TopicPartition, int]:
        """Returns the start offsets of partitions that were never copied; empty if they start at the log start."""
        start = self.settings.start if initial else StartPosition.EARLIEST
        if start is StartPosition.EARLIEST:
            return {}
        if start is StartPosition.LATEST:
            return {partition: log.end for partition, log in logs.items()}
        offsets = await admin.offsets_at(self.source, tuple(logs), self.settings.start_timestamp_ms)
        return {
            partition: log.end if offsets[partition] < 0 else offsets[partition]
            for partition, log in logs.items()
        }

    async def require_no_foreign_records(self, arrangement: Arrangement) -> None:
        """Raises ForeignRecordsError if a copy holds committed records that this flow has not written.

        Markers and aborted records do not count: a job that was refused leaves its own there, without a position.
        """
        names = arrangement.names
        unknown = [partition for partition in arrangement.partitions if partition not in self.copied]
        copies = [TopicPartition(names[partition.topic], partition.partition) for partition in unknown]
        starts = await admin.offsets_at(self.target, copies, EARLIEST)
        ends = await admin.offsets_at(self.target, copies, LATEST, read_committed=True)
        foreign: set[str] = set()
        for copy in copies:
            if copy.topic not in foreign and await self._has_records(copy, starts[copy], ends[copy]):
                foreign.add(copy.topic)
        if foreign:
            topics = tuple(sorted(foreign))
            raise ForeignRecordsError(topics=topics[:NAMED_MAX], more=len(topics[NAMED_MAX:]))

    async def _has_records(self, copy: TopicPartition, start: int, end: int) -> bool:
        async for batch in consumed_batches(self.target, copy, start, end, read_committed=True):
            if batch.count:
                return True
        return False

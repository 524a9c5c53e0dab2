"""Reads from both clusters what the driver needs to plan a wave. Raises ClusterError."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.exactly_once.identity import Beginning, Identity
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings, StartPosition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.target_probe import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.cluster_pair import connect_both
from mirrorflow_kafka.stores.decision_log import DecisionLog
from mirrorflow_kafka.stores.offset_stores import position_store
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_replicator.config.offset_sync_settings import offset_syncs_topic
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.config.topic_config_rules import make_config_rules
from mirrorflow_replicator.connectors.flow_owner import FlowOwner
from mirrorflow_replicator.connectors.topic_sync import Arrangement, TopicSync
from mirrorflow_replicator.copy.offset_sync_writer import SyncsTopic
from mirrorflow_replicator.copy.resume.identity_resolution import identify
from mirrorflow_replicator.process.clock import now_ms
from mirrorflow_seed.errors import ForeignRecordsError
from mirrorflow_seed.seed.plan import SeedLog, SeedShare, foreign_topics

NAMED_MAX = 10  # topics in an error
PLANNED = "seed"  # the reason stored with a beginning

log = logging.getLogger("mirrorflow.seed")


@dataclass(slots=True, kw_only=True)
class SeedSurvey:
    """The driver's own connections to both clusters, and the stores it has read over them."""

    settings: SourceSettings
    source: Cluster
    target: Cluster
    store: PositionStore
    decisions: DecisionLog
    owner: FlowOwner | None  # None: the first writer, whose processes share the flow
    # By partition, as stored by owners when last read.
    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    async def open(cls, settings: SourceSettings, group: str) -> "SeedSurvey":
        """Connects to both clusters with the flow's admin clients; *group* is the job's name in claims."""
        source, target = await connect_both(
            settings.source_admin,
            settings.target_admin,
            resolve=Resolver(settings.providers).resolve_client,
        )
        return cls.over(settings, source, target, group)

    @classmethod
    def over(
        cls, settings: SourceSettings, source: Cluster, target: Cluster, group: str = ""
    ) -> "SeedSurvey":
        """Uses existing connections and takes ownership of them."""
        return cls(
            settings=settings,
            source=source,
            target=target,
            store=position_store(settings, target),
            decisions=DecisionLog(
                target, settings.source_alias, replication_factor=settings.offsets.replication_factor
            ),
            owner=FlowOwner(settings, on_lost=lambda: None, group=group)
            if settings.has_owner and group
            else None,
        )

    async def close(self) -> None:
        """Gives the flow up and closes all connections."""
        if self.owner is not None:
            await self.owner.leave(with_group=True)
        await asyncio.gather(self.source.close(), self.target.close())

    async def arrange(self) -> Arrangement:
        """Creates and grows the target topics as the connector does, and creates the offset-syncs topic."""
        settings = self.settings
        if settings.syncs is not None:
            resolve = Resolver(settings.providers).resolve_client
            await SyncsTopic(settings.syncs, offset_syncs_topic(settings), resolve=resolve).ensure()
        return await self._topics().arrange()

    async def sync_configs(self, names: Mapping[str, str], *, held: Collection[str]) -> None:
        """Syncs the topic settings of *names* once, as the connector does, if the flow enables it."""
        if self.settings.sync_configs_s is not None:
            for sentence in await self._topics().sync_configs(names, held=held):
                log.warning("%s", sentence)

    def _topics(self) -> TopicSync:
        return TopicSync(
            self.source,
            self.target,
            selection=make_selection(self.settings),
            rules=make_config_rules(self.settings),
            replication_factor=self.settings.replication_factor,
            report_only=self.settings.configs_report_only,
        )

    async def identify(self) -> tuple[Identity | None, bool]:
        """Returns the identity that all tasks write with, and whether the flow begins with this job.

        Where the flow has owners there is no identity: this job takes the flow, and its connector waits.
        """
        if self.owner is not None:
            await self.owner.own((self.source, self.target), ((),), preempts=True)
            await self.decisions.ensure()
            await self.read_positions()
            return None, self.owner.is_first
        found = await identify(self.settings, self.source, self.target, may_change=True)
        await asyncio.gather(self.store.open(), self.decisions.ensure())
        await self.decisions.read()
        return found.identity, found.is_first

    async def read_positions(self) -> None:
        """Reads new positions, whichever process has stored them."""
        if self.owner is not None:
            self.next_offsets = await self.owner.next_offsets()
        else:
            await self.store.read_new()

    def known(self) -> dict[TopicPartition, int]:
        """Next source offset of each partition ever copied, as stored; 0 if only its anchor is known."""
        if self.owner is not None:
            return dict(self.next_offsets)
        known = dict.fromkeys(self.decisions.decisions.partitions(), 0)
        return known | {partition: one.source_offset + 1 for partition, one in self.store.positions.items()}

    async def decide_beginnings(self, shares: Iterable[SeedShare], identity: Identity | None) -> None:
        """Decides that partitions no copier has begun begin at the start of their share.

        Otherwise a task that begins hours later would not notice records that the source deleted meanwhile.
        """
        if self.owner is not None:
            await self.owner.store_starts({one.source: one.start for one in shares if one.start < one.end})
            return
        assert identity is not None
        # Decisions of earlier generations precede that of our identity, so this read finds them.
        decisions = await self.decisions.read()
        begun = {*decisions.partitions(), *self.store.positions}
        beginnings = [
            Beginning(
                generation=identity.generation,
                topic=share.topic,
                partition=share.partition,
                source_offset=share.start,
                why=PLANNED,
                source_topic_id=self.source.metadata.topic_id(share.topic),
            )
            for share in shares
            if share.start < share.end
            and share.source not in begun
            and decisions.beginning(share.source, after=0) is None
        ]
        if beginnings:
            await self.decisions.decide(beginnings, now_ms=now_ms())

    async def logs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, SeedLog]:
        """Returns current offsets and size of *partitions* on the source, up to what this flow may read."""
        wanted = tuple(partitions)
        starts = await admin.offsets_at(self.source, wanted, EARLIEST)
        ends = await admin.offsets_at(
            self.source, wanted, LATEST, read_committed=self.settings.read_committed
        )
        sizes = await self._sizes()
        return {
            one: SeedLog(start=starts[one], end=max(starts[one], ends[one]), bytes=sizes.get(one))
            for one in wanted
        }

    async def _sizes(self) -> Mapping[TopicPartition, int]:
        try:
            return await admin.log_sizes(self.source)
        except ClusterError:
            return {}  # not permitted, or not supported by the broker: the plan estimates

    async def begins(
        self, logs: Mapping[TopicPartition, SeedLog], *, initial: bool
    ) -> dict[TopicPartition, int]:
        """Start offsets for partitions never copied, by the flow's settings; empty for the log start."""
        start = self.settings.start if initial else StartPosition.EARLIEST
        if start is StartPosition.EARLIEST:
            return {}
        if start is StartPosition.LATEST:
            return {one: log.end for one, log in logs.items()}
        found = await admin.offsets_at(self.source, tuple(logs), self.settings.start_timestamp_ms)
        return {one: log.end if found[one] < 0 else found[one] for one, log in logs.items()}

    async def require_no_foreign_records(self, arrangement: Arrangement) -> None:
        """Raises ForeignRecordsError if a copy holds records that this flow has not written."""
        names = arrangement.names
        copies = {one: TopicPartition(names[one.topic], one.partition) for one in arrangement.partitions}
        starts = await admin.offsets_at(self.target, tuple(copies.values()), EARLIEST)
        ends = await admin.offsets_at(self.target, tuple(copies.values()), LATEST)
        held = {source: (starts[copy], ends[copy]) for source, copy in copies.items()}
        if foreign := foreign_topics(held, self.known(), names):
            raise ForeignRecordsError(topics=foreign[:NAMED_MAX], more=len(foreign[NAMED_MAX:]))

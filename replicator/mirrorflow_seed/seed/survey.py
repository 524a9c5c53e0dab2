"""What both clusters hold of a flow when a wave is planned. Asks; decides nothing. Raises ClusterError."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mirrorflow_replicator.connect.config_rules import make_config_rules
from mirrorflow_replicator.connect.offset_syncs import offset_syncs_topic
from mirrorflow_replicator.connect.plugins import make_selection
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.errors import ClusterError
from mirrorflow_replicator.flow.identity import Beginning, Identity
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.both import connect_both
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.identity import IdentityLog
from mirrorflow_replicator.kafka.known_positions import PositionStore
from mirrorflow_replicator.kafka.stores import position_store
from mirrorflow_replicator.kafka.witnesses import EARLIEST, LATEST
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.runtime.establishing import identify
from mirrorflow_replicator.runtime.syncing import SyncsTopic
from mirrorflow_replicator.runtime.topics import Arrangement, Topics
from mirrorflow_replicator.settings import SourceSettings, StartPosition
from mirrorflow_seed.errors import ForeignRecordsError
from mirrorflow_seed.seed.plan import Log, Share, foreign_topics

CONNECT_TIMEOUT_S = 20.0
NAMED_MAX = 10  # topics in an error
PLANNED = "seed"  # why a partition begins where it does

log = logging.getLogger("mirrorflow.seed")


@dataclass(slots=True, kw_only=True)
class Survey:
    """The driver's own connections to both clusters, and what was read by them."""

    settings: SourceSettings
    source: Cluster
    target: Cluster
    store: PositionStore
    decisions: IdentityLog

    @classmethod
    async def open(cls, settings: SourceSettings) -> "Survey":
        """Reach both clusters, by the clients that administrate them."""
        source, target = await connect_both(
            settings.source_admin,
            settings.target_admin,
            resolve=Resolver(settings.providers).resolve_client,
            timeout_s=CONNECT_TIMEOUT_S,
        )
        return cls.over(settings, source, target)

    @classmethod
    def over(cls, settings: SourceSettings, source: Cluster, target: Cluster) -> "Survey":
        """By connections that are there; they are its own from now on."""
        return cls(
            settings=settings,
            source=source,
            target=target,
            store=position_store(settings, target),
            decisions=IdentityLog(
                target, settings.source_alias, replication_factor=settings.offsets.replication_factor
            ),
        )

    async def close(self) -> None:
        """End all connections."""
        await asyncio.gather(self.source.close(), self.target.close())

    async def arrange(self) -> Arrangement:
        """Create and grow the target's topics as the connector does, and its topic of offset syncs."""
        settings = self.settings
        if settings.syncs is not None:
            resolve = Resolver(settings.providers).resolve_client
            await SyncsTopic(settings.syncs, offset_syncs_topic(settings), resolve=resolve).ensure()
        return await self._topics().arrange()

    async def sync_configs(self, names: Mapping[str, str], *, held: Collection[str]) -> None:
        """What the connector does every few minutes, for *names* alone, if the flow's settings say that it does."""
        if self.settings.sync_configs_s is not None:
            for sentence in await self._topics().sync_configs(names, held=held):
                log.warning("%s", sentence)

    def _topics(self) -> Topics:
        return Topics(
            self.source,
            self.target,
            selection=make_selection(self.settings),
            rules=make_config_rules(self.settings),
            replication_factor=self.settings.replication_factor,
            report_only=self.settings.configs_report_only,
        )

    async def identify(self) -> tuple[Identity, bool]:
        """The identity that all tasks write with, and whether the flow begins with this job."""
        found = await identify(self.settings, self.source, self.target, may_change=True)
        await asyncio.gather(self.store.open(), self.decisions.ensure())
        await self.decisions.read()
        return found.identity, found.is_first

    def known(self) -> dict[TopicPartition, int]:
        """Next offset of each partition that was ever copied, by its newest position; 0 where only its anchor is known."""
        known = dict.fromkeys(self.decisions.decisions.partitions(), 0)
        return known | {partition: one.source_offset + 1 for partition, one in self.store.positions.items()}

    async def promise(self, shares: Iterable[Share], identity: Identity) -> None:
        """Decide that partitions which nobody has begun begin where *shares* do: who comes to them hours later must not
        take what the source has deleted meanwhile for what never was there.
        """
        # What a copier of an earlier generation has begun was decided before ours was, so it is read here.
        decisions = await self.decisions.read()
        begun = {*decisions.partitions(), *self.store.positions}
        promises = [
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
        if promises:
            await self.decisions.decide(promises, now_ms=now_ms())

    async def logs(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Log]:
        """What the source holds of each of *partitions* now, up to what this flow may read."""
        wanted = tuple(partitions)
        starts = await admin.offsets_at(self.source, wanted, EARLIEST)
        ends = await admin.offsets_at(
            self.source, wanted, LATEST, read_committed=self.settings.read_committed
        )
        sizes = await self._sizes()
        return {
            one: Log(start=starts[one], end=max(starts[one], ends[one]), bytes=sizes.get(one))
            for one in wanted
        }

    async def _sizes(self) -> Mapping[TopicPartition, int]:
        try:
            return await admin.log_sizes(self.source)
        except ClusterError:
            return {}  # not granted, or not known there: the plan estimates

    async def begins(self, logs: Mapping[TopicPartition, Log], *, initial: bool) -> dict[TopicPartition, int]:
        """Where partitions begin that were never copied, as the settings say."""
        start = self.settings.start if initial else StartPosition.EARLIEST
        if start is StartPosition.EARLIEST:
            return {}
        if start is StartPosition.LATEST:
            return {one: log.end for one, log in logs.items()}
        found = await admin.offsets_at(self.source, tuple(logs), self.settings.start_timestamp_ms)
        return {one: log.end if found[one] < 0 else found[one] for one, log in logs.items()}

    async def refuse_foreign(self, arrangement: Arrangement) -> None:
        """Raises ForeignRecordsError where a copy holds records that nobody of this flow has written."""
        names = arrangement.names
        copies = {one: TopicPartition(names[one.topic], one.partition) for one in arrangement.partitions}
        starts = await admin.offsets_at(self.target, tuple(copies.values()), EARLIEST)
        ends = await admin.offsets_at(self.target, tuple(copies.values()), LATEST)
        held = {source: (starts[copy], ends[copy]) for source, copy in copies.items()}
        if foreign := foreign_topics(held, self.known(), names):
            raise ForeignRecordsError(topics=foreign[:NAMED_MAX], more=len(foreign[NAMED_MAX:]))

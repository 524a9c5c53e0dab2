"""What a restore needs before and after its tasks: topics with their settings, the flow's identity, retention held back."""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from mirrorflow_replicator.connect.config_rules import make_config_rules
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.errors import ClusterError
from mirrorflow_replicator.flow.identity import Decisions, Identity
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.topic_configs import ConfigChange, creation_configs
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.identity import IdentityLog
from mirrorflow_replicator.kafka.stores import position_store
from mirrorflow_replicator.settings import SourceSettings
from mirrorflow_seed.archive.manifest import Manifest
from mirrorflow_seed.archive.served import ArchiveCluster
from mirrorflow_seed.errors import ArchiveUnfitError, ForeignRecordsError, JobFailedError
from mirrorflow_seed.seed.plan import foreign_topics
from mirrorflow_seed.seed.survey import CONNECT_TIMEOUT_S, Survey

NAMED_MAX = 10  # topics in an error
# What would delete old records while they arrive.
RETENTION = ("retention.ms", "retention.bytes")
UNLIMITED = "-1"

log = logging.getLogger("mirrorflow.restore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What tasks go by; names give the target topic of each source topic that is restored."""

    identity: Identity
    initial: bool
    names: Mapping[str, str]
    next_offsets: Mapping[
        TopicPartition, int
    ]  # source offsets from which the flow goes on, where it has been


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """One archive and the flow that it is restored by."""

    settings: SourceSettings
    manifest: Manifest
    location: str

    async def prepare(self, *, accept_foreign: bool) -> Prepared:
        """Create the target's topics, decide the identity, and see that nothing stands against it.

        Raises ArchiveUnfitError, ForeignRecordsError, JobFailedError, MirrorFlowError.
        """
        self._fits()
        survey = await self._survey()
        try:
            await survey.target.refresh()
            before = set(survey.target.metadata.topics)
            arrangement = await survey.arrange()
            if arrangement.uncopied:
                raise JobFailedError(" ".join(list(arrangement.uncopied.values())[:NAMED_MAX]))
            if not arrangement.names:
                raise ArchiveUnfitError(
                    location=self.location,
                    problem="none of its topics is one that the flow copies",
                    action="look at spec.topics of the flow",
                )
            identity, initial = await survey.identify()
            await self._hold(survey.target, [one for one in arrangement.names.values() if one not in before])
            if not accept_foreign:
                targets = {
                    one: TopicPartition(arrangement.names[one.topic], one.partition)
                    for one in arrangement.partitions
                }
                foreign = foreign_topics(await survey.held(targets), survey.known(), arrangement.names)
                if foreign:
                    raise ForeignRecordsError(topics=foreign[:NAMED_MAX], more=len(foreign[NAMED_MAX:]))
            positions = survey.store.positions
            found = Prepared(
                identity=identity,
                initial=initial,
                names=arrangement.names,
                next_offsets={key: one.source_offset + 1 for key, one in positions.items()},
            )
        finally:
            await survey.close()
        self._reaches_back(found)
        return found

    async def finish(self, names: Mapping[str, str]) -> None:
        """Give the restored topics the retention that the archive knows, where it was held back."""
        target = await self._target()
        try:
            described = await admin.describe_topic_configs(target, names.values())
            held = {
                name
                for name, entries in described.items()
                if all(one.value == UNLIMITED for one in entries if one.name in RETENTION)
            }
            rules = make_config_rules(self.settings)
            archive = ArchiveCluster(self.settings.source_alias, self.manifest)
            wanted = await admin.describe_topic_configs(archive, names)
            changes = {}
            for topic, name in names.items():
                if name in held:
                    given = creation_configs(wanted.get(topic, ()), rules.of(topic))
                    changes[name] = [ConfigChange(name=key, value=given.get(key)) for key in RETENTION]
            for name, refusal in (await admin.alter_topic_configs(target, changes)).items():
                if refusal is not None:
                    log.warning("The retention of %s stays unlimited: %s", name, refusal)
        finally:
            await target.close()

    async def decisions(self) -> Decisions:
        """What was decided of this flow until now."""
        target = await self._target()
        try:
            factor = self.settings.offsets.replication_factor
            decided = IdentityLog(target, self.settings.source_alias, replication_factor=factor)
            await decided.ensure()
            return await decided.read()
        finally:
            await target.close()

    def _fits(self) -> None:
        isolation = "read_committed" if self.settings.read_committed else "read_uncommitted"
        if self.manifest.isolation != isolation:
            raise ArchiveUnfitError(
                location=self.location,
                problem=f"it was read {self.manifest.isolation}, and the flow reads {isolation}",
                action=f"restore it by a flow with isolation.level={self.manifest.isolation}",
            )

    def _reaches_back(self, found: Prepared) -> None:
        """A flow that has copied less than where the archive begins would leave a hole."""
        for key, archived in self.manifest.partitions.items():
            at = found.next_offsets.get(key)
            if key.topic in found.names and at is not None and at < archived.start and archived.records:
                raise ArchiveUnfitError(
                    location=self.location,
                    problem=f"it begins at offset {archived.start} of {key}, and the flow has copied that up to {at}",
                    action="restore an archive that reaches back so far",
                )

    async def _hold(self, target: Cluster, names: Collection[str]) -> None:
        changes = {name: [ConfigChange(name=key, value=UNLIMITED) for key in RETENTION] for name in names}
        try:
            refusals = await admin.alter_topic_configs(target, changes)
        except ClusterError as error:
            log.warning("Old records may be deleted while they arrive: %s", error)
            return
        for name, refusal in refusals.items():
            if refusal is not None:
                log.warning("Old records of %s may be deleted while they arrive: %s", name, refusal)

    async def _target(self) -> Cluster:
        resolve = Resolver(self.settings.providers).resolve_client
        return await Cluster.connect(self.settings.target_admin, resolve=resolve, timeout_s=CONNECT_TIMEOUT_S)

    async def _survey(self) -> Survey:
        """The seed's, with the archive for the source."""
        settings, target = self.settings, await self._target()
        return Survey(
            settings=settings,
            source=ArchiveCluster(settings.source_alias, self.manifest),
            target=target,
            store=position_store(settings, target),
            decisions=IdentityLog(
                target, settings.source_alias, replication_factor=settings.offsets.replication_factor
            ),
        )

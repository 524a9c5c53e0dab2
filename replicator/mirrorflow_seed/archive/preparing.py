"""What a restore needs before its tasks: topics with their settings, the flow's identity, and nothing that
stands against it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.settings import SourceSettings
from mirrorflow_seed.archive.manifest import Manifest
from mirrorflow_seed.archive.served import ArchiveCluster
from mirrorflow_seed.errors import ArchiveUnfitError, JobFailedError
from mirrorflow_seed.seed.plan import Share
from mirrorflow_seed.seed.survey import CONNECT_TIMEOUT_S, Survey

NAMED_MAX = 10  # topics in an error


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

    async def open(self) -> Survey:
        """What the seed asks its clusters by, with the archive for the source. The caller closes it."""
        settings = self.settings
        resolve = Resolver(settings.providers).resolve_client
        target = await Cluster.connect(settings.target_admin, resolve=resolve, timeout_s=CONNECT_TIMEOUT_S)
        return Survey.over(settings, ArchiveCluster(settings.source_alias, self.manifest), target)

    async def prepare(self, survey: Survey, *, accept_foreign: bool) -> Prepared:
        """Create the target's topics, decide the identity, and see that nothing stands against it.

        Raises ArchiveUnfitError, ForeignRecordsError, JobFailedError, MirrorFlowError.
        """
        require_isolation(self.manifest, self.settings, self.location)
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
        if not accept_foreign:
            await survey.refuse_foreign(arrangement)
        positions = survey.store.positions
        found = Prepared(
            identity=identity,
            initial=initial,
            names=arrangement.names,
            next_offsets={key: one.source_offset + 1 for key, one in positions.items()},
        )
        self._reaches_back(found)
        return found

    def shares(self, found: Prepared) -> tuple[Share, ...]:
        """The partitions in the seed's words, for who holds retention."""
        archived = self.manifest.partitions
        return tuple(
            Share(
                index=index,
                topic=key.topic,
                partition=key.partition,
                start=max(archived[key].start, found.next_offsets.get(key, 0)),
                end=archived[key].end,
                bytes=sum(one.tally.bytes for one in archived[key].files),
            )
            for index, key in enumerate(sorted(archived))
            if key.topic in found.names and archived[key].files
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


def require_isolation(manifest: Manifest, settings: SourceSettings, location: str) -> None:
    """Raises ArchiveUnfitError where the flow counts other records than the archive has."""
    isolation = "read_committed" if settings.read_committed else "read_uncommitted"
    if manifest.isolation != isolation:
        raise ArchiveUnfitError(
            location=location,
            problem=f"it was read {manifest.isolation}, and the flow reads {isolation}",
            action=f"use a flow with isolation.level={manifest.isolation}",
        )

"""Prepares a restore: creates topics, takes the flow, and checks archive and target."""

from collections.abc import Mapping
from dataclasses import dataclass

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_seed.archive.archive_source import ArchiveCluster
from mirrorflow_seed.archive.manifest import Manifest
from mirrorflow_seed.errors import ArchiveUnfitError, JobFailedError
from mirrorflow_seed.seed.plan import SeedShare
from mirrorflow_seed.seed.survey import SeedSurvey

NAMED_MAX = 10  # topics in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRestore:
    """The input of the restore's tasks; `names` maps source to target topics."""

    group: str  # the job's name in the claim of the flow
    initial: bool  # the flow begins with this job
    names: Mapping[str, str]
    # Source offsets where the flow continues, for partitions it has copied.
    next_offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRestore:
    """An archive and the flow that restores it; *location* is the archive's folder."""

    settings: SourceSettings
    manifest: Manifest
    location: str

    async def open(self, job: str) -> SeedSurvey:
        """Connects to the target; returns a survey with the archive as source, which the caller closes.

        *job* is its kind and run id.
        """
        settings = self.settings
        resolve = Resolver(settings.providers).resolve_client
        target = await Cluster.connect(settings.target_admin, resolve=resolve)
        return SeedSurvey.over(settings, ArchiveCluster(settings.source_alias, self.manifest), target, job)

    async def prepare(self, survey: SeedSurvey, *, accept_foreign: bool) -> PreparedRestore:
        """Creates the target topics, takes the flow and checks that the restore is possible.

        Raises ArchiveUnfitError, ForeignRecordsError, JobFailedError, MirrorFlowError.
        """
        require_isolation(self.manifest, self.settings, self.location)
        arrangement = await survey.arrange()
        if arrangement.uncopied:
            raise JobFailedError(" ".join(list(arrangement.uncopied.values())[:NAMED_MAX]))
        if not arrangement.names:
            raise ArchiveUnfitError(
                location=self.location,
                problem="the flow copies none of its topics",
                action="check spec.topics of the flow",
            )
        initial = await survey.take_flow()
        if not accept_foreign:
            await survey.require_no_foreign_records(arrangement)
        found = PreparedRestore(
            group=survey.group,
            initial=initial,
            names=arrangement.names,
            next_offsets=survey.next_offsets,
        )
        self._require_no_gap(found)
        return found

    def shares(self, found: PreparedRestore) -> tuple[SeedShare, ...]:
        """Returns the partitions as shares of a seed, for their starts and the retention hold."""
        archived = self.manifest.partitions
        return tuple(
            SeedShare(
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

    def _require_no_gap(self, found: PreparedRestore) -> None:
        """Raises ArchiveUnfitError if a gap lies between the flow's next offset and the archive's start."""
        for key, archived in self.manifest.partitions.items():
            at = found.next_offsets.get(key)
            if key.topic in found.names and at is not None and at < archived.start and archived.records:
                raise ArchiveUnfitError(
                    location=self.location,
                    problem=f"it begins at offset {archived.start} of {key}, but the flow has copied that partition only up to {at}",
                    action="restore an archive that begins at or before that offset",
                )


def require_isolation(manifest: Manifest, settings: SourceSettings, location: str) -> None:
    """Raises ArchiveUnfitError if flow and archive have different isolation levels, and so other records."""
    isolation = "read_committed" if settings.read_committed else "read_uncommitted"
    if manifest.isolation != isolation:
        raise ArchiveUnfitError(
            location=location,
            problem=f"it was read {manifest.isolation}, and the flow reads {isolation}",
            action=f"use a flow with isolation.level={manifest.isolation}",
        )

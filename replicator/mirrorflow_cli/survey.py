"""Reads once where groups stand on both sides, from the same topics as the checkpoint connector.

It translates offsets with the connector's own code. A failed request becomes a problem of that group, and the
other groups continue. Nothing is changed.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from mirrorflow_cli.clusters import reached
from mirrorflow_cli.errors import FailedError
from mirrorflow_core.errors import ClusterError
from mirrorflow_core.offsets.checkpoints import standings
from mirrorflow_core.offsets.group_offsets import GroupFacts, GroupOffset, group_offsets
from mirrorflow_core.offsets.groups import Group, writable
from mirrorflow_core.settings import CheckpointSettings, SourceSettings
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.log_offsets import LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_group_selection, make_topic_filter
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets

GROUPS_AT_ONCE = 16  # a coordinator answers so many requests in some hundredths of a second


@dataclass(frozen=True, slots=True, kw_only=True)
class SurveyClusters:
    """A client for each purpose, as in `connectors.known_offsets.Readers`."""

    source: Cluster
    target: Cluster
    syncs: Cluster
    reader: Cluster


@dataclass(frozen=True, slots=True)
class GroupSurvey:
    """Offsets, a note for each group that is not synchronised, a problem for each failed request."""

    lines: tuple[GroupOffset, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


async def survey(settings: CheckpointSettings, source: SourceSettings, wanted: str | None) -> GroupSurvey:
    """Returns the offsets of the group *wanted*, or of all groups that the flow translates.

    Raises FailedError and ClusterError.
    """
    problems: list[str] = []
    async with _clusters(settings, source) as clusters:
        known = await _known(settings, clusters, problems)
        listed = await groups.list_groups(clusters.source)
        look = _Look(settings, clusters, known, await groups.list_groups(clusters.target))
        selects = make_group_selection(settings).selects
        chosen = [
            one for name, one in sorted(listed.items()) if (name == wanted if wanted else selects(name))
        ]
        if wanted and not chosen:
            raise FailedError(
                f"{settings.source_alias} has no group {wanted}, or Describe on it is not granted."
            )
        consumers = [group for group in chosen if group.is_consumer_group]
        found: list[GroupOffset] = []
        for at in range(0, len(consumers), GROUPS_AT_ONCE):
            some = consumers[at : at + GROUPS_AT_ONCE]
            answers = await asyncio.gather(*(look.at(group) for group in some), return_exceptions=True)
            for group, answer in zip(some, answers, strict=True):
                if isinstance(answer, ClusterError):
                    problems.append(f"Group {group.name} cannot be looked at: {answer}")
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    found += answer
    notes = (_why_not(group, settings, named=bool(wanted)) for group in chosen if group not in consumers)
    return GroupSurvey(tuple(found), tuple(note for note in notes if note), tuple(problems))


def _why_not(group: Group, settings: CheckpointSettings, *, named: bool) -> str:
    why = group.why_not
    if not why and named:
        why = f"it belongs to an application ({group.protocol_type}), not to consumers"
    return f"Group {group.name} of {settings.source_alias} is not synchronised: {why}." if why else ""


async def _known(settings: CheckpointSettings, clusters: SurveyClusters, problems: list[str]) -> KnownOffsets:
    known = KnownOffsets(settings, clusters)
    read = False
    try:
        read = await known.read_checkpoints()
    except ClusterError as error:
        problems.append(f"Checkpoints cannot be read from {known.checkpoints_topic}: {error}")
    try:
        await known.open_syncs(must_read_to_end=not read)
    except ClusterError as error:
        problems.append(f"Offset syncs cannot be read: {error}")
    try:
        await known.read_maps()
    except ClusterError as error:
        problems.append(f"{known.map_topic} cannot be read, so that offset syncs alone count: {error}")
    problems += known.passed_over.values()
    return known


@contextlib.asynccontextmanager
async def _clusters(settings: CheckpointSettings, source: SourceSettings) -> AsyncIterator[SurveyClusters]:
    async with contextlib.AsyncExitStack() as stack:
        syncs = settings.source_consumer if settings.syncs_on_source else settings.target_consumer
        clients = (settings.source_admin, settings.target_admin, syncs, settings.target_consumer)
        found = [await stack.enter_async_context(reached(client, source)) for client in clients]
        yield SurveyClusters(source=found[0], target=found[1], syncs=found[2], reader=found[3])


class _Look:
    """Reads the offsets of one group at a time."""

    def __init__(
        self,
        settings: CheckpointSettings,
        clusters: SurveyClusters,
        known: KnownOffsets,
        there: dict[str, Group],
    ) -> None:
        self._settings = settings
        self._clusters = clusters
        self._known = known
        self._there = there
        self._selects = make_topic_filter(settings)

    async def at(self, group: Group) -> list[GroupOffset]:
        """Returns the lines of *group*. Raises ClusterError."""
        known, clusters = self._known, self._clusters
        own = await groups.fetch_offsets(clusters.source, group.name)
        now = standings(own, selects=self._selects, rename=known.rename, syncs=known.translator)
        target = await groups.fetch_offsets(clusters.target, group.name)
        ends = await admin.list_offsets(clusters.target, now, LATEST) if now else {}
        facts = GroupFacts(
            group=group.name,
            standings=now,
            points=known.checkpoints.of(group.name),
            written_ms=known.checkpoints.written_ms,
            target=target,
            ends={partition: end.offset for partition, end in ends.items() if not end.error},
            writable=writable(self._there.get(group.name)),
            is_synchronised=self._settings.sync_s is not None,
        )
        return list(group_offsets(facts))

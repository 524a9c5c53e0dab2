"""Restores the offsets of consumer groups after the records: translates them, and commits them on the target.

The offset map that the restore has written translates each offset, as for a checkpoint connector. Where it has no exact
translation, the older offset is used: a restored group reads some records again, and skips none. A group that has members
on the target, or is ahead there, is not changed.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.offsets.checkpoints import (
    Group,
    GroupSelection,
    Point,
    Writable,
    offsets_to_commit,
    writable,
)
from mirrorflow_core.offsets.offset_translation import Committed, TranslatedOffset, translate_group
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import CheckpointSettings, SourceSettings
from mirrorflow_core.wire.error_codes import name_of
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.groups import (
    MEMBERS_PRESENT,
    commit_offsets,
    describe_group,
    fetch_offsets,
    list_reachable_groups,
)
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets, OffsetReaders
from mirrorflow_seed.archive.archive_source import ArchiveCluster
from mirrorflow_seed.archive.manifest import ArchivedGroup
from mirrorflow_seed.archive.source_metadata import GROUPS_AT_ONCE

log = logging.getLogger("mirrorflow.restore")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredPosition:
    """Where a group continues on the target."""

    point: Point
    is_exact: bool  # it reads no record again


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What became of one group. *problem*: why it was not restored; None: it was, or nothing was to be done."""

    exact: int = 0  # partitions
    bound: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsRestored:
    """What became of all groups, by name."""

    results: Mapping[str, GroupResult]

    @property
    def summary(self) -> str:
        """The result as sentences, without names of groups; "" without groups."""
        restored = [result for result in self.results.values() if result.exact or result.bound]
        problems = {name: result.problem for name, result in self.results.items() if result.problem}
        sentences = []
        if restored:
            exact, bound = sum(result.exact for result in restored), sum(result.bound for result in restored)
            sentences.append(
                f"The offsets of {len(restored)} groups are restored: {exact} exactly"
                + (f", {bound} to an earlier record, which is read again." if bound else ".")
            )
        if problems:
            sentences.append(f"{len(problems)} groups are not restored: {problems[min(problems)]}.")
        return " ".join(sentences)


def position_on_target(translated: TranslatedOffset, *, start: int, end: int) -> RestoredPosition:
    """Returns where a group continues in a copy that has offsets from *start* up to *end*.

    An offset before the map, or without one, becomes the start of the copy.
    """
    offset = start if translated.downstream_offset is None else min(translated.downstream_offset, end)
    at_most = end if translated.at_most is None else translated.at_most
    return RestoredPosition(
        point=Point(
            upstream_offset=translated.upstream_offset,
            downstream_offset=offset,
            metadata=translated.metadata,
        ),
        is_exact=offset >= min(at_most, end),
    )


class GroupRestorer:
    """Restores the groups of *archive* on *target*; *names* maps source topics to the restored ones.

    *begins*: where the partitions of the whole archive begin, of which *archive* may be a selection.
    """

    def __init__(
        self,
        settings: SourceSettings,
        archive: ArchiveCluster,
        target: Cluster,
        names: Mapping[str, str],
        *,
        begins: Mapping[TopicPartition, int],
    ) -> None:
        self._begins = begins
        self._groups = archive.manifest.groups
        self._partitions = archive.manifest.partitions
        self._target = target
        self._names = names
        readers = OffsetReaders(source=archive, target=target, syncs=target, reader=target)
        self._known = KnownOffsets(_checkpoint_settings(settings), readers)
        self._listed: Mapping[str, Group] = {}
        self._starts: Mapping[TopicPartition, int] = {}
        self._ends: Mapping[TopicPartition, int] = {}

    async def restore(self, selection: GroupSelection) -> GroupsRestored:
        """Restores the groups of *selection*. Raises ClusterError if the target cannot be used at all."""
        wanted = [group for group in self._groups if selection.selects(group.name)]
        if not wanted:
            return GroupsRestored(results={})
        await self._known.read_maps()
        copies = [
            self._known.rename(partition) for partition in self._partitions if partition.topic in self._names
        ]
        self._starts = await admin.offsets_at(self._target, copies, EARLIEST)
        self._ends = await admin.offsets_at(self._target, copies, LATEST)
        self._listed = (await list_reachable_groups(self._target)).groups
        turn = asyncio.Semaphore(GROUPS_AT_ONCE)

        async def restored(group: ArchivedGroup) -> GroupResult:
            async with turn:
                try:
                    return await self._restore(group)
                except ClusterError as error:
                    return GroupResult(problem=str(error).rstrip("."))

        results = await asyncio.gather(*map(restored, wanted))
        for group, result in zip(wanted, results, strict=True):
            log.info(
                "Group %s: %d offsets restored exactly, %d to an earlier record. %s",
                group.name,
                result.exact,
                result.bound,
                result.problem,
            )
        return GroupsRestored(
            results={group.name: result for group, result in zip(wanted, results, strict=True)}
        )

    async def _restore(self, archived: ArchivedGroup) -> GroupResult:
        name = archived.name
        group = self._listed.get(name)
        if group is not None and not group.state:
            group = await describe_group(self._target, name)
        match writable(group):
            case Writable.ACTIVE:
                return GroupResult(problem="they have members on the target")
            case Writable.OTHER_KIND:
                return GroupResult(problem="the target has groups of another kind under their names")
        translated = translate_group(
            committed_offsets(archived, self._begins),
            selects=self._names.__contains__,
            rename=self._known.rename,
            syncs=self._known.translator,
        )
        positions = {
            copy: position_on_target(offset, start=self._starts[copy], end=self._ends[copy])
            for copy, offset in translated.items()
            if copy in self._ends
        }
        own = await fetch_offsets(self._target, name)
        due = offsets_to_commit(
            {copy: position.point for copy, position in positions.items()}, translated, own
        )
        codes = await commit_offsets(
            self._target,
            name,
            {
                copy: Committed(offset=point.downstream_offset, metadata=point.metadata)
                for copy, point in due.items()
            },
        )
        if MEMBERS_PRESENT & set(codes.values()):
            return GroupResult(problem="they have members on the target")
        refused = sorted({name_of(code) for code in codes.values() if code})
        done = [positions[copy] for copy, code in codes.items() if not code]
        exact = sum(position.is_exact for position in done)
        problem = f"the target refuses offsets ({', '.join(refused)})" if refused else None
        return GroupResult(exact=exact, bound=len(done) - exact, problem=problem)


def committed_offsets(
    group: ArchivedGroup, begins: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Committed]:
    """Returns the offsets of *group* in the partitions of *begins*, none before where its partition begins: no such record exists.

    The start of a selected range is no such offset: the flow may have copied earlier records.
    """
    committed = {}
    for offset in group.offsets:
        key = TopicPartition(offset.topic, offset.partition)
        if key in begins:
            committed[key] = Committed(offset=max(offset.offset, begins[key]), metadata=offset.metadata)
    return committed


def _checkpoint_settings(settings: SourceSettings) -> CheckpointSettings:
    """Returns the settings by which a checkpoint connector of the flow would read the offset map."""
    return CheckpointSettings(
        name=settings.name,
        flow=settings.flow,
        source_alias=settings.source_alias,
        target_alias=settings.target_alias,
        policy=settings.policy,
        transforms=settings.transforms,
        source_admin=settings.source_admin,
        source_consumer=settings.source_consumer,
        target_admin=settings.target_admin,
        target_consumer=settings.target_admin,
        target_producer=settings.target_producer,
        providers=settings.providers,
    )

"""Moves the groups of a pair to the target in one pass, and observes which are not there yet.

The translation and the rules for commits are those of the checkpoint connector: no group moves back, or past the end of its copy.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.offsets.checkpoints import GroupOffset, has_members
from mirrorflow_core.settings import CheckpointSettings
from mirrorflow_core.switchover.observation import GroupPass
from mirrorflow_kafka.admin import groups
from mirrorflow_replicator.connectors.checkpoint_passes import CheckpointPasses
from mirrorflow_replicator.connectors.known_offsets import OffsetReaders
from mirrorflow_replicator.switchover.pair_settings import PairClusters

# The interval of the connector's passes; here only that there are passes counts.
_SYNC_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImmovableGroups:
    """Groups of the source that exist on the target, too, in a way that keeps their offsets from being committed there."""

    with_members: tuple[str, ...] = ()
    of_another_kind: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()  # a sentence for each share group that the target refuses to describe


class FinalGroupPass:
    """The groups of the forward flow. Each method reads the source's groups anew."""

    def __init__(self, settings: CheckpointSettings, clusters: PairClusters) -> None:
        source, target = clusters.source, clusters.target
        syncs = source if settings.syncs_on_source else target
        readers = OffsetReaders(source=source, target=target, syncs=syncs, reader=target)
        self._source = source.alias
        self._target = target
        self._passes = CheckpointPasses(replace(settings, sync_s=_SYNC_S), readers, target)
        self._is_open = False

    async def observe(self) -> GroupPass:
        """Returns the groups that are not ready. Raises ClusterError, also if a group of the source cannot be read now."""
        await self._translate()
        if unread := self._passes.unread:
            raise ClusterError(unread[0], cluster=self._source)
        offsets = self.offsets()
        return GroupPass(
            active=_names(offset for offset in offsets if offset.has_members_on_source),
            behind=_names(offset for offset in offsets if not offset.written),
        )

    async def immovable(self) -> ImmovableGroups:
        """Returns the groups whose offsets no pass can commit on the target, as they are now. Raises ClusterError."""
        await self._translate()
        names, shared = _names(self.offsets()), self._passes.share_group_names
        listed, _ = await groups.list_reachable_groups(self._target)
        known = {name: group for name in names if (group := listed.get(name)) is not None}
        return ImmovableGroups(
            with_members=tuple(name for name, group in known.items() if has_members(group)),
            of_another_kind=tuple(
                name
                for name, group in known.items()
                if not (group.is_share_group if name in shared else group.is_consumer_group)
            ),
            unread=self._passes.unread_on_target,
        )

    async def finish(self) -> None:
        """Commits the offsets of all groups on the target. Raises ClusterError."""
        await self._translate()
        await self._passes.write_checkpoints()
        await self._passes.sync_groups()

    def offsets(self) -> Sequence[GroupOffset]:
        """Returns the offsets of all groups as of the last pass."""
        return [*self._passes.explain(None)]

    async def _translate(self) -> None:
        if not self._is_open:
            await self._passes.open()
            self._is_open = True
        await self._passes.refresh()
        await self._passes.translate_groups()


def _names(offsets: Iterable[GroupOffset]) -> tuple[str, ...]:
    return tuple(sorted({offset.group for offset in offsets}))

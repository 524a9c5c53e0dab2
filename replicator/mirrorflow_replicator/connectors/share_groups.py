"""Moves the share groups of the source to the target: a pass reads, translates and sets their start offsets.

`connectors.checkpoint_passes` runs it with the passes of consumer groups. A share group is not followed between two passes:
its progress is not in the log of commits. Guarantee: a start offset on the target never moves back, nor past the end of the copy.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from mirrorflow_core.errors import BrokerError, GroupNotMovedError
from mirrorflow_core.offsets.checkpoints import Group, GroupOffset, Writable, has_members
from mirrorflow_core.offsets.offset_translation import Rename, TranslatedOffset, TranslatedOffsets, Translator
from mirrorflow_core.offsets.share_offsets import (
    ShareGroupFacts,
    before_known_offsets,
    share_group_offsets,
    starts_to_set,
    translate_starts,
    writable_share_group,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import NON_EMPTY_GROUP, name_of
from mirrorflow_kafka.admin import admin, share_groups
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster

ON_TARGET: Final = (
    "start offsets"  # the side of a warning about reading them there, beside "source" and "target"
)


class EachGroup(Protocol):
    """Calls *ask* for each group, and keeps an error of one as a warning that begins with *failed*.

    With *is_pass* it raises an error that all groups have; share groups may be few, and must not keep consumer groups from moving.
    """

    async def __call__(
        self,
        names: Iterable[str],
        ask: Callable[[str], Awaitable[None]],
        side: str,
        failed: str,
        *,
        is_pass: bool,
    ) -> None: ...


class ShareGroups:
    """The share groups of one flow, as of the last pass."""

    def __init__(
        self, source: Cluster, target: Cluster, *, selects_topic: Callable[[str], bool], rename: Rename
    ) -> None:
        self.names: tuple[str, ...] = ()
        self.moved = 0  # start offsets that were set
        self._source = source
        self._target = target
        self._selects_topic = selects_topic
        self._rename = rename
        self._translated: dict[str, TranslatedOffsets] = {}
        self._on_target: dict[str, Mapping[TopicPartition, int]] = {}
        self._writable: dict[str, Writable] = {}

    @property
    def translations(self) -> tuple[TranslatedOffsets, ...]:
        """The translated start offsets of each group, as of the last pass."""
        return tuple(self._translated.values())

    def select(self, names: Iterable[str]) -> None:
        """Sets the groups of the next passes."""
        self.names = tuple(sorted(names))
        for known in (self._translated, self._on_target, self._writable):
            for gone in known.keys() - set(self.names):
                del known[gone]

    def explain(
        self,
        name: str,
        *,
        is_synchronised: bool,
        problem: str | None,
        on_source: Group | None,
        on_target: Group | None,
    ) -> Iterator[GroupOffset]:
        """Yields the offsets of group *name* as of the last pass. *problem*: why it was not moved; None: the last attempt did not fail."""
        if name in self._translated:
            facts = ShareGroupFacts(
                group=name,
                translated=self._translated[name],
                target=self._on_target.get(name),
                writable=self._writable.get(name, Writable.YES),
                is_synchronised=is_synchronised,
                problem=problem,
                has_members_on_source=has_members(on_source),
                has_members_on_target=has_members(on_target),
            )
            yield from share_group_offsets(facts)

    async def translate(self, translator: Translator, each: EachGroup) -> None:
        """Reads and translates the start offsets of all groups."""
        self._translated = {}

        async def read(name: str) -> None:
            self._translated[name] = await self.translated(name, translator)

        failed = f"The start offsets of share group {{group}} cannot be read on {self._source.alias}"
        await each(self.names, read, "source", failed, is_pass=False)

    async def translated(self, name: str, translator: Translator) -> TranslatedOffsets:
        """Returns the start offsets of group *name*, translated. Raises ClusterError."""
        starts = await share_groups.fetch_start_offsets(self._source, name)
        listed = await admin.list_offsets(self._source, starts, LATEST) if starts else {}
        now = translate_starts(
            starts,
            {partition: end.offset for partition, end in listed.items() if not end.error},
            selects=self._selects_topic,
            rename=self._rename,
            translator=translator,
        )
        if old := before_known_offsets(now, translator):
            beginnings = await admin.list_offsets(self._target, old, EARLIEST)
            for partition in old:
                if not beginnings[partition].error:
                    now[partition] = TranslatedOffset(
                        upstream_offset=now[partition].upstream_offset,
                        downstream_offset=beginnings[partition].offset,
                        source=now[partition].source,
                    )
        return now

    async def starts_on_target(self, name: str) -> dict[TopicPartition, int]:
        """Returns the start offsets of group *name* on the target. Raises ClusterError."""
        starts = await share_groups.fetch_start_offsets(self._target, name)
        return {partition: start.offset for partition, start in starts.items()}

    async def read_target(self, each: EachGroup) -> None:
        """Reads the start offsets that the groups have on the target."""

        async def read(name: str) -> None:
            self._on_target[name] = await self.starts_on_target(name)

        await each(self.names, read, ON_TARGET, self._not_moved, is_pass=False)

    async def move(
        self, listed: Mapping[str, Group], may_write: Callable[[], Awaitable[bool]], each: EachGroup
    ) -> None:
        """Sets the translated start offsets of all groups that are idle on the target; *listed* are the groups there."""

        async def move(name: str) -> None:
            self._writable[name] = writable_share_group(listed.get(name))
            self._on_target[name] = own = await self.starts_on_target(name)
            if self._writable[name] is Writable.OTHER_KIND:
                why = "it exists there as a group of another kind"
                raise GroupNotMovedError(cluster=self._target.alias, group=name, why=why)
            due = starts_to_set(self._translated.get(name, {}), own)
            if due and self._writable[name] is Writable.YES:
                try:
                    self._on_target[name] = await self._set(name, due, own, may_write)
                except BrokerError as error:
                    if error.code != NON_EMPTY_GROUP:
                        raise
                    self._writable[name] = Writable.ACTIVE

        await each(self.names, move, "target", self._not_moved, is_pass=False)

    async def _set(
        self,
        name: str,
        due: Mapping[TopicPartition, int],
        own: Mapping[TopicPartition, int],
        may_write: Callable[[], Awaitable[bool]],
    ) -> dict[TopicPartition, int]:
        """Sets the start offsets *due* within the copies; returns all of the group. Raises ClusterError."""
        ends = await admin.list_offsets(self._target, due, LATEST)
        inside = {
            partition: offset
            for partition, offset in due.items()
            if not ends[partition].error and offset <= ends[partition].offset
        }
        refused = {
            partition: name_of(ends[partition].error)
            if ends[partition].error
            else f"its copy ends at {ends[partition].offset}, before {due[partition]}"
            for partition in due.keys() - inside.keys()
        }
        if not inside or not await may_write():
            codes = {}
        else:
            codes = await share_groups.set_start_offsets(self._target, name, inside)
        done = {partition: inside[partition] for partition, code in codes.items() if not code}
        self.moved += len(done)
        refused |= {partition: name_of(code) for partition, code in codes.items() if code}
        if refused:
            partition, why = min(refused.items())
            more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
            raise GroupNotMovedError(cluster=self._target.alias, group=name, why=f"{partition}: {why}{more}")
        return {**own, **done}

    @property
    def _not_moved(self) -> str:
        return f"The start offsets of share group {{group}} are not synchronised on {self._target.alias}"

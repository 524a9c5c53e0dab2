"""Performs the passes of a checkpoint connector: list groups, write checkpoints, move groups; and the steps between them.

A pass reads all groups. A step handles only some of them (`connectors.group_steps`), by the same functions.

Guarantees: no write begins later than `claim_reader.RESPONSE_MAX_AGE_S` after a switchover has ended the flow (`may_write` is asked
directly before each write, and its response may be that old); a group, topic or permission that fails stops only itself, and is in
`warnings` until it succeeds again (`connectors.pass_warnings`); errors of a whole cluster are raised. This module translates;
`connectors.checkpoint_writer` writes the checkpoints, and `connectors.group_mover` moves the groups. `connectors.checkpoint_connector`
decides when each pass is due and handles errors; `mirrorflow_core.offsets.checkpoints` decides what is written, and `offset_translation`
translates the offsets.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence

from mirrorflow_core.errors import ClusterError, InvalidSettingError
from mirrorflow_core.offsets import checkpoints as decisions
from mirrorflow_core.offsets.application_offsets import ApplicationOffset, ApplicationTranslation
from mirrorflow_core.offsets.checkpoints import (
    Group,
    GroupFacts,
    GroupOffset,
    Writable,
    group_offsets,
    has_members,
)
from mirrorflow_core.offsets.offset_translation import (
    Committed,
    TranslatedOffset,
    TranslatedOffsets,
    Translator,
    translate_group,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import GroupsReport
from mirrorflow_core.settings import CheckpointSettings
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_group_selection, make_topic_filter
from mirrorflow_replicator.connectors.application_offsets import ApplicationOffsets
from mirrorflow_replicator.connectors.checkpoint_writer import CheckpointWriter
from mirrorflow_replicator.connectors.claim_reader import FlowEndWatch
from mirrorflow_replicator.connectors.group_follower import GroupFollower, Offsets
from mirrorflow_replicator.connectors.group_mover import GroupMover
from mirrorflow_replicator.connectors.group_steps import GroupSteps
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets, OffsetReaders
from mirrorflow_replicator.connectors.pass_warnings import GROUP, PassWarnings
from mirrorflow_replicator.connectors.share_groups import ON_TARGET, ShareGroups

WARNINGS_MAX = 100  # warnings shown; the rest is a number


class CheckpointPasses:
    """The passes of one connector. `open` comes first; the others may follow in any order."""

    def __init__(
        self,
        settings: CheckpointSettings,
        clusters: OffsetReaders,
        writer: Cluster,
        *,
        follows_groups: bool = False,
        end: FlowEndWatch | None = None,
    ) -> None:
        """*writer*: the client that writes the checkpoints topic. *end* None: a flow that a switchover has ended is written, too."""
        self._settings = settings
        self._end = end
        self._clusters = clusters
        self._selection = make_group_selection(settings)
        self._selects_topic = make_topic_filter(settings)
        self._known = KnownOffsets(settings, clusters)
        self.topic = self._known.checkpoints_topic
        self._store = self._known.checkpoints
        self._warnings = PassWarnings()
        self._checkpoints = CheckpointWriter(
            settings, self._known, (clusters.target, writer), self._warnings, self.may_write
        )
        self._mover = GroupMover(
            clusters.target, settings.target_alias, self._store, self._warnings, self.may_write
        )
        self._translated: dict[str, dict[TopicPartition, TranslatedOffset]] = {}  # as of the last emission
        self._groups: tuple[str, ...] = ()
        self._steps = GroupSteps(GroupFollower(clusters.source), self._known) if follows_groups else None
        self._share_groups = ShareGroups(
            clusters.source,
            clusters.target,
            selects_topic=self._selects_topic,
            rename=self._known.rename,
        )
        self._other_groups: set[str] = set()  # that have committed and are not followed, as far as they exist
        self._translations: Counter[str] = Counter()
        self._read_again_records: int | None = None  # as of the last pass
        self._not_consumer_groups: tuple[str, ...] = ()  # messages about groups that are not consumer groups
        self._has_read_maps = False
        self._source_groups: Mapping[str, Group] = {}  # as last listed

    @property
    def warnings(self) -> tuple[str, ...]:
        """What failed for single groups or topics, and which groups cannot be synchronised; bounded."""
        warnings = (*self._warnings.sentences, *self._not_consumer_groups)
        more = len(warnings) - WARNINGS_MAX
        return (
            warnings if more <= 0 else (*warnings[:WARNINGS_MAX], f"{more} further warnings are not shown.")
        )

    @property
    def unread(self) -> tuple[str, ...]:
        """What the last pass could not read, so that its translations lack groups, or are too old."""
        syncs = self._known.syncs_topic
        return tuple(
            sentence
            for (kind, name, what), sentence in self._warnings.items()
            if (kind, what) in {("cluster", "groups"), ("group", "source")}
            or (kind, name, what) == ("topic", syncs, "reading")
        )

    @property
    def share_group_names(self) -> tuple[str, ...]:
        """The share groups that the flow moves, as of the last listing."""
        return self._share_groups.names

    @property
    def unread_on_target(self) -> tuple[str, ...]:
        """The share groups whose start offsets the last pass could not read on the target, so that it cannot set them."""
        return tuple(
            sentence
            for (kind, _, what), sentence in self._warnings.items()
            if (kind, what) == ("group", ON_TARGET)
        )

    @property
    def followed_by(self) -> str | None:
        """How groups are followed between passes, for the log; None if they are not."""
        return None if self._steps is None else self._steps.description

    @property
    def lists_new_groups(self) -> bool:
        """Whether groups have committed that the last listing did not have, and that the flow may select."""
        others = set() if self._steps is None else self._steps.take_other_groups()
        if not others or self._settings.refresh_groups_s is None:
            return False
        new = others - self._other_groups - set(self._groups)
        self._other_groups |= new
        try:
            return any(map(self._selection.selects, new))
        except InvalidSettingError:
            return True  # the listing says so

    @property
    def report(self) -> GroupsReport:
        """The counts and latencies of all passes so far."""
        return GroupsReport(
            selected=len(self._groups) + len(self._share_groups.names),
            failing=len({name for kind, name, _ in self._warnings.subjects if kind == "group"}),
            unlike=len(self._not_consumer_groups),
            active=self._mover.active,
            checkpoints=self._checkpoints.written,
            moved=self._mover.moved + self._share_groups.moved,
            followed_by=None if self._steps is None else self._steps.followed_by,
            followed_s=None if self._steps is None else self._steps.ended_s,
            translations=self._translations,
            read_again_records=self._read_again_records,
            offsets=self.explain,
            translate=self._translate if self._has_read_maps else None,
            latencies=self._checkpoints.latencies,
        )

    def explain(self, group: str | None) -> Iterator[GroupOffset]:
        """Yields the offsets of *group*, or of each group if None, as of the last pass."""
        names = (*self._groups, *self._share_groups.names)
        for name in names if group is None else (group,):
            yield from self._share_groups.explain(
                name,
                is_synchronised=self._settings.sync_s is not None,
                problem=self._warnings.of(("group", name, "target"))
                or self._warnings.of(("group", name, ON_TARGET)),
                on_source=self._source_groups.get(name),
                on_target=self._mover.groups.get(name),
            )
            if name in self._translated:
                facts = GroupFacts(
                    group=name,
                    translated=self._translated[name],
                    points=self._store.of(name),
                    written_ms=self._store.written_ms,
                    target=self._mover.offsets.get(name),
                    writable=self._mover.writable.get(name, Writable.YES),
                    is_synchronised=self._settings.sync_s is not None,
                    problem=self._warnings.of(("group", name, "target")),
                    has_members_on_source=has_members(self._source_groups.get(name)),
                    has_members_on_target=has_members(self._mover.groups.get(name)),
                )
                yield from group_offsets(facts)

    async def _translate(
        self,
        offsets: Sequence[ApplicationOffset],
        reverse: bool,  # noqa: FBT001 as the report's callers pass it
    ) -> list[ApplicationTranslation]:
        """Translates offsets of applications by what the last pass has read. Raises ClusterError."""
        settings, source = self._settings, self._clusters.source
        translator = ApplicationOffsets(
            self._known,
            (settings.source_alias, settings.target_alias),
            # A source that is away must not delay those who leave it.
            source=None if source.reach.reason else source,
            target=self._clusters.target,
        )
        return await translator.translate(offsets, reverse=reverse)

    async def may_write(self) -> bool:
        """Returns whether no switchover has ended the flow: then the target belongs to applications. Raises ClusterError."""
        return self._end is None or not await self._end.has_ended()

    async def open(self) -> None:
        """Creates the checkpoints topic, and reads it and all offset syncs.

        Raises ClusterError if offset syncs cannot be read.
        """
        await self._checkpoints.check_topic()
        read = await self._warnings.isolated(
            ("topic", self.topic, "reading"),
            f"Earlier checkpoints cannot be read from {self.topic}, so that groups that lag are translated only from "
            "what is copied from now on",
            self._known.read_checkpoints(),
        )
        await self._known.open_syncs(must_read_to_end=read is None)
        self._note_skipped()

    def _note_skipped(self) -> None:
        for topic, sentence in self._known.skipped.items():
            self._warnings.note(("topic", topic, "records"), sentence)

    async def refresh(self) -> bool:
        """Lists the source's groups; returns whether every broker has listed its own. Raises ClusterError.

        Groups that are known stay where they cannot be listed. Raises InvalidSettingError if none are known yet.
        """
        listed, problem = await groups.list_reachable_groups(self._clusters.source)
        self._warnings.note_listing(self._settings.source_alias, problem)
        if problem is None:
            # A group that is deleted and created again is a new one.
            self._other_groups &= listed.keys()
        subject = ("setting", "groups", "listing")
        try:
            selected = [group for name, group in sorted(listed.items()) if self._selection.selects(name)]
        except InvalidSettingError as error:
            if not self._groups:
                raise
            self._warnings.note(subject, f"The list of groups is not refreshed: {error}")
            return problem is None
        self._warnings.note(subject, None)
        unlisted = () if problem is None else (name for name in self._groups if name not in listed)
        self._groups = tuple(
            sorted((*unlisted, *(group.name for group in selected if group.is_consumer_group)))
        )
        shared = {group.name for group in selected if group.is_share_group}
        if problem is not None:
            shared.update(name for name in self._share_groups.names if name not in listed)
        self._share_groups.select(shared)
        alias = self._settings.source_alias
        self._not_consumer_groups = tuple(
            f"Group {group.name} of {alias} is not synchronised: {group.why_not}."
            for group in selected
            if not group.is_consumer_group and group.why_not is not None
        )
        gone = self._translated.keys() - set(self._groups)
        for name in gone:
            del self._translated[name]
            self._mover.forget(name)
            self._checkpoints.forget(name)
        self._warnings.keep_groups({*self._groups, *shared})
        return problem is None

    async def translate_groups(self) -> None:
        """Translates the current offsets of all groups, and decides which checkpoints are due. Raises UnreachableError."""
        known = self._known
        # Which groups have members changes faster than which groups there are.
        self._source_groups, problem = await groups.list_reachable_groups(self._clusters.source)
        self._warnings.note_listing(self._settings.source_alias, problem)
        await self._read_syncs(known.read_maps())
        await self._warnings.isolated(
            ("topic", known.opposite_map_topic, "reading"),
            "Groups that have yet to read what was copied before a switchover are not translated, because "
            f"{known.opposite_map_topic} cannot be read",
            known.read_opposite_maps(),
        )
        self._has_read_maps = True
        self._note_skipped()
        if self._steps is not None:
            await self._steps.open()
        offsets: Offsets = await groups.fetch_offsets_of(self._clusters.source, self._groups)
        if self._steps is not None:
            offsets = await self._steps.begin(offsets)
        # Earlier offsets must not move the target's group: the source's group may have been reset since.
        self._translated = {}
        await self._translate_offsets(offsets, known.translator, is_pass=True)
        await self._share_groups.translate(known.translator, self._warnings.for_each_group)
        if self._share_groups.names and self._settings.sync_s is not None:
            await self._share_groups.read_target(self._warnings.for_each_group)
        states = [
            state
            for now in (*self._translated.values(), *self._share_groups.translations)
            for state in now.values()
        ]
        self._translations = Counter(state.translation for state in states)
        again = [state.read_again_records for state in states]
        counts = [records for records in again if records is not None]
        self._read_again_records = sum(counts) if len(counts) == len(again) else None

    async def _translate_offsets(
        self,
        offsets: Mapping[str, Mapping[TopicPartition, Committed | None] | ClusterError],
        translator: Translator,
        *,
        is_pass: bool,
    ) -> dict[str, TranslatedOffsets]:
        """Translates new *offsets* of groups, and decides which checkpoints are due; returns the translations.

        None: the group has no offset any more.
        """
        rename = self._known.rename
        translated: dict[str, TranslatedOffsets] = {}
        rewound: dict[str, frozenset[TopicPartition]] = {}

        async def translate(group: str) -> None:
            its = offsets[group]
            if isinstance(its, ClusterError):
                raise its
            current = {partition: committed for partition, committed in its.items() if committed is not None}
            now = translate_group(current, selects=self._selects_topic, rename=rename, syncs=translator)
            last, all_of = self._store.of(group), self._translated.setdefault(group, {})
            for gone in its.keys() - current.keys():
                all_of.pop(rename(gone), None)
            all_of.update(now)
            translated[group] = now
            void = decisions.contradicted(last, now, translator.at_most, self._store.doubted(group))
            self._store.trust(group, now.keys() - void)
            rewound[group] = decisions.before_known_syncs(last, now, void)
            self._checkpoints.keep(group, decisions.due(last, now, void))
            if self._steps is not None:
                self._steps.note_ahead(group, its, now)

        alias = self._settings.source_alias
        await self._warnings.for_each_group(
            offsets,
            translate,
            "source",
            f"The offsets of group {GROUP} cannot be read on {alias}",
            is_pass=is_pass,
        )
        await self._rewind(rewound)
        return translated

    async def follow(self) -> float:
        """Handles groups that have moved since the last pass or step; returns for how many seconds to wait before the next step.

        Raises ClusterError, after which `translate_groups` comes first.
        """
        steps, known = self._steps, self._known
        if steps is None:
            return math.inf
        step = await steps.next(self._translated.keys(), lambda: self._read_syncs(known.read_new_maps()))
        # If the flow has ended, the next pass reads all groups.
        if step.groups and await self.may_write():
            partitions = {partition for moved in step.groups.values() for partition in moved}
            translator = await known.translator_of(partitions)
            translated = await self._translate_offsets(step.groups, translator, is_pass=False)
            await self._checkpoints.write()
            await self._mover.sync_moved(translated)
        steps.end()
        return step.pause_s

    async def _read_syncs(self, read_maps: Awaitable[bool]) -> None:
        known = self._known
        await self._warnings.isolated(
            ("topic", known.syncs_topic, "reading"), "New offset syncs cannot be read", known.read_syncs()
        )
        await self._warnings.isolated(
            ("topic", known.map_topic, "reading"),
            f"Groups that lag are translated by offset syncs alone, because {known.map_topic} cannot be read",
            read_maps,
        )

    async def write_checkpoints(self) -> None:
        """Writes the checkpoints that are due, and all again if the topic has lost them. Raises UnreachableError."""
        await self._checkpoints.check_topic()
        await self._checkpoints.write()

    async def sync_groups(self) -> None:
        """Commits the translated offsets for the target's groups, unless they are active there.

        Raises ClusterError if no broker of the target lists its groups.
        """
        selected = set(self._groups)
        await self._mover.sync({name: now for name, now in self._translated.items() if name in selected})
        await self._share_groups.move(self._mover.groups, self.may_write, self._warnings.for_each_group)

    async def _rewind(self, rewound: Mapping[str, frozenset[TopicPartition]]) -> None:
        """Moves groups that are before every offset sync, while their checkpoints are not, to the beginning of the copy."""
        wanted = frozenset().union(*rewound.values()) if rewound else frozenset()
        if not wanted:
            return
        listed = await admin.list_offsets(self._clusters.target, wanted, EARLIEST)
        beginnings = {
            partition: listed_offset.offset
            for partition, listed_offset in listed.items()
            if not listed_offset.error
        }
        for group, partitions in rewound.items():
            self._checkpoints.keep(
                group,
                decisions.at_beginning(
                    partitions, self._translated[group], beginnings, known=self._store.of(group)
                ),
            )

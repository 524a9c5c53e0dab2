"""Performs the passes of a checkpoint connector: list groups, write checkpoints, move groups; and the steps between them.

A pass reads all groups. A step handles only some of them (`connectors.group_steps`), by the same functions.

Guarantees: no write begins later than `claim_reader.RESPONSE_MAX_AGE_S` after a switchover has ended the flow (`may_write` is asked
directly before each write, and its response may be that old); a group, topic or permission that fails stops only itself, and is in `warnings` until it succeeds again; errors of a whole cluster are raised. A
checkpoint that could not be written is written with the next ones. `connectors.checkpoint_connector` decides when each pass is due and handles errors;
`mirrorflow_core.offsets.checkpoints` decides what is written, and `offset_translation` translates the offsets.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from mirrorflow_core.connect.mirror_records import (
    Checkpoint,
    encode_checkpoint_key,
    encode_checkpoint_value,
)
from mirrorflow_core.errors import (
    AuthenticationFailedError,
    ClusterError,
    GroupNotMovedError,
    IdentityError,
    InvalidSettingError,
    MirrorFlowError,
    UnreachableError,
)
from mirrorflow_core.offsets import checkpoints as decisions
from mirrorflow_core.offsets.application_offsets import ApplicationOffset, ApplicationTranslation
from mirrorflow_core.offsets.checkpoints import (
    Group,
    GroupFacts,
    GroupOffset,
    Point,
    Points,
    Writable,
    group_offsets,
    has_members,
    writable,
)
from mirrorflow_core.offsets.offset_translation import (
    Committed,
    TranslatedOffset,
    TranslatedOffsets,
    Translator,
    translate_group,
)
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import CheckpointLatency, GroupsReport
from mirrorflow_core.settings import CheckpointSettings
from mirrorflow_core.wire.error_codes import (
    OFFSET_METADATA_TOO_LARGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    name_of,
)
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores import compacted_topic
from mirrorflow_kafka.stores.own_topics import new_mirror_topic
from mirrorflow_replicator.config.plugins import make_group_selection, make_topic_filter
from mirrorflow_replicator.connectors.application_offsets import ApplicationOffsets
from mirrorflow_replicator.connectors.claim_reader import FlowEndWatch
from mirrorflow_replicator.connectors.group_follower import GroupFollower, Offsets
from mirrorflow_replicator.connectors.group_steps import GroupSteps
from mirrorflow_replicator.connectors.internal_topics import correct_topic_configs
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets, OffsetReaders
from mirrorflow_replicator.connectors.share_groups import ON_TARGET, ShareGroups
from mirrorflow_replicator.http.partition_rates import Window

GROUP = "{group}"  # placeholder for the group's name
WARNINGS_MAX = 100  # warnings shown; the rest is a number
REPLICATION_FACTOR_KEY: Final = "checkpoints.topic.replication.factor"
Result = TypeVar("Result")
# The subject of a warning: its kind, its name, and what cannot be done with it. The kinds are "group", "topic", "setting",
# "cluster", and "metadata" for a group that is moved without it.
Subject = tuple[str, str, str]
# What to do about a partition that the target refuses to look up or to commit, by error code.
_ADVICE: Final = {
    TOPIC_AUTHORIZATION_FAILED: "Describe and Read on its topic are needed",
    UNKNOWN_TOPIC_OR_PARTITION: "its topic is missing; the source connector's warnings say why",
}
# Errors that are not about a single group, topic or permission.
_WHOLE_CLUSTER = (UnreachableError, AuthenticationFailedError, IdentityError)


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
        """*end*: of the flow; None: it is written whether a switchover has ended the flow or not."""
        self._settings = settings
        self._end = end
        self._clusters = clusters
        self._writer = writer  # of the checkpoints topic
        self._selection = make_group_selection(settings)
        self._selects_topic = make_topic_filter(settings)
        self._known = KnownOffsets(settings, clusters)
        self.topic = self._known.checkpoints_topic
        self._store = self._known.checkpoints
        self._losses = compacted_topic.RecordLosses(clusters.target, self.topic)
        self._has_created_topic = False  # as far as it was possible
        self._unwritten: dict[str, dict[TopicPartition, Point]] = {}
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
        # The target's groups, as last read.
        self._target_offsets: dict[str, Mapping[TopicPartition, Committed]] = {}
        self._writable: dict[str, Writable] = {}
        # Commits whose metadata the target has refused, so that their offsets were committed without.
        self._refused_metadata: dict[str, dict[TopicPartition, Committed]] = {}
        self._warnings: dict[Subject, str] = {}
        self._not_consumer_groups: tuple[str, ...] = ()  # messages about groups that are not consumer groups
        self._latencies: dict[tuple[str, TopicPartition], tuple[float, Window]] = {}
        self._checkpoints_written = self._offsets_moved = self._active_groups = 0
        self._has_read_maps = False
        self._source_groups: Mapping[str, Group] = {}  # as last listed
        self._target_groups: Mapping[str, Group] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What failed for single groups or topics, and which groups cannot be synchronised; bounded."""
        warnings = (*self._warnings.values(), *self._not_consumer_groups)
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
    def followed_by(self) -> str:
        """How groups are followed between passes, for the log; "" if they are not."""
        return "" if self._steps is None else self._steps.description

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
            failing=len({name for kind, name, _ in self._warnings if kind == "group"}),
            unlike=len(self._not_consumer_groups),
            active=self._active_groups,
            checkpoints=self._checkpoints_written,
            moved=self._offsets_moved + self._share_groups.moved,
            followed_by="" if self._steps is None else self._steps.followed_by,
            followed_s=None if self._steps is None else self._steps.ended_s,
            translations=self._translations,
            offsets=self.explain,
            translate=self._translate if self._has_read_maps else None,
            latencies=tuple(
                CheckpointLatency(
                    group=group,
                    topic=partition.topic,
                    partition=partition.partition,
                    latency_ms=self._latencies[group, partition][0],
                    spread_ms=self._latencies[group, partition][1].spread(time.monotonic()),
                )
                for group, partition in sorted(self._latencies)
            ),
        )

    def explain(self, group: str | None) -> Iterator[GroupOffset]:
        """Yields the offsets of *group*, or of each group if None, as of the last pass."""
        names = (*self._groups, *self._share_groups.names)
        for name in names if group is None else (group,):
            yield from self._share_groups.explain(
                name,
                is_synchronised=self._settings.sync_s is not None,
                problem=self._warnings.get(("group", name, "target"))
                or self._warnings.get(("group", name, ON_TARGET), ""),
                on_source=self._source_groups.get(name),
                on_target=self._target_groups.get(name),
            )
            if name in self._translated:
                facts = GroupFacts(
                    group=name,
                    translated=self._translated[name],
                    points=self._store.of(name),
                    written_ms=self._store.written_ms,
                    target=self._target_offsets.get(name),
                    writable=self._writable.get(name, Writable.YES),
                    is_synchronised=self._settings.sync_s is not None,
                    problem=self._warnings.get(("group", name, "target"), ""),
                    has_members_on_source=has_members(self._source_groups.get(name)),
                    has_members_on_target=has_members(self._target_groups.get(name)),
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
        if self._settings.emit_s is not None:
            await self._check_topic()
        read = await self._isolated(
            ("topic", self.topic, "reading"),
            f"Earlier checkpoints cannot be read from {self.topic}, so that groups that lag are translated only from "
            "what is copied from now on",
            self._known.read_checkpoints(),
        )
        await self._known.open_syncs(must_read_to_end=read is None)
        self._note_skipped()

    async def _create_topic(self) -> None:
        await self._isolated(
            ("topic", self.topic, "creation"),
            f"Checkpoints topic {self.topic} cannot be created",
            compacted_topic.create_mirror_topic(
                self._clusters.target,
                self.topic,
                replication_factor=self._settings.replication_factor,
                key=REPLICATION_FACTOR_KEY,
            ),
        )
        self._has_created_topic = True

    async def _check_topic(self) -> None:
        """Creates the topic and corrects its settings; creates it again and makes all checkpoints due if it has lost its records."""
        if not await self.may_write():
            return
        if not self._has_created_topic:
            await self._create_topic()
        own = new_mirror_topic(self.topic, self._settings.replication_factor)
        subject = ("topic", self.topic, "settings")
        uncorrected = await self._isolated(
            subject,
            f"The settings of checkpoints topic {self.topic} cannot be checked",
            correct_topic_configs(self._clusters.target, [own]),
        )
        if uncorrected is not None and uncorrected.warnings:
            self._warnings[subject] = uncorrected.warnings[0]
        has_lost = await self._isolated(
            ("topic", self.topic, "losses"),
            f"Whether {self.topic} has lost checkpoints is not known",
            self._losses.has_lost_records(),
        )
        if has_lost:
            await self._create_topic()
            for group, points in self._store.items():
                self._unwritten[group] = {**points, **self._unwritten.get(group, {})}

    def _note_skipped(self) -> None:
        for topic, sentence in self._known.skipped.items():
            self._warnings["topic", topic, "records"] = sentence

    async def refresh(self) -> bool:
        """Lists the source's groups; returns whether every broker has listed its own. Raises ClusterError.

        Groups that are known stay where they cannot be listed. Raises InvalidSettingError if none are known yet.
        """
        listed, problem = await groups.list_reachable_groups(self._clusters.source)
        self._note_listing(self._settings.source_alias, problem)
        if problem is None:
            # A group that is deleted and created again is a new one.
            self._other_groups &= listed.keys()
        subject = ("setting", "groups", "listing")
        try:
            selected = [group for name, group in sorted(listed.items()) if self._selection.selects(name)]
        except InvalidSettingError as error:
            if not self._groups:
                raise
            self._warnings[subject] = f"The list of groups is not refreshed: {error}"
            return problem is None
        self._warnings.pop(subject, None)
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
            if not group.is_consumer_group and group.why_not
        )
        gone = self._translated.keys() - set(self._groups)
        for name in gone:
            del self._translated[name]
            self._target_offsets.pop(name, None)
            self._writable.pop(name, None)
            self._refused_metadata.pop(name, None)
        self._warnings = {
            subject: warning
            for subject, warning in self._warnings.items()
            if subject[0] not in {"group", "metadata"} or subject[1] in {*self._groups, *shared}
        }
        self._latencies = {key: value for key, value in self._latencies.items() if key[0] not in gone}
        return problem is None

    def _note_listing(self, alias: str, problem: ClusterError | None) -> None:
        subject = ("cluster", alias, "groups")
        if problem is None:
            self._warnings.pop(subject, None)
        else:
            self._warnings[subject] = f"Not every broker of {alias} lists its groups: {problem}"

    async def translate_groups(self) -> None:
        """Translates the current offsets of all groups, and decides which checkpoints are due. Raises UnreachableError."""
        known = self._known
        # Which groups have members changes faster than which groups there are.
        self._source_groups, problem = await groups.list_reachable_groups(self._clusters.source)
        self._note_listing(self._settings.source_alias, problem)
        await self._read_syncs(known.read_maps())
        await self._isolated(
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
        await self._share_groups.translate(known.translator, self._for_each_group)
        if self._share_groups.names and self._settings.sync_s is not None:
            await self._share_groups.read_target(self._for_each_group)
        self._translations = Counter(
            state.translation
            for now in (*self._translated.values(), *self._share_groups.translations)
            for state in now.values()
        )

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
            rewound[group] = decisions.reset_before_known_syncs(last, now)
            self._keep(group, decisions.due(last, now))
            if self._steps is not None:
                self._steps.note_ahead(group, its, now)

        alias = self._settings.source_alias
        await self._for_each_group(
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
            await self._write_unwritten()
            await self._sync_moved(translated)
        steps.end()
        return step.pause_s

    async def _read_syncs(self, read_maps: Awaitable[bool]) -> None:
        known = self._known
        await self._isolated(
            ("topic", known.syncs_topic, "reading"), "New offset syncs cannot be read", known.read_syncs()
        )
        await self._isolated(
            ("topic", known.map_topic, "reading"),
            f"Groups that lag are translated by offset syncs alone, because {known.map_topic} cannot be read",
            read_maps,
        )

    async def write_checkpoints(self) -> None:
        """Writes the checkpoints that are due, and all again if the topic has lost them. Raises UnreachableError."""
        if self._settings.emit_s is not None:
            await self._check_topic()
        await self._write_unwritten()

    async def _write_unwritten(self) -> None:
        if self._unwritten:
            await self._isolated(
                ("topic", self.topic, "writing"),
                f"Checkpoints cannot be written to {self.topic}",
                self._write(),
            )

    async def _rewind(self, rewound: Mapping[str, frozenset[TopicPartition]]) -> None:
        """Moves groups that were reset to before every offset sync to the beginning of the copy."""
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
            self._keep(group, decisions.at_beginning(partitions, self._translated[group], beginnings))

    def _keep(self, group: str, points: Points) -> None:
        if points:
            self._store.take(group, points)
            if self._settings.emit_s is not None:
                self._unwritten.setdefault(group, {}).update(points)

    async def _write(self) -> bool:
        if not await self.may_write():
            return False
        now_ms, began_s = time.time_ns() // 1_000_000, time.monotonic()
        written = {group: dict(points) for group, points in self._unwritten.items()}
        records = []
        for group, points in written.items():
            for partition, point in points.items():
                checkpoint = Checkpoint(
                    group=group,
                    topic=partition.topic,
                    partition=partition.partition,
                    upstream_offset=point.upstream_offset,
                    downstream_offset=point.downstream_offset,
                    metadata=point.metadata,
                )
                try:
                    key, value = encode_checkpoint_key(checkpoint), encode_checkpoint_value(checkpoint)
                except ValueError as error:
                    self._warnings["group", group, "record"] = (
                        f"Group {group} has no checkpoint for {partition}: {error}."
                    )
                    continue
                records.append(Record(0, now_ms, key, value, ()))
        if records:
            await compacted_topic.append(self._writer, self.topic, records)
        latency_ms = float(round(1000 * (time.monotonic() - began_s)))
        self._checkpoints_written += len(records)
        self._unwritten = {}
        for group, points in written.items():
            self._store.note_written(group, points, now_ms)
            self._note_latency(group, points, latency_ms)
        return True

    def _note_latency(self, group: str, points: Points, latency_ms: float) -> None:
        now_s = time.monotonic()
        for partition in points:
            _, window = self._latencies.get((group, partition), (0.0, Window(now_s)))
            window.take(now_s, latency_ms)
            self._latencies[group, partition] = (latency_ms, window)

    async def sync_groups(self) -> None:
        """Commits the translated offsets for the target's groups, unless they are active there.

        Raises ClusterError if no broker of the target lists its groups.
        """
        target = self._clusters.target
        listed, problem = await groups.list_reachable_groups(target)
        self._note_listing(self._settings.target_alias, problem)
        self._target_groups = listed
        names = [group for group in self._groups if self._store.of(group) and group in self._translated]
        own = await groups.fetch_offsets_of(target, names)
        active = 0

        async def move(name: str) -> None:
            nonlocal active
            group = listed.get(name)
            is_unlisted = group is None and problem is not None
            if is_unlisted or (group is not None and not group.state):
                group = await groups.describe_group(target, name)
            self._writable[name] = writable(group)
            match self._writable[name]:
                case Writable.ACTIVE:
                    active += 1
                    self._note_refused_metadata(name, {})
                case Writable.OTHER_KIND:
                    kind = "" if group is None else (group.type or group.protocol_type).lower()
                    why = f"it exists there as a group of another kind ({kind})"
                    raise GroupNotMovedError(cluster=target.alias, group=name, why=why)
                case Writable.YES:
                    its = own[name]
                    if isinstance(its, ClusterError):
                        raise its
                    self._target_offsets[name] = its
                    self._note_refused_metadata(name, its)
                    if decisions.offsets_to_commit(self._store.of(name), self._translated[name], its):
                        active += await self._move(name, self._translated[name])

        alias = self._settings.target_alias
        await self._for_each_group(
            names, move, "target", f"The offsets of group {GROUP} are not synchronised on {alias}"
        )
        self._active_groups = active
        await self._share_groups.move(listed, self.may_write, self._for_each_group)

    async def _sync_moved(self, translated: Mapping[str, TranslatedOffsets]) -> None:
        """Commits *translated* offsets for the target's groups that were idle at the last pass; coordinators refuse the others."""

        async def move(name: str) -> None:
            if await self._move(name, translated[name]):
                self._writable[name] = Writable.ACTIVE
                self._active_groups += 1

        names = [
            name
            for name, now in translated.items()
            if self._writable.get(name, Writable.YES) is Writable.YES
            and decisions.offsets_to_commit(self._store.of(name), now, self._target_offsets.get(name, {}))
        ]
        alias = self._settings.target_alias
        await self._for_each_group(
            names,
            move,
            "target",
            f"The offsets of group {GROUP} are not synchronised on {alias}",
            is_pass=False,
        )

    async def _move(self, group: str, now: TranslatedOffsets) -> bool:
        """Commits *now* for an idle *group*; returns whether it was active after all. Raises ClusterError."""
        target = self._clusters.target
        if not await self.may_write():
            return False
        # Read right before the change, so that nothing committed until now is taken back.
        own = self._target_offsets[group] = await groups.fetch_offsets(target, group)
        self._note_refused_metadata(group, own)
        due = decisions.offsets_to_commit(self._store.of(group), now, own)
        if not due:
            return False
        # Behind the end, a consumer would apply its reset policy: the copy was re-created, or has lost its
        # tail.
        ends = await admin.list_offsets(target, due, LATEST)
        refused = {partition: _refusal(end.error) for partition, end in ends.items() if end.error}
        inside = {
            partition: Committed(offset=point.downstream_offset, metadata=point.metadata)
            for partition, point in due.items()
            if not ends[partition].error and point.downstream_offset <= ends[partition].offset
        }
        refused |= {
            partition: f"its copy ends at {ends[partition].offset}, before {due[partition].downstream_offset}"
            for partition in due.keys() - inside.keys() - refused.keys()
        }
        if not await self.may_write():  # the requests above may have taken seconds
            return False
        codes = await groups.commit_offsets(target, group, inside) if inside else {}
        too_large = {
            partition: inside[partition]
            for partition, code in codes.items()
            if code == OFFSET_METADATA_TOO_LARGE
        }
        if too_large and await self.may_write():
            without = {
                partition: Committed(offset=committed.offset) for partition, committed in too_large.items()
            }
            codes |= await groups.commit_offsets(target, group, without)
            inside |= without
        if groups.MEMBERS_PRESENT & set(codes.values()):
            return True
        done = {partition: inside[partition] for partition, code in codes.items() if not code}
        self._target_offsets[group] = {**own, **done}
        self._offsets_moved += len(done)
        self._refused_metadata.setdefault(group, {}).update(too_large)
        self._note_refused_metadata(group, self._target_offsets[group])
        refused |= {partition: _refusal(code) for partition, code in codes.items() if code}
        if refused:
            partition, why = min(refused.items())
            more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
            raise GroupNotMovedError(cluster=target.alias, group=group, why=f"{partition}: {why}{more}")
        return False

    def _note_refused_metadata(self, group: str, own: Mapping[TopicPartition, Committed]) -> None:
        """Warns of metadata that the target has refused, while its group stands where it was moved without. *own*: its offsets."""
        subject = ("metadata", group, "target")
        refused = {
            partition: committed
            for partition, committed in self._refused_metadata.pop(group, {}).items()
            if own.get(partition) == Committed(offset=committed.offset)
        }
        if not refused:
            self._warnings.pop(subject, None)
            return
        self._refused_metadata[group] = refused
        partition, committed = min(refused.items())
        more = f" and {len(refused) - 1} more" if len(refused) > 1 else ""
        alias = self._settings.target_alias
        self._warnings[subject] = (
            f"Group {group} was moved on {alias} without the metadata of its offsets, because {alias} refuses it "
            f"({name_of(OFFSET_METADATA_TOO_LARGE)}): {len(committed.metadata)} characters for {partition}{more}; raise "
            "offset.metadata.max.bytes of its brokers (4096 by default)."
        )

    async def _for_each_group(
        self,
        names: Iterable[str],
        ask: Callable[[str], Awaitable[None]],
        side: str,
        failed: str,
        *,
        is_pass: bool = True,
    ) -> None:
        """Calls *ask* for each group, GROUPS_AT_ONCE at a time.

        A failure becomes a warning. If all groups of a pass fail with an error of the whole cluster, it is raised.
        """
        waiting, has_result = list(names), False
        for begin in range(0, len(waiting), groups.GROUPS_AT_ONCE):
            asked = waiting[begin : begin + groups.GROUPS_AT_ONCE]
            results = await asyncio.gather(*(ask(name) for name in asked), return_exceptions=True)
            for name, result in zip(asked, results, strict=True):
                subject = ("group", name, side)
                if isinstance(result, ClusterError | InvalidSettingError):
                    self._warnings[subject] = f"{failed.replace(GROUP, name)}: {result}"
                elif isinstance(result, BaseException):
                    raise result
                else:
                    self._warnings.pop(subject, None)
            lost = [result for result in results if isinstance(result, _WHOLE_CLUSTER)]
            has_result |= len(lost) < len(asked)
            if (
                is_pass
                and len(lost) == len(asked)
                and (not has_result or len(asked) == groups.GROUPS_AT_ONCE)
            ):
                raise lost[0]

    async def _isolated(self, subject: Subject, failed: str, step: Awaitable[Result]) -> Result | None:
        """Returns the result of *step*; None if it failed, which becomes a warning.

        Raises errors of the whole cluster.
        """
        try:
            result = await step
        except _WHOLE_CLUSTER:
            raise
        except MirrorFlowError as error:
            self._warnings[subject] = f"{failed}: {error}"
            return None
        self._warnings.pop(subject, None)
        return result


def _refusal(code: int) -> str:
    advice = _ADVICE.get(code)
    return f"{name_of(code)} ({advice})" if advice else name_of(code)

"""Checkpoints and committed offsets of target groups follow MirrorCheckpointTask, and no record is skipped."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorflow_core.offsets.checkpoints import (
    CheckpointStore,
    Point,
    at_beginning,
    before_known_syncs,
    contradicted,
    due,
    offsets_to_commit,
)
from mirrorflow_core.offsets.offset_map import MapStream, OffsetMap, PartitionMap
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore, Sync
from mirrorflow_core.offsets.offset_translation import (
    Committed,
    TranslatedOffset,
    Translator,
    renaming,
    translate_group,
)
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_core.replication_policy import DefaultPolicy, IdentityPolicy
from mirrorflow_core.transforms import TopicTransforms

FOO = TopicPartition("foo", 0)
COPY = TopicPartition("A.foo", 0)
RENAME = renaming(TopicTransforms(DefaultPolicy(), "A"), target_alias="B")


def store(*syncs: Sync, partition: TopicPartition = FOO) -> OffsetSyncStore:
    sync_store = OffsetSyncStore(must_read_to_end=False)
    for sync in syncs:
        sync_store.add(partition, sync)
    sync_store.mark_read_to_end()
    return sync_store


def translated_at(upstream: int, downstream: int | None) -> dict[TopicPartition, TranslatedOffset]:
    return {COPY: TranslatedOffset(upstream_offset=upstream, downstream_offset=downstream)}


def checkpoint_at(upstream: int, downstream: int) -> dict[TopicPartition, Point]:
    return {COPY: Point(upstream_offset=upstream, downstream_offset=downstream)}


def test_partitions_are_renamed_to_copies_and_copies_from_the_target_are_renamed_to_their_originals():
    """Java's renameTopicPartition does the same."""
    assert [TopicPartition("A.foo", 3), TopicPartition("foo", 3)] == [
        RENAME(TopicPartition("foo", 3)),
        RENAME(TopicPartition("B.foo", 3)),
    ]
    identity = renaming(TopicTransforms(IdentityPolicy(source_alias="A"), "A"), target_alias="B")
    assert TopicPartition("foo", 3) == identity(TopicPartition("foo", 3))


def test_only_topics_of_the_flow_are_translated_and_metadata_is_kept():
    other = TopicPartition("other", 0)

    assert {
        COPY: TranslatedOffset(upstream_offset=150, downstream_offset=206, metadata="m", source=FOO)
    } == translate_group(
        {FOO: Committed(150, "m"), other: Committed(7)},
        selects=lambda topic: topic == "foo",
        rename=RENAME,
        syncs=Translator(store(Sync(100, 205))),
    )


@pytest.mark.parametrize("offset", [99, 0])
def test_an_offset_before_all_syncs_is_not_translated(offset: int):
    """Java returns -1 for it."""
    translated = translate_group(
        {FOO: Committed(offset)},
        selects=lambda _: True,
        rename=RENAME,
        syncs=Translator(store(Sync(100, 205))),
    )
    assert translated[COPY].downstream_offset is None


@pytest.mark.parametrize(
    ("last", "now", "expected"),
    [
        ({}, translated_at(10, 10), checkpoint_at(10, 10)),  # the first checkpoint
        (checkpoint_at(10, 10), translated_at(11, 11), checkpoint_at(11, 11)),  # the group advanced
        (checkpoint_at(10, 10), translated_at(10, 10), {}),  # unchanged
        (checkpoint_at(10, 10), translated_at(12, 10), {}),  # the group advanced, but its translation did not
        (
            checkpoint_at(10, 10),
            translated_at(12, 9),
            {},
        ),  # a less precise translation; the old checkpoint stays valid
        (checkpoint_at(10, 10), translated_at(10, 12), checkpoint_at(10, 12)),  # a more precise translation
        (
            checkpoint_at(10, 10),
            translated_at(4, 4),
            checkpoint_at(4, 4),
        ),  # the group was reset on the source
        (checkpoint_at(10, 10), translated_at(4, 10), checkpoint_at(4, 10)),
        (checkpoint_at(10, 10), translated_at(11, None), {}),
        ({}, translated_at(11, None), {}),
    ],
)
def test_a_checkpoint_follows_the_group_and_decreases_only_with_it(last, now, expected):
    """Java's checkpointIsMoreRecent decides the same."""
    assert expected == due(last, now)


def test_a_group_reset_to_before_all_syncs_gets_the_start_of_the_copy():
    """Java keeps the old checkpoint. A consumer would then skip records that the group must read again."""
    now = translated_at(4, None)
    reset = before_known_syncs(checkpoint_at(10, 10), now)

    assert frozenset({COPY}) == reset
    assert checkpoint_at(4, 2) == at_beginning(reset, now, {COPY: 2}, known={})
    assert {} == at_beginning(reset, now, {}, known={})


@pytest.mark.parametrize("now", [translated_at(4, 3), translated_at(10, None), translated_at(11, None), {}])
def test_other_groups_are_not_reset_to_the_start(now):
    """Only a group that was reset and cannot be translated starts at the start of the copy."""
    assert not before_known_syncs(checkpoint_at(10, 10), now)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({}, checkpoint_at(10, 8)),
        ({COPY: Committed(7)}, checkpoint_at(10, 8)),
        ({COPY: Committed(8)}, {}),
        ({COPY: Committed(9)}, {}),
        ({TopicPartition("A.foo", 1): Committed(9)}, checkpoint_at(10, 8)),
    ],
)
def test_the_target_group_advances_and_never_goes_back(target, expected):
    """Java's syncGroupOffset does the same, but in one case writes without a check."""
    assert expected == offsets_to_commit(checkpoint_at(10, 8), translated_at(10, 8), target)


@pytest.mark.parametrize("now", [translated_at(9, None), translated_at(9, 7), {}])
def test_an_offset_ahead_of_the_source_group_is_not_committed(now):
    """An old checkpoint must not make the target group skip records that the source group has yet to read."""
    assert not offsets_to_commit(checkpoint_at(10, 8), now, {})


def test_the_store_keeps_the_last_checkpoint_of_each_partition():
    """This equals compaction of the topic."""
    checkpoints = CheckpointStore()
    checkpoints.take("g", checkpoint_at(10, 8))
    checkpoints.take("g", {TopicPartition("A.foo", 1): Point(upstream_offset=1, downstream_offset=1)})
    checkpoints.take("g", checkpoint_at(12, 9))

    assert {
        **checkpoint_at(12, 9),
        TopicPartition("A.foo", 1): Point(upstream_offset=1, downstream_offset=1),
    } == checkpoints.of("g")
    assert {} == checkpoints.of("other")


@dataclass(frozen=True)
class Step:
    """One step of the model."""

    kind: str
    number: int


STEPS = st.lists(
    st.builds(
        Step,
        kind=st.sampled_from(["copy", "copy without sync", "skip", "read", "reset", "consume", "restart"]),
        number=st.integers(0, 12),
    ),
    min_size=6,
    max_size=60,
)


class World:
    """A source partition, its copy without some records, a group on both clusters, and the connector."""

    def __init__(self, *, mapped: bool) -> None:
        self.map = PartitionMap(MapStream(1, "", ""), OffsetPair(-1, -1, -1)) if mapped else None
        self.kept: dict[TopicPartition, OffsetMap] = {}  # the last written maps
        self.end = 0  # the end offset of the source
        self.copied: list[int] = []  # target offset -> source offset
        self.syncs: list[Sync] = []
        self.store = self.fresh_syncs()
        self.checkpoints = CheckpointStore()
        self.source = 0  # the offset of the source group
        self.was_reset = False
        self.target: int | None = None

    def fresh_syncs(self) -> OffsetSyncStore:
        return OffsetSyncStore(must_read_to_end=False)

    def highest_safe_offset(self, upstream: int) -> int:
        """The highest target offset from which no record from *upstream* on is missed."""
        return next((down for down, up in enumerate(self.copied) if up >= upstream), len(self.copied))

    def step(self, step: Step) -> None:
        match step.kind:
            case "copy" | "copy without sync":
                if self.map is not None and step.number:
                    self.map.delivered(self.end, len(self.copied), step.number, len(self.copied))
                self.copied += range(self.end, self.end + step.number)
                self.end += step.number
                if self.map is not None and step.kind == "copy" and self.copied:
                    newest = OffsetPair(self.copied[-1], len(self.copied) - 1, len(self.copied) - 1)
                    self.kept = {FOO: self.map.kept(newest)}
                if step.kind == "copy" and self.copied:
                    self.sync()
            case "skip":
                self.end += step.number
            case "read":
                self.source = min(self.end, self.source + step.number)
            case "reset":
                self.was_reset |= step.number < self.source
                self.source = min(self.source, step.number)
            case "consume" if self.target is not None:
                self.target = min(len(self.copied), self.target + step.number)
            case "restart":
                self.restart(compacted=step.number % 2 == 1)
            case _:
                pass

    def sync(self) -> None:
        downstream = len(self.copied) - 1
        self.syncs.append(Sync(self.copied[downstream], downstream))
        self.store.add(FOO, self.syncs[-1])

    def restart(self, *, compacted: bool) -> None:
        """Restarts the connector, which reads only the topics. A compacted topic has only the last sync."""
        self.store = self.fresh_syncs()
        for sync in self.syncs[-1:] if compacted else self.syncs:
            self.store.add(FOO, sync)

    def check(self) -> None:
        self.store.mark_read_to_end()
        last = self.checkpoints.of("g").get(COPY)
        translator = Translator(self.store, self.kept)
        translated = translate_group(
            {FOO: Committed(self.source)},
            selects=lambda _: True,
            rename=RENAME,
            syncs=translator,
        )
        checkpoints = dict(self.checkpoints.of("g"))
        void = contradicted(checkpoints, translated, translator.at_most)
        self.checkpoints.take("g", due(checkpoints, translated, void))
        before = before_known_syncs(checkpoints, translated, void)
        self.checkpoints.take("g", at_beginning(before, translated, {COPY: 0}, known=checkpoints))
        after = self.checkpoints.of("g").get(COPY)
        if after is not None:
            assert after.downstream_offset <= self.highest_safe_offset(self.source), (
                "a record would be skipped"
            )
            assert after.upstream_offset <= self.source
        if last is not None and after is not None and not self.was_reset:
            assert after.downstream_offset >= last.downstream_offset, (
                "the checkpoint decreased without a reset"
            )
        self.was_reset = False
        committed = {} if self.target is None else {COPY: Committed(self.target)}
        to_commit = offsets_to_commit(self.checkpoints.of("g"), translated, committed)
        for point in to_commit.values():
            assert self.target is None or point.downstream_offset > self.target, "the target group moved back"
            assert point.downstream_offset <= self.highest_safe_offset(self.source), (
                "a record would be skipped"
            )
            self.target = point.downstream_offset


@given(steps=STEPS, mapped=st.booleans())
@settings(max_examples=10 * settings().max_examples)
def test_no_record_is_skipped_and_no_group_goes_back_without_a_reset(steps: list[Step], *, mapped: bool):
    """This holds for any order of copying, syncs, maps, reads, resets, restarts and compaction."""
    world = World(mapped=mapped)
    for step in steps:
        world.step(step)
        world.check()

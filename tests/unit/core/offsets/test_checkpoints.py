"""Checkpoints, and the offsets that are committed for groups of the target: MirrorCheckpointTask's cases, and that no record is skipped."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorflow_core.offsets.checkpoints import (
    CheckpointStore,
    Point,
    at_beginning,
    due,
    offsets_to_commit,
    reset_before_known_syncs,
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
    found = OffsetSyncStore(must_read_to_end=False)
    for sync in syncs:
        found.add(partition, sync)
    found.mark_read_to_end()
    return found


def stands(upstream: int, downstream: int | None) -> dict[TopicPartition, TranslatedOffset]:
    return {COPY: TranslatedOffset(upstream_offset=upstream, downstream_offset=downstream)}


def was(upstream: int, downstream: int) -> dict[TopicPartition, Point]:
    return {COPY: Point(upstream_offset=upstream, downstream_offset=downstream)}


def test_partitions_get_the_names_of_their_copies_and_those_from_the_target_their_own_back():
    """renameTopicPartition."""
    assert [TopicPartition("A.foo", 3), TopicPartition("foo", 3)] == [
        RENAME(TopicPartition("foo", 3)),
        RENAME(TopicPartition("B.foo", 3)),
    ]
    identity = renaming(TopicTransforms(IdentityPolicy(source_alias="A"), "A"), target_alias="B")
    assert TopicPartition("foo", 3) == identity(TopicPartition("foo", 3))


def test_only_topics_of_the_flow_are_translated_with_the_groups_own_words():
    """The topic filter; metadata are kept."""
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
def test_what_is_older_than_all_syncs_is_not_known(offset: int):
    """Java's -1."""
    found = translate_group(
        {FOO: Committed(offset)},
        selects=lambda _: True,
        rename=RENAME,
        syncs=Translator(store(Sync(100, 205))),
    )
    assert found[COPY].downstream_offset is None


@pytest.mark.parametrize(
    ("last", "now", "expected"),
    [
        ({}, stands(10, 10), was(10, 10)),  # the first
        (was(10, 10), stands(11, 11), was(11, 11)),  # moved on
        (was(10, 10), stands(10, 10), {}),  # a repeat
        (was(10, 10), stands(12, 10), {}),  # moved on, but not by what is known of the target
        (was(10, 10), stands(12, 9), {}),  # less is known than before: the old one is still right
        (was(10, 10), stands(10, 12), was(10, 12)),  # more is known
        (was(10, 10), stands(4, 4), was(4, 4)),  # set back on the source
        (was(10, 10), stands(4, 10), was(4, 10)),
        (was(10, 10), stands(11, None), {}),
        ({}, stands(11, None), {}),
    ],
)
def test_a_checkpoint_follows_the_group_and_goes_back_only_with_it(last, now, expected):
    """checkpointIsMoreRecent."""
    assert expected == due(last, now)


def test_a_group_reset_to_before_all_syncs_gets_the_beginning_of_the_copy():
    """Java keeps the old checkpoint; a consumer that began there would skip what the group wants to read again."""
    now = stands(4, None)
    back = reset_before_known_syncs(was(10, 10), now)

    assert frozenset({COPY}) == back
    assert was(4, 2) == at_beginning(back, now, {COPY: 2})
    assert {} == at_beginning(back, now, {})


@pytest.mark.parametrize("now", [stands(4, 3), stands(10, None), stands(11, None), {}])
def test_other_groups_are_not_sent_to_the_beginning(now):
    """Only who was set back, and cannot be translated."""
    assert not reset_before_known_syncs(was(10, 10), now)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({}, was(10, 8)),
        ({COPY: Committed(7)}, was(10, 8)),
        ({COPY: Committed(8)}, {}),
        ({COPY: Committed(9)}, {}),
        ({TopicPartition("A.foo", 1): Committed(9)}, was(10, 8)),
    ],
)
def test_the_targets_group_is_moved_on_and_never_back(target, expected):
    """syncGroupOffset, and the same where Java writes blind."""
    assert expected == offsets_to_commit(was(10, 8), stands(10, 8), target)


@pytest.mark.parametrize("now", [stands(9, None), stands(9, 7), {}])
def test_an_offset_ahead_of_the_source_group_is_not_committed(now):
    """A remembered checkpoint is no reason to skip what the source's group has yet to read (again)."""
    assert not offsets_to_commit(was(10, 8), now, {})


def test_the_store_keeps_the_last_of_each_partition():
    """As the compacted topic does."""
    found = CheckpointStore()
    found.take("g", was(10, 8))
    found.take("g", {TopicPartition("A.foo", 1): Point(upstream_offset=1, downstream_offset=1)})
    found.take("g", was(12, 9))

    assert {
        **was(12, 9),
        TopicPartition("A.foo", 1): Point(upstream_offset=1, downstream_offset=1),
    } == found.of("g")
    assert {} == found.of("other")


@dataclass(frozen=True)
class Step:
    """One thing that happens."""

    kind: str
    number: int


STEPS = st.lists(
    st.builds(
        Step,
        kind=st.sampled_from(["copy", "quietly", "skip", "read", "back", "consume", "restart"]),
        number=st.integers(0, 12),
    ),
    min_size=6,
    max_size=60,
)


class World:
    """A source partition, its copy with records left out here and there, a group on both sides, our connector."""

    def __init__(self, *, mapped: bool) -> None:
        self.map = PartitionMap(MapStream(1, "", ""), OffsetPair(-1, -1, -1)) if mapped else None
        self.kept: dict[TopicPartition, OffsetMap] = {}  # as it was last written
        self.end = 0  # of the source
        self.copied: list[int] = []  # target offset -> source offset
        self.syncs: list[Sync] = []
        self.store = self.fresh_syncs()
        self.checkpoints = CheckpointStore()
        self.source = 0  # where the source's group stands
        self.source_back = False
        self.target: int | None = None

    def fresh_syncs(self) -> OffsetSyncStore:
        return OffsetSyncStore(must_read_to_end=False)

    def right(self, upstream: int) -> int:
        """The last place on the target from which nothing from *upstream* on is missed."""
        return next((down for down, up in enumerate(self.copied) if up >= upstream), len(self.copied))

    def step(self, step: Step) -> None:
        match step.kind:
            case "copy" | "quietly":
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
            case "back":
                self.source_back |= step.number < self.source
                self.source = min(self.source, step.number)
            case "consume" if self.target is not None:
                self.target = min(len(self.copied), self.target + step.number)
            case "restart":
                self.restart(compacted=step.number % 2 == 1)
            case _:
                pass

    def sync(self) -> None:
        down = len(self.copied) - 1
        self.syncs.append(Sync(self.copied[down], down))
        self.store.add(FOO, self.syncs[-1])

    def restart(self, *, compacted: bool) -> None:
        """Only the topics are left: of the compacted one the last sync."""
        self.store = self.fresh_syncs()
        for sync in self.syncs[-1:] if compacted else self.syncs:
            self.store.add(FOO, sync)

    def look(self) -> None:
        self.store.mark_read_to_end()
        before = self.checkpoints.of("g").get(COPY)
        now = translate_group(
            {FOO: Committed(self.source)},
            selects=lambda _: True,
            rename=RENAME,
            syncs=Translator(self.store, self.kept),
        )
        known = dict(self.checkpoints.of("g"))
        self.checkpoints.take("g", due(known, now))
        self.checkpoints.take("g", at_beginning(reset_before_known_syncs(known, now), now, {COPY: 0}))
        after = self.checkpoints.of("g").get(COPY)
        if after is not None:
            assert after.downstream_offset <= self.right(self.source), "a record would be skipped"
            assert after.upstream_offset <= self.source
        if before is not None and after is not None and not self.source_back:
            assert after.downstream_offset >= before.downstream_offset, "it went back by itself"
        self.source_back = False
        own = {} if self.target is None else {COPY: Committed(self.target)}
        given = offsets_to_commit(self.checkpoints.of("g"), now, own)
        for point in given.values():
            assert self.target is None or point.downstream_offset > self.target, "moved back"
            assert point.downstream_offset <= self.right(self.source), "a record would be skipped"
            self.target = point.downstream_offset


@given(steps=STEPS, mapped=st.booleans())
@settings(max_examples=10 * settings().max_examples)
def test_no_record_is_skipped_and_no_group_goes_back_by_itself(steps: list[Step], *, mapped: bool):
    """Whatever is copied, left out, synchronised, mapped, read, set back, restarted, and compacted in between."""
    world = World(mapped=mapped)
    for step in steps:
        world.step(step)
        world.look()

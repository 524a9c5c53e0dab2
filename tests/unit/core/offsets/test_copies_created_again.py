"""Checkpoints of an earlier copy of a partition let no group skip records of the present one."""

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mirrorflow_core.offsets.checkpoints import (
    SETTLED_MS,
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
from mirrorflow_core.replication_policy import DefaultPolicy
from mirrorflow_core.transforms import TopicTransforms
from mirrorflow_replicator.switchover.final_groups import clamped, of_present_copy

FOO, COPY = TopicPartition("foo", 0), TopicPartition("A.foo", 0)
RENAME = renaming(TopicTransforms(DefaultPolicy(), "A"), target_alias="B")
EARLIER = {COPY: Point(upstream_offset=900, downstream_offset=900)}


def no_syncs() -> OffsetSyncStore:
    return OffsetSyncStore(must_read_to_end=False)


def by_map(first: int, count: int) -> Translator:
    """A translator by the map of a copy that was created again: source offset *first* lies at its offset 0."""
    stream = MapStream(2, "source", "target-2")
    created_again = PartitionMap(stream, OffsetPair(first - 1, -1, -1))
    created_again.delivered(first, 0, count, 0)
    syncs = no_syncs()
    syncs.mark_read_to_end()
    return Translator(syncs, {FOO: created_again.kept(OffsetPair(first + count - 1, count - 1, count - 1))})


def by_syncs(*syncs: Sync) -> Translator:
    store = no_syncs()
    for sync in (Sync(0, 0), Sync(999, 999), *syncs):
        store.add(FOO, sync)
    store.mark_read_to_end()
    return Translator(store)


def translated(translator: Translator, upstream: int) -> dict[TopicPartition, TranslatedOffset]:
    return translate_group(
        {FOO: Committed(upstream)}, selects=lambda _: True, rename=RENAME, syncs=translator
    )


@pytest.mark.parametrize(
    ("translator", "upstream", "downstream"),
    [
        (by_map(500, 1_500), 950, 450),
        (by_map(500, 420), 950, 420),
        (by_map(2_000, 1_500), 950, 0),
        (by_syncs(Sync(500, 0), Sync(1_500, 800)), 950, 1),
        (by_syncs(Sync(2_000, 0)), 950, 0),
    ],
    ids=["in the map", "behind the map", "before the map", "in the syncs", "before the syncs"],
)
def test_a_checkpoint_of_an_earlier_copy_is_replaced(
    translator: Translator, upstream: int, downstream: int
) -> None:
    """Clients in Java seek to it, and an unplanned switchover commits it."""
    now = translated(translator, upstream)

    void = contradicted(EARLIER, now, translator.at_most)
    points = due(EARLIER, now, void) | at_beginning(
        before_known_syncs(EARLIER, now, void), now, {COPY: 0}, known=EARLIER
    )

    assert points == {COPY: Point(upstream_offset=upstream, downstream_offset=downstream)}
    assert not contradicted(points, now, translator.at_most)


def test_a_checkpoint_is_replaced_by_a_bound_after_the_syncs_have_stepped_back() -> None:
    """The pairs around the group alone do not show that it is of an earlier copy."""
    translator = by_syncs(Sync(500, 0), Sync(1_999, 1_499))
    now = translated(translator, 950)
    store = CheckpointStore()
    store.take("g", EARLIER)
    store.take("before the loss", {COPY: Point(upstream_offset=5, downstream_offset=5)})
    assert not contradicted(EARLIER, now, translator.at_most, store.doubted("g"))

    store.doubt(COPY, 5, at_ms=0)

    assert contradicted(EARLIER, now, translator.at_most, store.doubted("g")) == {COPY}
    assert not store.doubted("before the loss")
    store.take("g", due(EARLIER, now, frozenset({COPY})))
    assert store.of("g") == {COPY: Point(upstream_offset=950, downstream_offset=1)}
    assert not store.doubted("g")


def test_a_checkpoint_that_was_written_long_after_the_syncs_have_stepped_back_is_not_doubted() -> None:
    """A connector that starts again reads the step back again."""
    store = CheckpointStore()
    store.take("g", EARLIER)
    store.note_written("g", [COPY], SETTLED_MS)

    store.doubt(COPY, 0, at_ms=0)
    assert not store.doubted("g")
    store.doubt(COPY, 0, at_ms=1)
    assert store.doubted("g")
    store.trust("g", [COPY])
    assert not store.doubted("g")


def test_a_checkpoint_that_is_ahead_of_the_map_is_not_committed() -> None:
    """The map is stored after the records, so it need not show yet that the checkpoint is of an earlier copy."""
    translator = by_map(500, 300)
    now = translated(translator, 950)

    assert not contradicted(EARLIER, now, translator.at_most)
    expected = {COPY: Point(upstream_offset=950, downstream_offset=300)}
    assert offsets_to_commit(EARLIER, now, {}) == expected


def test_a_checkpoint_at_the_beginning_of_the_copy_is_written_once() -> None:
    """The target has deleted records behind which the group's offset lies."""
    now = translated(by_syncs(Sync(2_000, 0)), 950)
    begin = {COPY: Point(upstream_offset=950, downstream_offset=7)}

    assert at_beginning(frozenset({COPY}), now, {COPY: 7}, known=EARLIER) == begin
    assert at_beginning(frozenset({COPY}), now, {COPY: 7}, known=begin) == {}


@pytest.mark.parametrize("upstream", [950, 900])
def test_a_valid_checkpoint_is_not_contradicted(upstream: int) -> None:
    """The translation is less precise than the checkpoint, or the group is before all that is known."""
    for translator in (by_map(0, 1_000), by_syncs(), by_syncs(Sync(5_000, 5_000))):
        assert not contradicted(EARLIER, translated(translator, upstream), translator.at_most)
    store = no_syncs()
    store.add(FOO, Sync(5_000, 4_000))
    store.mark_read_to_end()
    compacted = Translator(store)
    assert not contradicted(EARLIER, translated(compacted, upstream), compacted.at_most)


@dataclass(frozen=True)
class Step:
    """One step of a history."""

    kind: str
    number: int


KINDS = ["copy", "marker", "skip", "store the map", "read", "reset", "pass", "pass", "restart"]
AGAIN = ["target again", "source again", "both again"]
STEPS = st.lists(
    st.builds(Step, kind=st.sampled_from(KINDS + AGAIN), number=st.integers(0, 20)), min_size=6, max_size=60
)
MARKER = -1


class History:
    """A source partition, its copy, and an idle group; topics are created again, and all is copied again (`restart`)."""

    def __init__(self, *, mapped: bool) -> None:
        self.mapped = mapped
        self.topics = 0
        self.stream = MapStream(1, "source-0", "target-0")
        self.map = PartitionMap(self.stream, OffsetPair(-1, -1, -1))
        self.stored: OffsetMap | None = None
        self.end = self.next = self.records = 0  # of the source, of copying, and the count of copied records
        self.copied: list[int] = []  # target offset -> source offset, or MARKER
        self.syncs: list[Sync] = []
        self.has_sync = False  # of the present copy
        self.store = no_syncs()
        self.checkpoints = CheckpointStore()
        self.source: int | None = 0  # the offset of the source group
        self.target: int | None = None
        self.is_passed = False  # the checkpoint is that of the group's present offset, or of an earlier one

    def step(self, step: Step) -> None:
        match step.kind:
            case "copy" if step.number:
                self.copy(step.number)
            case "marker" if self.copied:
                self.copied.append(MARKER)
            case "skip" if self.copied:
                self.end += step.number
                self.next = self.end
            case "store the map" if self.mapped and self.records:
                newest = max(offset for offset, up in enumerate(self.copied) if up != MARKER)
                self.stored = self.map.kept(OffsetPair(self.copied[newest], newest, self.records - 1))
            case "read":
                self.source = min(self.end, (self.source or 0) + step.number)
            case "reset" if self.source is not None:
                self.is_passed &= step.number >= self.source
                self.source = min(self.source, step.number)
            case "restart":
                self.store = no_syncs()
                for sync in self.syncs[-1:] if step.number % 2 else self.syncs:
                    self.add(sync)
            case "pass":
                self.check_pass()
            case kind if kind in AGAIN:
                self.create_again(step, source=kind != "target again", target=kind != "source again")
        self.check_lost_source()

    def copy(self, count: int) -> None:
        """Copies *count* records. The first one of a copy has a sync, and the last one every other time."""
        self.map.delivered(self.next, len(self.copied), count, self.records)
        if not self.has_sync:
            self.sync(self.next, len(self.copied))
        self.copied += range(self.next, self.next + count)
        self.records += count
        self.next += count
        self.end = max(self.end, self.next)
        if count % 2:
            self.sync(self.next - 1, len(self.copied) - 1)

    def sync(self, upstream: int, downstream: int) -> None:
        self.has_sync = True
        self.syncs.append(Sync(upstream, downstream))
        self.add(self.syncs[-1])

    def add(self, sync: Sync) -> None:
        if self.store.add(FOO, sync):
            self.checkpoints.doubt(COPY, sync.downstream_offset, at_ms=0)

    def create_again(self, step: Step, *, source: bool, target: bool) -> None:
        """Kafka deletes the offsets of all groups in a topic that is deleted."""
        self.topics += 1
        ids = f"source-{self.topics}" if source else None, f"target-{self.topics}" if target else None
        self.stream = MapStream(
            self.topics + 1, ids[0] or self.stream.source_topic_id, ids[1] or self.stream.target_topic_id
        )
        if source:
            self.source, self.end, self.is_passed = None, 0, False
        if target:
            self.target, self.copied = None, []
        self.next = min(self.end, step.number)  # retention has deleted the records before it
        self.records, self.has_sync = 0, False
        self.map = PartitionMap(self.stream, OffsetPair(self.next - 1, len(self.copied) - 1, -1))

    def valid_maps(self) -> dict[TopicPartition, OffsetMap]:
        if self.stored is None or self.stored.stream[1:] != self.stream[1:]:
            return {}
        return {FOO: self.stored}

    def first_unread(self, upstream: int) -> int:
        """The highest target offset from which a group that reads *upstream* next skips nothing.

        Where a source topic was copied again into the same copy, only the last round counts.
        """
        begin = len(self.copied)
        while begin and self.is_of_last_copy(begin - 1):
            begin -= 1
        offsets = range(begin, len(self.copied))
        return next((down for down in offsets if self.copied[down] >= upstream), len(self.copied))

    def is_of_last_copy(self, offset: int) -> bool:
        later = [up for up in self.copied[offset + 1 :] if up != MARKER]
        return bool(self.records) and (not later or self.copied[offset] < later[0])

    def check_pass(self) -> None:
        if self.source is None or not self.has_sync:
            return
        self.store.mark_read_to_end()
        translator = Translator(self.store, self.valid_maps())
        now, last = translated(translator, self.source), dict(self.checkpoints.of("g"))
        void = contradicted(last, now, translator.at_most, self.checkpoints.doubted("g"))
        self.checkpoints.trust("g", now.keys() - void)
        self.checkpoints.take("g", due(last, now, void))
        begins = at_beginning(before_known_syncs(last, now, void), now, {COPY: 0}, known=last)
        self.checkpoints.take("g", begins)
        self.is_passed = True
        own = {} if self.target is None else {COPY: Committed(self.target)}
        for point in offsets_to_commit(self.checkpoints.of("g"), now, own).values():
            if point.downstream_offset <= len(self.copied):
                assert self.target is None or point.downstream_offset > self.target
                assert point.downstream_offset <= self.first_unread(self.source)
                self.target = point.downstream_offset

    def check_lost_source(self) -> None:
        """Where the source is lost now, the target alone places the group."""
        if not (self.mapped and self.is_passed and self.stored and self.has_sync):
            return
        assert self.source is not None
        present = self.valid_maps()
        void = [] if present else [FOO]
        translator = Translator(no_syncs(), present)
        points = of_present_copy(self.checkpoints.of("g"), {COPY: [FOO]}, translator, void)
        for point in clamped(points, {COPY: 0}, {COPY: len(self.copied)}).values():
            assert point.downstream_offset <= self.first_unread(self.source)


LOST_AFTER_IT_WAS_CREATED_AGAIN = [
    Step("copy", 9),
    Step("store the map", 0),
    Step("read", 5),
    Step("pass", 0),
    Step("target again", 3),
    Step("copy", 6),
    Step("store the map", 0),
]


@example(steps=LOST_AFTER_IT_WAS_CREATED_AGAIN, mapped=True)
@given(steps=STEPS, mapped=st.booleans())
@settings(max_examples=10 * settings().max_examples)
def test_no_record_is_skipped_after_any_number_of_topics_created_again(
    steps: list[Step], *, mapped: bool
) -> None:
    """This holds in any order of copying, maps, syncs, passes and topics that are created again."""
    history = History(mapped=mapped)
    for step in steps:
        history.step(step)

"""Which source record was copied last: by counting where nothing is missing, by content where the source was compacted."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import UndecidedError
from mirrorflow_core.exactly_once.alignment import OffsetPair, ResumeAt
from mirrorflow_core.exactly_once.resumption import BatchTimes, CompactedMatch, DenseWalk, Mark, truncated_at
from mirrorflow_core.partitions import TopicPartition

ORDERS = TopicPartition("orders", 0)
CASES = 1_000
ALL = 1_000_000  # copies in a window
EPOCH = 5


def go_on(known: OffsetPair, ordinal: int) -> ResumeAt:
    return ResumeAt(ordinal=ordinal, target_offset=ordinal, known=known, alone=True)


def resumed(
    at: ResumeAt, copies: list[tuple[int, Mark]], source: list[tuple[int, Mark]], *, window: int = ALL
) -> OffsetPair:
    """The result of a match that sees *window* copies at a time."""
    match, end = CompactedMatch(at), len(copies)
    while end > 0:
        first = max(0, end - window)
        start = match.look(copies[first:end], is_oldest=first == 0)
        for offset, mark in source:
            if offset >= start and not match.take(offset, mark, EPOCH):
                break
        end = first
    return match.result(ORDERS)


class World:
    """A source, what was copied of it since a known pair, and what both logs still hold when copying is resumed.

    Records are (key, value, timestamp). Before the copy the source may have been compacted already, so offsets have gaps; after
    it both sides may be compacted, and retention may remove the source's oldest records.
    """

    def __init__(self, chance: random.Random, *, keys: int, values: int, per_ms: int) -> None:
        size = chance.randint(30, 200)
        records = [
            (b"%d" % chance.randrange(keys), chance.randrange(values), i // per_ms) for i in range(size)
        ]
        offsets = list(range(size))
        if chance.random() < 0.5:
            offsets = self._cleaned(records, offsets, chance.randint(0, size // 2))
        known = chance.randint(0, len(offsets) // 3)
        last = min(len(offsets) - 1, known + chance.randint(1, len(offsets) // 2))
        self.records = records
        self.copied = offsets[known + 1 : last + 1]
        self.at = go_on(OffsetPair(offsets[known], known, known, EPOCH), last)
        self.ordinals = {offset: known + 1 + i for i, offset in enumerate(self.copied)}
        reach = chance.choice([0, offsets[known], chance.randint(0, size), size])
        left = self._cleaned(records, offsets, reach)
        self.log_start = 0
        if chance.random() < 0.2:
            self.log_start = chance.randint(0, offsets[last])
        self.source = [o for o in left if o > offsets[known] and o >= self.log_start]
        self.target = self.copied
        if chance.random() < 0.3:
            self.target = self._cleaned(records, self.copied, chance.choice([*self.copied, size]))
        self.new = [o for o in self.source if o > offsets[last]]

    @staticmethod
    def _cleaned(records: list[tuple[bytes, int, int]], offsets: list[int], end: int) -> list[int]:
        """What the cleaner leaves of *offsets* when it has reached *end*: the newest of each key, and all behind."""
        newest = {records[offset][0]: offset for offset in offsets if offset < end}
        return [offset for offset in offsets if offset >= end or newest[records[offset][0]] == offset]

    def mark(self, offset: int) -> Mark:
        key, value, timestamp = self.records[offset]
        return Mark(key, b"%s=%d" % (key, value), timestamp)

    def resumed(self, window: int) -> OffsetPair:
        copies = [(self.ordinals[offset], self.mark(offset)) for offset in self.target]
        source = [(offset, self.mark(offset)) for offset in self.source]
        return resumed(self.at, copies, source, window=window)

    def values(self, offsets: list[int]) -> dict[bytes, int]:
        """The last value of each key."""
        return {self.records[offset][0]: self.records[offset][1] for offset in offsets}


def outcome(world: World, *, window: int = ALL) -> str:
    """What becomes of the records when copying continues at the position that was found."""
    resumed = world.resumed(window)
    after = [offset for offset in world.source if offset > resumed.source_offset]
    lost = [offset for offset in world.new if offset not in after]
    repeated = [offset for offset in after if offset not in world.new]
    copied = {world.mark(offset) for offset in world.copied}
    assert all(world.mark(offset) in copied for offset in lost), (
        "only twins of what was copied are passed over"
    )
    expected = world.values([*world.copied, *world.new])
    assert expected == world.values([*world.copied, *after]), "the last value of each key is right"
    return "lost a twin" if lost else "repeated" if repeated else "exact"


@pytest.mark.parametrize("window", [3, ALL])
def test_a_compacted_source_continues_where_it_was_left(window):
    """Twins of one key, value and millisecond cannot be told apart; everything else is exact, and nothing else is ever lost."""
    chance = random.Random(3)
    outcomes: Counter[str] = Counter()
    for _ in range(CASES):
        world = World(
            chance,
            keys=chance.choice([5, 30, 300]),
            values=chance.choice([2, 1000]),
            per_ms=chance.choice([1, 5, 50]),
        )
        outcomes[outcome(world, window=window)] += 1

    assert outcomes["exact"] >= 0.97 * CASES, outcomes


@given(st.integers(0, 2**32), st.integers(1, 100))
def test_records_that_differ_are_never_lost_nor_repeated(seed, window):
    """No twins: each timestamp is another."""
    assert outcome(World(random.Random(seed), keys=7, values=1000, per_ms=1), window=window) == "exact"


def test_a_new_record_that_equals_an_old_copy_is_not_taken_for_it():
    """A and B of one key are copied; A is written again, and the cleaner leaves only that: the last value must be A."""
    a, b = Mark(b"k", b"k=a", 1), Mark(b"k", b"k=b", 1)
    at = go_on(OffsetPair(9, -1, -1), 1)

    assert resumed(at, [(0, a), (1, b)], [(12, a)]).source_offset == 11


def test_what_was_copied_before_the_window_is_no_new_record():
    """Only the newest copies are compared: what the source holds from before them was copied."""
    marks = [Mark(b"%d" % i, b"%d" % i, i) for i in range(10)]
    # Gaps of the source have moved everything up by 100.
    source = [(100 + i, marks[i]) for i in (3, 5, 6, 7, 8)]

    found = resumed(go_on(OffsetPair(-1, -1, -1), 7), list(enumerate(marks))[:8], source, window=3)

    assert found == OffsetPair(107, 7, 7, EPOCH)


def test_an_earlier_window_decides_where_the_source_holds_nothing_of_a_newer_one():
    marks = [Mark(b"%d" % i, b"%d" % i, i) for i in range(8)]
    source = [(101, marks[1]), (150, Mark(b"4", b"new", 50)), (151, Mark(b"other", b"new", 51))]

    found = resumed(go_on(OffsetPair(-1, -1, -1), 7), list(enumerate(marks)), source, window=2)

    assert found == OffsetPair(101, 7, 7, EPOCH)


def test_a_twin_of_a_newer_window_hides_no_new_record():
    """The source holds none of the newest copies, but a record that equals one of them, behind one that was never copied."""
    marks = [Mark(b"%d" % i, b"%d" % i, i) for i in range(4)]
    source = [(100, marks[0]), (150, Mark(b"other", b"new", 50)), (151, marks[3])]

    found = resumed(go_on(OffsetPair(-1, -1, -1), 3), list(enumerate(marks)), source, window=2)

    assert found.source_offset == 149


def test_a_target_without_any_copy_decides_nothing():
    with pytest.raises(UndecidedError):
        CompactedMatch(go_on(OffsetPair(-1, -1, -1), 7)).result(ORDERS)


@given(
    st.lists(st.tuples(st.sampled_from(["data", "marker"]), st.integers(1, 5)), min_size=1, max_size=20),
    st.data(),
)
def test_a_log_without_holes_is_counted(batches, data):
    """Markers take offsets and are no records. The walk ends at the record with the wanted ordinal."""
    offset = 100
    offsets: list[int] = []
    log: list[tuple[int, int, int | None]] = []
    for kind, count in batches:
        size = count if kind == "data" else 1
        log.append((offset, offset + size, size if kind == "data" else None))
        offsets += range(offset, offset + size) if kind == "data" else []
        offset += size
    if not offsets:
        return
    begin = data.draw(st.integers(0, len(offsets) - 1))
    wanted = data.draw(st.integers(begin, len(offsets) - 1))
    walk = DenseWalk(go_on(OffsetPair(offsets[begin] - 1, begin - 1, -1), wanted))
    for first, after, records in log:
        if after > offsets[begin] and not walk.take(
            first, after, records=records, leader_epoch=EPOCH, max_timestamp=0
        ):
            break

    assert walk.is_dense
    assert walk.found == offsets[wanted]


@pytest.mark.parametrize(
    ("base", "after", "records"),
    [(101, 105, 4), (100, 105, 4), (98, 105, 3), (100, 105, 0)],
    ids=["before it", "inside it", "inside, before the known pair", "all of it: an empty batch"],
)
def test_a_missing_offset_ends_the_count(base, after, records):
    walk = DenseWalk(go_on(OffsetPair(99, -1, -1), 50))

    assert not walk.take(base, after, records=records, leader_epoch=EPOCH, max_timestamp=0)
    assert not walk.is_dense


def test_times_are_known_of_whole_batches_only():
    times = BatchTimes(OffsetPair(99, 9, -1))
    times.add(14, 500, is_partial=False)
    times.add(19, 300, is_partial=False)

    assert (500, 300, 500) == (times.of(10, 14), times.of(15, 19), times.of(10, 19))
    assert [None] * 3 == [times.of(10, 12), times.of(12, 14), times.of(15, 24)]


def test_times_of_a_batch_that_begins_at_the_known_pair_or_before_it_are_not_known():
    times = BatchTimes(OffsetPair(-1, -1, -1))
    times.add(4, 500, is_partial=True)
    times.add(9, 300, is_partial=False)

    assert (None, 300) == (times.of(0, 4), times.of(5, 9))


LADDER = (
    OffsetPair(150, 150, 150, 5),
    OffsetPair(120, 120, 120, 4),
    OffsetPair(80, 80, 80, 3),
    OffsetPair(0, 0, 0),
)


@pytest.mark.parametrize(
    ("epoch", "end_offset", "expected"),
    [
        (5, 151, None),
        (5, 9_000, None),
        (-1, -1, None),
        (5, 140, (120, 140, True)),
        (5, 150, (120, 150, True)),
        (4, 100, (80, 100, False)),
        (4, 121, (120, 121, True)),
        (4, 200, (120, 150, False)),
        (3, 200, (80, 120, False)),
        (2, 200, (0, 80, False)),
    ],
    ids=[
        "the epoch ended behind it",
        "it continues",
        "not known",
        "it ended before it",
        "it ended just before it",
        "an earlier epoch ended before it",
        "an earlier epoch ended behind its last pair",
        "an earlier epoch has its offset",
        "one before that has it",
        "no pair is of an epoch that the log has",
    ],
)
def test_a_truncated_source_shows_by_its_epochs(epoch, end_offset, expected):
    found = truncated_at(LADDER, epoch, end_offset)

    assert expected == (found and (found.kept.source_offset, found.offset, found.is_exact))

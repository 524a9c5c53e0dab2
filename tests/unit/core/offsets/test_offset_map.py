"""A map of offsets never makes a group skip a record, is exact wherever source and target run in parallel, and stays small."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorflow_core.offsets.offset_map import RUNS_MAX, MappedOffset, MapStream, OffsetMap, PartitionMap, Run
from mirrorflow_core.partitions import OffsetPair

STREAM = MapStream(1, "source-id", "target-id")
ANCHOR = OffsetPair(-1, -1, -1)


class Copy:
    """What truly lies where: a partition, its copy, and what those who copied it have kept."""

    def __init__(self):
        self.records = []  # (source offset, target offset) by ordinal
        self.upstream = self.downstream = 0  # where the next record goes, at least
        self.map = PartitionMap(STREAM, ANCHOR)
        self.stored: OffsetMap | None = None
        self.elections = [0]  # where the log ended when each leader epoch began, as the log reports it now

    @property
    def delivered(self):
        """The last pair; the source offset may lie behind its record, where what follows is no record of the stream."""
        if not self.records:
            return ANCHOR
        return OffsetPair(self.upstream - 1, len(self.records) - 1, self.records[-1][1])

    def copy(self, count, *, told=True):
        if told:
            self.map.delivered(self.upstream, self.downstream, count, len(self.records))
        for _ in range(count):
            self.records.append((self.upstream, self.downstream))
            self.upstream += 1
            self.downstream += 1

    def copy_with_gaps(self, gaps):
        offsets = []
        for gap in gaps:
            self.upstream += gap
            offsets.append(self.upstream)
            self.upstream += 1
        self.map.delivered_with_gaps(offsets, self.downstream, len(self.records))
        self.records += [(offset, self.downstream + at) for at, offset in enumerate(offsets)]
        self.downstream += len(gaps)

    def store(self):
        self.stored = self.map.kept(self.delivered)

    def crash(self, *, early_reading):
        """A new process begins where the target ends; it reads what was kept before or after it has begun to copy."""
        stream = STREAM
        if early_reading and self.stored is not None:
            self.map = PartitionMap(stream, self.delivered)
            self.follow()
        else:
            self.map = PartitionMap(stream, self.delivered)
            self.copy(3)
            self.follow()
        self.map.leader_epoch = len(self.elections) - 1

    def follow(self):
        kept = None if self.stored is None else self.stored.before(self.end_of(self.stored.leader_epoch))
        if kept is not None:
            self.map.follow(kept)

    def end_of(self, epoch):
        return self.elections[epoch + 1] if epoch + 1 < len(self.elections) else self.downstream

    def elect(self):
        """A new leader has this much; in its log no epoch began behind that."""
        self.elections = [min(start, self.downstream) for start in self.elections] + [self.downstream]
        self.map.leader_epoch = len(self.elections) - 1

    def lose_tail(self, count, *, is_stored=True):
        """The target loses its newest records (an unclean election); they are copied again, somewhere else.

        What is stored of them is not true any more; it may still be there when a process dies.
        """
        count = min(count, len(self.records) - 1)
        if count <= 0:
            return
        lost = [offset for offset, _ in self.records[-count:]]
        del self.records[-count:]
        end, target_end = self.records[-1]
        self.downstream = target_end + 1
        self.elect()
        self.map.aligned(STREAM, OffsetPair(end, len(self.records) - 1, target_end))
        if is_stored:
            self.stored = self.map.kept(OffsetPair(end, len(self.records) - 1, target_end))
        self.downstream += count % 3
        self.map.delivered_with_gaps(lost, self.downstream, len(self.records))
        self.records += [(offset, self.downstream + at) for at, offset in enumerate(lost)]
        self.downstream += len(lost)

    def lose_answer(self, count):
        """A batch arrives, but its acknowledgement does not; the next one shows that there was room for it."""
        self.copy(count, told=False)
        self.copy(1)

    def another_copies(self, count):
        """Another copier has copied in between; this one learns the target's current end."""
        self.copy(count, told=False)
        self.map.aligned(STREAM, self.delivered)

    def check(self, known: OffsetMap, *, end=None):
        """*known* never skips an unread record, and reports correctly how many are read again."""
        last = -1
        for offset in range((self.upstream if end is None else end) + 2):
            place = known.translate(offset)
            if place is None:
                assert offset < known.runs[0].upstream or not any(run.records for run in known.runs)
                continue
            unread = next((at for source, at in self.records if source >= offset), None)
            assert unread is None or place.at_least <= unread
            assert place.at_least >= last, "a group that advances is never moved back"
            last = place.at_least
            if place.at_most is not None:
                again = [at for source, at in self.records if source < offset and at >= place.at_least]
                assert all(at < place.at_most for at in again)


small = st.integers(0, 3)
EVENTS = st.one_of(
    st.tuples(st.just("copy"), st.integers(1, 30)),
    st.tuples(st.just("gaps"), st.lists(small, min_size=1, max_size=20)),
    st.tuples(st.just("source gap"), st.integers(1, 5)),
    st.tuples(st.just("target gap"), st.integers(1, 5)),
    st.tuples(st.just("store"), st.none()),
    st.tuples(st.just("crash"), st.booleans()),
    st.tuples(st.just("lose"), st.integers(1, 40)),
    st.tuples(st.just("lose and store nothing"), st.integers(1, 40)),
    st.tuples(st.just("elect"), st.none()),
    st.tuples(st.just("another"), st.integers(1, 10)),
    st.tuples(st.just("lose answer"), st.integers(1, 10)),
)


def happen(copy, event):
    what, how = event
    if what == "copy":
        copy.copy(how)
    elif what == "gaps":
        copy.copy_with_gaps(how)
    elif what == "source gap":
        copy.upstream += how
    elif what == "target gap":
        copy.downstream += how
    elif what == "store":
        copy.store()
    elif what == "crash":
        copy.crash(early_reading=how)
    elif what == "lose":
        copy.lose_tail(how)
    elif what == "lose and store nothing":
        copy.lose_tail(how, is_stored=False)
    elif what == "elect":
        copy.elect()
    elif what == "lose answer":
        copy.lose_answer(how)
    else:
        copy.another_copies(how)


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=4 * settings().max_examples)
def test_no_record_is_skipped_whatever_happens_to_the_copying(events):
    copy = Copy()
    for event in events:
        happen(copy, event)
        known = copy.map.kept(copy.delivered)
        copy.check(known)
        assert known.ordinal == len(copy.records)


@given(
    st.lists(EVENTS.filter(lambda event: "lose" not in event[0] or event[0] == "lose answer"), max_size=40)
)
@settings(max_examples=2 * settings().max_examples)
def test_what_was_kept_holds_as_long_as_the_target_keeps_its_records(events):
    copy = Copy()
    kept = []
    for event in events:
        happen(copy, event)
        if event[0] == "store":
            assert copy.stored is not None
            kept.append((copy.stored, copy.upstream))
    for one, end in kept:
        copy.check(one, end=end)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20), st.data())
def test_a_map_of_a_parallel_copy_is_exact_everywhere(batches, data):
    """Whatever was killed in between, and however little was kept."""
    copy = Copy()
    for count in batches:
        copy.copy(count)
        if data.draw(st.booleans()):
            copy.store()
        if data.draw(st.booleans()):
            copy.crash(early_reading=data.draw(st.booleans()))
    known = copy.map.kept(copy.delivered)

    first = known.runs[0].upstream
    assert all(
        known.translate(offset) == MappedOffset(offset, offset) for offset in range(first, copy.upstream)
    )
    assert len(known.runs) == 1


def test_what_was_kept_of_lost_records_says_nothing_of_others_at_the_same_end():
    """The tail was lost, written again in other places up to the very same end, and nothing of that was kept."""
    copy = Copy()
    copy.copy(90)
    copy.downstream += 10  # written by another producer
    copy.copy(10)
    copy.store()
    del copy.records[50:]
    copy.upstream, copy.downstream = 50, 50
    copy.elect()
    copy.downstream += 10
    copy.copy(50, told=False)
    old = copy.stored
    assert old is not None
    copy.crash(early_reading=True)
    known = copy.map.kept(copy.delivered)

    assert old.translate(95) == MappedOffset(105, 105)
    left = old.before(50)
    assert left is not None
    assert left.translate(95) == MappedOffset(50, None), "who reads the old one"
    copy.check(known)
    assert known.translate(40) == MappedOffset(40, 40)
    assert known.translate(95) == MappedOffset(95, 105), (
        "how many of them are ours is known, where the others lie is not"
    )


def test_another_leader_that_has_lost_nothing_costs_no_exactness():
    copy = Copy()
    copy.copy(100)
    copy.store()
    copy.elect()
    copy.copy(10, told=False)
    copy.crash(early_reading=True)
    known = copy.map.kept(copy.delivered)

    assert all(known.translate(offset) == MappedOffset(offset, offset) for offset in range(110))


def transactions(count, size, *, marker_on_target=False):
    copy = Copy()
    for _ in range(count):
        copy.copy(size)
        copy.upstream += 1
        copy.downstream += marker_on_target
    return copy


def test_gaps_lie_between_runs_and_cost_no_exactness():
    copy = transactions(100, 10)
    known = copy.map.kept(copy.delivered)

    assert all(known.translate(offset).is_exact for offset in range(copy.upstream + 1))
    assert known.translate(11 * 50 + 3) == MappedOffset(503, 503)
    assert known.translate(11 * 50 + 10) == MappedOffset(510, 510), "at the marker"


def test_markers_on_both_sides_are_no_parallel():
    """The difference is the same before and behind them, but what lies between is not a record."""
    copy = transactions(3, 10, marker_on_target=True)
    known = copy.map.kept(copy.delivered)

    assert [run[:2] for run in known.runs] == [(0, 0), (11, 11), (22, 22)]


def test_a_map_stays_small_and_its_bound_grows_with_the_distance():
    copy = transactions(20_000, 5)
    known = copy.map.kept(copy.delivered)

    assert len(known.runs) <= RUNS_MAX
    end = copy.upstream
    for transactions_back in (1, 40):
        place = known.translate(end - 6 * transactions_back + 2)
        assert place.is_exact
    for transactions_back in (1_000, 10_000, 19_999):
        place = known.translate(end - 6 * transactions_back + 2)
        assert place.at_most - place.at_least <= transactions_back / 16
        assert place.at_least <= 100_000 - 5 * transactions_back + 2 <= place.at_most


def test_the_markers_behind_the_last_record_are_passed():
    copy = Copy()
    copy.copy(10)
    copy.upstream += 1
    known = copy.map.kept(copy.delivered)

    assert known.translate(11) == MappedOffset(10, 10)
    assert known.translate(12) == MappedOffset(10, None), "the copy is not that far yet"


def test_a_group_before_all_that_is_known_has_no_place():
    at = PartitionMap(STREAM, OffsetPair(99, -1, 41))
    nothing_copied = at.kept(OffsetPair(99, -1, 41))
    at.delivered(105, 45, 1, 0)
    known = at.kept(OffsetPair(105, 0, 45))

    assert nothing_copied.translate(99) is None
    assert nothing_copied.translate(100) == MappedOffset(42, 42), "the next record that is copied"
    assert known.translate(99) is None
    assert known.translate(100) == MappedOffset(42, 42)
    assert known.translate(105) == MappedOffset(45, 45)


def test_partition_that_never_had_a_record_has_no_place():
    """As in MM2: a checkpoint comes with the first copied record. An emptied one has one, at its end."""
    never = PartitionMap(STREAM, ANCHOR).kept(ANCHOR)
    emptied = PartitionMap(STREAM, OffsetPair(99, -1, -1)).kept(OffsetPair(99, -1, -1))

    assert never.translate(0) is None
    assert emptied.translate(100) == MappedOffset(0, 0)


def test_what_was_not_kept_before_a_kill_is_a_bound_where_it_had_gaps():
    copy = Copy()
    copy.copy(100)
    copy.store()
    copy.upstream += 2
    copy.copy(50)
    copy.crash(early_reading=True)
    known = copy.map.kept(copy.delivered)

    assert known.translate(100 + 2 + 25) == MappedOffset(125, 127)
    assert known.translate(50) == MappedOffset(50, 50)
    copy.check(known)


def test_another_topic_of_the_name_voids_all():
    copy = Copy()
    copy.copy(100)

    assert copy.map.aligned(MapStream(1, "source-id", "another"), OffsetPair(99, 99, -1))
    known = copy.map.kept(OffsetPair(99, 99, -1))
    assert known.translate(50) is None
    assert known.translate(100) == MappedOffset(0, 0), "nothing was copied to that one yet"


def test_what_was_kept_of_another_topic_says_nothing():
    copy = Copy()
    copy.copy(100)
    copy.store()
    fresh = PartitionMap(MapStream(2, "source-id", "another"), OffsetPair(99, -1, -1))

    assert copy.stored is not None
    fresh.follow(copy.stored)

    assert fresh.kept(OffsetPair(99, -1, -1)).translate(50) is None


def test_a_new_generation_that_begins_where_the_old_one_ended_keeps_its_runs():
    copy = Copy()
    copy.copy(100)
    copy.map.aligned(STREAM._replace(generation=2), OffsetPair(99, -1, 100))  # a fence lies on the target
    copy.map.delivered(100, 101, 10, 0)
    known = copy.map.kept(OffsetPair(109, 9, 110))

    assert known.translate(50) == MappedOffset(50, 50)
    assert known.translate(105) == MappedOffset(106, 106)


def test_records_copied_between_two_generations_are_bounded_by_their_ends():
    """Java MM2 copied in between: only its first and last offsets are known."""
    copy = Copy()
    copy.copy(100)
    copy.map.aligned(STREAM._replace(generation=2), OffsetPair(199, -1, 219))
    copy.map.delivered(200, 220, 10, 0)
    known = copy.map.kept(OffsetPair(209, 9, 229))

    assert known.translate(100) == MappedOffset(100, 100)
    assert known.translate(150) == MappedOffset(100, 220)
    assert known.translate(205) == MappedOffset(225, 225)


def test_pairs_that_contradict_what_is_known_clear_it():
    copy = Copy()
    copy.copy(100)
    copy.map.aligned(STREAM, OffsetPair(120, 80, 120))  # fewer records, farther on
    known = copy.map.kept(OffsetPair(120, 80, 120))

    assert known.runs == (Run(121, 121, 121, 121, 0),)


def test_a_batch_whose_acknowledgement_was_lost_costs_no_exactness():
    copy = Copy()
    copy.copy(100)
    copy.lose_answer(10)
    copy.copy(20)
    known = copy.map.kept(copy.delivered)

    assert known.runs == (Run(0, 0, 131, 131, 131),)


@pytest.mark.parametrize(
    ("target_offset", "source_offset"),
    [(99, None), (100, 10), (104, 14), (110, 20), (111, 25), (113, None), (116, 31), (117, None)],
)
def test_a_lost_target_offset_is_translated_back_where_it_is_exact(
    target_offset: int, source_offset: int | None
):
    known = OffsetMap(
        stream=MapStream(1, "", ""),
        ordinal=13,
        upstream_end=31,
        runs=(Run(10, 100, 20, 110, 10), Run(25, 111, 31, 116, 3)),
    )
    assert known.source_of(target_offset) == source_offset


def test_between_the_runs_of_a_map_are_markers_and_records_of_others():
    """A log may end between two of them."""
    runs = (Run(10, 100, 20, 110, 10), Run(25, 113, 30, 118, 5))
    known = OffsetMap(stream=STREAM, ordinal=15, upstream_end=30, runs=runs)

    assert [known.source_of(offset) for offset in (110, 111, 112, 113, 118, 119)] == [
        20,
        20,
        20,
        25,
        30,
        None,
    ]


def test_before_a_map_that_begins_at_the_sources_beginning_nothing_was_copied():
    """The marker of a fence may be before the first record."""
    known = OffsetMap(stream=STREAM, ordinal=10, upstream_end=10, runs=(Run(0, 1, 10, 11, 10),))

    assert [known.source_of(offset) for offset in (0, 1, 2)] == [0, 0, 1]


def test_what_the_target_has_of_a_rewritten_source_is_followed_by_where_copying_continued():
    """The source has lost what was copied from offset 40 on, and so has the map."""
    copy = Copy()
    copy.copy(100)
    copy.map.aligned(STREAM._replace(generation=2), OffsetPair(39, -1, 100))
    copy.map.delivered(40, 101, 10, 0)
    known = copy.map.kept(OffsetPair(49, 9, 110))

    assert [known.source_of(offset) for offset in (39, 40, 70, 101, 103)] == [39, 40, 40, 40, 42]


def test_a_map_shows_no_offset_behind_a_later_loss_or_of_an_earlier_count():
    known = OffsetMap(stream=STREAM, ordinal=10, upstream_end=10, runs=(Run(0, 1, 10, 11, 10),))

    assert known.is_current(11, generation=1, kept_end=11)
    assert not known.is_current(11, generation=1, kept_end=10)
    assert not known.is_current(11, generation=2, kept_end=11)

"""An offset map never makes a group skip a record, is exact for contiguous runs, and stays small."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorflow_core.offsets.offset_map import RUNS_MAX, MappedOffset, MapStream, OffsetMap, PartitionMap, Run
from mirrorflow_core.partitions import OffsetPair

STREAM = MapStream(1, "source-id", "target-id")
ANCHOR = OffsetPair(-1, -1, -1)


class Copy:
    """A partition and its copy with their true offsets, and the map that the copiers have written."""

    def __init__(self):
        self.records = []  # (source offset, target offset) by ordinal
        self.upstream = self.downstream = 0  # the lowest possible offsets of the next record
        self.map = PartitionMap(STREAM, ANCHOR)
        self.stored: OffsetMap | None = None
        self.elections = [0]  # the start offsets of the leader epochs in the log

    @property
    def delivered(self):
        """Returns the last offset pair. Its source offset also covers skipped offsets after the record."""
        if not self.records:
            return ANCHOR
        return OffsetPair(self.upstream - 1, len(self.records) - 1, self.records[-1][1])

    def copy(self, count, *, is_mapped=True):
        if is_mapped:
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
        self.records += [(offset, self.downstream + index) for index, offset in enumerate(offsets)]
        self.downstream += len(gaps)

    def store(self):
        self.stored = self.map.kept(self.delivered)

    def crash(self, *, early_reading):
        """Starts a new process at the target's end. It reads the stored map before or after it starts to copy."""
        stream = STREAM
        if early_reading:
            self.map = PartitionMap(stream, self.delivered)
            self.follow()
        else:
            self.map = PartitionMap(stream, self.delivered)
            self.copy(3)
            self.follow()
        self.map.leader_epoch = len(self.elections) - 1

    def follow(self):
        if self.stored is None:
            self.map.extend_to_log_start()
            return
        kept = self.stored.before(self.end_of(self.stored.leader_epoch))
        if kept is not None:
            self.map.follow(kept)

    def end_of(self, epoch):
        return self.elections[epoch + 1] if epoch + 1 < len(self.elections) else self.downstream

    def elect(self):
        """Elects a leader whose log ends here, so that no earlier epoch can start later in its log."""
        self.elections = [min(start, self.downstream) for start in self.elections] + [self.downstream]
        self.map.leader_epoch = len(self.elections) - 1

    def lose_tail(self, count, *, is_stored=True):
        """Loses the newest target records in an unclean election, and copies them again to different offsets.

        The stored map is then wrong about them. It stays wrong if a process dies before it stores a new map.
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
        self.records += [(offset, self.downstream + index) for index, offset in enumerate(lost)]
        self.downstream += len(lost)

    def lose_response(self, count):
        """Copies a batch whose response is lost; the next response shows that the batch arrived."""
        self.copy(count, is_mapped=False)
        self.copy(1)

    def copy_by_other_process(self, count):
        """Has another copier copy records, and aligns this copier to the current end of the target."""
        self.copy(count, is_mapped=False)
        self.map.aligned(STREAM, self.delivered)

    def check(self, offset_map: OffsetMap, *, end=None):
        """Checks that *offset_map* never skips an unread record, and that its bounds on reread records hold."""
        last = -1
        for offset in range((self.upstream if end is None else end) + 2):
            mapped = offset_map.translate(offset)
            if mapped is None:
                assert offset < offset_map.runs[0].upstream or not any(run.records for run in offset_map.runs)
                continue
            unread = next((target for source, target in self.records if source >= offset), None)
            assert unread is None or mapped.at_least <= unread
            assert mapped.at_least >= last, "a group that advances is never moved back"
            last = mapped.at_least
            if mapped.at_most is not None:
                reread = [
                    target for source, target in self.records if source < offset and target >= mapped.at_least
                ]
                assert all(target < mapped.at_most for target in reread)
        self.check_back(offset_map)

    def check_back(self, offset_map: OffsetMap):
        """Checks that no reader of the copy skips a source record, and that the bounds on reread records hold."""
        last = -1
        for target_offset in range(self.downstream + 2):
            mapped = offset_map.translate_back(target_offset)
            if mapped is None:
                first = offset_map.runs[0].downstream
                assert target_offset < first or not any(run.records for run in offset_map.runs)
                continue
            unread = next((source for source, target in self.records if target >= target_offset), None)
            assert unread is None or mapped.at_least <= unread
            assert mapped.at_least >= last
            last = mapped.at_least
            if mapped.at_most is not None:
                reread = [
                    source
                    for source, target in self.records
                    if target < target_offset and source >= mapped.at_least
                ]
                assert all(source < mapped.at_most for source in reread)


small_gaps = st.integers(0, 3)
EVENTS = st.one_of(
    st.tuples(st.just("copy"), st.integers(1, 30)),
    st.tuples(st.just("gaps"), st.lists(small_gaps, min_size=1, max_size=20)),
    st.tuples(st.just("source gap"), st.integers(1, 5)),
    st.tuples(st.just("target gap"), st.integers(1, 5)),
    st.tuples(st.just("store"), st.none()),
    st.tuples(st.just("crash"), st.booleans()),
    st.tuples(st.just("lose"), st.integers(1, 40)),
    st.tuples(st.just("lose and store nothing"), st.integers(1, 40)),
    st.tuples(st.just("elect"), st.none()),
    st.tuples(st.just("other process"), st.integers(1, 10)),
    st.tuples(st.just("lose response"), st.integers(1, 10)),
)


def apply_event(copy, event):
    kind, argument = event
    if kind == "copy":
        copy.copy(argument)
    elif kind == "gaps":
        copy.copy_with_gaps(argument)
    elif kind == "source gap":
        copy.upstream += argument
    elif kind == "target gap":
        copy.downstream += argument
    elif kind == "store":
        copy.store()
    elif kind == "crash":
        copy.crash(early_reading=argument)
    elif kind == "lose":
        copy.lose_tail(argument)
    elif kind == "lose and store nothing":
        copy.lose_tail(argument, is_stored=False)
    elif kind == "elect":
        copy.elect()
    elif kind == "lose response":
        copy.lose_response(argument)
    else:
        copy.copy_by_other_process(argument)


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=4 * settings().max_examples)
def test_no_record_is_skipped_after_any_event(events):
    copy = Copy()
    for event in events:
        apply_event(copy, event)
        offset_map = copy.map.kept(copy.delivered)
        copy.check(offset_map)
        assert offset_map.ordinal == len(copy.records)


@given(
    st.lists(EVENTS.filter(lambda event: "lose" not in event[0] or event[0] == "lose response"), max_size=40)
)
@settings(max_examples=2 * settings().max_examples)
def test_a_stored_map_stays_valid_while_the_target_keeps_its_records(events):
    copy = Copy()
    kept = []
    for event in events:
        apply_event(copy, event)
        if event[0] == "store":
            assert copy.stored is not None
            kept.append((copy.stored, copy.upstream))
    for stored, end in kept:
        copy.check(stored, end=end)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20), st.data())
def test_a_map_without_gaps_is_exact_everywhere(batches, data):
    """Neither kills nor rarely stored maps change this."""
    copy = Copy()
    for count in batches:
        copy.copy(count)
        if data.draw(st.booleans()):
            copy.store()
        if data.draw(st.booleans()):
            copy.crash(early_reading=data.draw(st.booleans()))
    offset_map = copy.map.kept(copy.delivered)

    first = offset_map.runs[0].upstream
    assert all(
        offset_map.translate(offset) == MappedOffset(offset, offset) for offset in range(first, copy.upstream)
    )
    assert len(offset_map.runs) == 1


def test_a_stored_map_of_lost_records_does_not_apply_to_new_ones_with_the_same_end():
    """The tail was lost and copied again, to different offsets but up to the same end, without storing a map."""
    copy = Copy()
    copy.copy(90)
    copy.downstream += 10  # written by another producer
    copy.copy(10)
    copy.store()
    del copy.records[50:]
    copy.upstream, copy.downstream = 50, 50
    copy.elect()
    copy.downstream += 10
    copy.copy(50, is_mapped=False)
    old_map = copy.stored
    assert old_map is not None
    copy.crash(early_reading=True)
    offset_map = copy.map.kept(copy.delivered)

    assert old_map.translate(95) == MappedOffset(105, 105)
    truncated = old_map.before(50)
    assert truncated is not None
    assert truncated.translate(95) == MappedOffset(50, None), "for readers of the old map"
    copy.check(offset_map)
    assert offset_map.translate(40) == MappedOffset(40, 40)
    assert offset_map.translate(95) == MappedOffset(95, 105), (
        "the number of copied records is known, but not their offsets"
    )


def test_a_new_leader_without_a_loss_keeps_the_map_exact():
    copy = Copy()
    copy.copy(100)
    copy.store()
    copy.elect()
    copy.copy(10, is_mapped=False)
    copy.crash(early_reading=True)
    offset_map = copy.map.kept(copy.delivered)

    assert all(offset_map.translate(offset) == MappedOffset(offset, offset) for offset in range(110))


def copy_of_transactions(count, size, *, marker_on_target=False):
    copy = Copy()
    for _ in range(count):
        copy.copy(size)
        copy.upstream += 1
        copy.downstream += marker_on_target
    return copy


def test_source_gaps_between_runs_keep_the_map_exact():
    copy = copy_of_transactions(100, 10)
    offset_map = copy.map.kept(copy.delivered)

    assert all(offset_map.translate(offset).is_exact for offset in range(copy.upstream + 1))
    assert offset_map.translate(11 * 50 + 3) == MappedOffset(503, 503)
    assert offset_map.translate(11 * 50 + 10) == MappedOffset(510, 510), "at the marker"


def test_markers_on_both_sides_end_a_run():
    """The offset difference is the same before and after them, but a marker is not a record."""
    copy = copy_of_transactions(3, 10, marker_on_target=True)
    offset_map = copy.map.kept(copy.delivered)

    assert [run[:2] for run in offset_map.runs] == [(0, 0), (11, 11), (22, 22)]


def test_a_map_stays_small_and_its_bounds_grow_with_the_distance():
    copy = copy_of_transactions(20_000, 5)
    offset_map = copy.map.kept(copy.delivered)

    assert len(offset_map.runs) <= RUNS_MAX
    end = copy.upstream
    for transactions_back in (1, 40):
        mapped = offset_map.translate(end - 6 * transactions_back + 2)
        assert mapped.is_exact
    for transactions_back in (1_000, 10_000, 19_999):
        mapped = offset_map.translate(end - 6 * transactions_back + 2)
        assert mapped.at_most - mapped.at_least <= transactions_back / 16
        assert mapped.at_least <= 100_000 - 5 * transactions_back + 2 <= mapped.at_most


def test_an_offset_after_the_last_marker_is_translated_to_the_end():
    copy = Copy()
    copy.copy(10)
    copy.upstream += 1
    offset_map = copy.map.kept(copy.delivered)

    assert offset_map.translate(11) == MappedOffset(10, 10)
    assert offset_map.translate(12) == MappedOffset(10, None), "the copy has not reached this offset yet"


def test_an_offset_before_the_map_is_not_translated():
    partition_map = PartitionMap(STREAM, OffsetPair(99, -1, 41))
    nothing_copied = partition_map.kept(OffsetPair(99, -1, 41))
    partition_map.delivered(105, 45, 1, 0)
    offset_map = partition_map.kept(OffsetPair(105, 0, 45))

    assert nothing_copied.translate(99) is None
    assert nothing_copied.translate(100) == MappedOffset(42, 42), "the next copied record"
    assert offset_map.translate(99) is None
    assert offset_map.translate(100) == MappedOffset(42, 42)
    assert offset_map.translate(105) == MappedOffset(45, 45)


def test_a_partition_that_never_had_a_record_is_not_translated():
    """As in MM2, checkpoints start with the first copied record. An emptied partition is translated at its end."""
    never = PartitionMap(STREAM, ANCHOR).kept(ANCHOR)
    emptied = PartitionMap(STREAM, OffsetPair(99, -1, -1)).kept(OffsetPair(99, -1, -1))

    assert never.translate(0) is None
    assert emptied.translate(100) == MappedOffset(0, 0)


def test_records_that_were_not_stored_before_a_kill_have_bounds():
    copy = Copy()
    copy.copy(100)
    copy.store()
    copy.upstream += 2
    copy.copy(50)
    copy.crash(early_reading=True)
    offset_map = copy.map.kept(copy.delivered)

    assert offset_map.translate(100 + 2 + 25) == MappedOffset(125, 127)
    assert offset_map.translate(50) == MappedOffset(50, 50)
    copy.check(offset_map)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (0, MappedOffset(500, 500)),
        (100, MappedOffset(400, 500)),  # whether the log has gaps before it is unknown
    ],
)
def test_records_copied_before_the_first_stored_map_have_bounds_if_the_copy_has_no_other_records(
    first, expected
):
    known = PartitionMap(STREAM, OffsetPair(first + 999, 999, 999))
    known.extend_to_log_start()
    known.delivered(first + 1000, 1002, 10, 1000)

    kept = known.kept(OffsetPair(first + 1009, 1009, 1011))

    assert kept.translate(500) == expected
    assert kept.translate(first + 1005) == MappedOffset(1007, 1007)


def test_a_map_is_not_extended_over_target_records_from_outside_the_stream():
    known = PartitionMap(STREAM, OffsetPair(999, 999, 4999))
    known.extend_to_log_start()

    assert known.kept(OffsetPair(999, 999, 4999)).translate(500) is None


def test_a_recreated_topic_clears_the_map():
    copy = Copy()
    copy.copy(100)

    assert copy.map.aligned(MapStream(1, "source-id", "recreated"), OffsetPair(99, 99, -1))
    offset_map = copy.map.kept(OffsetPair(99, 99, -1))
    assert offset_map.translate(50) is None
    assert offset_map.translate(100) == MappedOffset(0, 0), "nothing was copied to the new topic yet"


def test_the_stored_map_of_a_different_topic_is_ignored():
    copy = Copy()
    copy.copy(100)
    copy.store()
    fresh = PartitionMap(MapStream(2, "source-id", "recreated"), OffsetPair(99, -1, -1))

    assert copy.stored is not None
    fresh.follow(copy.stored)

    assert fresh.kept(OffsetPair(99, -1, -1)).translate(50) is None


def test_a_new_generation_at_the_end_of_the_old_one_keeps_its_runs():
    copy = Copy()
    copy.copy(100)
    copy.map.aligned(
        STREAM._replace(generation=2), OffsetPair(99, -1, 100)
    )  # a fence marker is in the target
    copy.map.delivered(100, 101, 10, 0)
    offset_map = copy.map.kept(OffsetPair(109, 9, 110))

    assert offset_map.translate(50) == MappedOffset(50, 50)
    assert offset_map.translate(105) == MappedOffset(106, 106)


def test_records_copied_between_two_generations_have_bounds_from_their_ends():
    """Java's MM2 has copied in between, and only its first and last offsets are known."""
    copy = Copy()
    copy.copy(100)
    copy.map.aligned(STREAM._replace(generation=2), OffsetPair(199, -1, 219))
    copy.map.delivered(200, 220, 10, 0)
    offset_map = copy.map.kept(OffsetPair(209, 9, 229))

    assert offset_map.translate(100) == MappedOffset(100, 100)
    assert offset_map.translate(150) == MappedOffset(100, 220)
    assert offset_map.translate(205) == MappedOffset(225, 225)


def test_offset_pairs_that_contradict_the_map_clear_it():
    copy = Copy()
    copy.copy(100)
    copy.map.aligned(STREAM, OffsetPair(120, 80, 120))  # fewer records at higher offsets
    offset_map = copy.map.kept(OffsetPair(120, 80, 120))

    assert offset_map.runs == (Run(121, 121, 121, 121, 0),)


def test_a_batch_without_a_response_keeps_the_map_exact():
    copy = Copy()
    copy.copy(100)
    copy.lose_response(10)
    copy.copy(20)
    offset_map = copy.map.kept(copy.delivered)

    assert offset_map.runs == (Run(0, 0, 131, 131, 131),)


@pytest.mark.parametrize(
    ("target_offset", "source_offset"),
    [(99, None), (100, 10), (104, 14), (110, 20), (111, 25), (113, None), (116, 31), (117, None)],
)
def test_a_target_offset_is_translated_back_where_the_map_is_exact(
    target_offset: int, source_offset: int | None
):
    offset_map = OffsetMap(
        stream=MapStream(1, "", ""),
        ordinal=13,
        upstream_end=31,
        runs=(Run(10, 100, 20, 110, 10), Run(25, 111, 31, 116, 3)),
    )
    assert offset_map.source_of(target_offset) == source_offset


def test_target_offsets_between_two_runs_are_translated_back_to_the_end_of_the_first_run():
    """Markers and records of other writers lie there. The log may end between two of them."""
    runs = (Run(10, 100, 20, 110, 10), Run(25, 113, 30, 118, 5))
    offset_map = OffsetMap(stream=STREAM, ordinal=15, upstream_end=30, runs=runs)

    assert [offset_map.source_of(offset) for offset in (110, 111, 112, 113, 118, 119)] == [
        20,
        20,
        20,
        25,
        30,
        None,
    ]


def test_target_offsets_before_a_map_from_source_offset_0_are_translated_back_to_0():
    """A fence marker may precede the first record."""
    offset_map = OffsetMap(stream=STREAM, ordinal=10, upstream_end=10, runs=(Run(0, 1, 10, 11, 10),))

    assert [offset_map.source_of(offset) for offset in (0, 1, 2)] == [0, 0, 1]


def test_lost_records_of_a_rewritten_source_are_translated_back_to_where_copying_continued():
    """The source has lost the copied records from offset 40 on, and the map has dropped them."""
    copy = Copy()
    copy.copy(100)
    copy.map.aligned(STREAM._replace(generation=2), OffsetPair(39, -1, 100))
    copy.map.delivered(40, 101, 10, 0)
    offset_map = copy.map.kept(OffsetPair(49, 9, 110))

    assert [offset_map.source_of(offset) for offset in (39, 40, 70, 101, 103)] == [39, 40, 40, 40, 42]


def test_a_map_is_not_current_after_a_loss_or_in_a_new_generation():
    offset_map = OffsetMap(stream=STREAM, ordinal=10, upstream_end=10, runs=(Run(0, 1, 10, 11, 10),))

    assert offset_map.is_current(11, generation=1, kept_end=11)
    assert not offset_map.is_current(11, generation=1, kept_end=10)
    assert not offset_map.is_current(11, generation=2, kept_end=11)

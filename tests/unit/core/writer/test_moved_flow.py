"""Where a flow of an earlier release continues with one owner: what counts as written behind the last known record."""

from dataclasses import replace

import pytest

from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.writer.identity import Anchor, Decisions, NumberedRecord, last_known, records_behind
from mirrorflow_core.writer.transaction_log import SEQUENCES, LogBatch, Marker

PARTITION = TopicPartition("orders", 0)
PRODUCER = (7, 16)
KNOWN = NumberedRecord(
    source_offset=99, source_epoch=1, ordinal=49, target_offset=59, generation=2, is_last=False
)
POSITION = Position(
    topic="orders",
    partition=0,
    source_offset=99,
    source_epoch=1,
    sequence=49,
    target_offset=59,
    epoch=2,
)
ANCHOR = Anchor(
    generation=2,
    topic="orders",
    partition=0,
    step=0,
    ordinal=0,
    source_offset=50,
    target_offset=10,
    source_topic_id="",
    target_topic_id="",
    why="begin",
)


def batch(
    first: int, count: int, *, transactional: bool = False, producer: tuple[int, int] = PRODUCER
) -> LogBatch:
    return LogBatch(60, 59 + count, *producer, first % SEQUENCES, transactional)


def marker(kind: Marker, producer_id: int = PRODUCER[0]) -> LogBatch:
    return LogBatch(80, 80, producer_id, 17, -1, is_transactional=True, marker=kind)


@pytest.mark.parametrize(
    ("batches", "count"),
    [
        ([], 0),
        ([batch(50, 10), batch(60, 5)], 15),
        ([batch(50, 10), batch(70, 5, producer=(8, 16))], 10),
        ([batch(50, 10), batch(60, 5, producer=(7, 15))], 10),
        ([batch(50, 10, transactional=True), marker(Marker.COMMIT)], 10),
        ([batch(50, 10, transactional=True), marker(Marker.ABORT)], 0),
        ([batch(50, 10), batch(60, 5, transactional=True), marker(Marker.ABORT)], 10),
        ([batch(50, 10, transactional=True), marker(Marker.ABORT, producer_id=8)], 10),
    ],
)
def test_records_of_the_last_generation_count_unless_they_were_aborted(batches: list[LogBatch], count: int):
    assert records_behind(KNOWN, batches, PRODUCER) == count


def test_sequence_numbers_begin_again_behind_the_last_one():
    known = replace(KNOWN, ordinal=SEQUENCES - 3)
    assert records_behind(known, [batch(SEQUENCES - 2, 5)], PRODUCER) == 5


def decisions(*anchors: Anchor) -> Decisions:
    found = Decisions()
    for anchor in anchors:
        found.read(anchor, 0)
    return found


def test_a_stored_position_is_known_and_says_whether_it_is_the_last():
    assert last_known({PARTITION: POSITION}, (), decisions(ANCHOR)) == {PARTITION: KNOWN}
    left = last_known({PARTITION: replace(POSITION, left=True)}, (), decisions(ANCHOR))
    assert left[PARTITION].is_last


def test_a_later_anchor_replaces_the_position():
    later = replace(ANCHOR, generation=3, source_offset=120, target_offset=70)
    found = last_known({PARTITION: POSITION}, (), decisions(ANCHOR, later))
    assert found[PARTITION] == NumberedRecord(
        source_offset=119, source_epoch=-1, ordinal=-1, target_offset=69, generation=3, is_last=False
    )


def test_a_partition_without_a_position_is_known_from_its_anchor():
    assert last_known({}, (), decisions(ANCHOR))[PARTITION].source_offset == 49


def test_positions_of_java_and_altered_ones_are_not_counted_from():
    java = Position(topic="orders", partition=0, source_offset=10)
    assert last_known({PARTITION: java}, (), decisions(ANCHOR)) == {}
    assert last_known({PARTITION: POSITION}, {PARTITION}, decisions(ANCHOR)) == {}

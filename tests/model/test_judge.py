"""The judge sees a record that is lost, twice, or out of place, and a partition that says nothing."""

import re
from pathlib import Path

import pytest

from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.records import Record, encode
from tests.model.chooser import Seeded
from tests.model.judge import ALLOWANCES, judge
from tests.model.options import Options
from tests.model.world import World

PAGE = Path(__file__).parents[2] / "docs" / "exactly-once.md"
DONE = "stands still and says nothing"


@pytest.fixture
def world():
    made = World(Seeded(0), Options())
    made.producer.append(made.partitions[0], 6, keys=2)
    return made


def copy(world, numbers):
    """Write those of the source's records to the target, under no producer id."""
    at = world.partitions[0]
    chosen = [world.producer.history[at][number] for number in numbers]
    records = [Record(0, one.timestamp, one.key, one.value) for one in chosen]
    data = encode(records, codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    world.copy_of(at).append(split(data)[0], world.wall_ms)


def problems(world):
    """All problems, except that nothing is copied."""
    return [one for one in judge(world).problems if DONE not in one]


def test_a_faithful_copy_is_no_problem(world):
    copy(world, range(6))

    assert problems(world) == []


def test_that_copying_stops_is_one(world):
    copy(world, range(6))

    assert DONE in judge(world).problems[0]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ((0, 1, 3, 4, 5), "miss 1 records: 0:000002"),
        ((0, 1, 2, 2, 3, 4, 5), "see 1 records twice: 0:000002"),
        ((0, 2, 1, 3, 4, 5), "see another order: 0:000001"),
    ],
)
def test_lost_repeated_and_misplaced_records_are_named(world, numbers, words):
    copy(world, numbers)

    assert len(problems(world)) == 2, "of readers of either level"
    assert all(words in one for one in problems(world))


def test_records_of_strangers_are_not_ours_to_judge(world):
    copy(world, range(6))
    at = world.partitions[0]
    data = encode([Record(0, 0, None, b"x")], codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)
    world.copy_of(at).append(split(data)[0], world.wall_ms)

    assert problems(world) == []


def test_what_the_source_has_no_more_need_not_be_there(world):
    world.producer.delete_before(world.partitions[0], 5)
    copy(world, (5,))

    assert problems(world) == []


def test_aborted_records_do_not_count_for_readers_of_committed_records(world):
    world = World(Seeded(0), Options(read_committed=True))
    at = world.partitions[0]
    world.producer.append(at, 2, producer_id=7001)
    world.producer.end(at, 7001, commit=False)
    world.producer.append(at, 2)
    copy(world, (2, 3))

    assert problems(world) == []


def test_what_was_committed_when_it_was_copied_may_be_aborted_after_its_marker_was_lost():
    world = World(Seeded(0), Options(read_committed=True))
    at = world.partitions[0]
    world.producer.append(at, 2, producer_id=7001)
    world.producer.append(at, 2)
    world.producer.end(at, 7001, commit=True)
    copy(world, (0, 1))
    world.producer.truncate(at, 2)
    world.producer.append(at, 2, producer_id=7001)
    world.producer.end(at, 7001, commit=False)

    assert problems(world) == []


def test_what_no_reader_of_committed_records_can_read_need_not_be_there():
    """The source has lost the marker, so the transaction stays open."""
    world = World(Seeded(0), Options(read_committed=True))
    at = world.partitions[0]
    world.producer.append(at, 2, producer_id=7001)
    world.producer.end(at, 7001, commit=True)
    world.producer.truncate(at, 2)
    world.producer.append(at, 2)

    assert problems(world) == []


def test_a_copy_of_a_truncated_record_may_be_the_last_of_its_key():
    world = World(Seeded(0), Options())
    at = world.partitions[0]
    world.producer.append(at, 4, keys=2, in_batches_of=1)
    copy(world, range(4))
    world.producer.truncate(at, 2)

    assert problems(world) == []


def test_repeats_do_not_hide_another_order(world):
    copy(world, (0, 2, 1, 1, 3, 4, 5))

    assert sum("another order" in one for one in problems(world)) == 2, "of readers of either level"


def test_each_allowance_is_a_sentence_of_the_page():
    """As the page has it, but for where its lines end."""
    page = re.sub(r"\s+", " ", PAGE.read_text())

    assert [one.name for one in ALLOWANCES if re.sub(r"\s+", " ", one.sentence) not in page] == []

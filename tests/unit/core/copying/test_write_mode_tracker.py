"""The write mode of a partition: when it changes, and how sequence numbers continue."""

import pytest

from mirrorflow_core.copying.write_mode_tracker import WriteModeTracker
from mirrorflow_core.wire.batch import COUNT_UNKNOWN, Batch
from mirrorflow_core.writer.flow_plan import WritePoint
from mirrorflow_core.writer.position import WriteMode
from mirrorflow_core.writer.write_mode import ChangeMode
from tests.unit.core.copying.stubs import PRODUCERS as TASK_PRODUCERS

NOW_MS = 10**12
DAY_MS = 86_400_000
AGE_MS = DAY_MS // 2
PRODUCERS = {
    WriteMode.TRANSACTION: TASK_PRODUCERS.transactional,
    WriteMode.PLAIN: TASK_PRODUCERS.plain,
}
POINT = WritePoint(next_source_offset=100, source_epoch=3, sequence=-1, target_end=50, target_epoch=0)


def tracker(*, is_fenced: bool = True) -> WriteModeTracker:
    return WriteModeTracker(POINT, PRODUCERS, is_fenced=is_fenced)


def batch(
    first: int, count: int = 10, *, epoch: int = 3, age_ms: int = 0, offsets: int | None = None
) -> Batch:
    return Batch(
        base_offset=first,
        batch_length=0,
        leader_epoch=epoch,
        magic=2,
        crc=0,
        attributes=0,
        last_offset_delta=(count if offsets is None else offsets) - 1,
        base_timestamp=NOW_MS - age_ms,
        max_timestamp=NOW_MS - age_ms,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=count,
        data=memoryview(b""),
        size_bytes=100,
    )


def check(
    mode: WriteModeTracker, source_batch: Batch, *, from_offset: int = 0, now_ms: int = NOW_MS
) -> ChangeMode | None:
    return mode.check(source_batch, from_offset, now_ms=now_ms, age_limit_ms=AGE_MS)


def test_recent_records_without_gaps_are_plain_at_once():
    assert check(tracker(), batch(100)) is None


def test_a_partly_written_batch_stays_plain():
    mode = tracker()
    mode.taken(105, 3)
    assert check(mode, batch(100), from_offset=105) is None


@pytest.mark.parametrize(
    ("source_batch", "change"),
    [
        (batch(103), ChangeMode(WriteMode.PLAIN, 103, 3)),
        (batch(100, epoch=4), ChangeMode(WriteMode.PLAIN, 100, 4)),
        (batch(100, age_ms=DAY_MS), ChangeMode(WriteMode.TRANSACTION, 100, 3)),
        (batch(100, 9, offsets=10), ChangeMode(WriteMode.TRANSACTION, 100, 3)),
    ],
    ids=["gap before it", "new leader epoch", "old", "gap inside"],
)
def test_records_that_sequence_numbers_cannot_count_wait_for_a_position(
    source_batch: Batch, change: ChangeMode
):
    assert check(tracker(), source_batch) == change


@pytest.mark.parametrize("epoch", [3, -1])
def test_a_position_is_stored_before_the_first_batch_after_a_loss(epoch):
    """Also before batches of magic 0 and 1, which have no leader epoch."""
    mode = tracker()
    mode.rewind(500, is_after_gap=True)

    assert check(mode, batch(500, epoch=epoch)) == ChangeMode(WriteMode.PLAIN, 500, epoch)


@pytest.mark.parametrize("magic", [0, 1])
def test_a_mode_change_before_an_old_format_message_set_covers_all_its_records(magic: int):
    """A compressed message set has the offset of its last record."""
    wrapper = batch(119, 1)._replace(magic=magic, count=COUNT_UNKNOWN)
    assert check(tracker(), wrapper, from_offset=100) == ChangeMode(WriteMode.TRANSACTION, 100, 3)


@pytest.mark.parametrize(
    "source_batch", [batch(103), batch(100, epoch=4), batch(100, age_ms=DAY_MS), batch(100, 9, offsets=10)]
)
def test_without_fencing_all_batches_are_plain(source_batch: Batch):
    mode = tracker(is_fenced=False)
    assert check(mode, source_batch) is None
    assert mode.is_plain


def test_nothing_is_plain_after_a_resync_before_a_position_is_stored():
    """The last stored position may lie before a skipped gap."""
    mode = tracker()
    mode.rewind(110, is_after_gap=False)
    assert check(mode, batch(110)) == ChangeMode(WriteMode.PLAIN, 110, 3)


def test_each_producer_numbers_its_own_records():
    mode = tracker()
    assert (mode.first_ordinal, mode.plain_sequence(-1)) == (0, -1)
    assert mode.plain_sequence(9) == 9

    mode.apply(ChangeMode(WriteMode.TRANSACTION, 110, 3), 10, NOW_MS)
    assert mode.producer is PRODUCERS[WriteMode.TRANSACTION]
    assert mode.first_ordinal == 10
    assert mode.plain_sequence(14) == 9

    mode.apply(ChangeMode(WriteMode.PLAIN, 115, 3), 15, NOW_MS)
    assert mode.producer is PRODUCERS[WriteMode.PLAIN]
    assert mode.plain_sequence(14) == 9
    assert mode.plain_sequence(15) == 10
    assert 15 - mode.first_ordinal == 10

    mode.apply(ChangeMode(WriteMode.TRANSACTION, 120, 3), 20, NOW_MS)
    assert 20 - mode.first_ordinal == 5


def test_a_partition_with_frequent_gaps_stays_in_transactions_in_its_next_session():
    mode = tracker()
    for ordinal in (10, 20):
        mode.apply(ChangeMode(WriteMode.TRANSACTION, 100 + ordinal, 3), ordinal, NOW_MS)
        mode.apply(ChangeMode(WriteMode.PLAIN, 100 + ordinal, 3), ordinal, NOW_MS)
    next_tracker = WriteModeTracker(POINT, PRODUCERS, earlier=mode)
    assert check(next_tracker, batch(100)) == ChangeMode(WriteMode.TRANSACTION, 100, 3)
    assert check(next_tracker, batch(100), now_ms=NOW_MS + 700_000) is None

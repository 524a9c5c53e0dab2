"""Decisions without brokers: mode, window, lookup, committed records, side-by-side steps."""

from typing import Any

import pytest

from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_core.source_epochs import EpochStart
from mirrorflow_core.writer.broker_requests import (
    LogEnd,
    Pause,
    Producer,
    ReadBatches,
    ReadEnd,
    Request,
    send,
    side_by_side,
)
from mirrorflow_core.writer.end_lookup import EndLookup, look_up_end, open_transactions
from mirrorflow_core.writer.flow_plan import WritePoint, point_after
from mirrorflow_core.writer.ownership import touch_interval_ms
from mirrorflow_core.writer.position import WriteMode, WriterPosition
from mirrorflow_core.writer.stream import Span, Stream
from mirrorflow_core.writer.task_restart_reason import restart_reason
from mirrorflow_core.writer.transaction_log import LogBatch, Marker, decided_records
from mirrorflow_core.writer.write_mode import (
    ChangeMode,
    PartitionMode,
    SourceBatch,
    Write,
    commit_interval_ms,
    plain_age_limit_ms,
)

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS
AGE_MS = 12 * HOUR_MS
PARTITION = TopicPartition("orders", 0)
PLAIN = PartitionMode(mode=WriteMode.PLAIN, next_source_offset=10, source_epoch=1)
EPOCHS = (EpochStart(1, 4), EpochStart(2, 10))
POINT = WritePoint(next_source_offset=10, source_epoch=1, sequence=-1, target_end=20, target_epoch=0)
FENCE = Producer("p", 7, 18)
POSITION = WriterPosition(
    topic="orders",
    partition=0,
    next_source_offset=10,
    target_end=20,
    producer_id=7,
    producer_epoch=17,
    sequence=4,
)


def source_batch(first=10, records=5, *, next_offset=None, epoch=1, timestamp=NOW_MS):
    return SourceBatch(first, next_offset or first + records, records, epoch, timestamp)


def decide(mode, batch, now_ms=0):
    return mode.decide(batch, now_ms=now_ms, wall_ms=NOW_MS, age_limit_ms=AGE_MS)


@pytest.mark.parametrize(
    ("batch", "decision"),
    [
        (source_batch(), Write()),
        (source_batch(timestamp=NOW_MS - AGE_MS + 1), Write()),
        (source_batch(timestamp=NOW_MS - AGE_MS), ChangeMode(WriteMode.TRANSACTION, 10, 1)),
        (source_batch(12), ChangeMode(WriteMode.PLAIN, 12, 1)),
        (source_batch(epoch=2), ChangeMode(WriteMode.PLAIN, 10, 2)),
        (source_batch(next_offset=17), ChangeMode(WriteMode.TRANSACTION, 10, 1)),
    ],
    ids=["fresh", "just fresh", "old", "gap", "new leader epoch", "gap inside"],
)
def test_form_of_a_batch(batch, decision):
    assert decide(PLAIN, batch) == decision


def test_two_gaps_within_a_minute_mean_transactions_until_it_is_calm():
    mode = PLAIN
    for at_ms, first in ((0, 12), (59_000, 20)):
        mode = mode.changed(ChangeMode(WriteMode.PLAIN, first, 1), at_ms)

    assert decide(mode, source_batch(20), now_ms=60_000) == ChangeMode(WriteMode.TRANSACTION, 20, 1)
    assert decide(mode, source_batch(20), now_ms=59_000 + 600_000) == Write()


def test_age_limit_and_intervals():
    assert plain_age_limit_ms(24 * HOUR_MS) == 12 * HOUR_MS
    assert plain_age_limit_ms(HOUR_MS - 1) == 0
    assert (commit_interval_ms(10, 60_000), commit_interval_ms(300, 60_000)) == (250, 3000)
    assert commit_interval_ms(8_000, 60_000) == 6_000  # the coordinator aborts after a minute
    assert commit_interval_ms(8_000, 5_000) == 500
    assert touch_interval_ms(7 * 24 * HOUR_MS) == 42 * HOUR_MS
    assert touch_interval_ms(HOUR_MS) == HOUR_MS // 2


@pytest.mark.parametrize(
    ("delivered", "epoch"), [(OffsetPair(9, -1, 19, -1), 1), (OffsetPair(10, 0, 20, 2), 2)]
)
def test_a_position_keeps_the_epoch_before_its_start_until_a_record_is_copied(delivered, epoch):
    stream = Stream(delivered, EPOCHS)
    assert point_after(POINT, stream, sequence=7, target_epoch=3) == WritePoint(
        next_source_offset=delivered.source_offset + 1,
        source_epoch=epoch,
        epochs=() if epoch == 1 else EPOCHS,
        sequence=7,
        target_end=delivered.target_offset + 1,
        target_epoch=3,
        records=delivered.ordinal + 1,
    )


def ends(stream=None, **fields):
    known = {"has_lost_responses": False, "has_new_leader": False}
    return restart_reason(PARTITION, stream, **known | fields)


def test_a_start_continues_while_nothing_is_uncertain():
    assert ends() == ends(Stream(OffsetPair(9, -1, 19))) == ""


@pytest.mark.parametrize(
    ("cause", "why"),
    [
        ({"has_lost_responses": True}, "what was written to orders-0 was not answered"),
        ({"has_new_leader": True}, "orders-0 has another leader"),
        ({"has_repeat": True}, "orders-0 has other batches with our numbers"),
        ({"has_diverged": True}, "the source of orders-0 has other records than before"),
        ({"refused_next": 0}, "the leader of orders-0 expects other sequence numbers"),
    ],
)
def test_uncertainty_ends_the_start(cause, why):
    assert ends(Stream(OffsetPair(9, -1, 19)), **cause) == why


def test_an_acknowledgement_at_a_lower_offset_than_expected_ends_the_start():
    stream = Stream(OffsetPair(9, -1, 19))
    stream.align(OffsetPair(9, -1, 19))
    stream.take(Span(0, 5, 10, 15, NOW_MS, 0))
    stream.acknowledge(18)

    assert ends(stream) == "orders-0 has lost records"


def data(base, sequence, *, epoch=17, producer_id=7, count=5, transactional=False):
    return LogBatch(base, base + count - 1, producer_id, epoch, sequence, transactional)


def marker(base, *, epoch=18, producer_id=7, kind=Marker.ABORT):
    return LogBatch(base, base, producer_id, epoch, -1, True, kind)


def test_the_end_of_a_fenced_writer_is_found_behind_its_fence():
    log = (data(20, 5), data(25, 10), marker(30))

    found = EndLookup(position=POSITION, fence=FENCE).read(reversed(log))

    assert (found.is_fenced, found.copied) == (True, 10)


def test_batches_of_others_and_before_the_position_do_not_count():
    log = (
        data(15, 0),
        data(20, 5, epoch=16),
        data(25, 0, producer_id=8),
        data(30, 5, transactional=True),
        marker(35),
    )

    found = EndLookup(position=POSITION, fence=FENCE).read(reversed(log))

    assert (found.is_fenced, found.copied) == (True, 0)


def test_a_marker_of_another_epoch_is_no_fence():
    assert not EndLookup(position=POSITION, fence=FENCE).read((marker(20, epoch=17),)).is_fenced


def answered(steps, respond):
    """Run *steps*; returns the result and the requests."""
    asked: list[Request] = []
    got: tuple[Any, ...] | None = None
    while True:
        try:
            requests = next(steps) if got is None else steps.send(got)
        except StopIteration as stop:
            return stop.value, asked
        asked += requests
        got = tuple(respond(one) for one in requests)


def test_the_lookup_reads_backwards_in_growing_strides():
    log: tuple[LogBatch, ...] = tuple(data(20 + 5 * at, 5 + 5 * at) for at in range(2)) + tuple(
        data(30 + 5 * at, 0, producer_id=8) for at in range(100)
    )

    def respond(request):
        if isinstance(request, ReadEnd):
            return LogEnd(0, 530, 530, 0)
        return tuple(one for one in log if one.last_offset >= request.start and one.base_offset < request.end)

    (found, end), asked = answered(look_up_end(EndLookup(position=POSITION, fence=None)), respond)

    assert (found.copied, end.end) == (10, 530)
    strides = [one.end - one.start for one in asked if isinstance(one, ReadBatches)]
    assert strides == [16, 32, 64, 128, 256, 14]


def test_transactions_without_a_marker_are_found_behind_the_last_stable_offset():
    log: tuple[LogBatch, ...] = (
        data(10, 0, producer_id=3, transactional=True),
        data(15, 0, producer_id=4, transactional=True),
    )
    log += (marker(20, producer_id=4), data(21, 0, producer_id=5, transactional=True))

    found, _ = answered(open_transactions(PARTITION, LogEnd(0, 10, 26, 0)), lambda request: log)  # noqa: ARG005

    assert found == {3: 10, 5: 21}
    assert answered(open_transactions(PARTITION, LogEnd(0, 26, 26, 0)), None) == ({}, [])


def test_records_count_when_their_transaction_is_committed():
    def record(base, name, producer_id, *, transactional=True):
        return LogBatch(base, base, producer_id, 0, 0, transactional, None, ((base, name),))

    log = (
        record(0, "aborted", 1),
        marker(1, producer_id=1),
        record(2, "held", 2),
        record(3, "committed", 1),
        marker(4, producer_id=1, kind=Marker.COMMIT),
        record(5, "java's", 3, transactional=False),
        record(6, "open", 1),
    )

    found = decided_records(log, str)

    assert found.committed == ("committed", "java's")
    assert found.undecided == ("held", "open")
    assert found.open_records == {2: (), 1: ("open",)}
    assert decided_records(log, str, key=len).open_records == {2: ("held",), 1: ("open",)}


def test_independent_steps_share_their_rounds():
    def steps(times):
        for _ in range(times):
            yield from send(Pause(times))
        return times

    result, asked = answered(side_by_side({"a": steps(1), "b": steps(2)}), lambda request: 0)  # noqa: ARG005

    assert result == {"a": 1, "b": 2}
    assert asked == [Pause(1), Pause(2), Pause(2)]

"""The decisions about write mode, intervals, session ends, end lookup and committed records."""

from dataclasses import replace
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
    ask,
    gather,
)
from mirrorflow_core.writer.end_lookup import (
    EndLookup,
    look_up_end,
    next_uncopied_offset,
    open_transactions,
)
from mirrorflow_core.writer.flow_plan import WritePoint, point_after
from mirrorflow_core.writer.ownership import touch_interval_ms
from mirrorflow_core.writer.position import WriteMode, WriterPosition
from mirrorflow_core.writer.session_end_reason import session_end_reason
from mirrorflow_core.writer.stream import Span, Stream
from mirrorflow_core.writer.transaction_log import LogBatch, Marker, decided_records
from mirrorflow_core.writer.transactional_ids import WriterIds
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


def decide(mode, batch, now_ms=NOW_MS):
    return mode.decide(batch, now_ms=now_ms, age_limit_ms=AGE_MS)


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
    ids=["recent", "just below the age limit", "old", "gap", "new leader epoch", "gap inside"],
)
def test_the_write_mode_of_a_batch_follows_from_its_age_and_gaps(batch, decision):
    assert decide(PLAIN, batch) == decision


def test_two_gaps_within_a_minute_cause_transactions_for_ten_minutes():
    mode = PLAIN
    for time_ms, first in ((NOW_MS, 12), (NOW_MS + 59_000, 20)):
        mode = mode.changed(ChangeMode(WriteMode.PLAIN, first, 1), time_ms)

    assert decide(mode, source_batch(20), now_ms=NOW_MS + 60_000) == ChangeMode(WriteMode.TRANSACTION, 20, 1)
    assert decide(mode, source_batch(20), now_ms=NOW_MS + 59_000 + 600_000) == Write()


def test_the_age_limit_and_intervals_follow_broker_settings():
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
def test_a_position_keeps_its_source_epoch_until_a_record_is_copied(delivered, epoch):
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


def end_reason_of(stream=None, **fields):
    defaults = {"has_lost_responses": False, "has_new_leader": False}
    return session_end_reason(PARTITION, stream, **defaults | fields)


def test_a_session_without_uncertainty_continues():
    assert end_reason_of() is None
    assert end_reason_of(Stream(OffsetPair(9, -1, 19))) is None


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ({"has_lost_responses": True}, "what was written to orders-0 was not answered"),
        ({"has_new_leader": True}, "orders-0 has another leader"),
        ({"has_repeat": True}, "orders-0 has other batches with our numbers"),
        ({"has_diverged": True}, "the source of orders-0 has other records than before"),
        ({"refused_next": 0}, "the leader of orders-0 expects other sequence numbers"),
    ],
)
def test_uncertainty_ends_the_session(cause, reason):
    assert end_reason_of(Stream(OffsetPair(9, -1, 19)), **cause) == reason


def test_an_acknowledgement_below_the_expected_offset_ends_the_session():
    stream = Stream(OffsetPair(9, -1, 19))
    stream.align(OffsetPair(9, -1, 19))
    stream.take(Span(0, 5, 10, 15, NOW_MS, 0))
    stream.acknowledge(18)

    assert end_reason_of(stream) == "orders-0 has lost records"


def data(base, sequence, *, epoch=17, producer_id=7, count=5, transactional=False):
    return LogBatch(base, base + count - 1, producer_id, epoch, sequence, transactional)


def marker(base, *, epoch=18, producer_id=7, kind=Marker.ABORT):
    return LogBatch(base, base, producer_id, epoch, -1, True, kind)


def test_the_lookup_finds_the_fence_and_counts_the_records_before_it():
    log = (data(20, 5), data(25, 10), marker(30))

    lookup = EndLookup(position=POSITION, fence=FENCE).read(reversed(log))

    assert (lookup.is_fenced, lookup.copied) == (True, 10)


def test_batches_of_other_writers_and_before_the_position_do_not_count():
    log = (
        data(15, 0),
        data(20, 5, epoch=16),
        data(25, 0, producer_id=8),
        data(30, 5, transactional=True),
        marker(35),
    )

    lookup = EndLookup(position=POSITION, fence=FENCE).read(reversed(log))

    assert (lookup.is_fenced, lookup.copied) == (True, 0)


def test_a_marker_of_a_different_epoch_is_not_the_fence():
    assert not EndLookup(position=POSITION, fence=FENCE).read((marker(20, epoch=17),)).is_fenced


def run_steps(steps, respond):
    """Runs *steps*; returns the result and the requests."""
    made: list[Request] = []
    responses: tuple[Any, ...] | None = None
    while True:
        try:
            requests = next(steps) if responses is None else steps.send(responses)
        except StopIteration as stop:
            return stop.value, made
        made += requests
        responses = tuple(respond(request) for request in requests)


def test_the_lookup_reads_backwards_in_growing_strides():
    log: tuple[LogBatch, ...] = tuple(data(20 + 5 * index, 5 + 5 * index) for index in range(2)) + tuple(
        data(30 + 5 * index, 0, producer_id=8) for index in range(100)
    )

    def respond(request):
        if isinstance(request, ReadEnd):
            return LogEnd(0, 530, 530, 0)
        return tuple(
            batch for batch in log if batch.last_offset >= request.start and batch.base_offset < request.end
        )

    (lookup, end), made = run_steps(look_up_end(EndLookup(position=POSITION, fence=None)), respond)

    assert (lookup.copied, end.end) == (10, 530)
    strides = [request.end - request.start for request in made if isinstance(request, ReadBatches)]
    assert strides == [16, 32, 64, 128, 256, 14]


@pytest.mark.parametrize(
    ("changes", "copied"),
    [
        ({}, 10),
        ({"mode": WriteMode.TRANSACTION}, 0),
        ({"left": True}, 0),
        ({"writer": None}, 0),
        ({"producer_epoch": 16}, 0),
    ],
    ids=["plain", "in transactions", "left", "not fenced", "another epoch"],
)
def test_only_plain_batches_with_the_epoch_of_the_position_count_as_copied_since_the_position(
    changes: dict[str, Any], copied: int
):
    log = (data(20, 5), data(25, 10))
    position = replace(POSITION, **({"writer": WriterIds("p-transactional", "p")} | changes))

    def respond(request):
        return LogEnd(0, 30, 30, 0) if isinstance(request, ReadEnd) else log

    assert run_steps(next_uncopied_offset(position), respond)[0] == 10 + copied


def test_open_transactions_are_found_after_the_last_stable_offset():
    log: tuple[LogBatch, ...] = (
        data(10, 0, producer_id=3, transactional=True),
        data(15, 0, producer_id=4, transactional=True),
    )
    log += (marker(20, producer_id=4), data(21, 0, producer_id=5, transactional=True))

    open_offsets, _ = run_steps(open_transactions(PARTITION, LogEnd(0, 10, 26, 0)), lambda request: log)  # noqa: ARG005

    assert open_offsets == {3: 10, 5: 21}
    assert run_steps(open_transactions(PARTITION, LogEnd(0, 26, 26, 0)), None) == ({}, [])


def test_records_apply_when_their_transaction_is_committed():
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

    decided = decided_records(log, str)

    assert decided.committed == ("committed", "java's")
    assert decided.undecided == ("held", "open")
    assert decided.open_records == {2: (), 1: ("open",)}
    assert decided_records(log, str, key=len).open_records == {2: ("held",), 1: ("open",)}


def test_gathered_steps_send_their_requests_in_the_same_rounds():
    def steps(times):
        for _ in range(times):
            yield from ask(Pause(times))
        return times

    result, made = run_steps(gather({"a": steps(1), "b": steps(2)}), lambda request: 0)  # noqa: ARG005

    assert result == {"a": 1, "b": 2}
    assert made == [Pause(1), Pause(2), Pause(2)]

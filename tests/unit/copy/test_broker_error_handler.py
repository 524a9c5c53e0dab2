"""The reaction to each error code of a broker, and how it is carried out."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_core.writer.stream import Span
from mirrorflow_kafka.client.error_codes import UNKNOWN_SERVER_ERROR, name_of
from mirrorflow_replicator.copy.broker_error_handler import (
    BrokerErrorHandler,
    ErrorAction,
    RefusedBatchError,
    action_for_fetch_error,
    action_for_produce_error,
)
from mirrorflow_replicator.copy.copier_context import CopierState
from tests.unit.copy.stubs import begun_copier, context_at

CODES = range(-1, 120)


def new_handler(*, skips_refused: bool = False) -> BrokerErrorHandler:
    parts: Any = SimpleNamespace(stale=lambda _: None)
    return BrokerErrorHandler(
        source=parts,
        target=parts,
        routes=parts,
        resumer=parts,
        errors=Counter(),
        spawn=lambda work: work.close(),
        skips_refused=skips_refused,
    )


def codes(action_for, action):
    return {name_of(code) for code in CODES if code and action_for(code) is action}


def test_a_batch_that_is_too_large_has_smaller_ones_made():
    """Both limits of a broker: of a message set and of a segment."""
    assert {"MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"} == codes(
        action_for_produce_error, ErrorAction.SHRINK_BATCHES
    )


def test_a_codec_that_the_target_does_not_know_is_changed():
    assert {"UNSUPPORTED_COMPRESSION_TYPE"} == codes(action_for_produce_error, ErrorAction.CHANGE_CODEC)


@pytest.mark.parametrize(
    "name",
    [
        "OUT_OF_ORDER_SEQUENCE_NUMBER",
        "DUPLICATE_SEQUENCE_NUMBER",
        "INVALID_PRODUCER_EPOCH",
        "UNKNOWN_PRODUCER_ID",
        "NOT_ENOUGH_REPLICAS",
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        "REQUEST_TIMED_OUT",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ],
)
def test_uncertain_produce_errors_resume_at_a_determined_position(name):
    """The batch may have been appended or not."""
    assert name in codes(action_for_produce_error, ErrorAction.RESUME)


MOVED = [
    "NOT_LEADER_OR_FOLLOWER",
    "LEADER_NOT_AVAILABLE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "FENCED_LEADER_EPOCH",
]


@pytest.mark.parametrize("action_for", [action_for_produce_error, action_for_fetch_error])
@pytest.mark.parametrize("name", MOVED)
def test_a_moved_leader_has_metadata_refreshed(action_for, name):
    """An election is no failure and stops no partition."""
    assert name in codes(action_for, ErrorAction.REFRESH_METADATA)


def test_only_an_offset_out_of_range_may_be_a_loss():
    """Everything else leaves the records where they are."""
    assert {"OFFSET_OUT_OF_RANGE"} == codes(action_for_fetch_error, ErrorAction.RESOLVE_LOSS)


@pytest.mark.parametrize("action_for", [action_for_produce_error, action_for_fetch_error])
def test_errors_that_a_person_must_fix_stop_the_partition(action_for):
    """A missing ACL, and whatever is not known here: silence would look like an idle source."""
    stopping = codes(action_for, ErrorAction.STOP)

    assert {"TOPIC_AUTHORIZATION_FAILED", name_of(-1)} <= stopping


def test_only_refusals_of_single_records_split_a_batch():
    """No key on a compacted topic, or a timestamp the target does not take."""
    assert {"INVALID_RECORD", "INVALID_TIMESTAMP"} == codes(action_for_produce_error, ErrorAction.SPLIT_BATCH)


@pytest.mark.parametrize(
    ("code", "message", "sentence"),
    [
        (
            87,
            "no key.",
            "target topic east.orders refuses the record at source offset 41 with INVALID_RECORD: no key; set cleanup.policy, ",
        ),
        (
            32,
            "",
            (
                "target topic east.orders refuses the record at source offset 41 with INVALID_TIMESTAMP; "
                "set message.timestamp.before.max.ms or message.timestamp.after.max.ms, on east.orders, or leave such records "
                "out with mirrorflow.refused.records=skip; list the setting in topics.configs.exceptions "
                "(mirrorflow.config.properties.exclude.by.topic), or the next config sync reverts it."
            ),
        ),
        (
            -1,
            "",
            "target topic east.orders refuses the batch at source offset 41 with UNKNOWN_SERVER_ERROR; compare the settings",
        ),
    ],
)
def test_a_refused_batch_names_its_offset_the_broker_s_words_and_the_ways_past(code, message, sentence):
    error = RefusedBatchError(
        topic="orders", partition=2, offset=41, target_topic="east.orders", code=code, message=message
    )

    assert str(error).startswith(f"orders-2: {sentence}")
    assert "BatchRefused" == error.reason


def refused_copier(*, records: tuple[int, ...]) -> Any:
    """A copier with a batch whose *records* its target refuses."""
    copier = begun_copier(context_at(0))
    copier.refused_records = records
    return copier


def span(count: int) -> Span:
    """From source offset 40 on, as the hundredth record and those that follow it."""
    return Span(
        first=100, count=count, base_offset=40, next_offset=40 + count + 5, max_timestamp=0, size_bytes=900
    )


@pytest.mark.parametrize(
    ("records", "cut_at"), [((10, 11), 50), ((), 47)], ids=["as the broker names them", "by halving"]
)
def test_the_records_before_a_refused_one_are_sent_first(records, cut_at):
    copier = refused_copier(records=records)

    new_handler().on_produce_error(copier, 32, "", span(15))

    assert (copier.packer.cut_at, copier.error, copier.skip) == (cut_at, None, None)


def test_a_refused_record_stops_its_partition():
    copier = refused_copier(records=(0, 1))

    new_handler().on_produce_error(copier, 87, "no key", span(15))

    assert "the record at source offset 40" in str(copier.error)
    assert copier.skip is None


def test_a_batch_that_fails_at_the_target_stops_its_partition_in_the_next_start_of_the_task_too():
    """It ends the start, and would end each one: the other partitions would wait for it."""
    earlier, other = refused_copier(records=()), begun_copier(context_at(0), 3)
    again, other_again = begun_copier(context_at(0)), begun_copier(context_at(0), 3)
    handler = new_handler()
    handler.on_produce_error(earlier, UNKNOWN_SERVER_ERROR, "", span(15))

    handler.stop_again(again, earlier)
    handler.stop_again(other_again, other)

    assert "the batch at source offset 40 with UNKNOWN_SERVER_ERROR" in str(again.error)
    assert (again.state, other_again.state) == (CopierState.STOPPED, CopierState.COPYING)


@pytest.mark.parametrize(
    ("records", "count", "next_offset", "what"),
    [
        ((0, 1, 5), 15, 42, "2 records at source offset 40"),
        ((), 1, 46, "the record at source offset 40"),
        ((0, 1), 2, 47, "2 records at source offset 40"),
    ],
)
def test_refused_records_are_left_out_where_the_user_says_so(records, count, next_offset, what):
    """Those that follow each other, and with the last record of a batch the offsets passed over behind it."""
    copier = refused_copier(records=records)

    new_handler(skips_refused=True).on_produce_error(copier, 87, "no key", span(count))

    assert (copier.skip.ordinal, copier.skip.next_offset, copier.error) == (100, next_offset, None)
    assert (
        f"refuses {what} with INVALID_RECORD: no key; left out, as mirrorflow.refused.records=skip says"
        in str(copier.skip.error)
    )


def test_a_batch_in_flight_behind_a_refused_one_is_no_new_refusal():
    """It is sent again, at the place that it has then."""
    copier = refused_copier(records=(0,))
    copier.state = CopierState.RESUMING

    new_handler(skips_refused=True).on_produce_error(copier, 87, "no key", span(15))

    assert (copier.packer.cut_at, copier.error, copier.skip) == (-1, None, None)


def test_a_refused_fetch_is_an_obstacle_of_its_copier():
    """Leaders are looked up and asked again; without a trace of it a partition that is refused for ever would look idle."""
    changed: list[Any] = []
    copier = begun_copier(context_at(0, changed=changed.append))
    changed.clear()
    response: Any = SimpleNamespace(diverging=None)

    for _ in range(2):
        new_handler().on_fetch_error(copier, 6, response)

    assert copier.obstacle == Obstacle(
        kind=ObstacleKind.FETCH_REFUSED, name="NOT_LEADER_OR_FOLLOWER", times=2
    )
    assert changed == [copier, copier]


def test_a_diverging_response_is_an_obstacle_a_refusal_and_a_new_end_of_the_source():
    """So that the loop is seen although the partition believed itself to be at the end, and becomes slower."""
    copier = begun_copier(context_at(0))
    response = PartitionFetchResponse(FetchKey(b"orders", 2), 0, 70, 65, 5, (), -1, memoryview(b""), (3, 40))

    for _ in range(2):
        new_handler().on_fetch_error(copier, 0, response)

    assert copier.obstacle == Obstacle(kind=ObstacleKind.DIVERGED, times=2)
    assert (copier.cursor.end_offset, copier.cursor.log_start, copier.refusals, copier.resyncs) == (
        70,
        5,
        2,
        2,
    )

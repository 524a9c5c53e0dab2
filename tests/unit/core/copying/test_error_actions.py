"""The reaction to each error code of a broker, and how a partition carries it out."""

import pytest

from mirrorflow_core.copying.effects import Count, Effects, ReadFrom, ResolveLoss, Signal, StopPartition
from mirrorflow_core.copying.error_actions import (
    ErrorAction,
    RefusedBatchError,
    action_for_fetch_error,
    action_for_produce_error,
)
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_core.wire.error_codes import (
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_SERVER_ERROR,
    name_of,
)
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from tests.unit.core.copying.stubs import (
    begun_copier,
    new_copier,
    new_session,
    put_in_flight,
    resume,
    signals,
)

CODES = range(-1, 120)


KEY = FetchKey(b"orders", 2)
SKIPPED = 5  # source offsets without records after the refused batch


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


def refuse(
    copier: PartitionCopier, count: int, code: int, message: str = "", records: tuple[int, ...] = ()
) -> Effects:
    """Has the target refuse a batch of *count* records, the next ones of *copier*."""
    put_in_flight(copier, count, skipped=SKIPPED)
    return copier.refused(code, message, records)


@pytest.mark.parametrize(
    ("records", "cut_at"),
    [((10, 11), 110), ((), 107)],
    ids=["as the broker names them", "by halving"],
)
def test_the_records_before_a_refused_one_are_sent_first(records, cut_at):
    copier = begun_copier(0)

    refuse(copier, 15, INVALID_TIMESTAMP, records=records)

    assert (copier.packer.cut_at, copier.error, copier.skip) == (cut_at, None, None)


def test_a_refused_record_stops_its_partition():
    copier = begun_copier(0)

    effects = refuse(copier, 15, INVALID_RECORD, "no key", (0, 1))

    assert "the record at source offset 100" in str(copier.error)
    assert copier.error is not None
    assert StopPartition(copier.error) in effects
    assert (copier.state, copier.skip) == (CopierState.STOPPED, None)


def test_a_batch_that_fails_at_the_target_stops_its_partition_in_the_next_session_too():
    """It ends the session, and would end each one: the other partitions would wait for it."""
    session, next_session = new_session(), new_session()
    earlier, other = begun_copier(0, session), begun_copier(0, session, 3)
    again, other_again = new_copier(next_session), new_copier(next_session, 3)
    refuse(earlier, 15, UNKNOWN_SERVER_ERROR)

    again.started(earlier)
    other_again.started(other)
    for copier in (again, other_again):
        copier.connected()

    assert "the batch at source offset 100 with UNKNOWN_SERVER_ERROR" in str(again.error)
    assert (again.state, other_again.state) == (CopierState.STOPPED, CopierState.RESUMING)
    resume(again, 0)
    assert again.state is CopierState.COPYING


@pytest.mark.parametrize(
    ("records", "count", "next_offset", "subject"),
    [
        ((0, 1, 5), 15, 102, "2 records at source offset 100"),
        ((), 1, 106, "the record at source offset 100"),
        ((0, 1), 2, 107, "2 records at source offset 100"),
    ],
)
def test_refused_records_are_skipped_if_the_user_has_set_that(records, count, next_offset, subject):
    """Those that follow each other, and with the last record of a batch the offsets that were passed over after it."""
    copier = begun_copier(0, new_session(skips_refused=True))

    refuse(copier, count, INVALID_RECORD, "no key", records)

    assert copier.skip is not None
    assert (copier.skip.ordinal, copier.skip.next_offset, copier.error) == (0, next_offset, None)
    assert (
        f"refuses {subject} with INVALID_RECORD: no key; left out, as mirrorflow.refused.records=skip says"
        in str(copier.skip.error)
    )
    resume(copier, 0)
    assert (copier.cursor.offset, copier.lost_records) == (next_offset, next_offset - 100)


def test_a_batch_in_flight_after_a_refused_one_is_not_another_refusal():
    """It is sent again, at the place that it has then."""
    copier = begun_copier(0, new_session(skips_refused=True))
    for _ in range(2):
        put_in_flight(copier, 15)

    copier.refused(NOT_ENOUGH_REPLICAS, "")
    copier.refused(INVALID_RECORD, "no key", (0,))

    assert (copier.packer.cut_at, copier.error, copier.skip) == (-1, None, None)
    assert copier.refusals == 1


def fetch_response(
    *, error: int = 0, diverging: tuple[int, int] | None = None, preferred_replica: int = -1
) -> PartitionFetchResponse:
    """A response without records, of a log from offset 5 to 70."""
    return PartitionFetchResponse(KEY, error, 70, 65, 5, (), preferred_replica, memoryview(b""), diverging)


def test_a_refused_fetch_is_an_obstacle_of_its_partition():
    """Leaders are looked up and asked again; without a trace of it a partition that is refused forever would look idle."""
    copier = begun_copier(0)
    response = fetch_response(error=NOT_LEADER_OR_FOLLOWER)

    effects = [copier.fetched(response, copier.cursor.offset) for _ in range(2)]

    assert copier.obstacle == Obstacle(
        kind=ObstacleKind.FETCH_REFUSED, name="NOT_LEADER_OR_FOLLOWER", times=2
    )
    assert effects == 2 * [(Count("NOT_LEADER_OR_FOLLOWER"), Signal.REPORT, Signal.REFRESH_LEADER)]


def test_a_diverging_response_is_an_obstacle_a_refusal_and_a_new_end_of_the_source():
    """So that the loop is seen although the partition seemed to be at the end, and becomes slower."""
    copier = begun_copier(0)

    effects = copier.fetched(fetch_response(diverging=(3, 40)), copier.cursor.offset)

    assert copier.obstacle == Obstacle(kind=ObstacleKind.DIVERGED)
    assert (copier.cursor.end_offset, copier.cursor.log_start, copier.refusals, copier.resyncs) == (
        70,
        5,
        1,
        1,
    )
    assert {Signal.REPORT, Signal.RESUME} <= signals(effects)


def test_another_replica_to_read_from_is_no_error():
    copier = begun_copier(0)

    effects = copier.fetched(fetch_response(preferred_replica=4), copier.cursor.offset)

    assert effects == (ReadFrom(4),)
    assert copier.obstacle is None


def test_a_loss_is_resolved_once_at_a_time():
    copier = begun_copier(0)
    response = fetch_response(error=OFFSET_OUT_OF_RANGE)
    asked = ResolveLoss(100, copier.resyncs)

    first, second = (copier.fetched(response, 100) for _ in range(2))
    resolved = copier.loss_resolved(asked, 5, 200)
    third = copier.fetched(response, 100)

    assert [asked in effects for effects in (first, second, third)] == [True, False, True]
    assert resolved == (Signal.REFRESH_LEADER,)


def test_a_partition_that_is_given_up_is_not_stopped_by_the_last_refusal() -> None:
    """The task waits until it has nothing in flight; its next owner meets the refusal."""
    copier = begun_copier(0)
    put_in_flight(copier, 3)
    copier.leave()

    effects = copier.refused(TOPIC_AUTHORIZATION_FAILED, "")

    assert Signal.DRAINED in effects
    assert copier.state is CopierState.LEAVING

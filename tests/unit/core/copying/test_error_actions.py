"""The action for each broker error code, and how a partition carries it out."""

import pytest

from mirrorflow_core.copying.effects import (
    Count,
    Effects,
    ReadFrom,
    ResolveLoss,
    Retry,
    Signal,
    StopPartition,
)
from mirrorflow_core.copying.error_actions import (
    ErrorAction,
    RefusedBatchError,
    action_for_fetch_error,
    action_for_produce_error,
    retry_of,
)
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.copying.refused_records import RefusedRecords
from mirrorflow_core.errors import (
    CorruptBatchError,
    NotAuthorizedError,
    RecordTooLargeError,
    SourceDataLostError,
    TargetDataLostError,
)
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.source_epochs import EpochStart, followed_by
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_core.wire.batch import CONTROL_BIT, TRANSACTIONAL_BIT
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
from mirrorflow_core.wire.fetch import FetchFrom, FetchKey, PartitionFetchResponse
from mirrorflow_core.wire.records import Record
from tests.unit.core.copying.stubs import (
    begun_copier,
    new_copier,
    new_session,
    put_in_flight,
    records_of,
    resume,
    signals,
)
from tests.unit.core.wire.strategies import batch_of, with_attributes

CODES = range(-1, 120)


KEY = FetchKey(b"orders", 2)
SKIPPED = 5  # source offsets without records after the refused batch


def codes(action_for, action):
    return {name_of(code) for code in CODES if code and action_for(code) is action}


def test_size_errors_shrink_batches():
    """A broker has two size limits: for a batch and for a segment."""
    assert {"MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"} == codes(
        action_for_produce_error, ErrorAction.SHRINK_BATCHES
    )


def test_an_unsupported_codec_is_changed():
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
def test_ambiguous_produce_errors_resume(name):
    """The target may have appended the batch or not."""
    assert name in codes(action_for_produce_error, ErrorAction.RESUME)


LEADER_CHANGE_ERRORS = [
    "NOT_LEADER_OR_FOLLOWER",
    "LEADER_NOT_AVAILABLE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "FENCED_LEADER_EPOCH",
]


@pytest.mark.parametrize("action_for", [action_for_produce_error, action_for_fetch_error])
@pytest.mark.parametrize("name", LEADER_CHANGE_ERRORS)
def test_a_leader_change_refreshes_metadata(action_for, name):
    """An election is not a failure and must not stop a partition."""
    assert name in codes(action_for, ErrorAction.REFRESH_METADATA)


def test_only_offset_out_of_range_resolves_a_loss():
    """No other error means that records are lost."""
    assert {"OFFSET_OUT_OF_RANGE"} == codes(action_for_fetch_error, ErrorAction.RESOLVE_LOSS)


@pytest.mark.parametrize("action_for", [action_for_produce_error, action_for_fetch_error])
def test_errors_that_need_a_user_stop_the_partition(action_for):
    """A missing ACL and unknown codes are errors, because a silent partition would look idle."""
    stopping = codes(action_for, ErrorAction.STOP)

    assert {"TOPIC_AUTHORIZATION_FAILED", name_of(-1)} <= stopping


def test_only_refusals_of_single_records_split_a_batch():
    """These are a missing key on a compacted topic, and a timestamp that the target does not accept."""
    assert {"INVALID_RECORD", "INVALID_TIMESTAMP"} == codes(action_for_produce_error, ErrorAction.SPLIT_BATCH)


@pytest.mark.parametrize(
    ("code", "message", "expected"),
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
def test_a_refused_batch_error_has_the_offset_the_broker_message_and_the_remedies(code, message, expected):
    error = RefusedBatchError(
        topic="orders", partition=2, offset=41, target_topic="east.orders", code=code, message=message
    )

    assert str(error).startswith(f"orders-2: {expected}")
    assert "BatchRefused" == error.reason


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (NotAuthorizedError(cluster="west", operation="Write", resource="topic orders"), Retry.LATER),
        (
            RecordTooLargeError(topic="orders", partition=2, target_topic="orders", offset=7, size_bytes=9),
            Retry.WITH_NEW_LIMIT,
        ),
        (
            SourceDataLostError(topic="orders", partition=2, wanted=7, found=9, how="deleted", then=""),
            Retry.NEVER,
        ),
        (TargetDataLostError(topic="orders", partition=2, target_topic="orders", how="trimmed"), Retry.NEVER),
    ],
)
def test_a_stopped_partition_is_tried_again_unless_a_person_must_decide(error, retry):
    assert retry_of(error) is retry


def test_a_partition_refused_twice_in_a_row_resumes_after_a_pause():
    copier = begun_copier(0)

    first = refuse(copier, 15, NOT_ENOUGH_REPLICAS)
    resume(copier, 0)
    second = refuse(copier, 15, NOT_ENOUGH_REPLICAS)

    assert Signal.RESUME in first
    assert Signal.RESUME_LATER in second


def refuse(
    copier: PartitionCopier, count: int, code: int, message: str = "", records: tuple[int, ...] = ()
) -> Effects:
    """Sends the next *count* records of *copier* as a batch, which the target refuses."""
    put_in_flight(copier, count, skipped=SKIPPED)
    return copier.refused(code, message, records)


@pytest.mark.parametrize(
    ("count", "records", "cut_at"),
    [(15, (10, 11), 110), (15, (), 107), (2, (1,), 101), (2, (), 101)],
    ids=["indexes from the broker", "half of the batch", "its last record", "half of two records"],
)
def test_the_records_before_a_refused_one_are_sent_first(count, records, cut_at):
    copier = begun_copier(0)

    refuse(copier, count, INVALID_TIMESTAMP, records=records)

    assert (copier.packer.cut_at, copier.health.error, copier.omission) == (cut_at, None, None)


def test_a_refused_record_stops_the_partition():
    copier = begun_copier(0)

    effects = refuse(copier, 15, INVALID_RECORD, "no key", (0, 1))

    assert "the record at source offset 100" in str(copier.health.error)
    assert copier.health.error is not None
    assert StopPartition(copier.health.error, Retry.LATER) in effects
    assert (copier.state, copier.omission) == (CopierState.STOPPED, None)


def test_a_batch_that_fails_at_the_target_stops_its_partition_in_the_next_session():
    """It ends the session. If it were sent again, it would end each session and block the other partitions."""
    session, next_session = new_session(), new_session()
    earlier, other = begun_copier(0, session), begun_copier(0, session, 3)
    failed_again, other_again = new_copier(next_session), new_copier(next_session, 3)
    refuse(earlier, 15, UNKNOWN_SERVER_ERROR)

    failed_again.started(earlier)
    other_again.started(other)
    for copier in (failed_again, other_again):
        copier.connected()

    assert "the batch at source offset 100 with UNKNOWN_SERVER_ERROR" in str(failed_again.health.error)
    assert (failed_again.state, other_again.state) == (CopierState.STOPPED, CopierState.RESUMING)
    resume(failed_again, 0)
    assert failed_again.state is CopierState.COPYING


@pytest.mark.parametrize(
    ("records", "count", "next_offset", "subject"),
    [
        ((0, 1, 5), 15, 102, "2 records at source offset 100"),
        ((), 1, 106, "the record at source offset 100"),
        ((0, 1), 2, 107, "2 records at source offset 100"),
        ((0,), 2, 101, "the record at source offset 100"),
    ],
)
def test_refused_records_are_skipped_if_configured(records, count, next_offset, subject):
    """Adjacent records are skipped together. After the last record of a batch, its skipped offsets are passed too."""
    copier = begun_copier(0, new_session(skips_refused=True))

    refuse(copier, count, INVALID_RECORD, "no key", records)

    refused = copier.omission
    assert isinstance(refused, RefusedRecords)
    assert (refused.ordinal, refused.next_offset, copier.health.error) == (0, next_offset, None)
    assert (
        f"refuses {subject} with INVALID_RECORD: no key; left out, as mirrorflow.refused.records=skip says"
        in str(refused.error)
    )
    resume(copier, 0)
    assert (copier.cursor.offset, copier.counts.lost_records) == (next_offset, next_offset - 100)


@pytest.mark.parametrize(
    ("records", "next_offset", "last_epoch"), [((0,), 101, 4), ((0, 1), 103, 5)], ids=["first", "all"]
)
def test_a_source_that_is_rewritten_after_skipped_records_is_found(records, next_offset, last_epoch):
    """Until the next record is copied, fetches and positions name the leader epoch of what was skipped."""
    copier = begun_copier(0, new_session(skips_refused=True))
    assert copier.stream is not None
    copier.stream.align(copier.stream.delivered._replace(source_epoch=3))
    copier.stream.epochs = followed_by((), 3, 90)
    put_in_flight(copier, 2, skipped=1)
    skipped = copier.stream.in_flight.pop()._replace(source_epoch=4, skipped_epochs=(EpochStart(5, 102),))
    copier.stream.in_flight.append(skipped)

    copier.refused(INVALID_RECORD, "no key", records)
    resume(copier, 0)

    assert (copier.cursor.offset, copier.cursor.last_epoch) == (next_offset, last_epoch)
    assert copier.stream.delivered.source_epoch == last_epoch
    assert copier.stream.epochs == (EpochStart(3, 90), EpochStart(last_epoch, 100))


def test_a_refusal_of_a_batch_in_flight_after_a_refused_one_is_ignored():
    """That batch is sent again with new sequence numbers."""
    copier = begun_copier(0, new_session(skips_refused=True))
    for _ in range(2):
        put_in_flight(copier, 15)

    copier.refused(NOT_ENOUGH_REPLICAS, "")
    copier.refused(INVALID_RECORD, "no key", (0,))

    assert (copier.packer.cut_at, copier.health.error, copier.omission) == (-1, None, None)
    assert copier.refusals == 1


def fetch_response(
    *, error: int = 0, diverging: tuple[int, int] | None = None, preferred_replica: int = -1
) -> PartitionFetchResponse:
    """A response without records from a log with offsets from 5 to 70."""
    return PartitionFetchResponse(KEY, error, 70, 65, 5, (), preferred_replica, memoryview(b""), diverging)


def test_a_refused_fetch_is_recorded_as_an_obstacle():
    """The fetch is retried with a new leader. The obstacle distinguishes endless refusals from an idle partition."""
    copier = begun_copier(0)
    response = fetch_response(error=NOT_LEADER_OR_FOLLOWER)

    effects = [copier.fetched(response, copier.cursor.offset) for _ in range(2)]

    assert copier.health.obstacle == Obstacle(
        kind=ObstacleKind.FETCH_REFUSED, name="NOT_LEADER_OR_FOLLOWER", times=2
    )
    assert effects == 2 * [(Count("NOT_LEADER_OR_FOLLOWER"), Signal.REPORT, Signal.REFRESH_LEADER)]


def test_a_marker_that_cannot_be_read_stops_the_partition():
    """As any corrupt batch does. The other partitions of the response are copied."""
    copier = begun_copier(0, new_session(read_committed=True))
    marker = with_attributes(
        batch_of([Record(0, 0, b"?", b"")], base_offset=100, producer_id=7), CONTROL_BIT | TRANSACTIONAL_BIT
    )
    response = PartitionFetchResponse(
        KEY, 0, 101, 101, 5, ((7, 90),), -1, memoryview(bytes(marker.data)), None
    )

    copier.fetched(response, 100)
    _, effects = copier.next_batch(0, 1 << 20)

    assert isinstance(copier.health.error, CorruptBatchError)
    assert "the control record at offset 100 has no type" in str(copier.health.error)
    assert StopPartition(copier.health.error, Retry.LATER) in effects


@pytest.mark.parametrize(
    ("byte", "bit"),
    [(22, 5), (23, 7)],
    ids=["control bit of the attributes", "sign of the last offset delta"],
)
def test_a_damaged_batch_that_would_not_be_copied_stops_the_partition(byte, bit):
    """Only the target verifies what is copied; what is left out is verified here, or its records would be lost without an error."""
    copier = begun_copier(0)
    batches = [bytearray(batch_of(records_of(0), base_offset=100 + 3 * number).data) for number in range(2)]
    batches[1][byte] ^= 1 << bit
    records = memoryview(bytearray().join(batches))

    copier.fetched(PartitionFetchResponse(KEY, 0, 106, 106, 5, (), -1, records), 100)
    first, _ = copier.next_batch(0, 1 << 20)
    copier.acknowledged(40, -1, 0)
    copier.next_batch(0, 1 << 20)

    assert first is not None
    assert isinstance(copier.health.error, CorruptBatchError)
    assert copier.state is CopierState.STOPPED


def test_records_that_are_not_copied_are_counted_once_although_they_are_fetched_again():
    copier = begun_copier(0)
    marker = with_attributes(batch_of([Record(0, 0, b"0000", b"")], base_offset=100), CONTROL_BIT)
    response = PartitionFetchResponse(KEY, 0, 101, 101, 5, (), -1, memoryview(bytes(marker.data)))

    copier.fetched(response, 100)
    copier.resync()
    resume(copier, 0)
    copier.cursor.seek(100, -1)
    copier.fetched(response, 100)

    assert copier.counts.skipped_records == 1


def test_a_refused_fetch_is_not_repeated_before_the_leader_was_looked_up():
    """The broker would refuse it again at once, as often as its responses come."""
    copier = begun_copier(0)
    assert copier.next_fetch(1 << 20) is not None

    copier.fetched(fetch_response(error=NOT_LEADER_OR_FOLLOWER), copier.cursor.offset)

    assert copier.next_fetch(1 << 20) is None
    assert not copier.may_fetch_soon()
    assert copier.source_leader_seen(7) == (Signal.FETCH,)
    assert copier.next_fetch(1 << 20) == FetchFrom(100, 7, -1, 1 << 20)
    assert not copier.source_leader_seen(7)


def test_nothing_is_fetched_while_a_loss_from_before_a_resync_is_resolved():
    copier = begun_copier(0)
    copier.fetched(fetch_response(error=OFFSET_OUT_OF_RANGE), 100)
    copier.resync()
    resume(copier, 0)

    copier.fetched(fetch_response(error=OFFSET_OUT_OF_RANGE), 100)

    assert copier.next_fetch(1 << 20) is None
    assert copier.loss_resolved(ResolveLoss(100, 0), 150, 200) == (Signal.REFRESH_LEADER,)
    copier.source_leader_seen(0)
    assert copier.next_fetch(1 << 20) is not None


def test_nothing_is_fetched_while_a_loss_is_resolved():
    copier = begun_copier(0, new_session(loss_policy=LossPolicy.ALERT))
    copier.fetched(fetch_response(error=OFFSET_OUT_OF_RANGE), 100)

    assert copier.next_fetch(1 << 20) is None
    copier.loss_resolved(ResolveLoss(100, copier.resyncs), 150, 200)
    resume(copier, 0)

    assert copier.next_fetch(1 << 20) == FetchFrom(150, -1, -1, 1 << 20)


@pytest.mark.parametrize(
    ("log_start", "log_end", "next_offset", "lost_records"),
    [
        (0, 104, 100, 0),  # the first of the refused records are still in the source
        (0, 90, 90, 0),
        (120, 200, 120, 20),
    ],
)
def test_after_a_loss_copying_continues_where_the_source_and_the_target_have_the_same_records(
    log_start, log_end, next_offset, lost_records
):
    """The source loses records while a batch of 10 before them is in flight, which is refused."""
    copier = begun_copier(0, new_session(loss_policy=LossPolicy.ALERT))
    put_in_flight(copier, 10)
    copier.cursor.seek(110, 0)
    copier.fetched(fetch_response(error=OFFSET_OUT_OF_RANGE), 110)
    copier.loss_resolved(ResolveLoss(110, copier.resyncs), log_start, log_end)

    copier.refused(NOT_ENOUGH_REPLICAS, "")
    resume(copier, 0)

    assert (copier.cursor.offset, copier.counts.lost_records) == (next_offset, lost_records)


def test_a_diverging_epoch_counts_as_a_refusal_and_updates_the_source_end():
    """The obstacle makes a loop visible although the partition seemed to be at its end; the refusal slows it down."""
    copier = begun_copier(0)

    effects = copier.fetched(fetch_response(diverging=(3, 40)), copier.cursor.offset)

    assert copier.health.obstacle == Obstacle(kind=ObstacleKind.DIVERGED)
    assert (copier.cursor.end_offset, copier.cursor.log_start, copier.refusals, copier.resyncs) == (
        70,
        5,
        1,
        1,
    )
    assert {Signal.REPORT, Signal.RESUME} <= signals(effects)


def test_a_preferred_replica_is_not_an_error():
    copier = begun_copier(0)

    effects = copier.fetched(fetch_response(preferred_replica=4), copier.cursor.offset)

    assert effects == (ReadFrom(4),)
    assert copier.health.obstacle is None


def test_only_one_request_to_resolve_a_loss_is_pending():
    copier = begun_copier(0)
    response = fetch_response(error=OFFSET_OUT_OF_RANGE)
    request = ResolveLoss(100, copier.resyncs)

    first, second = (copier.fetched(response, 100) for _ in range(2))
    resolved = copier.loss_resolved(request, 5, 200)
    third = copier.fetched(response, 100)

    assert [request in effects for effects in (first, second, third)] == [True, False, True]
    assert resolved == (Signal.REFRESH_LEADER,)


def test_a_stopped_partition_does_not_keep_the_fetch_response() -> None:
    """The frames of an error's traceback would hold it in memory for as long as the partition is stopped."""
    copier = begun_copier(0)
    with pytest.raises(CorruptBatchError) as raised:
        raise CorruptBatchError(topic="orders", partition=2, offset=100, problem="its CRC differs")

    copier.stop(raised.value)

    assert copier.health.error is not None
    assert copier.health.error.__traceback__ is None


def test_a_leaving_partition_is_not_stopped_by_a_refusal() -> None:
    """The task waits until nothing is in flight; the next owner gets the same refusal."""
    copier = begun_copier(0)
    put_in_flight(copier, 3)
    copier.leave()

    effects = copier.refused(TOPIC_AUTHORIZATION_FAILED, "")

    assert Signal.DRAINED in effects
    assert copier.state is CopierState.LEAVING

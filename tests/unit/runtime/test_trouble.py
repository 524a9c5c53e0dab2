"""What each error code of a broker means: asked again, looked up, mended, or a stop with the reason. No code is forgotten."""

import pytest

from mirrorflow_replicator.kafka.codes import name_of
from mirrorflow_replicator.runtime.trouble import Action, RefusedBatchError, of_fetch, of_produce

CODES = range(-1, 120)


def codes(meaning, action):
    return {name_of(code) for code in CODES if code and meaning(code) is action}


def test_a_batch_that_is_too_large_is_cut():
    """Both limits of a broker: of a message set and of a segment."""
    assert {"MESSAGE_TOO_LARGE", "RECORD_LIST_TOO_LARGE"} == codes(of_produce, Action.SHRINK)


def test_a_codec_the_target_does_not_know_is_changed():
    assert {"UNSUPPORTED_COMPRESSION_TYPE"} == codes(of_produce, Action.RECODE)


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
    ],
)
def test_what_says_something_of_the_log_is_asked_about(name):
    """The batch is there or not, and perhaps somebody else's: only the target knows."""
    assert name in codes(of_produce, Action.ASK)


MOVED = [
    "NOT_LEADER_OR_FOLLOWER",
    "LEADER_NOT_AVAILABLE",
    "UNKNOWN_TOPIC_OR_PARTITION",
    "FENCED_LEADER_EPOCH",
]


@pytest.mark.parametrize("meaning", [of_produce, of_fetch])
@pytest.mark.parametrize("name", MOVED)
def test_a_leader_that_has_moved_is_looked_for(meaning, name):
    """Elections are no failures: nothing is stopped by them."""
    assert name in codes(meaning, Action.LOOK)


def test_only_an_offset_out_of_range_may_be_a_loss():
    """Everything else leaves the records where they are."""
    assert {"OFFSET_OUT_OF_RANGE"} == codes(of_fetch, Action.LOST)


@pytest.mark.parametrize("meaning", [of_produce, of_fetch])
def test_what_only_a_person_can_mend_stops_the_partition(meaning):
    """A missing ACL, and whatever is not known here: silence would look like an idle source."""
    stopping = codes(meaning, Action.STOP)

    assert {"TOPIC_AUTHORIZATION_FAILED", name_of(-1)} <= stopping


def test_a_refused_record_stops_the_partition():
    """No key on a compacted topic, or a timestamp the target does not take: trying again changes nothing."""
    assert {"INVALID_RECORD", "INVALID_TIMESTAMP"} <= codes(of_produce, Action.STOP)


@pytest.mark.parametrize(
    ("message", "said"), [("no key", "INVALID_RECORD: no key;"), ("", "INVALID_RECORD;")]
)
def test_a_refused_batch_names_its_offset_and_what_the_broker_said(message, said):
    error = RefusedBatchError(
        topic="orders",
        partition=2,
        offset=41,
        target_topic="east.orders",
        code="INVALID_RECORD",
        message=message,
    )

    assert str(error).startswith(
        f"orders-2: target topic east.orders refuses the batch at source offset 41 with {said}"
    )
    assert "BatchRefused" == error.reason

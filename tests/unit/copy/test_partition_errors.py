"""What each error code of a broker means: asked again, looked up, mended, or a stop with the reason. No code is forgotten."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_core.wire.fetch import FetchedPartition, FetchKey
from mirrorflow_kafka.client.error_codes import name_of
from mirrorflow_replicator.copy.partition_errors import (
    Action,
    PartitionErrors,
    RefusedBatchError,
    of_fetch,
    of_produce,
)
from mirrorflow_replicator.copy.read_cursor import ReadCursor

CODES = range(-1, 120)


def trouble() -> PartitionErrors:
    parts: Any = SimpleNamespace(stale=lambda _: None)
    return PartitionErrors(
        source=parts,
        target=parts,
        wiring=parts,
        aligner=parts,
        errors=Counter(),
        spawn=lambda work: work.close(),
    )


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
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
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


def test_a_refused_fetch_is_an_obstacle_of_its_lane():
    """Leaders are looked up and asked again; without a trace of it a partition that is refused for ever would look idle."""
    changed: list[Any] = []
    around = SimpleNamespace(changed=changed.append)
    lane: Any = SimpleNamespace(obstacle=None, around=around)
    answer: Any = SimpleNamespace(diverging=None)

    for _ in range(2):
        trouble().of_source(lane, 6, answer)

    assert lane.obstacle == Obstacle(kind=ObstacleKind.FETCH_REFUSED, name="NOT_LEADER_OR_FOLLOWER", times=2)
    assert changed == [lane, lane]


def test_a_diverging_answer_is_an_obstacle_a_refusal_and_a_new_end_of_the_source():
    """So that the loop is seen although the partition believed itself to be at the end, and becomes slower."""
    doubts: list[Any] = []
    around = SimpleNamespace(changed=lambda _: None)
    cursor = ReadCursor(TopicPartition("orders", 2), read_committed=False)
    lane: Any = SimpleNamespace(obstacle=None, around=around, cursor=cursor, packer=(), refusals=0)
    lane.doubt = lambda: doubts.append(lane)
    answer = FetchedPartition(FetchKey(b"orders", 2), 0, 70, 65, 5, (), -1, memoryview(b""), (3, 40))

    for _ in range(2):
        trouble().of_source(lane, 0, answer)

    assert lane.obstacle == Obstacle(kind=ObstacleKind.DIVERGED, times=2)
    assert (cursor.end_offset, cursor.log_start, lane.refusals) == (70, 5, 2)
    assert doubts == [lane, lane]

"""Decides from the state of a partition whether it is stalled, with which reason, and with which message."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.reports import PartitionPhase
from mirrorflow_core.stall_detection import (
    STALLED_AFTER_S,
    CopyFacts,
    Obstacle,
    ObstacleKind,
    OpenTransaction,
    StallReason,
    find_stall,
)

FACTS = CopyFacts(
    partition="orders-3",
    target_partition="east.orders-3",
    source="east",
    target="west",
    phase=PartitionPhase.COPYING,
    without_progress_s=STALLED_AFTER_S,
    transactional_id="mirrorflow.east",
)


def refused(name="NOT_ENOUGH_REPLICAS", message="", times=17):
    return Obstacle(kind=ObstacleKind.WRITE_REFUSED, name=name, message=message, times=times)


FETCH_REFUSED = Obstacle(kind=ObstacleKind.FETCH_REFUSED, name="KAFKA_STORAGE_ERROR", times=60)
DIVERGED = Obstacle(kind=ObstacleKind.DIVERGED, times=20)
FAILED = Obstacle(
    kind=ObstacleKind.FAILED, name="Unreachable", message="Cluster west cannot be reached at b:9092: refused."
)
REASONS = [
    ({"obstacle": refused()}, StallReason.WRITES_REFUSED),
    ({"obstacle": refused(), "phase": PartitionPhase.STARTING}, StallReason.WRITES_REFUSED),
    ({"phase": PartitionPhase.STARTING, "times_asked": 20}, StallReason.NO_DECISION),
    ({"is_in_flight": True, "times_asked": 20}, StallReason.NO_DECISION),
    ({"phase": PartitionPhase.STARTING, "times_asked": 1}, StallReason.TARGET_NOT_ANSWERING),
    ({"awaits_commit": True, "is_fetched": True}, StallReason.COMMIT_PENDING),
    ({"is_in_flight": True}, StallReason.TARGET_NOT_ANSWERING),
    ({"is_fetched": True}, StallReason.TARGET_NOT_ANSWERING),
    ({"is_crowded_out": True}, StallReason.TARGET_NOT_ANSWERING),
    ({"phase": PartitionPhase.STARTING}, StallReason.TARGET_NOT_ANSWERING),
    ({"phase": PartitionPhase.STARTING, "target_has_leader": False}, StallReason.TARGET_NOT_ANSWERING),
    ({}, StallReason.SOURCE_NOT_ANSWERING),
    ({"source_has_leader": False}, StallReason.SOURCE_NOT_ANSWERING),
    ({"obstacle": FETCH_REFUSED, "obstacle_age_s": 1.0}, StallReason.SOURCE_NOT_ANSWERING),
    ({"obstacle": DIVERGED, "obstacle_age_s": 1.0, "times_asked": 20}, StallReason.NO_DECISION),
    ({"held_at_offset": 200}, StallReason.OPEN_TRANSACTION),
    ({"held_at_offset": 200, "is_reading_limited": True, "is_writing_limited": True}, StallReason.OPEN_TRANSACTION),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), REASONS)
def test_each_kind_of_stall_has_its_reason(changes, reason):
    stall = find_stall(replace(FACTS, **changes))

    assert stall is not None
    assert stall.reason == reason.value


@pytest.mark.parametrize(("changes", "_"), REASONS)
def test_a_partition_with_recent_progress_is_not_stalled(changes, _):
    assert find_stall(replace(FACTS, **changes, without_progress_s=STALLED_AFTER_S - 0.1)) is None


@pytest.mark.parametrize(("changes", "_"), REASONS)
def test_a_stopped_partition_is_not_stalled(changes, _):
    """Its error already has the remedy."""
    assert find_stall(replace(FACTS, **{**changes, "phase": PartitionPhase.STOPPED})) is None


@pytest.mark.parametrize("phase", [PartitionPhase.STARTING, PartitionPhase.COPYING])
def test_a_transient_error_keeps_its_own_reason(phase):
    stall = find_stall(replace(FACTS, obstacle=FAILED, phase=phase))

    assert stall is not None
    assert stall.reason == "Unreachable"
    assert stall.sentence == (
        "orders-3: nothing was copied for more than 30 s: Cluster west cannot be reached at b:9092: refused."
    )


def test_the_message_names_the_partition_once():
    failed = replace(FAILED, message="orders-3: it broke; mend it.")

    stall = find_stall(replace(FACTS, obstacle=failed))

    assert stall is not None
    assert stall.sentence.count("orders-3: ") == 1


@pytest.mark.parametrize("limit", ["is_reading_limited", "is_writing_limited"])
@pytest.mark.parametrize("changes", [{}, {"is_fetched": True}, {"is_crowded_out": True}])
def test_a_partition_limited_by_a_rate_or_quota_is_not_stalled(changes, limit):
    assert find_stall(replace(FACTS, **changes, **dict[str, Any]({limit: True}))) is None


def test_a_write_quota_explains_a_batch_without_a_response():
    assert find_stall(replace(FACTS, is_in_flight=True, is_writing_limited=True)) is None


def test_a_read_limit_does_not_explain_a_batch_without_a_response():
    stall = find_stall(replace(FACTS, is_in_flight=True, is_reading_limited=True))

    assert stall is not None
    assert stall.reason == StallReason.TARGET_NOT_ANSWERING.value


def test_a_read_limit_does_not_explain_that_only_one_partition_is_not_read():
    stall = find_stall(replace(FACTS, is_reading_limited=True, had_its_turn=True))

    assert stall is not None
    assert stall.reason == StallReason.SOURCE_NOT_ANSWERING.value


@pytest.mark.parametrize("obstacle", [refused(), FAILED])
def test_a_limit_does_not_hide_an_obstacle(obstacle):
    """Otherwise a flow at its rate limit would never report a refused partition."""
    limited = replace(FACTS, obstacle=obstacle, is_reading_limited=True, is_writing_limited=True)

    assert find_stall(limited) is not None


def test_an_earlier_refusal_does_not_explain_a_batch_without_a_response():
    """The refused batch was sent again. The repeated batch waits for a response."""
    stall = find_stall(replace(FACTS, obstacle=refused(), obstacle_age_s=60.0, is_in_flight=True))

    assert stall is not None
    assert stall.reason == StallReason.TARGET_NOT_ANSWERING.value


def test_the_message_has_the_broker_message_and_the_remedy():
    broker_message = "Messages are rejected since there are fewer in-sync replicas than required."

    stall = find_stall(replace(FACTS, obstacle=refused(message=broker_message)))

    assert stall is not None
    assert stall.sentence == (
        "orders-3: nothing was copied for more than 30 s: cluster west refused 17 writes, the last with "
        "NOT_ENOUGH_REPLICAS (Messages are rejected since there are fewer in-sync replicas than required); bring the "
        "replicas of east.orders-3 back in sync; if it has fewer of them (replication.factor) than its min.insync.replicas, give "
        "it more, or lower that setting."
    )


@pytest.mark.parametrize("obstacle", [DIVERGED, FETCH_REFUSED])
def test_an_obstacle_of_the_source_names_the_source(obstacle):
    stall = find_stall(replace(FACTS, obstacle=obstacle, obstacle_age_s=1.0))

    assert stall is not None
    assert "cluster east" in stall.sentence
    assert "cluster west" not in stall.sentence


HELD = replace(FACTS, held_at_offset=200)
TRANSACTION = OpenTransaction(
    producer_id=4000, producer_epoch=3, start_offset=200, last_timestamp_ms=1_764_346_805_123
)


def test_a_stall_by_an_open_transaction_names_its_producer_and_the_remedy():
    stall = find_stall(replace(HELD, open_transaction=TRANSACTION))

    assert stall is not None
    assert stall.sentence == (
        "orders-3: nothing was copied for more than 30 s: producer 4000 (epoch 3) of cluster east has a transaction open from "
        "offset 200 on and wrote its last record at 2025-11-28T16:20:05Z; committed records after it can be read when it ends: "
        "let its producer end it, or, if that producer is gone, abort it (`kafka-transactions.sh abort --start-offset 200`)."
    )


def test_an_open_transaction_is_reported_without_an_unknown_producer():
    stall, with_producer = find_stall(HELD), find_stall(replace(HELD, open_transaction=TRANSACTION))

    assert stall is not None
    assert "a transaction of cluster east is open from offset 200 on; committed records" in stall.sentence
    assert not stall.is_same(with_producer)


@pytest.mark.parametrize("timestamp_ms", [None, 0, 2**62])
def test_any_timestamp_of_a_producer_can_be_reported(timestamp_ms):
    stall = find_stall(replace(HELD, open_transaction=replace(TRANSACTION, last_timestamp_ms=timestamp_ms)))

    assert stall is not None
    assert ("wrote its last record" in stall.sentence) == (timestamp_ms is not None)


def test_an_unknown_refusal_points_to_the_brokers_log():
    stall = find_stall(replace(FACTS, obstacle=refused("ERROR_999", times=1)))

    assert stall is not None
    assert (
        "refused 1 write, the last with ERROR_999; the log of the broker that leads east.orders-3"
        in stall.sentence
    )


def test_refused_writes_are_counted_together_and_a_refused_fetch_restarts_the_count():
    once = refused(times=1)
    twice = refused("INVALID_TXN_STATE", times=1).after(once.after(None))

    assert twice.times == 2
    assert twice.name == "INVALID_TXN_STATE"
    assert replace(FETCH_REFUSED, times=1).after(twice).times == 1


def test_a_stall_counts_as_unchanged_while_only_its_count_changes():
    first = find_stall(replace(FACTS, obstacle=refused(times=17)))
    later = find_stall(replace(FACTS, obstacle=refused(times=40)))
    other = find_stall(replace(FACTS, obstacle=refused("INVALID_TXN_STATE")))

    assert first is not None
    assert first.is_same(later)
    assert not first.is_same(other)
    assert not first.is_same(None)


OBSTACLES = st.none() | st.builds(
    Obstacle,
    kind=st.sampled_from(ObstacleKind),
    name=st.sampled_from(["NOT_ENOUGH_REPLICAS", "Unreachable", "ERROR_7"]),
    message=st.sampled_from(["", "It failed.", "It failed"]),
    times=st.integers(1, 3),
)


@given(
    st.builds(
        CopyFacts,
        partition=st.just("orders-3"),
        target_partition=st.just("east.orders-3"),
        source=st.just("east"),
        target=st.just("west"),
        phase=st.sampled_from(PartitionPhase),
        without_progress_s=st.floats(0, 1000),
        obstacle=OBSTACLES,
        obstacle_age_s=st.floats(0, 100),
        is_in_flight=st.booleans(),
        is_fetched=st.booleans(),
        is_crowded_out=st.booleans(),
        is_reading_limited=st.booleans(),
        is_writing_limited=st.booleans(),
        had_its_turn=st.booleans(),
        awaits_commit=st.booleans(),
        times_asked=st.integers(0, 10),
        source_has_leader=st.booleans(),
        target_has_leader=st.booleans(),
    )
)
def test_a_partition_without_progress_always_has_a_reason(facts):
    """The exceptions are stopped partitions, partitions with recent progress, and partitions under a limit."""
    stall = find_stall(facts)

    if stall is None:
        is_limited = facts.is_reading_limited or facts.is_writing_limited
        assert (
            facts.phase is PartitionPhase.STOPPED or facts.without_progress_s < STALLED_AFTER_S or is_limited
        )
    else:
        assert stall.reason
        assert stall.sentence.startswith("orders-3: nothing was copied for more than 30 s: ")
        assert ".." not in stall.sentence

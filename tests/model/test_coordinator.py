"""The modelled coordinator answers clients of the old requests as Kafka's does."""

import pytest

from mirrorflow_core.partitions import TopicPartition
from tests.model.batches import ABORT, COMMIT
from tests.model.coordinator import Coordinator, State
from tests.model.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NONE,
)

AT = TopicPartition("copies", 0)
POSITIONS = TopicPartition("positions", 0)
NAME = "mirrorflow.east"
MINUTE_MS = 60_000


class Markers:
    """Keeps markers until they are let through."""

    def __init__(self):
        self.waiting = []
        self.written = []

    def write_marker(self, partition, marker, done):
        self.waiting.append((partition, marker, done))

    def let_through(self, code=NONE):
        waiting, self.waiting = self.waiting, []
        for partition, marker, done in waiting:
            self.written.append((partition, marker))
            done(code)


@pytest.fixture
def markers():
    return Markers()


@pytest.fixture
def coordinator(markers):
    return Coordinator(markers)


def begun(coordinator, now_ms=0):
    _, producer_id, epoch = coordinator.init_producer_id(NAME, MINUTE_MS, now_ms)
    assert coordinator.add_partitions(NAME, producer_id, epoch, [AT], now_ms) == NONE
    return producer_id, epoch


def test_requests_are_refused_until_the_last_marker_is_written(coordinator, markers):
    producer_id, epoch = begun(coordinator)

    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=1) == NONE
    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=1) == CONCURRENT_TRANSACTIONS
    assert coordinator.add_partitions(NAME, producer_id, epoch, [AT], 1) == CONCURRENT_TRANSACTIONS
    assert coordinator.verify(NAME, producer_id, epoch, AT) == CONCURRENT_TRANSACTIONS
    markers.let_through()
    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=1) == NONE
    assert coordinator.verify(NAME, producer_id, epoch, AT) == INVALID_TXN_STATE


def test_a_new_session_aborts_what_is_open_under_an_epoch_that_no_client_gets(coordinator, markers):
    producer_id, epoch = begun(coordinator)

    assert coordinator.init_producer_id(NAME, MINUTE_MS, 1)[0] == CONCURRENT_TRANSACTIONS
    markers.let_through()
    assert coordinator.init_producer_id(NAME, MINUTE_MS, 1) == (NONE, producer_id, epoch + 2)
    assert [marker.epoch for _, marker in markers.written] == [epoch + 1]
    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=1) == INVALID_PRODUCER_EPOCH


def test_a_transaction_that_is_not_ended_in_time_is_aborted_and_the_epoch_raised(coordinator, markers):
    producer_id, epoch = begun(coordinator)
    coordinator.abort_timed_out(MINUTE_MS)
    assert coordinator.known(NAME).state is State.ONGOING
    coordinator.abort_timed_out(MINUTE_MS + 1)
    markers.let_through()

    assert coordinator.known(NAME).state is State.COMPLETE_ABORT
    assert coordinator.add_partitions(NAME, producer_id, epoch, [AT], 2 * MINUTE_MS) == INVALID_PRODUCER_EPOCH


def test_an_id_that_was_not_used_for_a_week_gets_another_producer(coordinator, markers):
    producer_id, epoch = begun(coordinator)
    coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=0)
    markers.let_through()
    coordinator.expire(coordinator.expiration_ms - 1)
    assert coordinator.known(NAME) is not None
    coordinator.expire(coordinator.expiration_ms)

    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=0) == INVALID_PRODUCER_ID_MAPPING
    assert coordinator.init_producer_id(NAME, MINUTE_MS, 0) == (NONE, producer_id + 1, 0)


def test_a_new_coordinator_writes_the_markers_again(coordinator, markers):
    producer_id, epoch = begun(coordinator)
    coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=0)
    coordinator.fail_over()
    markers.let_through()

    assert [marker.coordinator_epoch for _, marker in markers.written] == [0, 1]
    assert coordinator.known(NAME).state is State.COMPLETE_COMMIT


def test_a_marker_that_a_leader_refuses_leaves_the_transaction_as_it_is_for_good(coordinator, markers):
    """The partition has a batch of a later epoch of the producer (TransactionMarkerRequestCompletionHandler)."""
    producer_id, epoch = begun(coordinator)
    coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=0)
    markers.let_through(INVALID_PRODUCER_EPOCH)

    assert coordinator.init_producer_id(NAME, MINUTE_MS, 1)[0] == CONCURRENT_TRANSACTIONS
    assert coordinator.known(NAME).state is State.PREPARE_COMMIT


def test_a_late_copy_of_an_end_ends_the_next_transaction_of_its_epoch_unnoticed(coordinator, markers):
    """Between records and their position: the partition of the position begins another transaction, which is committed."""
    producer_id, epoch = begun(coordinator)
    assert coordinator.end(NAME, producer_id, epoch, commit=False, now_ms=1) == NONE
    markers.let_through()
    assert coordinator.add_partitions(NAME, producer_id, epoch, [AT], 2) == NONE

    assert coordinator.end(NAME, producer_id, epoch, commit=False, now_ms=3) == NONE  # the late copy
    markers.let_through()

    assert coordinator.add_partitions(NAME, producer_id, epoch, [POSITIONS], 4) == NONE
    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=5) == NONE
    markers.let_through()
    written = [(partition, marker.kind) for partition, marker in markers.written]
    assert written == [(AT, ABORT), (AT, ABORT), (POSITIONS, COMMIT)]

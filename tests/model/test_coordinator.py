"""The model coordinator responds to the old request versions like Kafka."""

import pytest

from mirrorflow_core.partitions import TopicPartition
from tests.model.batches import ABORT, COMMIT
from tests.model.coordinator import Coordinator, TransactionState
from tests.model.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NONE,
)

DATA = TopicPartition("copies", 0)
POSITIONS = TopicPartition("positions", 0)
NAME = "mirrorflow.east"
MINUTE_MS = 60_000


class Markers:
    """Holds markers until the test delivers them."""

    def __init__(self):
        self.held = []
        self.written = []

    def write_marker(self, partition, marker, done):
        self.held.append((partition, marker, done))

    def deliver(self, code=NONE):
        held, self.held = self.held, []
        for partition, marker, done in held:
            self.written.append((partition, marker))
            done(code)


@pytest.fixture
def markers():
    return Markers()


@pytest.fixture
def coordinator(markers):
    return Coordinator(markers)


def open_transaction(coordinator, now_ms=0):
    _, producer_id, epoch = coordinator.init_producer_id(NAME, MINUTE_MS, now_ms)
    assert coordinator.add_partitions(NAME, producer_id, epoch, [DATA], now_ms) == NONE
    return producer_id, epoch


def test_requests_are_refused_until_the_last_marker_is_written(coordinator, markers):
    producer_id, epoch = open_transaction(coordinator)

    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=1) == NONE
    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=1) == CONCURRENT_TRANSACTIONS
    assert coordinator.add_partitions(NAME, producer_id, epoch, [DATA], 1) == CONCURRENT_TRANSACTIONS
    assert coordinator.verify(NAME, producer_id, epoch, DATA) == CONCURRENT_TRANSACTIONS
    markers.deliver()
    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=1) == NONE
    assert coordinator.verify(NAME, producer_id, epoch, DATA) == INVALID_TXN_STATE


def test_init_producer_id_aborts_the_open_transaction_with_an_epoch_that_no_client_gets(coordinator, markers):
    producer_id, epoch = open_transaction(coordinator)

    assert coordinator.init_producer_id(NAME, MINUTE_MS, 1)[0] == CONCURRENT_TRANSACTIONS
    markers.deliver()
    assert coordinator.init_producer_id(NAME, MINUTE_MS, 1) == (NONE, producer_id, epoch + 2)
    assert [marker.epoch for _, marker in markers.written] == [epoch + 1]
    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=1) == INVALID_PRODUCER_EPOCH


def test_a_transaction_timeout_aborts_and_increases_the_epoch(coordinator, markers):
    producer_id, epoch = open_transaction(coordinator)
    coordinator.abort_timed_out(MINUTE_MS)
    assert coordinator.metadata_of(NAME).state is TransactionState.ONGOING
    coordinator.abort_timed_out(MINUTE_MS + 1)
    markers.deliver()

    assert coordinator.metadata_of(NAME).state is TransactionState.COMPLETE_ABORT
    assert (
        coordinator.add_partitions(NAME, producer_id, epoch, [DATA], 2 * MINUTE_MS) == INVALID_PRODUCER_EPOCH
    )


def test_a_transactional_id_unused_for_a_week_gets_a_new_producer_id(coordinator, markers):
    producer_id, epoch = open_transaction(coordinator)
    coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=0)
    markers.deliver()
    coordinator.expire(coordinator.expiration_ms - 1)
    assert coordinator.metadata_of(NAME) is not None
    coordinator.expire(coordinator.expiration_ms)

    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=0) == INVALID_PRODUCER_ID_MAPPING
    assert coordinator.init_producer_id(NAME, MINUTE_MS, 0) == (NONE, producer_id + 1, 0)


def test_a_coordinator_failover_writes_pending_markers_again(coordinator, markers):
    producer_id, epoch = open_transaction(coordinator)
    coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=0)
    coordinator.fail_over()
    markers.deliver()

    assert [marker.coordinator_epoch for _, marker in markers.written] == [0, 1]
    assert coordinator.metadata_of(NAME).state is TransactionState.COMPLETE_COMMIT


def test_a_refused_marker_leaves_the_transaction_pending_forever(coordinator, markers):
    """The partition has a batch of a later producer epoch (TransactionMarkerRequestCompletionHandler)."""
    producer_id, epoch = open_transaction(coordinator)
    coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=0)
    markers.deliver(INVALID_PRODUCER_EPOCH)

    assert coordinator.init_producer_id(NAME, MINUTE_MS, 1)[0] == CONCURRENT_TRANSACTIONS
    assert coordinator.metadata_of(NAME).state is TransactionState.PREPARE_COMMIT


def test_a_late_copy_of_end_txn_ends_the_next_transaction_of_its_epoch_without_an_error(coordinator, markers):
    """If it arrives between records and their position, the position starts a new transaction, which is committed."""
    producer_id, epoch = open_transaction(coordinator)
    assert coordinator.end(NAME, producer_id, epoch, commit=False, now_ms=1) == NONE
    markers.deliver()
    assert coordinator.add_partitions(NAME, producer_id, epoch, [DATA], 2) == NONE

    assert coordinator.end(NAME, producer_id, epoch, commit=False, now_ms=3) == NONE  # the late copy
    markers.deliver()

    assert coordinator.add_partitions(NAME, producer_id, epoch, [POSITIONS], 4) == NONE
    assert coordinator.end(NAME, producer_id, epoch, commit=True, now_ms=5) == NONE
    markers.deliver()
    written = [(partition, marker.kind) for partition, marker in markers.written]
    assert written == [(DATA, ABORT), (DATA, ABORT), (POSITIONS, COMMIT)]

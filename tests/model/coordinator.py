"""A model of Kafka's transaction coordinator, for clients that use the old requests (AddPartitionsToTxn and EndTxn 0 and 1).

`TransactionCoordinator`, `TransactionMetadata`, `TransactionStateManager`, `TransactionMarkerChannelManager`. The state of
a transaction is durable as soon as it is decided; markers are written one partition after the other, when the world lets
them arrive, and until the last one is replicated every request gets CONCURRENT_TRANSACTIONS.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, Protocol

from mirrorflow_core.partitions import TopicPartition
from tests.model.batches import ABORT, COMMIT
from tests.model.errors import (
    CONCURRENT_TRANSACTIONS,
    INVALID_PRODUCER_EPOCH,
    INVALID_PRODUCER_ID_MAPPING,
    INVALID_TXN_STATE,
    NONE,
    PRODUCER_FENCED,
    TRANSACTION_COORDINATOR_FENCED,
)

EPOCHS_MAX: Final = 32_766  # TransactionMetadata.isEpochExhausted
# What the coordinator gives up on, rather than write the marker again (TransactionMarkerRequestCompletionHandler).
_GIVEN_UP = {INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED}


class State(Enum):
    """TransactionState, without those that last no time here."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARING = {State.PREPARE_COMMIT, State.PREPARE_ABORT}


@dataclass(slots=True)
class TransactionMetadata:
    """One transactional id."""

    producer_id: int
    epoch: int = -1
    timeout_ms: int = 60_000
    state: State = State.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    started_ms: int = -1
    updated_ms: int = 0


class Marker(NamedTuple):
    """The end of a transaction, as partitions are told of it."""

    producer_id: int
    epoch: int
    kind: int  # ABORT or COMMIT
    coordinator_epoch: int


class Markers(Protocol):
    """Takes markers to the leaders of partitions."""

    def write_marker(self, partition: TopicPartition, marker: "Marker", done: Callable[[int], None]) -> None:
        """Write it, sooner or later; *done* gets NONE when it is replicated, or the error."""


class Coordinator:
    """The coordinator of all transactional ids. Times are wall clock milliseconds, given by the caller."""

    def __init__(self, markers: Markers) -> None:
        self.expiration_ms = 7 * 86_400_000  # transactional.id.expiration.ms
        self._markers = markers
        self._transactions: dict[str, TransactionMetadata] = {}
        self._next_producer_id = 0
        self._epoch = 0  # of the leader of its partition of the transaction log

    def new_producer_id(self) -> int:
        """ProducerIdManager.generateProducerId."""
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def has_producer_id(self, producer_id: int) -> bool:
        """Whether a transactional id has this producer id now."""
        return any(one.producer_id == producer_id for one in self._transactions.values())

    def known(self, transactional_id: str) -> TransactionMetadata | None:
        return self._transactions.get(transactional_id)

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, now_ms: int
    ) -> tuple[int, int, int]:
        """Error, producer id, epoch (handleInitProducerId without an expected producer id).

        An ongoing transaction is aborted under an epoch that no client gets, and the client has to ask again.
        """
        if transactional_id is None:
            return NONE, self.new_producer_id(), 0
        found = self._transactions.get(transactional_id)
        if found is None:
            found = self._transactions[transactional_id] = TransactionMetadata(self.new_producer_id())
        if found.state in PREPARING:
            return CONCURRENT_TRANSACTIONS, -1, -1
        if found.state is State.ONGOING:
            self._fence(found, now_ms)
            return CONCURRENT_TRANSACTIONS, -1, -1
        if found.epoch >= EPOCHS_MAX:
            found.producer_id, found.epoch = self.new_producer_id(), -1
        found.epoch += 1
        found.state, found.timeout_ms, found.updated_ms = State.EMPTY, timeout_ms, now_ms
        found.partitions.clear()
        return NONE, found.producer_id, found.epoch

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        now_ms: int,
    ) -> int:
        """The error, for all of them (handleAddPartitionsToTransaction); what is fenced is 47, as versions 0 and 1 have it."""
        found = self._transactions.get(transactional_id)
        if found is None or found.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if found.epoch != epoch:
            return INVALID_PRODUCER_EPOCH
        if found.state in PREPARING:
            return CONCURRENT_TRANSACTIONS
        if found.state is not State.ONGOING:
            found.state, found.started_ms = State.ONGOING, now_ms
        found.partitions.update(partitions)
        found.updated_ms = now_ms
        return NONE

    def verify(self, transactional_id: str, producer_id: int, epoch: int, partition: TopicPartition) -> int:
        """Whether a leader may take a transactional batch (handleVerifyPartitionsInTransaction, for old produce requests)."""
        found = self._transactions.get(transactional_id)
        if found is None or found.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if found.epoch != epoch:
            return PRODUCER_FENCED
        if found.state in PREPARING:
            return CONCURRENT_TRANSACTIONS
        # TRANSACTION_ABORTABLE of newer clients. A completed transaction has no partitions any more.
        return NONE if partition in found.partitions else INVALID_TXN_STATE

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, now_ms: int) -> int:
        """The error (endTransaction); an answer of NONE says that it is decided, not that markers are written."""
        found = self._transactions.get(transactional_id)
        if found is None or found.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if found.epoch != epoch:
            return INVALID_PRODUCER_EPOCH
        complete, preparing = (
            (State.COMPLETE_COMMIT, State.PREPARE_COMMIT)
            if commit
            else (State.COMPLETE_ABORT, State.PREPARE_ABORT)
        )
        if found.state is State.ONGOING:
            self._decide(found, preparing, now_ms)
            return NONE
        if found.state is complete:
            return NONE
        return CONCURRENT_TRANSACTIONS if found.state is preparing else INVALID_TXN_STATE

    def abort_timed_out(self, now_ms: int) -> None:
        """abortTimedOutTransactions: aborts transactions that were not ended in time, and raises the epoch."""
        for found in self._transactions.values():
            if found.state is State.ONGOING and now_ms - found.started_ms > found.timeout_ms:
                self._fence(found, now_ms)

    def expire(self, now_ms: int) -> None:
        """Forget transactional ids that were unused for transactional.id.expiration.ms (TransactionStateManager)."""
        for transactional_id, found in list(self._transactions.items()):
            is_over = found.state in {State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT}
            if is_over and now_ms - found.updated_ms >= self.expiration_ms:
                del self._transactions[transactional_id]

    def _fence(self, found: TransactionMetadata, now_ms: int) -> None:
        """Abort with the next epoch (prepareFenceProducerEpoch)."""
        found.epoch += 1
        self._decide(found, State.PREPARE_ABORT, now_ms)

    def fail_over(self) -> None:
        """Another broker coordinates: markers of transactions that are not complete are written again, to all partitions."""
        self._epoch += 1
        for found in self._transactions.values():
            if found.state in PREPARING:
                self._write_markers(found)

    def _decide(self, found: TransactionMetadata, preparing: State, now_ms: int) -> None:
        found.state, found.updated_ms = preparing, now_ms
        self._write_markers(found)

    def _write_markers(self, found: TransactionMetadata) -> None:
        preparing, coordinator_epoch = found.state, self._epoch
        kind = COMMIT if preparing is State.PREPARE_COMMIT else ABORT
        left = set(found.partitions)

        def complete() -> None:
            found.state = State.COMPLETE_COMMIT if kind == COMMIT else State.COMPLETE_ABORT
            found.partitions.clear()

        def done(partition: TopicPartition, code: int) -> None:
            if code in _GIVEN_UP:
                return  # the transaction stays as it is: a batch had an epoch that the coordinator never gave
            left.discard(partition)
            if not left and found.state is preparing and self._epoch == coordinator_epoch:
                complete()

        if not left:
            complete()
        marker = Marker(found.producer_id, found.epoch, kind, coordinator_epoch)
        for partition in sorted(left):
            self._markers.write_marker(partition, marker, partial(done, partition))

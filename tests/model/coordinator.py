"""A model of Kafka's transaction coordinator for clients of AddPartitionsToTxn and EndTxn versions 0 and 1.

Source: `TransactionCoordinator`, `TransactionMetadata`, `TransactionStateManager`, `TransactionMarkerChannelManager`.
The decision about a transaction is durable at once. The world delivers its markers to one partition after the other.
Until the last marker is replicated, every request gets CONCURRENT_TRANSACTIONS.
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
# After these errors the coordinator does not write the marker again (TransactionMarkerRequestCompletionHandler).
_GIVEN_UP = {INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED}


class TransactionState(Enum):
    """TransactionState, without states that have no duration in the model."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARING = {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}


@dataclass(slots=True)
class TransactionMetadata:
    """The state of one transactional id."""

    producer_id: int
    epoch: int = -1
    timeout_ms: int = 60_000
    state: TransactionState = TransactionState.EMPTY
    partitions: set[TopicPartition] = field(default_factory=set)
    started_ms: int = -1
    updated_ms: int = 0


class Marker(NamedTuple):
    """A transaction marker for the leaders of partitions."""

    producer_id: int
    epoch: int
    kind: int  # ABORT or COMMIT
    coordinator_epoch: int


class Markers(Protocol):
    """Delivers markers to the leaders of partitions."""

    def write_marker(self, partition: TopicPartition, marker: "Marker", done: Callable[[int], None]) -> None:
        """Writes the marker at any later time.

        *done* receives NONE when the marker is replicated, or the error code.
        """


class Coordinator:
    """The coordinator of all transactional ids. The caller passes the wall-clock time."""

    def __init__(self, markers: Markers) -> None:
        self.expiration_ms = 7 * 86_400_000  # transactional.id.expiration.ms
        self._markers = markers
        self._transactions: dict[str, TransactionMetadata] = {}
        self._next_producer_id = 0
        self._epoch = 0  # the leader epoch of its transaction log partition

    def new_producer_id(self) -> int:
        """ProducerIdManager.generateProducerId."""
        self._next_producer_id += 1
        return self._next_producer_id - 1

    def has_producer_id(self, producer_id: int) -> bool:
        """Returns whether a transactional id has this producer id."""
        return any(metadata.producer_id == producer_id for metadata in self._transactions.values())

    def metadata_of(self, transactional_id: str) -> TransactionMetadata | None:
        return self._transactions.get(transactional_id)

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, now_ms: int
    ) -> tuple[int, int, int]:
        """Returns the error, producer id and epoch (handleInitProducerId without an expected producer id).

        An ongoing transaction is aborted with an epoch that no client receives, and the client must retry.
        """
        if transactional_id is None:
            return NONE, self.new_producer_id(), 0
        metadata = self._transactions.get(transactional_id)
        if metadata is None:
            metadata = self._transactions[transactional_id] = TransactionMetadata(self.new_producer_id())
        if metadata.state in PREPARING:
            return CONCURRENT_TRANSACTIONS, -1, -1
        if metadata.state is TransactionState.ONGOING:
            self._fence(metadata, now_ms)
            return CONCURRENT_TRANSACTIONS, -1, -1
        if metadata.epoch >= EPOCHS_MAX:
            metadata.producer_id, metadata.epoch = self.new_producer_id(), -1
        metadata.epoch += 1
        metadata.state, metadata.timeout_ms, metadata.updated_ms = TransactionState.EMPTY, timeout_ms, now_ms
        metadata.partitions.clear()
        return NONE, metadata.producer_id, metadata.epoch

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        epoch: int,
        partitions: Iterable[TopicPartition],
        now_ms: int,
    ) -> int:
        """Returns one error code for all partitions (handleAddPartitionsToTransaction), which is 47 if fenced."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or metadata.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if metadata.epoch != epoch:
            return INVALID_PRODUCER_EPOCH
        if metadata.state in PREPARING:
            return CONCURRENT_TRANSACTIONS
        if metadata.state is not TransactionState.ONGOING:
            metadata.state, metadata.started_ms = TransactionState.ONGOING, now_ms
        metadata.partitions.update(partitions)
        metadata.updated_ms = now_ms
        return NONE

    def verify(self, transactional_id: str, producer_id: int, epoch: int, partition: TopicPartition) -> int:
        """Returns whether a leader may append a transactional batch (handleVerifyPartitionsInTransaction)."""
        metadata = self._transactions.get(transactional_id)
        if metadata is None or metadata.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if metadata.epoch != epoch:
            return PRODUCER_FENCED
        if metadata.state in PREPARING:
            return CONCURRENT_TRANSACTIONS
        # Newer clients get TRANSACTION_ABORTABLE. A completed transaction has no partitions.
        return NONE if partition in metadata.partitions else INVALID_TXN_STATE

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, now_ms: int) -> int:
        """Returns the error code (endTransaction).

        NONE means that the end is decided, but markers may not be written yet.
        """
        metadata = self._transactions.get(transactional_id)
        if metadata is None or metadata.producer_id != producer_id:
            return INVALID_PRODUCER_ID_MAPPING
        if metadata.epoch != epoch:
            return INVALID_PRODUCER_EPOCH
        complete, preparing = (
            (TransactionState.COMPLETE_COMMIT, TransactionState.PREPARE_COMMIT)
            if commit
            else (TransactionState.COMPLETE_ABORT, TransactionState.PREPARE_ABORT)
        )
        if metadata.state is TransactionState.ONGOING:
            self._decide(metadata, preparing, now_ms)
            return NONE
        if metadata.state is complete:
            return NONE
        return CONCURRENT_TRANSACTIONS if metadata.state is preparing else INVALID_TXN_STATE

    def abort_timed_out(self, now_ms: int) -> None:
        """Aborts transactions that exceed their timeout, with a higher epoch (abortTimedOutTransactions)."""
        for metadata in self._transactions.values():
            if (
                metadata.state is TransactionState.ONGOING
                and now_ms - metadata.started_ms > metadata.timeout_ms
            ):
                self._fence(metadata, now_ms)

    def expire(self, now_ms: int) -> None:
        """Removes ids that were unused for transactional.id.expiration.ms (TransactionStateManager)."""
        for transactional_id, metadata in list(self._transactions.items()):
            is_over = metadata.state in {
                TransactionState.EMPTY,
                TransactionState.COMPLETE_COMMIT,
                TransactionState.COMPLETE_ABORT,
            }
            if is_over and now_ms - metadata.updated_ms >= self.expiration_ms:
                del self._transactions[transactional_id]

    def _fence(self, metadata: TransactionMetadata, now_ms: int) -> None:
        """Aborts with the next epoch (prepareFenceProducerEpoch)."""
        metadata.epoch += 1
        self._decide(metadata, TransactionState.PREPARE_ABORT, now_ms)

    def fail_over(self) -> None:
        """Moves to a different broker, which writes the markers of all incomplete transactions again."""
        self._epoch += 1
        for metadata in self._transactions.values():
            if metadata.state in PREPARING:
                self._write_markers(metadata)

    def _decide(self, metadata: TransactionMetadata, preparing: TransactionState, now_ms: int) -> None:
        metadata.state, metadata.updated_ms = preparing, now_ms
        self._write_markers(metadata)

    def _write_markers(self, metadata: TransactionMetadata) -> None:
        preparing, coordinator_epoch = metadata.state, self._epoch
        kind = COMMIT if preparing is TransactionState.PREPARE_COMMIT else ABORT
        pending = set(metadata.partitions)

        def complete() -> None:
            metadata.state = (
                TransactionState.COMPLETE_COMMIT if kind == COMMIT else TransactionState.COMPLETE_ABORT
            )
            metadata.partitions.clear()

        def done(partition: TopicPartition, code: int) -> None:
            if code in _GIVEN_UP:
                return  # the transaction stays pending: a batch has an epoch that the coordinator has not assigned
            pending.discard(partition)
            if not pending and metadata.state is preparing and self._epoch == coordinator_epoch:
                complete()

        if not pending:
            complete()
        marker = Marker(metadata.producer_id, metadata.epoch, kind, coordinator_epoch)
        for partition in sorted(pending):
            self._markers.write_marker(partition, marker, partial(done, partition))

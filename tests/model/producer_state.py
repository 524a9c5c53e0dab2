"""The producer state of a partition leader, and its decision about the next batch of a producer.

A model of Kafka's `org.apache.kafka.storage.internals.log`: `ProducerStateManager`, `ProducerStateEntry`,
`ProducerAppendInfo` and `VerificationStateEntry` (KIP-98, KIP-360, KIP-890), of 3.9 and 4.x. Names are Kafka's.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.model.batches import NO_SEQUENCE, SEQUENCES, LoggedBatch
from tests.model.errors import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    RefusedError,
)

NO_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
BATCHES_RETAINED: Final = 5  # ProducerStateEntry.NUM_BATCHES_TO_RETAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The differences between broker versions."""

    # transaction.partition.verification.enable (KIP-890), since 3.6.
    verifies: bool = True
    # UnifiedLog.maybeStartTransactionVerification refuses an older epoch at once, and treats a transaction of a
    # different epoch as ended (4.0; KAFKA-17507, KAFKA-18401).
    knows_epochs: bool = True


KAFKA_3_5 = Rules(verifies=False, knows_epochs=False)
KAFKA_3_9 = Rules(knows_epochs=False)
KAFKA_4 = Rules()


class BatchMetadata(NamedTuple):
    """One of a producer's last batches (BatchMetadata)."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """DefaultRecordBatch.decrementSequence."""
        return (self.last_sequence - self.offset_delta) % SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


@dataclass(slots=True)
class ProducerStateEntry:
    """The state of one producer id. Its epoch is -1 if the producer is unknown."""

    producer_id: int
    epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    last_timestamp: int = NO_TIMESTAMP
    txn_first_offset: int | None = None
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_RETAINED))

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def duplicate_of(self, batch: LoggedBatch) -> BatchMetadata | None:
        """As in ProducerStateEntry.findDuplicateBatch, returns the batch among the last five with the same sequence
        numbers.
        """
        if batch.producer_epoch != self.epoch:
            return None
        sequences = (batch.base_sequence, batch.last_sequence)
        return next(
            (known for known in self.batches if (known.first_sequence, known.last_sequence) == sequences),
            None,
        )

    def copy(self) -> "ProducerStateEntry":
        """Returns a mutable copy."""
        return ProducerStateEntry(
            self.producer_id,
            self.epoch,
            self.coordinator_epoch,
            self.last_timestamp,
            self.txn_first_offset,
            deque(self.batches, maxlen=BATCHES_RETAINED),
        )

    def _take_epoch(self, epoch: int) -> None:
        """As in ProducerStateEntry.maybeUpdateProducerEpoch, a new epoch removes the batches of the last one."""
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch

    def add_batch(self, batch: LoggedBatch) -> None:
        """As in ProducerStateEntry.addBatch, including the start of a transaction (ProducerAppendInfo.appendDataBatch)."""
        self._take_epoch(batch.producer_epoch)
        delta = batch.last_offset - batch.base_offset
        self.batches.append(BatchMetadata(batch.last_sequence, batch.last_offset, delta, batch.max_timestamp))
        self.last_timestamp = batch.max_timestamp
        if batch.is_transactional and self.txn_first_offset is None:
            self.txn_first_offset = batch.base_offset

    def end_transaction(self, batch: LoggedBatch, coordinator_epoch: int) -> None:
        """As in ProducerStateEntry.update for a marker, the sequence numbers of the same epoch stay."""
        self._take_epoch(batch.producer_epoch)
        self.coordinator_epoch = coordinator_epoch
        self.txn_first_offset = None
        self.last_timestamp = batch.max_timestamp


@dataclass(slots=True)
class VerificationStateEntry:
    """A transactional producer whose verification is pending or has failed (KIP-890).

    The entry exists until a transactional batch or a marker of the producer is appended, or until it is as old as
    producer.id.expiration.ms. Until then the leader refuses *every* batch of the producer with a sequence number above
    the lowest one, transactional or not (ProducerAppendInfo.checkSequence).
    """

    created_ms: int
    lowest_sequence: int
    epoch: int

    def take(self, sequence: int, epoch: int) -> None:
        """VerificationStateEntry.maybeUpdateLowestSequenceAndEpoch."""
        if epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence


class ProducerStates:
    """ProducerStateManager of one partition. A VerificationStateEntry is its own guard (VerificationGuard)."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.producers: dict[int, ProducerStateEntry] = {}
        self.verifications: dict[int, VerificationStateEntry] = {}

    def reload(self) -> None:
        """Drops what a snapshot does not contain (ProducerStateManager.writeSnapshot, readSnapshot).

        A snapshot has only the last batch of each producer, and one timestamp. A later marker replaces that timestamp
        with its own.
        """
        for entry in self.producers.values():
            last = [batch._replace(timestamp=entry.last_timestamp) for batch in entry.batches][-1:]
            entry.batches = deque(last, maxlen=BATCHES_RETAINED)

    def start_verification(
        self, producer_id: int, sequence: int, epoch: int, now_ms: int
    ) -> VerificationStateEntry | None:
        """As in UnifiedLog.maybeStartTransactionVerification. Returns None if the transaction is open already."""
        known = self.producers.get(producer_id)
        if self.rules.knows_epochs and known is not None and epoch < known.epoch:
            raise RefusedError(
                INVALID_PRODUCER_EPOCH, f"epoch {epoch} of {producer_id} is below {known.epoch}"
            )
        if known is not None and self._is_ongoing(known, epoch):
            return None
        entry = self.verifications.setdefault(producer_id, VerificationStateEntry(now_ms, sequence, epoch))
        entry.take(sequence, epoch)
        return entry

    def check(self, batch: LoggedBatch, guard: VerificationStateEntry | None) -> None:
        """Raises RefusedError unless *batch* may be appended (UnifiedLog.analyzeAndValidateProducerState)."""
        entry = self.producers.get(batch.producer_id) or ProducerStateEntry(batch.producer_id)
        if batch.is_transactional and not self._is_ongoing(entry, batch.producer_epoch):
            known = self.verifications.get(batch.producer_id)
            if self.rules.verifies and (known is None or known is not guard):
                raise RefusedError(INVALID_TXN_STATE, "Record was not part of an ongoing transaction")
        self._check_epoch(entry, batch)
        self._check_sequence(entry, batch)
        if entry.txn_first_offset is not None and not batch.is_transactional:
            raise RefusedError(INVALID_TXN_STATE, "Expected transactional write")

    def _is_ongoing(self, entry: ProducerStateEntry, epoch: int) -> bool:
        """UnifiedLog.hasOngoingTransaction."""
        return entry.txn_first_offset is not None and (not self.rules.knows_epochs or entry.epoch == epoch)

    def _check_epoch(self, entry: ProducerStateEntry, batch: LoggedBatch) -> None:
        """ProducerAppendInfo.checkProducerEpoch."""
        if batch.producer_epoch < entry.epoch:
            raise RefusedError(
                INVALID_PRODUCER_EPOCH, f"{batch.producer_epoch} is smaller than {entry.epoch}"
            )

    def _check_sequence(self, entry: ProducerStateEntry, batch: LoggedBatch) -> None:
        """ProducerAppendInfo.checkSequence."""
        first = batch.base_sequence
        verification = self.verifications.get(batch.producer_id)
        if verification is not None and first > verification.lowest_sequence:
            raise RefusedError(
                OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"{first}, {verification.lowest_sequence} (earliest seen sequence)",
            )
        if batch.producer_epoch != entry.epoch:
            if first != 0 and entry.epoch != NO_EPOCH:
                raise RefusedError(OUT_OF_ORDER_SEQUENCE_NUMBER, f"a new epoch cannot start with {first}")
            return
        if entry.epoch == NO_EPOCH:
            return  # the producer is unknown, and the batch has no epoch
        last = entry.last_sequence
        if first != last + 1 and not (first == 0 and last == SEQUENCES - 1):
            raise RefusedError(OUT_OF_ORDER_SEQUENCE_NUMBER, f"{first}, {last} (current end sequence number)")

    def append(self, batch: LoggedBatch) -> None:
        """Records an appended data batch of a producer (UnifiedLog.updateProducers)."""
        entry = self.producers.setdefault(batch.producer_id, ProducerStateEntry(batch.producer_id))
        entry.add_batch(batch)
        if batch.is_transactional:
            self.verifications.pop(batch.producer_id, None)

    def append_marker(self, batch: LoggedBatch, coordinator_epoch: int) -> int | None:
        """Records an appended marker, and returns the first offset of its transaction here, or None."""
        entry = self.producers.setdefault(batch.producer_id, ProducerStateEntry(batch.producer_id))
        first_offset = entry.txn_first_offset
        entry.end_transaction(batch, coordinator_epoch)
        self.verifications.pop(batch.producer_id, None)
        return first_offset

    def remove_expired(self, now_ms: int, expiration_ms: int) -> None:
        """As in ProducerStateManager.removeExpiredProducers, decides by the timestamp of the last batch."""
        for producer_id, entry in list(self.producers.items()):
            if entry.txn_first_offset is None and now_ms - entry.last_timestamp >= expiration_ms:
                del self.producers[producer_id]
        for producer_id, verification in list(self.verifications.items()):
            if now_ms - verification.created_ms >= expiration_ms:
                del self.verifications[producer_id]

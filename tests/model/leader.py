"""A model of a partition leader that follows Kafka's source in every decision about an append.

A produce request passes these steps in Kafka's order:

1. `ReplicaManager.maybeStartTransactionVerificationForPartition`: a transactional batch of a producer without an open
transaction here needs the coordinator's approval (KIP-890). `PartitionLeader.start_verification`; the caller queries
   `tests.model.coordinator`, and then calls `append`.
2. `Partition.appendRecordsToLeader`: NOT_ENOUGH_REPLICAS while the ISR is too small.
3. `UnifiedLog.analyzeAndValidateRecords`: size, then checksum.
4. `LogValidator`: keys of compacted topics, timestamps, LogAppendTime, recompression, and the size once more.
5. `UnifiedLog.analyzeAndValidateProducerState`: repeats, verification, epoch, sequence (`tests.model.producer_state`).

Validated against real brokers of 3.9.1 and 4.3.1 by tests/integration/kafka/test_leader_model.py.
"""

from typing import NamedTuple

from mirrorflow_core.wire.batch import Batch, checksum_holds
from mirrorflow_core.wire.codecs import NAMES
from mirrorflow_core.wire.records import decode
from tests.model.batches import ABORT, LoggedBatch, marker, recompressed, with_log_append_time, with_offsets
from tests.model.errors import (
    CORRUPT_MESSAGE,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    NOT_ENOUGH_REPLICAS,
    TRANSACTION_COORDINATOR_FENCED,
    RefusedError,
)
from tests.model.partition_log import PartitionLog
from tests.model.producer_state import ProducerStates, Rules, VerificationStateEntry

DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.after.max.ms": "9223372036854775807",  # an hour since 4.0, which the model never reaches
    "retention.ms": "604800000",
    "retention.bytes": "-1",
}


class Appended(NamedTuple):
    """The response to an appended batch (LogAppendInfo). `log_append_time` is -1 for a new CreateTime batch."""

    base_offset: int
    log_append_time: int
    last_offset: int
    is_repeat: bool = False


class PartitionLeader:
    """The leading replica of a partition. `elect` replaces it."""

    def __init__(self, rules: Rules, configs: dict[str, str]) -> None:
        self.configs = configs  # topic configs, shared by the topic's partitions
        self.rules = rules
        self.log = PartitionLog()
        self.producers = ProducerStates(rules)
        self.epoch = 0
        self.replicates = True  # the high watermark follows at once
        self.lacks_replicas = False  # the ISR is below min.insync.replicas
        self.log.assign_epoch(self.epoch)

    def config(self, name: str) -> str:
        return self.configs.get(name, DEFAULTS.get(name, ""))

    # -- appends

    def start_verification(self, batch: Batch, now_ms: int) -> VerificationStateEntry | None:
        """Returns the guard with which to append *batch* after the coordinator's response, or None if no request is
        needed.
        """
        return self.producers.start_verification(
            batch.producer_id, batch.base_sequence, batch.producer_epoch, now_ms
        )

    def append(self, batch: Batch, now_ms: int, guard: VerificationStateEntry | None = None) -> Appended:
        """Appends a client's *batch*. Raises RefusedError."""
        if self.lacks_replicas:
            raise RefusedError(NOT_ENOUGH_REPLICAS)
        candidate = self._validated(batch, now_ms)
        append_time = (
            candidate.max_timestamp if self.config("message.timestamp.type") == "LogAppendTime" else -1
        )
        if candidate.producer_id >= 0:
            entry = self.producers.producers.get(candidate.producer_id)
            repeat = entry.duplicate_of(candidate) if entry is not None else None
            if repeat is not None:
                return Appended(repeat.first_offset, repeat.timestamp, repeat.last_offset, is_repeat=True)
            self.producers.check(candidate, guard)
            self.producers.append(candidate)
        self._take(candidate)
        return Appended(candidate.base_offset, append_time, candidate.last_offset)

    def _validated(self, batch: Batch, now_ms: int) -> LoggedBatch:
        """Returns *batch* in the form in which it would be appended. Raises RefusedError."""
        max_bytes = int(self.config("max.message.bytes"))
        if batch.size_bytes > max_bytes:
            raise RefusedError(MESSAGE_TOO_LARGE)
        if not checksum_holds(batch):
            raise RefusedError(CORRUPT_MESSAGE)
        if batch.base_offset != 0 or batch.count != batch.last_offset_delta + 1:
            raise RefusedError(INVALID_RECORD, "the broker assigns offsets")
        if "compact" in self.config("cleanup.policy") and any(record.key is None for record in decode(batch)):
            raise RefusedError(INVALID_RECORD, "a compacted topic needs keys")
        is_log_append_time = self.config("message.timestamp.type") == "LogAppendTime"
        if not is_log_append_time and batch.max_timestamp > now_ms + int(
            self.config("message.timestamp.after.max.ms")
        ):
            raise RefusedError(INVALID_TIMESTAMP)
        codec = self.config("compression.type")
        if codec != "producer" and NAMES[batch.codec] != codec.replace("uncompressed", "none"):
            batch = recompressed(batch, NAMES.index(codec.replace("uncompressed", "none")))
            if batch.size_bytes > max_bytes:
                raise RefusedError(MESSAGE_TOO_LARGE, "after recompression")
        candidate = with_offsets(batch, base_offset=self.log.end, leader_epoch=self.epoch)
        return with_log_append_time(candidate, now_ms) if is_log_append_time else candidate

    def append_marker(
        self, *, producer_id: int, producer_epoch: int, kind: int, coordinator_epoch: int, now_ms: int
    ) -> int:
        """Appends a marker and returns its offset. Raises RefusedError (ProducerAppendInfo.appendEndTxnMarker)."""
        entry = self.producers.producers.get(producer_id)
        if entry is not None and producer_epoch < entry.epoch:
            raise RefusedError(INVALID_PRODUCER_EPOCH)
        if entry is not None and coordinator_epoch < entry.coordinator_epoch:
            raise RefusedError(TRANSACTION_COORDINATOR_FENCED)
        batch = marker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            kind=kind,
            base_offset=self.log.end,
            leader_epoch=self.epoch,
            now_ms=now_ms,
        )
        first_offset = self.producers.append_marker(batch, coordinator_epoch)
        if first_offset is not None:
            self.log.complete(producer_id, first_offset, batch.base_offset, aborted=kind == ABORT)
        self._take(batch)
        return batch.base_offset

    def _take(self, batch: LoggedBatch) -> None:
        self.log.append(batch)
        if self.replicates:
            self.replicate()

    # -- replication

    def replicate(self) -> None:
        """Replicates the whole log to the followers."""
        self.log.high_watermark = self.log.end

    @property
    def last_stable_offset(self) -> int:
        ongoing = [entry.txn_first_offset for entry in self.producers.producers.values()]
        return self.log.last_stable_offset([offset for offset in ongoing if offset is not None])

    # -- events of a partition

    def elect(self, end: int, *, is_restarted: bool = False) -> None:
        """Makes a replica the leader whose log ends at *end*. A clean election never ends below the high watermark.

        Its state has the producers of its log, including batches that retention has deleted since then. A restarted
        replica (*is_restarted*) loads its log and a snapshot. It has only the last batch of each producer, and no
        deleted one.
        """
        before = self.producers
        self.log.truncate(end)
        self.log.high_watermark = self.log.end
        self.epoch += 1
        self.log.assign_epoch(self.epoch)
        self.replicates, self.lacks_replicas = True, False
        self.producers = self._rebuilt_producers()
        if is_restarted:
            self.producers.reload()
        else:
            for producer_id, entry in before.producers.items():
                is_deleted = bool(entry.batches) and entry.batches[-1].last_offset < self.log.start
                if is_deleted and producer_id not in self.producers.producers:
                    self.producers.producers[producer_id] = entry.copy()

    def _rebuilt_producers(self) -> ProducerStates:
        """As in UnifiedLog.rebuildProducerState and loadProducersFromRecords: no validation, and empty batches are
        included.
        """
        producers = ProducerStates(self.rules)
        for batch in self.log.batches:
            if batch.producer_id < 0:
                continue
            if not batch.is_control:
                producers.append(batch)
            elif batch.count:
                producers.append_marker(batch, coordinator_epoch=0)
        return producers

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Runs the broker's check of every producer.id.expiration.check.interval.ms (ten minutes)."""
        self.producers.remove_expired(now_ms, expiration_ms)

    def compact(self, end: int) -> set[int]:
        """Cleans the log below *end*, and returns the offsets of the removed records (LogCleaner, Cleaner)."""
        last = {entry.batches[-1].last_offset for entry in self.producers.producers.values() if entry.batches}
        return self.log.compact(min(end, self.last_stable_offset), last)

    def delete_before(self, offset: int) -> None:
        """Deletes records. The producer state stays (ProducerStateManager.onLogStartOffsetIncremented)."""
        self.log.delete_before(offset)

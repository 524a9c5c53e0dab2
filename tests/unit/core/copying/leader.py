"""A partition leader that accepts and refuses batches by Kafka's rules.

Source: ProducerStateManager, ProducerAppendInfo, ProducerStateEntry (KIP-98, KIP-890). The leader keeps the
last five batches of each producer; an exact repeat of one succeeds with its offset. An unknown producer may start
with any sequence number. The leader refuses an older epoch, and a transactional batch if the partition is not in the
transaction.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from mirrorflow_core.wire.batch import checksum_holds, split
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.transaction_log import SEQUENCES, LogBatch, Marker, decided_records

NOT_ENOUGH_REPLICAS = 19
OUT_OF_ORDER = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
BATCHES_PER_PRODUCER = 5


class AppendResult(NamedTuple):
    """The result of appending a batch. *append_time_ms* is -1 unless the batch is a repeat."""

    code: int
    base_offset: int = -1
    append_time_ms: int = -1


@dataclass
class ProducerEntry:
    """A producer's epoch, and the sequence numbers and base offsets of its newest batches."""

    epoch: int
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_PER_PRODUCER))


class Leader:
    """The partition's log and its producer state."""

    def __init__(self):
        self.log: list[LogBatch] = []
        self.end = 0
        self.epoch = 0  # the leader epoch
        self.in_transaction: dict[int, int] = {}  # producer id to epoch, of open transactions
        self._producers: dict[int, ProducerEntry] = {}

    def append(self, data, *, may_refuse=False):
        """Appends a batch or refuses it. *may_refuse*: a follower is missing, so a new batch is refused."""
        (batch,) = split(bytearray(data))
        assert checksum_holds(batch)
        assert batch.base_offset == 0
        first, last = batch.base_sequence, (batch.base_sequence + batch.count - 1) % SEQUENCES
        entry = self._producers.get(batch.producer_id)
        if entry is not None and batch.producer_epoch < entry.epoch:
            return AppendResult(INVALID_PRODUCER_EPOCH)
        if batch.is_transactional and self.in_transaction.get(batch.producer_id) != batch.producer_epoch:
            return AppendResult(INVALID_TXN_STATE)
        is_same_epoch = entry is not None and entry.epoch == batch.producer_epoch
        if entry is not None and is_same_epoch:
            for recent_first, recent_last, base_offset in entry.recent:
                if (first, last) == (recent_first, recent_last):
                    return AppendResult(0, base_offset, batch.max_timestamp)
        if may_refuse:
            return AppendResult(NOT_ENOUGH_REPLICAS)
        if entry is not None:
            expected = (entry.recent[-1][1] + 1) % SEQUENCES if is_same_epoch and entry.recent else 0
            if first != expected:
                return AppendResult(OUT_OF_ORDER)
        if entry is None or not is_same_epoch:
            entry = self._producers[batch.producer_id] = ProducerEntry(batch.producer_epoch)
        base_offset = self.end
        records = tuple(
            (offset, record._replace(offset=offset))
            for offset, record in enumerate(decode(batch), base_offset)
        )
        producer = batch.producer_id, batch.producer_epoch
        self._add(
            LogBatch(
                base_offset,
                base_offset + batch.count - 1,
                *producer,
                first,
                batch.is_transactional,
                records=records,
            )
        )
        entry.recent.append((first, last, base_offset))
        return AppendResult(0, base_offset)

    def append_foreign(self):
        """Appends a record of a different application."""
        self._add(LogBatch(self.end, self.end, -1, -1, -1, is_transactional=False))

    def append_marker(self, producer: Producer, *, commit: bool):
        """Appends the marker of a transaction. A newer epoch fences the older ones."""
        self.in_transaction.pop(producer.producer_id, None)
        kind = Marker.COMMIT if commit else Marker.ABORT
        self._add(
            LogBatch(self.end, self.end, *producer[1:], base_sequence=-1, is_transactional=True, marker=kind)
        )
        entry = self._producers.get(producer.producer_id)
        if entry is None or entry.epoch < producer.epoch:
            self._producers[producer.producer_id] = ProducerEntry(producer.epoch)

    def change_leader(self):
        """Moves leadership to a broker that knows only producers with an open transaction."""
        self.epoch += 1
        self._producers = {
            producer_id: entry
            for producer_id, entry in self._producers.items()
            if producer_id in self.in_transaction
        }

    def copied_records(self):
        """The copied records as a read-committed consumer receives them, with their offsets in this log."""
        return list(decided_records(self.log, Record).committed)

    def _add(self, batch):
        self.log.append(batch)
        self.end = batch.last_offset + 1

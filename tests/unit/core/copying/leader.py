"""A partition leader that accepts and refuses batches by Kafka's rules, for tests of what writes to it.

Source: ProducerStateManager, ProducerAppendInfo, ProducerStateEntry (KIP-98, KIP-890). The last five batches of a producer
are remembered, and an exact repeat of one of them succeeds with its offset. A producer that is not remembered may begin
anywhere. An older epoch is refused, and so is a transactional batch of a transaction that the partition is not in.
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
REMEMBERED = 5


class Answer(NamedTuple):
    """The answer to a batch. *append_time_ms* is -1 for a batch that was appended now."""

    code: int
    base_offset: int = -1
    append_time_ms: int = -1


@dataclass
class Remembered:
    """What the leader knows of a producer: its epoch, and the sequences and base offsets of its newest batches."""

    epoch: int
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class Leader:
    """The partition's log, and what the leader remembers."""

    def __init__(self):
        self.log: list[LogBatch] = []
        self.end = 0
        self.epoch = 0  # of the leader
        self.in_transaction: dict[int, int] = {}  # producers whose transaction has the partition: id, epoch
        self._producers: dict[int, Remembered] = {}

    def append(self, data, *, may_refuse=False):
        """Append a batch as it is sent; *may_refuse*: a follower is missing."""
        (batch,) = split(bytearray(data))
        assert checksum_holds(batch)
        assert batch.base_offset == 0
        first, last = batch.base_sequence, (batch.base_sequence + batch.count - 1) % SEQUENCES
        known = self._producers.get(batch.producer_id)
        if known is not None and batch.producer_epoch < known.epoch:
            return Answer(INVALID_PRODUCER_EPOCH)
        if batch.is_transactional and self.in_transaction.get(batch.producer_id) != batch.producer_epoch:
            return Answer(INVALID_TXN_STATE)
        is_same_epoch = known is not None and known.epoch == batch.producer_epoch
        if known is not None and is_same_epoch:
            for known_first, known_last, base_offset in known.recent:
                if (first, last) == (known_first, known_last):
                    return Answer(0, base_offset, batch.max_timestamp)
        if may_refuse:
            return Answer(NOT_ENOUGH_REPLICAS)
        if known is not None:
            expected = (known.recent[-1][1] + 1) % SEQUENCES if is_same_epoch and known.recent else 0
            if first != expected:
                return Answer(OUT_OF_ORDER)
        if known is None or not is_same_epoch:
            known = self._producers[batch.producer_id] = Remembered(batch.producer_epoch)
        base_offset = self.end
        records = tuple((at, one._replace(offset=at)) for at, one in enumerate(decode(batch), base_offset))
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
        known.recent.append((first, last, base_offset))
        return Answer(0, base_offset)

    def append_foreign(self):
        """A record of another application."""
        self._add(LogBatch(self.end, self.end, -1, -1, -1, is_transactional=False))

    def mark(self, producer: Producer, *, commit: bool):
        """The marker of a transaction. One of a newer epoch fences the older ones."""
        self.in_transaction.pop(producer.producer_id, None)
        kind = Marker.COMMIT if commit else Marker.ABORT
        self._add(
            LogBatch(self.end, self.end, *producer[1:], base_sequence=-1, is_transactional=True, marker=kind)
        )
        known = self._producers.get(producer.producer_id)
        if known is None or known.epoch < producer.epoch:
            self._producers[producer.producer_id] = Remembered(producer.epoch)

    def move(self):
        """Another broker leads now, which remembers no producer without an open transaction."""
        self.epoch += 1
        self._producers = {one: known for one, known in self._producers.items() if one in self.in_transaction}

    def ours(self):
        """What a consumer reads of our records: each with its offset in this log."""
        return list(decided_records(self.log, Record).committed)

    def _add(self, batch):
        self.log.append(batch)
        self.end = batch.last_offset + 1

"""Record batches of a simulated log, with header fields for decisions and the bytes that a fetch returns.

The product's `wire.batch` and `wire.records`, which have their own tests, read and write the bytes. Changes that a
broker makes to a batch (offsets, LogAppendTime, recompression, compaction) are made here, on the bytes.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from crc32c import crc32c

from mirrorflow_core.wire import primitives
from mirrorflow_core.wire.batch import Batch, split
from mirrorflow_core.wire.records import Record, decode, encode, encode_as_logged

NO_SEQUENCE = -1
SEQUENCES = 1 << 31
_ATTRIBUTES_AT = 21
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
_HEADER_BYTES = 61
_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_AT = 35
_HEADER = struct.Struct(">qiibIhiqqqhii")
ABORT, COMMIT = 0, 1  # ControlRecordType


@dataclass(slots=True, kw_only=True)
class LoggedBatch:
    """A batch in a log, with its offsets. `data` is what a fetch returns."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    max_timestamp: int
    attributes: int
    count: int
    data: bytes
    marker: int | None = None  # ABORT or COMMIT for a control batch
    _records: list[Record] | None = field(default=None, repr=False)

    @property
    def last_sequence(self) -> int:
        """As in DefaultRecordBatch.lastSequence, computed from the original offsets."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset - self.base_offset) % SEQUENCES

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def records(self) -> list[Record]:
        """Returns the records with their offsets. A marker has none."""
        if self._records is None:
            batch = split(bytearray(self.data))[0]
            self._records = [] if self.is_control or not self.count else decode(batch)
        return self._records


def with_offsets(batch: Batch, *, base_offset: int, leader_epoch: int) -> LoggedBatch:
    """Assigns offsets to a producer's *batch*. The checksum covers neither field that is set here."""
    data = bytearray(batch.data)
    _OFFSET.pack_into(data, 0, base_offset)
    _LEADER_EPOCH.pack_into(data, 12, leader_epoch)
    return LoggedBatch(
        base_offset=base_offset,
        last_offset=base_offset + batch.last_offset_delta,
        leader_epoch=leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        max_timestamp=batch.max_timestamp,
        attributes=batch.attributes,
        count=batch.count,
        data=bytes(data),
    )


def _with_checksum(data: bytearray) -> bytes:
    _CRC.pack_into(data, 17, crc32c(memoryview(data)[_ATTRIBUTES_AT:]))
    return bytes(data)


def with_log_append_time(batch: LoggedBatch, now_ms: int) -> LoggedBatch:
    """Sets LogAppendTime. The record bytes stay, and the header gets the append time."""
    data = bytearray(batch.data)
    attributes = batch.attributes | LOG_APPEND_TIME
    _ATTRIBUTES.pack_into(data, _ATTRIBUTES_AT, attributes)
    _MAX_TIMESTAMP.pack_into(data, _MAX_TIMESTAMP_AT, now_ms)
    batch.attributes, batch.max_timestamp, batch.data = attributes, now_ms, _with_checksum(data)
    return batch


def recompressed(batch: Batch, codec: int) -> Batch:
    """Returns the same batch in a different codec."""
    data = encode(
        decode(batch),
        codec=codec,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
    )
    return split(data)[0]


def marker(
    *, producer_id: int, producer_epoch: int, kind: int, base_offset: int, leader_epoch: int, now_ms: int
) -> LoggedBatch:
    """Returns a control batch that ends a transaction (EndTransactionMarker, MemoryRecords.withEndTransactionMarker)."""
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0)
    body = (
        b"\0\0\0"
        + primitives.encode_varint(len(key))
        + key
        + primitives.encode_varint(len(value))
        + value
        + b"\0"
    )
    record = primitives.encode_varint(len(body)) + body
    attributes = TRANSACTIONAL | CONTROL
    size = _HEADER_BYTES + len(record) - 12
    data = bytearray(
        _HEADER.pack(
            base_offset, size, leader_epoch, 2, 0, attributes, 0, now_ms, now_ms, producer_id, producer_epoch, -1, 1
        )
    )  # fmt: skip
    return LoggedBatch(
        base_offset=base_offset,
        last_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        max_timestamp=now_ms,
        attributes=attributes,
        count=1,
        data=_with_checksum(data + record),
        marker=kind,
    )


def compacted(batch: LoggedBatch, kept: Sequence[Record]) -> LoggedBatch:
    """Returns the batch after log cleaning. Offsets, producer and sequence numbers stay, but only the *kept* records.

    Source: MemoryRecords.filterTo and buildRetainedRecordsInto; writeEmptyHeader if no record is kept.
    """
    if kept:
        data = encode_as_logged(kept, codec=0, next_offset=batch.last_offset + 1)
        fields = list(_HEADER.unpack_from(data))
        # `encode_as_logged` starts at the first record, but the batch keeps its original base offset.
        shift = kept[0].offset - batch.base_offset
        if shift:
            with_first = [kept[0]._replace(offset=batch.base_offset), *kept]
            data = _without_first(encode_as_logged(with_first, codec=0, next_offset=batch.last_offset + 1))
            fields = list(_HEADER.unpack_from(data))
        body = bytes(data[_HEADER_BYTES:])
    else:
        body, fields = b"", list(_HEADER.unpack_from(batch.data))
    attributes = (batch.attributes & ~0x07) if kept else batch.attributes
    fields[0], fields[1] = batch.base_offset, _HEADER_BYTES + len(body) - 12
    fields[2], fields[5], fields[6] = batch.leader_epoch, attributes, batch.last_offset - batch.base_offset
    if batch.attributes & LOG_APPEND_TIME:
        fields[8] = batch.max_timestamp
    fields[9:13] = [batch.producer_id, batch.producer_epoch, batch.base_sequence, len(kept)]
    return LoggedBatch(
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        leader_epoch=batch.leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        max_timestamp=fields[8],
        attributes=attributes,
        count=len(kept),
        data=_with_checksum(bytearray(_HEADER.pack(*fields)) + body),
        marker=batch.marker,
    )


def _without_first(data: bytearray) -> bytearray:
    """Removes the first record of the uncompressed *data*. The others keep their offset deltas."""
    length, start = primitives.decode_varint(bytes(data), _HEADER_BYTES)
    del data[_HEADER_BYTES : start + length]
    return data

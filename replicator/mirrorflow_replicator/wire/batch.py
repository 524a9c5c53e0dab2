"""The header of a record batch, in the bytes in which it was fetched.

A batch is a window into the connection's receive buffer: nothing is copied, decompressed or decoded here. `split` cuts a
fetched `records` field into batches, `checksum_holds` proves that one arrived as its source wrote it, `raw_refusal` says
why one may not be produced as it is, `rewrite` makes it ours in place and carries its checksum over.
What is inside the batches is `wire.records`; control, aborted and empty ones are left to the caller.

Layout of magic 2: DefaultRecordBatch (KIP-98). Layout of magic 0 and 1: LegacyRecord (KIP-32); see `wire.legacy`.
"""

import struct
import zlib
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import NamedTuple

from crc32c import crc32c

from mirrorflow_replicator.errors import CorruptRecordsError
from mirrorflow_replicator.wire.carried import carried

OVERHEAD_BYTES = 12  # base offset and length, which the length does not count
HEADER_BYTES = 61  # a magic 2 batch without records
CRC_FROM = 21  # the checksum covers the attributes and all that follows
LEGACY_CRC_FROM = 16
LEGACY_BYTES_MIN = 26  # a magic 0 message without key and value
MAGIC_AT = 16

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

COUNT_UNKNOWN = -1  # of a compressed legacy wrapper, before it is decoded

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base and max timestamp,
# producer id, producer epoch, base sequence, count
_HEADER = struct.Struct(">qiibIhiqqqhii")
_HEAD = struct.Struct(">qiibI")  # what is before the checksummed part
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_AT = 43
_CHANGED_TO = _PRODUCER_AT + _PRODUCER.size
_CRC = struct.Struct(">I")
_CRC_AT = 17
_LEGACY = struct.Struct(">qiIbb")  # offset, size, crc, magic, attributes
_SIZE = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_OFFSET = struct.Struct(">q")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_AT = 23

_new = tuple.__new__


class Batch(NamedTuple):
    """One batch as fetched: header fields with the source's values, and the window that holds it.

    A tuple, because it is made a quarter of a million times a second and a tuple is made faster than any other object.
    The fields keep the source's values when `rewrite` changes the bytes.

    Magic 0 and 1: one entry of the message set. `base_offset` is the entry's own offset, which for a compressed wrapper is
    that of its *last* record; `count` is then COUNT_UNKNOWN. Producer fields are -1, timestamps the entry's or -1.
    """

    base_offset: int
    batch_length: int  # bytes after the length field itself
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int  # ms; with a delete horizon, that horizon (deltas are relative to it all the same)
    max_timestamp: int  # ms
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # the protocol's word for it; tuple.count is of no use here
    data: memoryview  # the whole batch, header included
    size_bytes: int

    @property
    def codec(self) -> int:
        """0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether its records count only if their transaction was committed."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """Whether it holds a marker, never delivered to anyone."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_log_append_time(self) -> bool:
        """Whether `max_timestamp` is the timestamp of every record."""
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the log cleaner has set a time at which its tombstones go (KAFKA-8522)."""
        return self.attributes & DELETE_HORIZON_BIT != 0

    @property
    def last_offset(self) -> int:
        """The offset of the last record the batch ever had, compacted away or not."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Where to go on after it."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_dense(self) -> bool:
        """Whether no record was compacted away."""
        return self.count == self.last_offset_delta + 1

    @property
    def is_empty(self) -> bool:
        """Whether all records were compacted away."""
        return self.count == 0


class Refusal(Enum):
    """Why a batch may not be produced as it is, and has to be decoded and encoded again."""

    OLD_MAGIC = "old-magic"  # brokers take magic 2 alone
    PARTIAL = "partial"  # it begins before the wanted offset
    GAPS = "gaps"  # compacted: the broker wants as many records as offsets
    LOG_APPEND_TIME = (
        "log-append-time"  # the broker would clear the bit, and consumers would see other timestamps
    )
    DELETE_HORIZON = "delete-horizon"  # the horizon is of the source's log, not of the target's
    CODEC = "codec"  # the target would compress it again
    TOO_LARGE = "too-large"


def split(data: memoryview | bytearray) -> list[Batch]:
    """The whole batches of a fetched `records` field; a last one that was cut off is left out.

    An empty answer to data that is not empty means that the first one was cut: fetch `first_size_bytes` at least.
    Raises CorruptRecordsError if the first cannot be a batch; a later one that cannot ends the list, so that what comes
    before it is copied first.
    """
    view = memoryview(data)
    end = len(view)
    batches: list[Batch] = []
    append = batches.append
    unpack = _HEADER.unpack_from
    at = 0
    while True:
        while at + HEADER_BYTES <= end:
            fields = unpack(view, at)
            size_bytes = fields[1] + OVERHEAD_BYTES
            stop = at + size_bytes
            if fields[3] != 2 or stop > end or size_bytes < HEADER_BYTES:
                break
            append(_new(Batch, (*fields, view[at:stop], size_bytes)))
            at = stop
        entry = _legacy_entry(view, at, is_first=not batches)
        if entry is None:
            return batches
        append(entry)
        at += entry.size_bytes


def first_size_bytes(data: memoryview | bytearray) -> int:
    """How many bytes the first batch of *data* has, there or cut off; 0 if even its length was cut off."""
    if len(data) < OVERHEAD_BYTES:
        return 0
    length: int = _SIZE.unpack_from(data, 8)[0]
    return length + OVERHEAD_BYTES


def checksum_holds(batch: Batch) -> bool:
    """Whether the bytes are those the source checksummed. Ask before `rewrite`, which changes them."""
    if batch.magic == 2:
        return bool(crc32c(batch.data[CRC_FROM:]) == batch.crc)
    return zlib.crc32(batch.data[LEGACY_CRC_FROM:]) == batch.crc


def raw_refusal(
    batch: Batch, *, from_offset: int, max_bytes: int, codecs_allowed: AbstractSet[int] | None
) -> Refusal | None:
    """Why *batch* may not be produced as it is; None if it may.

    *from_offset* is the first wanted; *max_bytes* the target's max.message.bytes; *codecs_allowed* what the target keeps
    as it is (None: all, compression.type=producer).
    """
    attributes = batch.attributes
    if batch.magic != 2:
        return Refusal.OLD_MAGIC
    if batch.base_offset < from_offset:
        return Refusal.PARTIAL
    if batch.count != batch.last_offset_delta + 1:
        return Refusal.GAPS
    if attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT):
        return Refusal.LOG_APPEND_TIME if attributes & LOG_APPEND_TIME_BIT else Refusal.DELETE_HORIZON
    if codecs_allowed is not None and attributes & CODEC_MASK not in codecs_allowed:
        return Refusal.CODEC
    if batch.size_bytes > max_bytes:
        return Refusal.TOO_LARGE
    return None


def rewrite(
    batch: Batch, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool = False
) -> memoryview:
    """Make *batch* one of this producer's, in place, and return its bytes. Only for what `raw_refusal` lets pass.

    Base offset 0, no leader epoch, the producer's fields, the transactional bit as asked; the records stay as they are,
    compressed or not, and so does their checksum, carried over these changes: a batch that was damaged is refused by the
    target (CORRUPT_MESSAGE). May be called again on the same batch with other fields.
    *base_sequence* is taken modulo 2^31 by the caller.
    """
    data = batch.data
    attributes = batch.attributes & (CODEC_MASK | LOG_APPEND_TIME_BIT)
    if transactional:
        attributes |= TRANSACTIONAL_BIT
    changed = data[CRC_FROM:_CHANGED_TO]
    crc: int = _CRC.unpack_from(data, _CRC_AT)[0]
    before = crc32c(changed)
    _ATTRIBUTES.pack_into(data, CRC_FROM, attributes)
    _PRODUCER.pack_into(data, _PRODUCER_AT, producer_id, producer_epoch, base_sequence)
    crc ^= carried(before ^ crc32c(changed), batch.size_bytes - _CHANGED_TO)
    _HEAD.pack_into(data, 0, 0, batch.batch_length, -1, 2, crc)
    return data


def header(
    *,
    size_bytes: int,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
) -> bytes:
    """The header of a dense batch of *count* records to be produced; `seal` adds the checksum when the records follow it."""
    return _HEADER.pack(
        0,
        size_bytes - OVERHEAD_BYTES,
        -1,
        2,
        0,
        attributes,
        count - 1,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )


def seal(data: bytearray) -> bytearray:
    """Write the checksum of a batch made of `header` and its records."""
    _HEAD.pack_into(data, 0, 0, len(data) - OVERHEAD_BYTES, -1, 2, crc32c(memoryview(data)[CRC_FROM:]))
    return data


def seal_as_logged(data: bytearray, *, base_offset: int, next_offset: int) -> bytearray:
    """As `seal`, with the offsets that a log would give it: compacted batches have more of them than records."""
    _LAST_OFFSET_DELTA.pack_into(data, _LAST_OFFSET_DELTA_AT, next_offset - base_offset - 1)
    seal(data)
    _OFFSET.pack_into(data, 0, base_offset)  # no part of the checksum
    return data


def set_transactional(data: bytearray, *, transactional: bool) -> None:
    """Set or clear the transactional bit of a batch that `seal` has made, in place."""
    attributes: int = _ATTRIBUTES.unpack_from(data, CRC_FROM)[0]
    changed = attributes | TRANSACTIONAL_BIT if transactional else attributes & ~TRANSACTIONAL_BIT
    if changed != attributes:
        _ATTRIBUTES.pack_into(data, CRC_FROM, changed)
        seal(data)


def _legacy_entry(view: memoryview, at: int, *, is_first: bool) -> Batch | None:
    """The magic 0 or 1 entry at *at*; None at the end, at a cut, or at what is no entry."""
    remaining_bytes = len(view) - at
    if remaining_bytes <= MAGIC_AT:
        return None
    offset, length, crc, magic, attributes = _LEGACY.unpack_from(bytes(view[at : at + 18]).ljust(18, b"\0"))
    size_bytes = length + OVERHEAD_BYTES
    smallest = HEADER_BYTES if magic == 2 else LEGACY_BYTES_MIN + 8 * magic
    if magic not in {0, 1, 2} or size_bytes < smallest:
        if is_first:
            raise CorruptRecordsError(f"a batch of magic {magic} cannot have {size_bytes} bytes")
        return None
    if magic == 2 or size_bytes > remaining_bytes:
        return None
    timestamp = _TIMESTAMP.unpack_from(view, at + 18)[0] if magic else -1
    count = COUNT_UNKNOWN if attributes & CODEC_MASK else 1
    data = view[at : at + size_bytes]
    return Batch(
        offset,
        length,
        -1,
        magic,
        crc,
        attributes,
        0,
        timestamp,
        timestamp,
        -1,
        -1,
        -1,
        count,
        data,
        size_bytes,
    )

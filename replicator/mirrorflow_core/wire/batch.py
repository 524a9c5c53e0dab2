"""Reads and rewrites the headers of record batches in place, in the connection's receive buffer.

Nothing is copied, decompressed or decoded here. `split` cuts a fetched `records` field into batches.
`checksum_holds` verifies that a batch arrived as its source wrote it. `raw_refusal` returns why a batch must
not be produced as it is. `rewrite` replaces the producer fields and updates the checksum. `wire.records`
decodes the records. The caller handles control, aborted and empty batches.

The checksum is updated without reading the records again. CRC-32C is linear: how a change affects it depends only on
the change and on the number of bytes that follow, not on those bytes. The checksum of the source's producer
therefore stays with the records on the whole path. A batch that was damaged on the source's disk, on the network or
in our memory fails the target's check as it would fail any consumer's; a recomputed checksum would hide the damage.
This also saves two passes over every byte. Polynomial and bit order: RFC 3720, appendix B.4 (Castagnoli, reflected),
as `DefaultRecordBatch` uses it.

Source: DefaultRecordBatch (KIP-98) for magic 2, LegacyRecord (KIP-32) for magic 0 and 1; see `wire.records`.
"""

import struct
import zlib
from array import array
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from functools import cache
from typing import NamedTuple

from crc32c import crc32c

from mirrorflow_core.errors import CorruptRecordsError

_POLYNOMIAL = 0x82F63B78
_DIGIT_BITS = 6  # of a length; each digit and place has a table of 4 KiB, created when needed, 200 in all
_DIGIT_MASK = (1 << _DIGIT_BITS) - 1

_Images = tuple[int, ...]  # images of the 32 single bits under a linear map
OVERHEAD_BYTES = 12  # base offset and length field, not included in the length
HEADER_BYTES = 61  # a magic 2 batch without records
CRC_FROM = 21  # the checksum covers everything from the attributes on
LEGACY_CRC_FROM = 16
LEGACY_BYTES_MIN = 26  # a magic 0 message without key and value
MAGIC_AT = 16
CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
COUNT_UNKNOWN = -1  # a compressed legacy wrapper that has not been decoded
# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base and max timestamp,
# producer id, producer epoch, base sequence, count
_HEADER = struct.Struct(">qiibIhiqqqhii")
_HEAD = struct.Struct(">qiibI")  # the fields before the checksummed part
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


def crc_delta(change: int, bytes_after: int) -> int:
    """Returns what to XOR to a message's checksum after a part of it was changed.

    *change* is the XOR of that part's checksums before and after; *bytes_after* unchanged bytes follow the
    part.
    """
    place = 0
    while bytes_after:
        digit = bytes_after & _DIGIT_MASK
        if digit:
            table = _table(place, digit)
            change = (
                table[change & 0xFF]
                ^ table[256 + (change >> 8 & 0xFF)]
                ^ table[512 + (change >> 16 & 0xFF)]
                ^ table[768 + (change >> 24)]
            )
        bytes_after >>= _DIGIT_BITS
        place += 1
    return change


@cache
def _table(place: int, digit: int) -> Sequence[int]:
    """Returns the map "digit * 64^place zero bytes follow", for each value of each byte of a checksum.

    A backlog begins with hundreds of tables, so each is built by doubling, from XORs of long numbers.
    """
    images = _images(place, digit)
    table = array("I")
    for byte in range(4):
        values = bytes(table.itemsize)
        for image in images[8 * byte : 8 * byte + 8]:
            repeated = array("I", [image]).tobytes() * (len(values) // table.itemsize)
            values += (int.from_bytes(values) ^ int.from_bytes(repeated)).to_bytes(len(values))
        table.frombytes(values)
    return table


@cache
def _images(place: int, digit: int) -> _Images:
    """Returns what each bit of a checksum becomes."""
    if digit > 1:
        return tuple(crc_delta(image, 1 << place * _DIGIT_BITS) for image in _images(place, digit - 1))
    if place == 0:
        return tuple(_zero_byte(1 << bit) for bit in range(32))
    return _images(place - 1, _DIGIT_MASK + 1)


def _zero_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value


class Batch(NamedTuple):
    """One fetched batch: its header fields and the bytes that hold it.

    A tuple, because about 250,000 are created per second and a tuple is the fastest object to create. The
    fields keep the source's values when `rewrite` changes the bytes.

    Magic 0 and 1: one entry of the message set. `base_offset` is the entry's own offset, which for a
    compressed wrapper is that of its *last* record; `count` is then COUNT_UNKNOWN. Producer fields are -1,
    timestamps the entry's or -1.
    """

    base_offset: int
    batch_length: int  # bytes after the length field itself
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int  # ms; with a delete horizon, that horizon; deltas are relative to it all the same
    max_timestamp: int  # ms
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # the protocol's name; tuple.count is not needed here
    data: memoryview  # the whole batch, including its header
    size_bytes: int

    @property
    def codec(self) -> int:
        """The compression codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction and count only if it was committed."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a transaction marker, which consumers never receive."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_log_append_time(self) -> bool:
        """Whether `max_timestamp` is the timestamp of every record."""
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def last_offset(self) -> int:
        """The offset of the batch's last record as written, even if compaction has removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch, where reading continues."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_dense(self) -> bool:
        """Whether compaction has removed no record."""
        return self.count == self.last_offset_delta + 1


class BatchRefusal(Enum):
    """Why a batch must be decoded and encoded again before it is produced."""

    OLD_MAGIC = "old-magic"  # brokers accept only magic 2
    PARTIAL = "partial"  # it begins before the requested offset
    GAPS = "gaps"  # compacted: the broker requires as many records as offsets
    # The broker would clear the bit, which changes the timestamps consumers see.
    LOG_APPEND_TIME = "log-append-time"
    DELETE_HORIZON = "delete-horizon"  # the horizon belongs to the source's log, not the target's
    CODEC = "codec"  # the target would recompress it
    TOO_LARGE = "too-large"


def split(data: memoryview | bytearray) -> list[Batch]:
    """Returns the complete batches of a fetched `records` field; a truncated last batch is left out.

    An empty result for data that is not empty means that the first batch is truncated: fetch at least
    `first_size_bytes`. Raises CorruptRecordsError if the first entry cannot be a batch. A later invalid entry
    ends the list, so that the batches before it are copied first.
    """
    view = memoryview(data)
    end = len(view)
    batches: list[Batch] = []
    append = batches.append
    unpack = _HEADER.unpack_from
    index = 0
    while True:
        while index + HEADER_BYTES <= end:
            fields = unpack(view, index)
            size_bytes = fields[1] + OVERHEAD_BYTES
            stop = index + size_bytes
            if fields[3] != 2 or stop > end or size_bytes < HEADER_BYTES:
                break
            append(_new(Batch, (*fields, view[index:stop], size_bytes)))
            index = stop
        entry = _legacy_entry(view, index, is_first=not batches)
        if entry is None:
            return batches
        append(entry)
        index += entry.size_bytes


def header_of(batch: Batch) -> tuple[int | bytes, ...]:
    """Returns the fields of *batch* without its records, and its size; a marker keeps its bytes, which say what it ends."""
    return (*batch[:13], bytes(batch.data) if batch.is_control else b"", batch.size_bytes)


def first_size_bytes(data: memoryview | bytearray) -> int:
    """Returns the size of the first batch of *data*, complete or truncated; 0 if its length is truncated."""
    if len(data) < OVERHEAD_BYTES:
        return 0
    length: int = _SIZE.unpack_from(data, 8)[0]
    return length + OVERHEAD_BYTES


def checksum_holds(batch: Batch) -> bool:
    """Returns whether the bytes match the batch's checksum. Call before `rewrite`, which changes the bytes."""
    if batch.magic == 2:
        return bool(crc32c(batch.data[CRC_FROM:]) == batch.crc)
    return zlib.crc32(batch.data[LEGACY_CRC_FROM:]) == batch.crc


def raw_refusal(
    batch: Batch, *, from_offset: int, max_bytes: int, codecs_allowed: AbstractSet[int] | None
) -> BatchRefusal | None:
    """Returns why *batch* must not be produced as it is; None if it may.

    *from_offset* is the first requested offset; *max_bytes* the target's max.message.bytes; *codecs_allowed*
    the codecs that the target stores without recompression (None: all, compression.type=producer).
    """
    attributes = batch.attributes
    if batch.magic != 2:
        return BatchRefusal.OLD_MAGIC
    if batch.base_offset < from_offset:
        return BatchRefusal.PARTIAL
    if batch.count != batch.last_offset_delta + 1:
        return BatchRefusal.GAPS
    if attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT):
        return (
            BatchRefusal.LOG_APPEND_TIME if attributes & LOG_APPEND_TIME_BIT else BatchRefusal.DELETE_HORIZON
        )
    if codecs_allowed is not None and attributes & CODEC_MASK not in codecs_allowed:
        return BatchRefusal.CODEC
    if batch.size_bytes > max_bytes:
        return BatchRefusal.TOO_LARGE
    return None


def rewrite(
    batch: Batch, *, producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool = False
) -> memoryview:
    """Sets the producer's fields of *batch* in place and returns its bytes.

    Only for batches that `raw_refusal` accepts. Sets base offset 0, no leader epoch, the producer id, epoch
    and base sequence, and the transactional bit as requested. The records stay as they are, compressed or
    not. The checksum is updated for these changes only, so the target refuses a batch that was damaged
    earlier (CORRUPT_MESSAGE). May be called again on the same batch with other fields. The caller takes
    *base_sequence* modulo 2^31.
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
    crc ^= crc_delta(before ^ crc32c(changed), batch.size_bytes - _CHANGED_TO)
    _HEAD.pack_into(data, 0, 0, batch.batch_length, -1, 2, crc)
    return data


def new_batch(
    body: bytes | bytearray | memoryview,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """Returns the dense, sealed batch of the *count* records in *body*, which is compressed as *attributes* say."""
    data = bytearray(HEADER_BYTES)
    _HEADER.pack_into(
        data,
        0,
        0,
        HEADER_BYTES + len(body) - OVERHEAD_BYTES,
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
    data += body
    return seal(data)


def seal(data: bytearray) -> bytearray:
    """Writes the length and the checksum of a batch, in place."""
    _HEAD.pack_into(data, 0, 0, len(data) - OVERHEAD_BYTES, -1, 2, crc32c(memoryview(data)[CRC_FROM:]))
    return data


def seal_as_logged(data: bytearray, *, base_offset: int, next_offset: int) -> bytearray:
    """As `seal`, with the base and last offset that a log holds; compacted batches have offset gaps."""
    _LAST_OFFSET_DELTA.pack_into(data, _LAST_OFFSET_DELTA_AT, next_offset - base_offset - 1)
    seal(data)
    _OFFSET.pack_into(data, 0, base_offset)  # not covered by the checksum
    return data


def set_transactional(data: bytearray, *, transactional: bool) -> None:
    """Sets or clears the transactional bit of a sealed batch, in place, and updates its checksum."""
    attributes: int = _ATTRIBUTES.unpack_from(data, CRC_FROM)[0]
    changed = attributes | TRANSACTIONAL_BIT if transactional else attributes & ~TRANSACTIONAL_BIT
    if changed != attributes:
        _ATTRIBUTES.pack_into(data, CRC_FROM, changed)
        seal(data)


def _legacy_entry(view: memoryview, index: int, *, is_first: bool) -> Batch | None:
    """Returns the magic 0 or 1 entry at *index*; None at the end, at a truncated entry or at an invalid one.

    Raises CorruptRecordsError if the first entry is invalid.
    """
    remaining_bytes = len(view) - index
    if remaining_bytes <= MAGIC_AT:
        return None
    offset, length, crc, magic, attributes = _LEGACY.unpack_from(
        bytes(view[index : index + 18]).ljust(18, b"\0")
    )
    size_bytes = length + OVERHEAD_BYTES
    smallest = HEADER_BYTES if magic == 2 else LEGACY_BYTES_MIN + 8 * magic
    if magic not in {0, 1, 2} or size_bytes < smallest:
        if is_first:
            raise CorruptRecordsError(f"a batch of magic {magic} cannot have {size_bytes} bytes")
        return None
    if magic == 2 or size_bytes > remaining_bytes:
        return None
    timestamp = _TIMESTAMP.unpack_from(view, index + 18)[0] if magic else -1
    count = COUNT_UNKNOWN if attributes & CODEC_MASK else 1
    data = view[index : index + size_bytes]
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

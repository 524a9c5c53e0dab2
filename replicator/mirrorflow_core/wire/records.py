"""Decodes batches to records as Java's consumers do, and encodes records to batches as Java's producers do.

Needed only where a batch cannot be copied as it is (`batch.raw_refusal`). Keys, values and headers are
copies, so records outlive the receive buffer. The caller checks checksums before decoding; encoding writes
them. Source: DefaultRecord, DefaultRecordBatch (KIP-98).

Message sets of magic 0 and 1, which brokers before 4.0 still hold in old segments, are decoded too. An entry is one
message, or a wrapper whose value is a compressed message set. In magic 1 wrappers the inner offsets count from 0 and
the wrapper has the offset of the last message; in magic 0 they are absolute. These messages have no headers. Source:
KIP-31, KIP-32, LegacyRecord.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire import primitives
from mirrorflow_core.wire.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LEGACY_CRC_FROM,
    LOG_APPEND_TIME_BIT,
    OVERHEAD_BYTES,
    TRANSACTIONAL_BIT,
    Batch,
    new_batch,
    seal_as_logged,
)
from mirrorflow_core.wire.codecs import NONE, ZSTD, compress, decompress

_M = 0x5BD1E995
_SEED = 0x9747B28C
_MASK = 0xFFFFFFFF
Message = tuple[int, int, bytes | None, bytes | None]  # offset, timestamp in ms or -1, key, value
_OVERHEAD = struct.Struct(">qi")  # offset, size
_LENGTH = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_FIELDS_AT = LEGACY_CRC_FROM + 2  # after magic and attributes
SEQUENCE_MASK = 0x7FFFFFFF  # sequence numbers wrap from 2^31 - 1 to 0
Header = tuple[bytes, bytes | None]


def murmur2(data: bytes) -> int:
    """Returns the hash as an unsigned 32-bit integer (the same bits as Java's signed one)."""
    length = len(data)
    whole = length & ~3
    h = _SEED ^ length
    for index in range(0, whole, 4):
        k = int.from_bytes(data[index : index + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        h = h * _M & _MASK ^ k
    if whole != length:
        h = (h ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    return h ^ h >> 15


def partition_for(key: bytes, count: int) -> int:
    """Returns the partition that Java's default partitioner chooses for *key* among *count* partitions.

    Compacted topics that Java reads require the same one: compaction keeps one record per key and partition. Source:
    Utils.murmur2, BuiltInPartitioner.
    """
    return (murmur2(key) & 0x7FFFFFFF) % count


def legacy_messages(entry: bytes) -> list[Message]:
    """Returns the messages of one entry, a wrapper or a single message. Raises CorruptRecordsError."""
    try:
        return _entry_messages(entry)
    except (struct.error, IndexError) as error:
        raise CorruptRecordsError("an old message ends too early") from error


def _entry_messages(entry: bytes) -> list[Message]:
    outer = _legacy_message(entry)
    magic, attributes = entry[LEGACY_CRC_FROM], entry[LEGACY_CRC_FROM + 1]
    codec = attributes & CODEC_MASK
    if codec == NONE:
        return [outer]
    offset, timestamp, _, value = outer
    if value is None or codec >= ZSTD:
        raise CorruptRecordsError(
            f"the compressed old message at offset {offset} has no value or an unknown codec"
        )
    inner = _message_set(
        decompress(codec, value), append_time=timestamp if attributes & LOG_APPEND_TIME_BIT else None
    )
    if not inner:
        raise CorruptRecordsError(f"the compressed old message at offset {offset} is empty")
    if magic == 0:
        return inner
    # Some producers left the wrapper's offset at 0 (DeepRecordsIterator).
    base = offset - inner[-1][0] if offset else 0
    if base < 0:
        raise CorruptRecordsError(
            f"the compressed old message at offset {offset} holds more offsets than that"
        )
    return [(base + relative, *rest) for relative, *rest in inner]  # type: ignore[misc]  # the three others


def _message_set(data: bytes, *, append_time: int | None) -> list[Message]:
    """Returns the messages of a decompressed set; *append_time*, of the broker, replaces their timestamps."""
    messages: list[Message] = []
    index = 0
    while index + OVERHEAD_BYTES <= len(data):
        end = index + OVERHEAD_BYTES + _OVERHEAD.unpack_from(data, index)[1]
        if end <= index + OVERHEAD_BYTES or end > len(data):
            break  # a truncated last message, which Java also skips
        message = data[index:end]
        if message[LEGACY_CRC_FROM + 1] & CODEC_MASK:
            raise CorruptRecordsError("a compressed old message holds another")
        offset, timestamp, key, value = _legacy_message(message)
        if append_time is not None and message[LEGACY_CRC_FROM] == 1:
            timestamp = append_time
        messages.append((offset, timestamp, key, value))
        index = end
    return messages


def _legacy_message(data: bytes) -> Message:
    offset = _OVERHEAD.unpack_from(data, 0)[0]
    magic = data[LEGACY_CRC_FROM]
    if magic > 1:
        raise CorruptRecordsError(f"an old message claims magic {magic}")
    timestamp = _TIMESTAMP.unpack_from(data, _FIELDS_AT)[0] if magic else -1
    key, index = _legacy_field(data, _FIELDS_AT + 8 * magic)
    value, _ = _legacy_field(data, index)
    return offset, timestamp, key, value


def _legacy_field(data: bytes, index: int) -> tuple[bytes | None, int]:
    (size_bytes,) = _LENGTH.unpack_from(data, index)
    index += 4
    if size_bytes < 0:
        return None, index
    if index + size_bytes > len(data):
        raise CorruptRecordsError("a field of an old message ends too early")
    return data[index : index + size_bytes], index + size_bytes


class Record(NamedTuple):
    """One record. `timestamp` is in ms, -1 if the record has none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class RecordOverLimitError(ValueError):
    """Record *index* alone makes a batch of *size_bytes*, more than the target accepts. The caller adds topic and offset."""

    def __init__(self, *, index: int, size_bytes: int) -> None:
        self.index = index
        self.size_bytes = size_bytes
        super().__init__(f"record {index} alone makes a batch of {size_bytes} bytes")


def decode(batch: Batch) -> list[Record]:
    """Returns the records of *batch*, for any magic and codec. Raises CorruptRecordsError.

    Timestamps are those that consumers see: the batch's for every record with LogAppendTime, otherwise base
    plus delta, also where the base is a delete horizon (DefaultRecordBatch, MemoryRecordsBuilder).
    """
    if batch.magic < 2:
        return [Record(*message) for message in legacy_messages(bytes(batch.data))]
    if batch.count == 0:
        return []
    body = decompress(batch.codec, batch.data[HEADER_BYTES:])
    base_offset, base_timestamp = batch.base_offset, batch.base_timestamp
    append_time = batch.max_timestamp if batch.is_log_append_time else None
    records: list[Record] = []
    number, index = primitives.decode_varint, 0
    try:
        for _ in range(batch.count):
            length, start = number(body, index)
            end = start + length
            shift, index = number(body, start + 1)
            delta, index = number(body, index)
            key, index = (None, index + 1) if body[index] == 1 else _field(body, index, end)
            value, index = _field(body, index, end)
            headers, index = read_headers(body, index, end) if body[index] else ((), index + 1)
            if index != end:
                raise CorruptRecordsError(
                    f"a record in the batch at offset {base_offset} has another length than it says"
                )
            timestamp = primitives.wrapped(base_timestamp + shift) if append_time is None else append_time
            records.append(Record(base_offset + delta, timestamp, key, value, headers))
    except IndexError as error:
        raise CorruptRecordsError(f"the batch at offset {base_offset} ends too early") from error
    if index != len(body):
        raise CorruptRecordsError(
            f"the batch at offset {base_offset} holds more than its {batch.count} records"
        )
    return records


def encode(
    records: Sequence[Record],
    *,
    codec: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytearray:
    """Returns one batch to produce: base offset 0, consecutive offset deltas, CreateTime, checksum.

    The records' own offsets are ignored. Raises ValueError where *records* is empty. The caller takes
    *base_sequence* modulo 2^31.
    """
    if not records:
        raise ValueError("a batch needs a record")
    producer = (producer_id, producer_epoch, base_sequence)
    return _batch(records, _body(records), codec, producer, transactional=transactional)


def _body(records: Sequence[Record]) -> bytes:
    """Returns the encoded records of a batch, uncompressed."""
    base_timestamp = records[0].timestamp
    return b"".join([_encoded(i, base_timestamp, record) for i, record in enumerate(records)])


def _batch(
    records: Sequence[Record],
    uncompressed: bytes,
    codec: int,
    producer: tuple[int, int, int] = (-1, -1, -1),
    *,
    transactional: bool = False,
) -> bytearray:
    """Returns the batch of *records*, encoded as *uncompressed*; *producer*: id, epoch, base sequence."""
    producer_id, producer_epoch, base_sequence = producer
    return new_batch(
        compress(codec, uncompressed),
        attributes=codec | (TRANSACTIONAL_BIT if transactional else 0),
        base_timestamp=records[0].timestamp,
        max_timestamp=max(record.timestamp for record in records),
        count=len(records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def encode_as_logged(records: Sequence[Record], *, codec: int, next_offset: int) -> bytearray:
    """Returns one batch as a log stores it, with the records' own offsets and gaps, up to *next_offset*.

    It has no producer and no leader epoch. *records* is not empty; their offsets increase and are below
    *next_offset*.
    """
    base_offset, base_timestamp = records[0].offset, records[0].timestamp
    uncompressed = encode_body(records, base_offset=base_offset, base_timestamp=base_timestamp)
    return seal_as_logged(
        _batch(records, uncompressed, codec), base_offset=base_offset, next_offset=next_offset
    )


def encode_body(records: Sequence[Record], *, base_offset: int, base_timestamp: int) -> bytes:
    """Returns the encoded records of a batch, uncompressed, with their own offsets and timestamps."""
    return b"".join([_encoded(record.offset - base_offset, base_timestamp, record) for record in records])


def encode_split(
    records: Sequence[Record],
    *,
    max_bytes: int,
    codec: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    max_uncompressed_bytes: int | None = None,
) -> list[tuple[bytearray, int]]:
    """Returns batches of at most *max_bytes* each with their record counts; sequence numbers are consecutive.

    A batch of several records has at most *max_uncompressed_bytes* before compression, including its header; a single
    record may have more. A part that is too large is halved, as Java's producer does. Raises
    RecordOverLimitError if one record alone exceeds *max_bytes*.
    """
    batches: list[tuple[bytearray, int]] = []
    done = 0
    waiting = [len(records)] if records else []  # counts of consecutive parts, the next one last
    while waiting:
        count = waiting.pop()
        part = records[done : done + count]
        uncompressed = _body(part)
        if (
            count > 1
            and max_uncompressed_bytes is not None
            and HEADER_BYTES + len(uncompressed) > max_uncompressed_bytes
        ):
            waiting += (count - count // 2, count // 2)
            continue
        sequence = base_sequence if base_sequence < 0 else base_sequence + done & SEQUENCE_MASK
        producer = (producer_id, producer_epoch, sequence)
        data = _batch(part, uncompressed, codec, producer, transactional=transactional)
        if len(data) <= max_bytes:
            batches.append((data, count))
            done += count
        elif count == 1:
            raise RecordOverLimitError(index=done, size_bytes=len(data))
        else:
            waiting += (count - count // 2, count // 2)
    return batches


def _field(body: bytes, index: int, end: int) -> tuple[bytes | None, int]:
    length, index = primitives.decode_varint(body, index)
    if length < 0:
        return None, index
    if index + length > end:
        raise CorruptRecordsError("a key, value or header ends after its record")
    return body[index : index + length], index + length


def read_headers(body: bytes, index: int, end: int) -> tuple[tuple[Header, ...], int]:
    """Returns the headers of a record that begin at *index* of *body*, and the index after them.

    Raises CorruptRecordsError, or IndexError if *body* ends before them.
    """
    count, index = primitives.decode_varint(body, index)
    headers: list[Header] = []
    if count < 0:
        raise CorruptRecordsError("a record has a negative number of headers")
    for _ in range(count):
        name, index = _field(body, index, end)
        value, index = _field(body, index, end)
        if name is None:
            raise CorruptRecordsError("a header has no name")
        headers.append((name, value))
    return tuple(headers), index


def _encoded(index: int, base_timestamp: int, record: Record) -> bytes:
    number = primitives.encode_varint
    _, timestamp, key, value, headers = record
    parts = [b"\0", number(timestamp - base_timestamp), number(index)]
    for field in (key, value):
        if field is None:
            parts.append(b"\x01")
        else:
            parts += (number(len(field)), field)
    parts.append(number(len(headers)))
    for name, content in headers:
        parts += (number(len(name)), name)
        if content is None:
            parts.append(b"\x01")
        else:
            parts += (number(len(content)), content)
    data = b"".join(parts)
    return number(len(data)) + data

"""Many small batches of one partition into one, without looking at keys, values and headers.

A produce request takes one batch per partition, so a backlog of tiny batches would cost a request's share each. Here the
records are moved: only the lengths, time and offset differences in front of them are written anew. What comes out is one
batch of the same codec whose records have consecutive offsets, so the k-th is at source offset `base_offset` + k.
The batches must have passed `batch.checksum_holds`, and the first must begin at or after the wanted offset; nothing here
asks again.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from mirrorflow_replicator.errors import CorruptRecordsError
from mirrorflow_replicator.wire import varint
from mirrorflow_replicator.wire.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    Batch,
    header,
    seal,
)
from mirrorflow_replicator.wire.codecs import NONE, compress, decompress

# Of a batch this small its share of a request costs us and both brokers more than moving its bytes: measured here at 3 us a
# batch for cutting, checking and rewriting, and some 20 us for its place in a request and its answer.
SMALL_BYTES = 4096
# Moving a record costs 1 to 2 us, so with many more than this a batch is cheaper as it is.
SMALL_RECORDS = 16
# Enough that a request's cost vanishes, few enough that a lost answer repeats little and the offset differences stay in the table.
RECORDS_MAX = 4096

_UNMERGEABLE = CONTROL_BIT | LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT
# Length, attributes, time and offset difference, key and value length, number of headers.
_RECORD_BYTES_MIN = 7
# Of the integers in front of a record: nine for the time difference, four for the offset's, one for the length, and spare.
_GROWTH_BYTES_MAX = 16
_FIRST_FIVE = struct.Struct("5B")
_ATTRIBUTES_AND_SHIFT = tuple(b"\0" + encoded for encoded in varint.NATURAL)

_Parts = list[bytes | memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalesced:
    """One batch to produce, and what it stands for: the first `batches` of those given."""

    data: bytearray
    batches: int
    records: int
    base_offset: int  # of the first record at the source
    last_offset: int
    max_timestamp: int  # ms


def is_mergeable(batch: Batch) -> bool:
    """Whether its records can be moved as they are: magic 2, none compacted away, CreateTime, no marker."""
    return (
        batch.magic == 2
        and batch.count == batch.last_offset_delta + 1
        and batch.count > 0
        and not batch.attributes & _UNMERGEABLE
    )


def worth_coalescing(batches: Sequence[Batch]) -> int:
    """How many from the front to hand to `coalesce`: 0, or 2 and more. A lone batch is never held back or touched.

    They are mergeable, of one codec, of consecutive offsets, each of at most SMALL_BYTES and SMALL_RECORDS, and together of at
    most RECORDS_MAX. Looks at each batch once, so ask for the front of the queue only.
    """
    if len(batches) < 2:
        return 0
    codec = batches[0].attributes & CODEC_MASK
    wanted = batches[0].base_offset
    run = records = 0
    for base_offset, _, _, magic, _, attributes, delta, _, _, _, _, _, count, _, size_bytes in batches:
        if (
            size_bytes > SMALL_BYTES
            or base_offset != wanted
            or count > SMALL_RECORDS
            or count <= 0
            or count != delta + 1
            or magic != 2
            or attributes & CODEC_MASK != codec
            or attributes & _UNMERGEABLE
        ):
            break
        records += count
        if records > RECORDS_MAX:
            break
        wanted += count
        run += 1
    return run if run > 1 else 0


def coalesce(
    batches: Sequence[Batch],
    *,
    max_bytes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    transactional: bool = False,
) -> Coalesced:
    """One batch of at most *max_bytes* made of as many from the front as fit, are mergeable, of one codec, and follow each other.

    At least the first is taken; if that is not mergeable it is a ValueError. It alone may exceed *max_bytes*, by what
    another compressor makes of it; the caller sees that by `len(data)`. Raises CorruptRecordsError.
    """
    first = batches[0]
    if not is_mergeable(first):
        raise ValueError(f"the batch at offset {first.base_offset} cannot be merged")
    codec = first.attributes & CODEC_MASK
    number = _fitting(batches, codec=codec, max_bytes=max_bytes)
    while True:
        taken = batches[:number]
        parts, records = _moved(taken, codec=codec)
        body = b"".join(parts) if codec == NONE else compress(codec, b"".join(parts))
        if HEADER_BYTES + len(body) <= max_bytes or number == 1:
            break
        number //= (
            2  # the compressor made more of them together than it had of each: rare, and bounded by halving
        )
    max_timestamp = max([batch.max_timestamp for batch in taken])
    data = bytearray(
        header(
            size_bytes=HEADER_BYTES + len(body),
            attributes=codec | (TRANSACTIONAL_BIT if transactional else 0),
            base_timestamp=first.base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            count=records,
        )
    )
    data += body
    return Coalesced(
        data=seal(data),
        batches=number,
        records=records,
        base_offset=first.base_offset,
        last_offset=first.base_offset + records - 1,
        max_timestamp=max_timestamp,
    )


def _fitting(batches: Sequence[Batch], *, codec: int, max_bytes: int) -> int:
    """How many from the front may go together, by their headers; the growth of the integers counted at its worst."""
    wanted = batches[0].base_offset
    number = 0
    room_bytes = max_bytes - HEADER_BYTES
    for base_offset, _, _, magic, _, attributes, delta, _, _, _, _, _, count, _, size_bytes in batches:
        room_bytes -= size_bytes - HEADER_BYTES + count * _GROWTH_BYTES_MAX
        if number and (
            room_bytes < 0
            or base_offset != wanted
            or count != delta + 1
            or count <= 0
            or magic != 2
            or attributes & CODEC_MASK != codec
            or attributes & _UNMERGEABLE
        ):
            break
        wanted += count
        number += 1
    return number


def _moved(batches: Sequence[Batch], *, codec: int) -> tuple[_Parts, int]:
    """The records of all *batches* with new lengths, time and offset differences, and how many they are."""
    natural, attributes_and_shift, table_size = varint.NATURAL, _ATTRIBUTES_AND_SHIFT, varint.TABLE_SIZE
    first_five = _FIRST_FIVE.unpack_from
    base_timestamp = batches[0].base_timestamp
    parts: _Parts = []
    index = 0
    for _, _, _, _, _, _, _, timestamp, _, _, _, _, count, data, size_bytes in batches:
        if count == 1 and codec == NONE and HEADER_BYTES + _RECORD_BYTES_MIN <= size_bytes < table_size:
            # The common record: its own batch, hence no differences; a length of one or two bytes.
            length, second, third, fourth, fifth = first_five(data, HEADER_BYTES)
            at = HEADER_BYTES + 4
            if length > 127:
                length, second, third, fourth = length & 127 | second << 7, third, fourth, fifth
                at += 1
            shift = timestamp - base_timestamp
            if (
                not second | third | fourth
                and length == 2 * (size_bytes - at + 3)
                and 0 <= shift < table_size
                and index < table_size
            ):
                time, place = attributes_and_shift[shift], natural[index]
                parts += (natural[len(time) + len(place) + size_bytes - at], time, place, data[at:])
                index += 1
                continue
        body = decompress(codec, data[HEADER_BYTES:])
        if index:
            _move(body, parts, count=count, shift=timestamp - base_timestamp, index=index)
        else:
            parts.append(body)  # the first batch's records have their differences already
        index += count
    return parts, index


def _move(body: bytes, parts: _Parts, *, count: int, shift: int, index: int) -> None:
    """Append the records of *body*, *shift* ms and *index* places later."""
    at, size_bytes = 0, len(body)
    decode, encode = varint.decode, varint.encode
    try:
        for place in range(index, index + count):
            length, at = decode(body, at)
            end = at + length
            own_shift, rest = decode(body, at + 1)
            _, rest = decode(body, rest)
            if rest > end or end > size_bytes:
                raise CorruptRecordsError("a record ends too early")
            time, order = encode(own_shift + shift), encode(place)
            parts += (
                encode(1 + len(time) + len(order) + end - rest),
                body[at : at + 1],
                time,
                order,
                body[rest:end],
            )
            at = end
    except IndexError as error:
        raise CorruptRecordsError("a record ends too early") from error
    if at != size_bytes:
        raise CorruptRecordsError(f"a batch holds more than its {count} records")

"""Merges small batches of one partition into one batch, without decoding keys, values or headers.

A produce request takes one batch per partition, so each tiny batch of a backlog would cost its share of a
request. Records are copied as bytes; only the length, timestamp delta and offset delta in front of them are
rewritten. The result is one batch of the same codec with consecutive offsets: record k is source offset
`base_offset` + k, or `offsets`[k] where source offsets are missing (compaction, markers), which the caller
must allow. The caller has verified the batches with `batch.checksum_holds`, and the first begins at or after
the requested offset; nothing here checks that again.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from mirrorflow_core.errors import CorruptRecordsError, DecompressedSizeError
from mirrorflow_core.wire import primitives
from mirrorflow_core.wire.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    Batch,
    new_batch,
)
from mirrorflow_core.wire.codecs import NONE, compress, decompress

# At this size, the per-request cost is higher for us and both brokers than the cost of moving the bytes.
# Measured here: 3 us per batch to cut, check and rewrite it, and about 20 us for its part of the request and
# the response.
SMALL_BYTES = 4096
# Moving a record costs 1 to 2 us, so a batch with many more records than this is cheaper to send as it is.
SMALL_RECORDS = 16
# Large enough that the cost of a request is negligible, small enough that a lost response repeats little and
# that the offset deltas stay in the varint table.
RECORDS_MAX = 4096
# Clients limit what one batch expands to. The smallest default is librdkafka's for zstd: receive.message.max.bytes
# (100,000,000). Its old versions triple the buffer until it would exceed that, so some stop at a third of it
# (rdkafka_zstd.c). Its other codecs and Java's consumer have no limit; codecs.DECOMPRESSED_BYTES_MAX is larger.
CLIENT_UNCOMPRESSED_BYTES_MAX = 100_000_000 // 3
# A quarter of that. It also bounds the memory of a merge, and the time for which a merge blocks the event loop.
MERGED_UNCOMPRESSED_BYTES_MAX = 8 << 20
# Decompressing and compressing more than this costs more than the request that a batch of its own needs. It also
# bounds what is decompressed in vain where two batches do not fit together.
SMALL_UNCOMPRESSED_BYTES = 1 << 20

_UNMERGEABLE = CONTROL_BIT | LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT
# Length, attributes, timestamp and offset delta, key and value length, number of headers.
_RECORD_BYTES_MIN = 7
# Upper bound for the integers in front of a record: nine bytes more for the timestamp delta, four for the
# offset delta, one for the length, and spare.
_GROWTH_BYTES_MAX = 16
_FIRST_FIVE = struct.Struct("5B")
_ATTRIBUTES_AND_SHIFT = tuple(b"\0" + encoded for encoded in primitives.SMALL_VARINTS)

_Parts = list[bytes | memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coalesced:
    """One batch to produce; it replaces the first `batches` of the given ones."""

    data: bytearray
    batches: int
    records: int
    base_offset: int  # source offset of the first record
    last_offset: int
    max_timestamp: int  # ms
    offsets: Sequence[int] | None  # source offset of each record; None where none is missing


def is_mergeable(batch: Batch, *, across_gaps: bool = False) -> bool:
    """Returns whether the records can be moved unchanged: magic 2, CreateTime, not empty, no control batch.

    Batches with records removed by compaction are mergeable only with *across_gaps*.
    """
    return (
        batch.magic == 2
        and (across_gaps or batch.count == batch.last_offset_delta + 1)
        and batch.count > 0
        and not batch.attributes & _UNMERGEABLE
    )


def worth_coalescing(
    batches: Sequence[Batch],
    *,
    across_gaps: bool = False,
    small_bytes: int = SMALL_BYTES,
    small_records: int = SMALL_RECORDS,
) -> int:
    """Returns how many batches from the front to pass to `coalesce`: 0, or at least 2.

    A lone batch is never held back or changed. The counted batches are mergeable, share one codec, have
    consecutive offsets unless *across_gaps*, hold at most *small_bytes* and *small_records* each and at most
    RECORDS_MAX records together. Reads each header once, so pass only the front of the queue.
    """
    if len(batches) < 2:
        return 0
    codec = batches[0].attributes & CODEC_MASK
    wanted = batches[0].base_offset
    run = records = 0
    for base_offset, _, _, magic, _, attributes, delta, _, _, _, _, _, count, _, size_bytes in batches:
        if (
            size_bytes > small_bytes
            or ((base_offset != wanted or count != delta + 1) and not across_gaps)
            or count > small_records
            or count <= 0
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
    max_uncompressed_bytes: int | None = None,
    across_gaps: bool = False,
) -> Coalesced:
    """Merges as many batches from the front as fit into one batch of at most *max_bytes*.

    Merged batches are mergeable, share one codec and have consecutive offsets. With *across_gaps*, source
    offsets may be missing within and between them.

    Several batches together have at most *max_uncompressed_bytes* before compression, including the header, and never
    more than MERGED_UNCOMPRESSED_BYTES_MAX. At least the first batch is taken. That one alone may exceed both limits,
    *max_bytes* because our compressor may make it larger; `batches` of the result shows this. A compressed batch of
    more than SMALL_UNCOMPRESSED_BYTES is not merged: it ends what is taken. Raises DecompressedSizeError if
    it is the first, ValueError if the first is not mergeable, and CorruptRecordsError.
    """
    first = batches[0]
    if not is_mergeable(first, across_gaps=across_gaps):
        raise ValueError(f"the batch at offset {first.base_offset} cannot be merged")
    codec = first.attributes & CODEC_MASK
    if max_uncompressed_bytes is None or max_uncompressed_bytes > MERGED_UNCOMPRESSED_BYTES_MAX:
        max_uncompressed_bytes = MERGED_UNCOMPRESSED_BYTES_MAX
    if codec == NONE:
        max_bytes = min(max_bytes, max_uncompressed_bytes)
    room_bytes = None if codec == NONE else max_uncompressed_bytes - HEADER_BYTES
    number = _fitting(batches, codec=codec, max_bytes=max_bytes, across_gaps=across_gaps)
    while True:
        parts, places, number = _moved(batches[:number], codec=codec, room_bytes=room_bytes)
        body = b"".join(parts) if codec == NONE else compress(codec, b"".join(parts))
        if HEADER_BYTES + len(body) <= max_bytes or number == 1:
            break
        number //= 2  # together they compressed worse than each alone: rare, and bounded by halving
    records = len(places)
    max_timestamp = max([batch.max_timestamp for batch in batches[:number]])
    return Coalesced(
        data=new_batch(
            body,
            attributes=codec | (TRANSACTIONAL_BIT if transactional else 0),
            base_timestamp=first.base_timestamp,
            max_timestamp=max_timestamp,
            count=records,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
        ),
        batches=number,
        records=records,
        base_offset=places[0],
        last_offset=places[-1],
        max_timestamp=max_timestamp,
        offsets=None if isinstance(places, range) else places,
    )


def _fitting(batches: Sequence[Batch], *, codec: int, max_bytes: int, across_gaps: bool) -> int:
    """Returns how many batches from the front may be merged, by their headers.

    Assumes the largest growth of the integers in front of each record.
    """
    wanted = batches[0].base_offset
    number = 0
    room_bytes = max_bytes - HEADER_BYTES
    for base_offset, _, _, magic, _, attributes, delta, _, _, _, _, _, count, _, size_bytes in batches:
        room_bytes -= size_bytes - HEADER_BYTES + count * _GROWTH_BYTES_MAX
        if number and (
            room_bytes < 0
            or ((base_offset != wanted or count != delta + 1) and not across_gaps)
            or count <= 0
            or magic != 2
            or attributes & CODEC_MASK != codec
            or attributes & _UNMERGEABLE
        ):
            break
        wanted += count
        number += 1
    return number


def _moved(
    batches: Sequence[Batch], *, codec: int, room_bytes: int | None
) -> tuple[_Parts, Sequence[int], int]:
    """Returns the records with rewritten deltas, their source offsets, and the number of batches taken.

    With *room_bytes*, several batches are taken only as far as they fit at the largest integer growth.
    """
    natural, table_size = primitives.SMALL_VARINTS, primitives.SMALL_VARINTS_MAX
    attributes_and_shift, first_five = _ATTRIBUTES_AND_SHIFT, _FIRST_FIVE.unpack_from
    body_bytes_max = None if room_bytes is None else SMALL_UNCOMPRESSED_BYTES
    first = batches[0]
    base_timestamp = first.base_timestamp
    has_gaps = sum([batch.count for batch in batches]) != batches[-1].next_offset - first.base_offset
    offsets: list[int] | None = [] if has_gaps else None
    parts: _Parts = []
    index = number = 0
    for base_offset, _, _, _, _, _, _, timestamp, _, _, _, _, count, data, size_bytes in batches:
        if count == 1 and codec == NONE and HEADER_BYTES + _RECORD_BYTES_MIN <= size_bytes < table_size:
            # The common case: a batch of one record, hence no deltas, with a length of one or two bytes.
            length, second, third, fourth, fifth = first_five(data, HEADER_BYTES)
            start = HEADER_BYTES + 4
            if length > 127:
                length, second, third, fourth = length & 127 | second << 7, third, fourth, fifth
                start += 1
            shift = timestamp - base_timestamp
            if (
                not second | third | fourth
                and length == 2 * (size_bytes - start + 3)
                and 0 <= shift < table_size
                and index < table_size
            ):
                time, place = attributes_and_shift[shift], natural[index]
                parts += (natural[len(time) + len(place) + size_bytes - start], time, place, data[start:])
                if offsets is not None:
                    offsets.append(base_offset)
                index += 1
                number += 1
                continue
        try:
            body = decompress(codec, data[HEADER_BYTES:], max_bytes=body_bytes_max)
        except DecompressedSizeError:
            if not number:
                raise
            break
        if room_bytes is not None:
            room_bytes -= len(body) + count * _GROWTH_BYTES_MAX
            if room_bytes < 0 and number:
                break
        if index or offsets is not None:
            places = _move(body, parts, count=count, shift=timestamp - base_timestamp, index=index)
            if offsets is not None:
                offsets += [base_offset + place for place in places]
        else:
            parts.append(body)  # the first batch's deltas are already right
        index += count
        number += 1
    return parts, range(first.base_offset, first.base_offset + index) if offsets is None else offsets, number


def _move(body: bytes, parts: _Parts, *, count: int, shift: int, index: int) -> list[int]:
    """Appends the records of *body* to *parts*, *shift* ms later and numbered from *index*.

    Returns the offset delta that each record had. Raises CorruptRecordsError.
    """
    places: list[int] = []
    position, size_bytes = 0, len(body)
    decode, encode = primitives.decode_varint, primitives.encode_varint
    try:
        for place in range(index, index + count):
            length, position = decode(body, position)
            end = position + length
            own_shift, rest = decode(body, position + 1)
            own_place, rest = decode(body, rest)
            if rest > end or end > size_bytes:
                raise CorruptRecordsError("a record ends too early")
            places.append(own_place)
            time, order = encode(own_shift + shift), encode(place)
            parts += (
                encode(1 + len(time) + len(order) + end - rest),
                body[position : position + 1],
                time,
                order,
                body[rest:end],
            )
            position = end
    except IndexError as error:
        raise CorruptRecordsError("a record ends too early") from error
    if position != size_bytes:
        raise CorruptRecordsError(f"a batch holds more than its {count} records")
    return places

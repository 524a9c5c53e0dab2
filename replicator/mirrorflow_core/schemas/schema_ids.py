"""Finds the ids of the schemas that records name, as the serializers of Confluent-compatible registries write them.

    key, value                                    0, the id in four bytes, the data
    header __key_schema_id or __value_schema_id   0, the id in four bytes

Other data may begin with a zero byte by chance. Only a registry knows whether an id exists. Source: the wire format in the
documentation of Confluent's serializers.
"""

from collections.abc import Iterable
from typing import Final

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire.batch import HEADER_BYTES, Batch, split
from mirrorflow_core.wire.codecs import decompress
from mirrorflow_core.wire.primitives import decode_varint
from mirrorflow_core.wire.records import legacy_messages

_MAGIC: Final = 0
_ID_BYTES: Final = 5  # the zero byte and the id
_CONTINUED: Final = 0x80  # the bit of a number's bytes before its last one
_NULL: Final = 1  # the length -1
_ID_MAX: Final = (1 << 31) - 1  # registries issue positive ids of Java's type int
_HEADERS: Final = frozenset({b"__key_schema_id", b"__value_schema_id"})


def schema_ids(records: memoryview) -> set[int]:
    """Returns the ids that the complete batches in *records* of a fetch response name.

    A batch that cannot be read names none: copying it reports why.
    """
    ids: set[int] = set()
    try:
        batches = split(records)
    except CorruptRecordsError:
        return ids
    for batch in batches:
        if batch.is_control:
            continue
        try:
            ids |= _ids_in(batch)
        except (CorruptRecordsError, IndexError):
            continue
    ids.discard(0)
    return ids


def _ids_in(batch: Batch) -> set[int]:
    if batch.magic < 2:
        messages = legacy_messages(bytes(batch.data))
        return _named(field for _, _, key, value in messages for field in (key, value))
    ids: set[int] = set()
    body = decompress(batch.codec, batch.data[HEADER_BYTES:])
    number, index = decode_varint, 0
    for _ in range(batch.count):
        length, index = number(body, index)
        end = index + length
        index += 1  # attributes
        while body[index] & _CONTINUED:  # timestamp
            index += 1
        index += 1
        while body[index] & _CONTINUED:  # offset
            index += 1
        index += 1
        if body[index] == _NULL:  # key
            index += 1
        else:
            size, index = number(body, index)
            if size >= _ID_BYTES and body[index] == _MAGIC:
                ids.add(int.from_bytes(body[index + 1 : index + _ID_BYTES]))
            index += size
        size, index = number(body, index)  # value
        if size >= _ID_BYTES and body[index] == _MAGIC:
            ids.add(int.from_bytes(body[index + 1 : index + _ID_BYTES]))
        index += max(size, 0)
        if body[index]:
            ids |= _named(_header_values(body, index))
        index = end
    return {schema_id for schema_id in ids if schema_id <= _ID_MAX}


def _header_values(body: bytes, index: int) -> Iterable[bytes]:
    """Yields the values of the headers at *index* that may hold an id."""
    count, index = decode_varint(body, index)
    for _ in range(count):
        size, index = decode_varint(body, index)
        name = body[index : index + size]
        size, index = decode_varint(body, index + size)
        if size >= 0:
            if name in _HEADERS:
                yield body[index : index + size]
            index += size


def _named(fields: Iterable[bytes | None]) -> set[int]:
    ids = {
        int.from_bytes(field[1:_ID_BYTES])
        for field in fields
        if field is not None and len(field) >= _ID_BYTES and field[0] == _MAGIC
    }
    return {schema_id for schema_id in ids if schema_id <= _ID_MAX}

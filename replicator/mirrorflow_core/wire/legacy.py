"""Decodes message sets of magic 0 and 1, which brokers before 4.0 still hold in old segments.

An entry is one message, or a wrapper whose value is a compressed message set. In magic 1 wrappers the inner
offsets count from 0 and the wrapper has the offset of the last message; in magic 0 they are absolute. These
messages have no headers. Source: KIP-31, KIP-32, LegacyRecord.
"""

import struct

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire.batch import CODEC_MASK, LEGACY_CRC_FROM, LOG_APPEND_TIME_BIT, OVERHEAD_BYTES
from mirrorflow_core.wire.codecs import NONE, ZSTD, decompress

Message = tuple[int, int, bytes | None, bytes | None]  # offset, timestamp in ms or -1, key, value

_OVERHEAD = struct.Struct(">qi")  # offset, size
_LENGTH = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_FIELDS_AT = LEGACY_CRC_FROM + 2  # after magic and attributes


def messages(entry: bytes) -> list[Message]:
    """Return the messages of one entry, a wrapper or a single message. Raises CorruptRecordsError."""
    try:
        return _messages(entry)
    except (struct.error, IndexError) as error:
        raise CorruptRecordsError("an old message ends too early") from error


def _messages(entry: bytes) -> list[Message]:
    outer = _message(entry)
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
        decompress(codec, value), stamped=timestamp if attributes & LOG_APPEND_TIME_BIT else None
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


def _message_set(data: bytes, *, stamped: int | None) -> list[Message]:
    """Return the messages of a decompressed set; *stamped*, the broker's append time, replaces their own."""
    found: list[Message] = []
    at = 0
    while at + OVERHEAD_BYTES <= len(data):
        end = at + OVERHEAD_BYTES + _OVERHEAD.unpack_from(data, at)[1]
        if end <= at + OVERHEAD_BYTES or end > len(data):
            break  # a truncated last message, which Java also skips
        message = data[at:end]
        if message[LEGACY_CRC_FROM + 1] & CODEC_MASK:
            raise CorruptRecordsError("a compressed old message holds another")
        offset, timestamp, key, value = _message(message)
        if stamped is not None and message[LEGACY_CRC_FROM] == 1:
            timestamp = stamped
        found.append((offset, timestamp, key, value))
        at = end
    return found


def _message(data: bytes) -> Message:
    offset = _OVERHEAD.unpack_from(data, 0)[0]
    magic = data[LEGACY_CRC_FROM]
    if magic > 1:
        raise CorruptRecordsError(f"an old message claims magic {magic}")
    timestamp = _TIMESTAMP.unpack_from(data, _FIELDS_AT)[0] if magic else -1
    key, at = _field(data, _FIELDS_AT + 8 * magic)
    value, _ = _field(data, at)
    return offset, timestamp, key, value


def _field(data: bytes, at: int) -> tuple[bytes | None, int]:
    (size_bytes,) = _LENGTH.unpack_from(data, at)
    at += 4
    if size_bytes < 0:
        return None, at
    if at + size_bytes > len(data):
        raise CorruptRecordsError("a field of an old message ends too early")
    return data[at : at + size_bytes], at + size_bytes

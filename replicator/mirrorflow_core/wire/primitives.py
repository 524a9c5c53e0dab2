"""Reads and writes the primitive types of Kafka's protocol: fields of messages in place, and the zigzag varints of records.

Used on the hot path (fetch, produce, records); kafka-python's generated classes read all other messages. Sources: Kafka protocol
guide, "Protocol primitive types"; KIP-482 for the flexible form of messages; KIP-98 and ByteUtils for varints: seven bits per
byte, lowest first. Small varints, nearly all of them, come from a table. 64-bit arithmetic wraps as Java's does, so every
timestamp and every difference of two has exactly one encoding.
"""

import struct

from mirrorflow_core.errors import CorruptRecordsError

# Two bytes hold zigzag values up to 16383: lengths, counts and timestamp deltas of small records.
SMALL_VARINTS_MAX = 8192
_BYTES_MAX = 10  # the longest encoding of 64 bits
_WRAP = 1 << 64
_HALF = 1 << 63
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


def wrapped(number: int) -> int:
    """Returns *number* as a signed 64-bit integer, wrapped on overflow as in Java."""
    if -_HALF <= number < _HALF:
        return number
    return (number + _HALF) % _WRAP - _HALF


def _encoded(number: int) -> bytes:
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


SMALL_VARINTS: tuple[bytes, ...] = tuple(
    _encoded(number) for number in range(SMALL_VARINTS_MAX)
)  # for 0 .. SMALL_VARINTS_MAX - 1


def encode_varint(number: int) -> bytes:
    """Returns the encoding of a signed integer of at most 64 bits."""
    if 0 <= number < SMALL_VARINTS_MAX:
        return SMALL_VARINTS[number]
    return _encoded(wrapped(number))


def decode_varint(data: bytes | bytearray | memoryview, index: int) -> tuple[int, int]:
    """Returns the integer at *index* and the index after it. Raises CorruptRecordsError if it is truncated or too long."""
    try:
        first = data[index]
        if first < 128:
            return first >> 1 ^ -(first & 1), index + 1
        second = data[index + 1]
        if second < 128:
            return (first & 127 | second << 7) >> 1 ^ -(first & 1), index + 2
        result = first & 127 | (second & 127) << 7
        for position in range(2, _BYTES_MAX):
            byte = data[index + position]
            result |= (byte & 127) << 7 * position
            if byte < 128:
                return wrapped(result >> 1 ^ -(result & 1)), index + position + 1
    except IndexError:
        pass
    raise CorruptRecordsError(f"the integer at byte {index} does not end")


def uvarint(value: int) -> bytes:
    """Returns *value* as an unsigned varint, the length encoding of the flexible form."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """A read index into *data*; `flexible` selects how lengths and tagged fields are read.

    A message that is too short raises struct.error or IndexError, which the connection reports as a malformed
    response.
    """

    __slots__ = ("data", "flexible", "index")

    def __init__(self, data: memoryview, *, flexible: bool, index: int = 0) -> None:
        self.data = data
        self.index = index
        self.flexible = flexible

    def skip(self, size: int) -> None:
        self.index += size

    def int16(self) -> int:
        self.index += 2
        value: int = _INT16.unpack_from(self.data, self.index - 2)[0]
        return value

    def int32(self) -> int:
        self.index += 4
        value: int = _INT32.unpack_from(self.data, self.index - 4)[0]
        return value

    def int64(self) -> int:
        self.index += 8
        value: int = _INT64.unpack_from(self.data, self.index - 8)[0]
        return value

    def uvarint(self) -> int:
        byte = self.data[self.index]
        self.index += 1
        value, shift = byte & 0x7F, 7
        while byte >= 0x80:
            byte = self.data[self.index]
            self.index += 1
            value |= (byte & 0x7F) << shift
            shift += 7
        return value

    def count(self) -> int:
        """Reads the length of an array; not positive for a null array."""
        return self.uvarint() - 1 if self.flexible else self.int32()

    def raw(self, size: int) -> memoryview:
        begin = self.index
        self.index = end = begin + size
        if end > len(self.data):
            # A slice past the end would be shortened silently, and a truncated field would pass for a
            # complete one.
            raise IndexError("the message ends too early")
        return self.data[begin:end]

    def records(self) -> memoryview:
        """Reads nullable bytes without copying them; null becomes empty."""
        return self.raw(max(self.count(), 0))

    def string(self) -> str:
        """Reads a nullable string; null becomes empty."""
        size = self.uvarint() - 1 if self.flexible else self.int16()
        return str(self.raw(max(size, 0)), "utf-8", "replace")

    def tags(self) -> dict[int, memoryview]:
        """Reads the tagged fields by tag number; empty in the non-flexible form."""
        if not self.flexible:
            return {}
        count = self.uvarint()
        if not count:
            return {}
        tags = {}
        for _ in range(count):
            tag = self.uvarint()
            tags[tag] = self.raw(self.uvarint())
        return tags

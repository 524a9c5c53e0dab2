"""Reads the fields of a Kafka message in place, in the flexible and the non-flexible form.

Used only on the hot path (fetch, produce); kafka-python's generated classes read all other messages. Source:
Kafka protocol guide, "Protocol primitive types"; KIP-482 for the flexible form.
"""

import struct

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


def uvarint(value: int) -> bytes:
    """Return *value* as an unsigned varint, the length encoding of the flexible form."""
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

    __slots__ = ("at", "data", "flexible")

    def __init__(self, data: memoryview, *, flexible: bool) -> None:
        self.data = data
        self.at = 0
        self.flexible = flexible

    def int16(self) -> int:
        self.at += 2
        value: int = _INT16.unpack_from(self.data, self.at - 2)[0]
        return value

    def int32(self) -> int:
        self.at += 4
        value: int = _INT32.unpack_from(self.data, self.at - 4)[0]
        return value

    def int64(self) -> int:
        self.at += 8
        value: int = _INT64.unpack_from(self.data, self.at - 8)[0]
        return value

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def count(self) -> int:
        """Read the length of an array; not positive for a null array."""
        return self.uvarint() - 1 if self.flexible else self.int32()

    def raw(self, size: int) -> memoryview:
        self.at += size
        if self.at > len(self.data):
            # A slice past the end would be shortened silently, and a truncated field would pass for a
            # complete one.
            raise IndexError("the message ends too early")
        return self.data[self.at - size : self.at]

    def records(self) -> memoryview:
        """Read nullable bytes without copying them; null becomes empty."""
        return self.raw(max(self.count(), 0))

    def string(self) -> str:
        """Read a nullable string; null becomes empty."""
        size = self.uvarint() - 1 if self.flexible else self.int16()
        return str(self.raw(max(size, 0)), "utf-8", "replace")

    def tags(self) -> dict[int, memoryview]:
        """Read the tagged fields by tag number; empty in the non-flexible form."""
        if not self.flexible:
            return {}
        count = self.uvarint()
        if not count:
            return {}
        found = {}
        for _ in range(count):
            tag = self.uvarint()
            found[tag] = self.raw(self.uvarint())
        return found

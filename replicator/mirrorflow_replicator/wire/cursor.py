"""Reading a Kafka message in place, field by field, in the flexible and the older form.

Only for the two messages on the hot path (fetch, produce); all others are read by kafka-python's generated classes.
Source: Kafka protocol guide, "Protocol primitive types"; KIP-482 for the flexible form.
"""

import struct

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


def uvarint(value: int) -> bytes:
    """An unsigned varint, as lengths are written in the flexible form."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Cursor:
    """A place in *data*; `flexible` decides how lengths and tagged fields are read. A short message raises struct.error
    or IndexError, which the connection reports as a malformed answer.
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
        """The length of an array; a null one is empty."""
        return self.uvarint() - 1 if self.flexible else self.int32()

    def raw(self, size: int) -> memoryview:
        self.at += size
        if self.at > len(self.data):
            # A slice would be short without a word, and what was cut off be taken for whole.
            raise IndexError("the message ends too early")
        return self.data[self.at - size : self.at]

    def records(self) -> memoryview:
        """Nullable bytes, without a copy; null is empty."""
        return self.raw(max(self.count(), 0))

    def string(self) -> str:
        """A nullable string; null is empty."""
        size = self.uvarint() - 1 if self.flexible else self.int16()
        return str(self.raw(max(size, 0)), "utf-8", "replace")

    def tags(self) -> dict[int, memoryview]:
        """Tagged fields by number; none in the older form."""
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

"""Encodes and decodes the zigzag varints of record batches: seven bits per byte, lowest first.

Small values, nearly all of them, come from a table. 64-bit arithmetic wraps as Java's does, so every
timestamp and every difference of two has exactly one encoding. Source: KIP-98, ByteUtils.
"""

from mirrorflow_core.errors import CorruptRecordsError

TABLE_SIZE = (
    8192  # Two bytes hold zigzag values up to 16383: lengths, counts and timestamp deltas of small records.
)
_BYTES_MAX = 10  # the longest encoding of 64 bits
_WRAP = 1 << 64
_HALF = 1 << 63


def wrapped(number: int) -> int:
    """Return *number* as a signed 64-bit integer, wrapped on overflow as in Java."""
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


NATURAL: tuple[bytes, ...] = tuple(
    _encoded(number) for number in range(TABLE_SIZE)
)  # for 0 .. TABLE_SIZE - 1


def encode(number: int) -> bytes:
    """Return the encoding of a signed integer of at most 64 bits."""
    if 0 <= number < TABLE_SIZE:
        return NATURAL[number]
    return _encoded(wrapped(number))


def decode(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Return the integer at *at* and the index after it.

    Raises CorruptRecordsError if it is truncated or too long.
    """
    try:
        first = data[at]
        if first < 128:
            return first >> 1 ^ -(first & 1), at + 1
        second = data[at + 1]
        if second < 128:
            return (first & 127 | second << 7) >> 1 ^ -(first & 1), at + 2
        result = first & 127 | (second & 127) << 7
        for position in range(2, _BYTES_MAX):
            byte = data[at + position]
            result |= (byte & 127) << 7 * position
            if byte < 128:
                return wrapped(result >> 1 ^ -(result & 1)), at + position + 1
    except IndexError:
        pass
    raise CorruptRecordsError(f"the integer at byte {at} does not end")

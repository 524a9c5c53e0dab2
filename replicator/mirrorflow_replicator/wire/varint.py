"""Variable-length integers of record batches: zigzag, seven bits a byte, lowest first (KIP-98, ByteUtils).

Small ones, which are nearly all, come out of a table. 64-bit arithmetic wraps as Java's does, so that every timestamp and
every difference of two has one encoding.
"""

from mirrorflow_replicator.errors import CorruptRecordsError

TABLE_SIZE = (
    8192  # zigzag values up to 16383 have two bytes: lengths, counts and time differences of small records
)
_BYTES_MAX = 10  # of 64 bits
_WRAP = 1 << 64
_HALF = 1 << 63


def wrapped(number: int) -> int:
    """*number* as a signed 64-bit integer, wrapped as Java wraps."""
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


NATURAL: tuple[bytes, ...] = tuple(_encoded(number) for number in range(TABLE_SIZE))  # of 0 .. TABLE_SIZE - 1


def encode(number: int) -> bytes:
    """The bytes of a signed integer of at most 64 bits."""
    if 0 <= number < TABLE_SIZE:
        return NATURAL[number]
    return _encoded(wrapped(number))


def decode(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """The integer at *at* and where it ends. Raises CorruptRecordsError if it does not end or is too long."""
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

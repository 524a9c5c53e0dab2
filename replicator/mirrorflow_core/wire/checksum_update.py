"""Updates a batch's CRC-32C after a change of its header, without reading the records again.

CRC-32C is linear: how a change affects the checksum depends only on the change and on the number of bytes
that follow, not on those bytes. The checksum of the source's producer therefore stays with the records on the
whole path. A batch that was damaged on the source's disk, on the network or in our memory fails the target's
check as it would fail any consumer's; a recomputed checksum would hide the damage. This also saves two passes
over every byte.

Polynomial and bit order: RFC 3720, appendix B.4 (Castagnoli, reflected), as `DefaultRecordBatch` uses it.
"""

from array import array
from collections.abc import Sequence
from functools import cache

_POLYNOMIAL = 0x82F63B78
_DIGIT_BITS = 6  # of a length; each digit and place has a table of 4 KiB, created when needed, 200 in all
_DIGIT_MASK = (1 << _DIGIT_BITS) - 1

_Images = tuple[int, ...]  # images of the 32 single bits under a linear map


def carried(change: int, bytes_behind: int) -> int:
    """Return what to XOR to a message's checksum after a part of it was changed.

    *change* is the XOR of that part's checksums before and after; *bytes_behind* unchanged bytes follow the
    part.
    """
    place = 0
    while bytes_behind:
        digit = bytes_behind & _DIGIT_MASK
        if digit:
            table = _table(place, digit)
            change = (
                table[change & 0xFF]
                ^ table[256 + (change >> 8 & 0xFF)]
                ^ table[512 + (change >> 16 & 0xFF)]
                ^ table[768 + (change >> 24)]
            )
        bytes_behind >>= _DIGIT_BITS
        place += 1
    return change


@cache
def _table(place: int, digit: int) -> Sequence[int]:
    """Return the map "digit * 64^place zero bytes follow", for each value of each byte of a checksum."""
    images = _images(place, digit)
    table = array("I", bytes(4 * 1024))
    for byte in range(4):
        for value in range(1, 256):
            rest = value & (value - 1)
            lowest = (value ^ rest).bit_length() - 1
            table[256 * byte + value] = table[256 * byte + rest] ^ images[8 * byte + lowest]
    return table


@cache
def _images(place: int, digit: int) -> _Images:
    if digit > 1:
        first, rest = _images(place, 1), _images(place, digit - 1)
        return tuple(_mapped(first, image) for image in rest)
    if place == 0:
        return tuple(_zero_byte(1 << bit) for bit in range(32))
    return _images(place - 1, _DIGIT_MASK + 1)


def _mapped(images: _Images, value: int) -> int:
    result = 0
    for bit, image in enumerate(images):
        if value >> bit & 1:
            result ^= image
    return result


def _zero_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value

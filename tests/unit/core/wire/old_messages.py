"""Compressed messages of the formats before Kafka 0.11, as logs of brokers hold them."""

import struct

from tests.unit.core.wire.foreign import LegacyRecordBatchBuilder


def wrapper(first: int, last: int, *, magic: int = 1) -> bytes:
    """Returns a wrapper of the records *first* to *last*, with the offset of the last one, as a broker stores it."""
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=1, batch_size=1 << 20)
    inner_first = 0 if magic else first
    for index in range(last - first + 1):
        builder.append(offset=inner_first + index, timestamp=5, key=b"k", value=b"%d" % (first + index))
    return struct.pack(">q", last) + bytes(builder.build())[8:]


def log_of_wrappers(fetch_from: int, *, end: int, size: int = 20, magic: int = 1) -> bytearray:
    """Returns what a broker serves from *fetch_from* on of a log of wrappers of *size* records each: it begins with a whole one."""
    firsts = range(fetch_from - fetch_from % size, end, size)
    return bytearray(b"".join(wrapper(first, first + size - 1, magic=magic) for first in firsts))

# ruff: noqa: A005 - inside a package, and never imported by its bare name
"""Compresses and decompresses with Kafka's codecs, in the framings that Kafka's Java code reads and writes.

gzip; snappy in xerial's stream (also read bare, as librdkafka once wrote it); lz4 frames with independent
blocks, because KafkaLZ4BlockInputStream refuses others; zstd. Checksums inside frames are not verified: the
batch has its own, which the caller has checked. Nothing decompresses to more than DECOMPRESSED_BYTES_MAX.
"""

import struct
import zlib

import cramjam

from mirrorflow_core.errors import CorruptRecordsError, DecompressedSizeError

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")

# Java's producer builds each batch within its buffer.memory, 32 MiB by default. Four times that is no
# legitimate batch, but could be one megabyte of zstd that expands to thirty gigabytes.
DECOMPRESSED_BYTES_MAX = 128 << 20

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL + struct.pack(">b2i", 0, 1, 1)[1:]  # version, lowest compatible version
_XERIAL_BLOCK_BYTES = 32 << 10  # SnappyOutputStream's default
_INT_BE = struct.Struct(">i")

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
# Version 1, independent blocks, no checksums; blocks of at most 64 KiB; 0x82 is the descriptor's xxHash32 >>
# 8 & 255.
_LZ4_HEADER = _LZ4_MAGIC + b"\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 1 << 31  # this block is not compressed
_LZ4_END = bytes(4)
_UINT_LE = struct.Struct("<I")

_GZIP_WINDOW = 31  # selects gzip framing in zlib
_ZSTD_NO_ROOM = "whole buffer"  # cramjam reports it only in this text, which a test pins
_ZSTD_RATIO_GUESS = 8  # the first guess; each retry uses four times as much
_ZSTD_GUESS_BYTES_MIN = 2 << 10  # clearing a larger buffer costs more than decompressing a small batch


def compress(codec: int, data: bytes | bytearray) -> bytes | bytearray:
    """Returns *data* compressed in the framing of *codec* that Java reads. Raises ValueError for an unknown codec."""
    if codec == NONE:
        return data
    if codec == GZIP:
        gzip = zlib.compressobj(wbits=_GZIP_WINDOW)
        return gzip.compress(data) + gzip.flush()
    if codec == SNAPPY:
        return _snappy_stream(data)
    if codec == LZ4:
        return _lz4_frame(data)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    raise ValueError(f"no codec has the number {codec}")


def decompress(codec: int, data: bytes | bytearray | memoryview, *, max_bytes: int | None = None) -> bytes:
    """Returns *data* decompressed.

    Raises CorruptRecordsError if it is corrupt or its codec is unknown, and DecompressedSizeError if it expands
    to more than *max_bytes* or DECOMPRESSED_BYTES_MAX. Memory is bounded by these and one block of the codec.
    """
    if max_bytes is None or max_bytes > DECOMPRESSED_BYTES_MAX:
        max_bytes = DECOMPRESSED_BYTES_MAX
    try:
        if codec == NONE:
            return bytes(data)
        if codec == GZIP:
            return _from_gzip(data, max_bytes)
        if codec == SNAPPY:
            return _from_snappy(data, max_bytes)
        if codec == LZ4:
            return _from_lz4(data, max_bytes)
        if codec == ZSTD:
            return _from_zstd(data, max_bytes)
    except (zlib.error, cramjam.DecompressionError, struct.error, IndexError) as error:
        raise CorruptRecordsError(f"{NAMES[codec]} data cannot be decompressed ({error})") from error
    raise CorruptRecordsError(f"no codec has the number {codec}")


def _limited(codec: int, size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise DecompressedSizeError(codec=NAMES[codec], max_bytes=max_bytes)


def _from_gzip(data: bytes | bytearray | memoryview, max_bytes: int) -> bytes:
    out = bytearray()
    rest: bytes | bytearray | memoryview = data
    while rest:  # as GZIPInputStream does, read consecutive members as one
        gzip = zlib.decompressobj(wbits=_GZIP_WINDOW)
        out += gzip.decompress(rest, max_bytes + 1 - len(out))
        _limited(GZIP, len(out), max_bytes)
        if not gzip.eof:
            raise CorruptRecordsError("gzip data ends too early")
        rest = gzip.unused_data
    return bytes(out)


def _snappy_stream(data: bytes | bytearray) -> bytes:
    view = memoryview(data)
    parts: list[bytes] = [_XERIAL_HEADER]
    for index in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[index : index + _XERIAL_BLOCK_BYTES]))
        parts += (_INT_BE.pack(len(block)), block)
    return b"".join(parts)


def _from_snappy(data: bytes | bytearray | memoryview, max_bytes: int) -> bytes:
    if bytes(data[: len(_XERIAL)]) != _XERIAL:
        return _from_snappy_block(data, max_bytes)
    out = bytearray()
    index = len(_XERIAL_HEADER)
    while index < len(data):
        (size_bytes,) = _INT_BE.unpack_from(data, index)
        index += _INT_BE.size
        if size_bytes < 0 or index + size_bytes > len(data):
            raise CorruptRecordsError("a snappy block ends too early")
        out += _from_snappy_block(data[index : index + size_bytes], max_bytes - len(out))
        index += size_bytes
    return bytes(out)


def _from_snappy_block(data: bytes | bytearray | memoryview, max_bytes: int) -> bytes:
    _limited(SNAPPY, cramjam.snappy.decompress_raw_len(data), max_bytes)
    return bytes(cramjam.snappy.decompress_raw(data))


def _lz4_frame(data: bytes | bytearray) -> bytes:
    view = memoryview(data)
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    for index in range(0, len(view), _LZ4_BLOCK_BYTES):
        uncompressed = view[index : index + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(uncompressed, store_size=False))
        if len(block) < len(uncompressed):
            parts += (_UINT_LE.pack(len(block)), block)
        else:
            parts += (_UINT_LE.pack(len(uncompressed) | _LZ4_STORED), uncompressed)
    parts.append(_LZ4_END)
    return b"".join(parts)


def _from_lz4(data: bytes | bytearray | memoryview, max_bytes: int) -> bytes:
    """Decompresses LZ4 frame format 1.6.

    The descriptor's checksum is not verified: brokers before 0.10 computed it wrongly (KAFKA-3160).
    """
    flags, block_size = data[4], data[5] >> 4 & 7
    if bytes(data[:4]) != _LZ4_MAGIC or flags >> 6 != 1 or not flags & 0x20 or block_size < 4:
        raise CorruptRecordsError("lz4 data has no frame that Kafka knows")
    block_bytes_max = 1 << (8 + 2 * block_size)
    block_checksum_bytes = 4 if flags & 0x10 else 0
    index = 7 + (8 if flags & 0x08 else 0)
    uncompressed = memoryview(bytearray(block_bytes_max))
    out = bytearray()
    while True:
        (header,) = _UINT_LE.unpack_from(data, index)
        index += 4
        if header == 0:
            return bytes(out)
        size_bytes = header & ~_LZ4_STORED
        if size_bytes > block_bytes_max or index + size_bytes > len(data):
            raise CorruptRecordsError("an lz4 block ends too early")
        block = data[index : index + size_bytes]
        if header & _LZ4_STORED:
            out += block
        else:
            out += uncompressed[
                : cramjam.lz4.decompress_block_into(block, uncompressed, output_len=block_bytes_max)
            ]
        _limited(LZ4, len(out), max_bytes)
        index += size_bytes + block_checksum_bytes


def _from_zstd(data: bytes | bytearray | memoryview, max_bytes: int) -> bytes:
    """Decompresses zstd into a buffer of guessed size, four times as large on each retry. Java writes no content size."""
    room_bytes = max(_ZSTD_GUESS_BYTES_MIN, _ZSTD_RATIO_GUESS * len(data))
    while True:
        room = bytearray(min(room_bytes, max_bytes))
        try:
            size_bytes: int = cramjam.zstd.decompress_into(data, room)
        except cramjam.DecompressionError as error:
            if _ZSTD_NO_ROOM not in str(error):
                raise
            _limited(ZSTD, room_bytes + 1, max_bytes)
            room_bytes *= 4
        else:
            return bytes(memoryview(room)[:size_bytes])

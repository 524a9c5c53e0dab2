"""Each codec decompresses its own output, uses Java's framing, and limits the decompressed size."""

import struct
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import CorruptRecordsError, DecompressedSizeError
from mirrorflow_core.wire import codecs
from tests.unit.core.wire.strategies import CODECS

DATA = st.one_of(st.binary(max_size=300), st.integers(0, 300_000).map(lambda size: b"abcdefg" * (size // 7)))


@given(DATA, st.sampled_from(CODECS))
def test_compressed_data_is_decompressed_unchanged(data, codec):
    """Data is empty, small, or larger than the blocks of snappy and lz4."""
    assert data == codecs.decompress(codec, memoryview(codecs.compress(codec, data)))


@given(st.binary(max_size=300), st.sampled_from((1, 2, 3, 4)))
def test_random_bytes_cause_only_the_error_for_corrupt_records(data, codec):
    try:
        codecs.decompress(codec, data)
    except CorruptRecordsError:
        return


def test_lz4_uses_the_framing_of_java():
    """Blocks are independent and have 64 KiB. An independent implementation accepts the descriptor's checksum."""
    data = b"0123456789" * 20_000
    frame = codecs.compress(codecs.LZ4, data)

    assert frame[:7] == b"\x04\x22\x4d\x18\x60\x40\x82"
    assert data == bytes(cramjam.lz4.decompress(frame))


def test_lz4_frames_with_checksums_and_stored_blocks_are_read():
    """Block and content checksums are skipped. A stored block is not compressed."""
    block = b"stored"
    frame = (
        b"\x04\x22\x4d\x18\x74\x40\x00"
        + struct.pack("<I", len(block) | 1 << 31)
        + block
        + bytes(4)
        + bytes(4)
        + bytes(4)
    )

    assert codecs.decompress(codecs.LZ4, frame) == b"stored"


def test_snappy_uses_the_framing_of_java():
    """It has Xerial's header with versions 1 and 1, then blocks with their lengths."""
    stream = codecs.compress(codecs.SNAPPY, b"a" * 40_000)

    assert b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) == stream[:16]
    (size_bytes,) = struct.unpack_from(">i", stream, 16)
    assert cramjam.snappy.decompress_raw_len(stream[20 : 20 + size_bytes]) == 32 << 10


def test_snappy_without_framing_is_read():
    """Some producers write it without the stream framing."""
    assert (
        codecs.decompress(codecs.SNAPPY, bytes(cramjam.snappy.compress_raw(b"hello hello"))) == b"hello hello"
    )


def test_consecutive_gzip_members_are_concatenated():
    """GZIPInputStream reads them this way."""
    member = zlib.compressobj(wbits=31)
    data = member.compress(b"one ") + member.flush()

    assert codecs.decompress(codecs.GZIP, data + data) == b"one one "


def test_zstd_without_a_content_size_is_read():
    """Java's stream writes the frame before the size is known."""
    data = b"abc" * 100_000
    stream = cramjam.zstd.Compressor()
    stream.compress(data)
    frame = bytes(stream.finish())

    assert data == codecs.decompress(codecs.ZSTD, frame)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_data_that_expands_too_much_is_refused(codec, monkeypatch):
    bomb = codecs.compress(codec, bytes(3 << 20))
    monkeypatch.setattr(codecs, "DECOMPRESSED_BYTES_MAX", 2 << 20)

    with pytest.raises(CorruptRecordsError):
        codecs.decompress(codec, bomb)


@given(DATA, st.sampled_from((1, 2, 3, 4)), st.integers(0, 400_000))
def test_decompression_stops_at_the_limit_of_the_caller(data, codec, max_bytes):
    """Data up to the limit is returned. One byte more is an error that states the limit."""
    frame = codecs.compress(codec, data)
    if len(data) <= max_bytes:
        assert data == codecs.decompress(codec, frame, max_bytes=max_bytes)
    else:
        with pytest.raises(DecompressedSizeError, match=f"more than {max_bytes} bytes"):
            codecs.decompress(codec, frame, max_bytes=max_bytes)


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_truncated_frame_is_refused(codec):
    frame = codecs.compress(codec, bytes(range(256)) * 30)

    with pytest.raises(CorruptRecordsError):
        codecs.decompress(codec, frame[: len(frame) // 2])


def test_an_unknown_codec_is_refused():
    """Kafka has not assigned this number yet."""
    with pytest.raises(CorruptRecordsError):
        codecs.decompress(5, b"")
    with pytest.raises(ValueError, match="number 5"):
        codecs.compress(5, b"")

"""The ids of schemas are found in keys, values and headers, in batches of each codec and in old messages."""

import struct
import zlib

import pytest

from mirrorflow_core.schemas.schema_ids import schema_ids
from mirrorflow_core.wire.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD
from mirrorflow_core.wire.records import Record, encode


def payload(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + b"data"


def batch(*records: Record, codec: int = NONE) -> memoryview:
    return memoryview(encode(records, codec=codec, producer_id=-1, producer_epoch=-1, base_sequence=-1))


def old_message(value: bytes) -> bytes:
    """Returns a message set of magic 0 with one message."""
    body = struct.pack(">bbi", 0, 0, -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_keys_values_and_headers_name_schemas(codec: int):
    records = [
        Record(0, 1, payload(1), payload(2)),
        Record(1, 1, None, payload(3)),
        Record(2, 1, b"plain", None),
        Record(3, 1, None, b"{}", ((b"__value_schema_id", payload(4)[:5]), (b"other", payload(9)))),
    ]

    assert schema_ids(batch(*records, codec=codec)) == {1, 2, 3, 4}


def test_a_response_has_the_ids_of_all_its_complete_batches():
    first, second = batch(Record(0, 1, None, payload(1))), batch(Record(1, 1, None, payload(2)))

    assert schema_ids(memoryview(bytes(first) + bytes(second) + bytes(second)[:40])) == {1, 2}


@pytest.mark.parametrize(
    "value", [b"\0\0\0\0", b"\0\0\0\0\0\0", b"\0\xff\0\0\0\0", b"\1\0\0\0\1\0", b"", None]
)
def test_other_data_names_no_schema(value: bytes | None):
    """The data is too short, or it has id 0, a negative id or a different first byte."""
    assert schema_ids(batch(Record(0, 1, None, value))) == set()


def test_messages_of_old_formats_name_schemas():
    assert schema_ids(memoryview(old_message(payload(7)))) == {7}


@pytest.mark.parametrize(
    "damaged", [b"", b"x" * 61, bytes(batch(Record(0, 1, None, payload(1)), codec=GZIP))[:-8]]
)
def test_bytes_that_cannot_be_read_have_no_schema_id(damaged: bytes):
    """No error is raised here, because copying reports the unreadable bytes."""
    assert schema_ids(memoryview(damaged)) == set()


def test_a_batch_whose_records_are_damaged_names_no_schema():
    data = bytearray(batch(Record(0, 1, None, payload(1)), codec=GZIP))
    data[-8:] = b"\xff" * 8

    assert schema_ids(memoryview(data)) == set()

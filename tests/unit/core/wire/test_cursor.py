"""Fields are read in both encodings, and a truncated message is an error."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.primitives import Cursor, uvarint
from tests.unit.core.wire.foreign import encode_varint


def cursor_of(data, *, flexible=True):
    return Cursor(memoryview(data), flexible=flexible)


@given(st.integers(0, 2**31 - 1))
def test_an_unsigned_varint_is_read_as_written(value):
    """Unsigned varints have one to five bytes."""
    data = uvarint(value)

    cursor = cursor_of(data)

    assert (value, len(data)) == (cursor.uvarint(), cursor.index)


@given(st.integers(0, 2**30))
def test_an_unsigned_varint_is_written_as_kafka_python_does(value):
    """The unsigned varint of an even number is the zigzag varint of half that number."""
    foreign = bytearray()

    encode_varint(value, foreign.append)

    assert bytes(foreign) == uvarint(2 * value)


def test_reading_starts_at_the_given_index_and_continues_after_a_skip():
    cursor = Cursor(memoryview(b"head\x07skipped\x09"), flexible=True, index=4)

    assert cursor.uvarint() == 7
    cursor.skip(7)
    assert cursor.uvarint() == 9


@given(st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))
def test_integers_are_big_endian_and_signed(small, middle, large):
    """They have two, four and eight bytes."""
    cursor = cursor_of(struct.pack(">hiq", small, middle, large))

    assert (small, middle, large) == (cursor.int16(), cursor.int32(), cursor.int64())


@pytest.mark.parametrize(("flexible", "data"), [(True, b"\0"), (False, b"\xff\xff\xff\xff")])
def test_null_bytes_are_empty(flexible, data):
    """A response without records has null records."""
    cursor = cursor_of(data, flexible=flexible)

    assert (0, len(data)) == (len(cursor.records()), cursor.index)


@pytest.mark.parametrize(("flexible", "data"), [(True, b"\0"), (False, b"\xff\xff")])
def test_a_null_string_is_empty(flexible, data):
    """A response without an error has a null message."""
    assert "" == cursor_of(data, flexible=flexible).string()


@given(st.text(max_size=300))
def test_a_string_is_read_in_both_forms(text):
    """The length is a varint (plus one) or two bytes."""
    encoded = text.encode()

    assert text == cursor_of(uvarint(len(encoded) + 1) + encoded).string()
    assert text == cursor_of(struct.pack(">h", len(encoded)) + encoded, flexible=False).string()


def test_a_string_that_is_not_utf_8_is_read():
    """A broker message in a different encoding must not close the connection."""
    assert "\ufffd" == cursor_of(b"\x02\xff").string()


@given(st.dictionaries(st.integers(0, 2**20), st.binary(max_size=200), max_size=5))
def test_tagged_fields_are_found_by_number(fields):
    """This includes unknown tags. Afterwards, the cursor is at the end of the tagged fields."""
    data = uvarint(len(fields)) + b"".join(
        uvarint(tag) + uvarint(len(value)) + value for tag, value in fields.items()
    )

    cursor = cursor_of(data)

    assert fields == {tag: bytes(value) for tag, value in cursor.tags().items()}
    assert len(data) == cursor.index


def test_the_older_encoding_has_no_tagged_fields():
    """It does not even have the byte with their number."""
    cursor = cursor_of(b"\x01\x02", flexible=False)

    assert ({}, 0) == (cursor.tags(), cursor.index)


@given(st.binary(max_size=20), st.integers(1, 40))
def test_reading_beyond_the_end_is_an_error(data, more):
    """Otherwise a truncated value would be copied as if it were whole."""
    with pytest.raises(IndexError):
        cursor_of(data).raw(len(data) + more)

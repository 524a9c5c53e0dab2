"""64-bit integers are encoded as specified and decoded unchanged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire import primitives
from tests.unit.core.wire.foreign import encode_varint

INTEGERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-9000, 9000))


@given(INTEGERS, st.binary(max_size=3), st.binary(max_size=3))
def test_an_integer_is_decoded_between_other_bytes(number, before, after):
    """The decoder also returns the index after its end."""
    data = before + primitives.encode_varint(number) + after

    assert (number, len(data) - len(after)) == primitives.decode_varint(data, len(before))


@given(INTEGERS)
def test_the_varint_encoding_equals_that_of_kafka_python(number):
    written = bytearray()
    encode_varint(number, written.append)

    assert bytes(written) == primitives.encode_varint(number)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 11])
def test_an_integer_without_an_end_is_refused(data):
    """The integer is truncated, or longer than 64 bits."""
    with pytest.raises(CorruptRecordsError):
        primitives.decode_varint(data, 0)


def test_varints_wrap_at_64_bits_as_in_java():
    """The difference between the largest and smallest timestamp can be encoded."""
    assert primitives.encode_varint(-1) == primitives.encode_varint(2**64 - 1)
    assert primitives.wrapped(2**63) == -(2**63)

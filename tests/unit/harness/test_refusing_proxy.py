"""The refusing proxy removes APIs from ApiVersions responses of every form that brokers send."""

import struct

import pytest

from tests.harness.kafka.refusing_proxy import UNSUPPORTED_VERSION, without_apis

FETCH, DESCRIBE_PRODUCERS = 1, 61
# Throttle time and, in flexible versions, one tagged field.
END, FLEXIBLE_END = struct.pack(">i", 7), struct.pack(">i", 7) + b"\x01\x00\x02ab"


def entries(keys: list[int], *, flexible: bool) -> bytes:
    return b"".join(struct.pack(">hhh", key, 0, 4) + b"\0" * flexible for key in keys)


@pytest.mark.parametrize("version", [0, 2])
def test_an_api_is_removed_from_a_fixed_array(version: int):
    def response(keys: list[int]) -> bytes:
        return struct.pack(">hi", 0, len(keys)) + entries(keys, flexible=False) + END

    assert without_apis(response([FETCH, DESCRIBE_PRODUCERS]), version, {DESCRIBE_PRODUCERS}) == response(
        [FETCH]
    )


@pytest.mark.parametrize("count", [2, 130])
def test_an_api_is_removed_from_a_compact_array(count: int):
    """The number of entries takes two bytes, for 130 and also for the remaining 129."""
    keys = [DESCRIBE_PRODUCERS, *range(1000, 1000 + count - 1)]

    def response(keys: list[int]) -> bytes:
        number = len(keys) + 1
        head = bytes([number]) if number < 128 else bytes([number & 0x7F | 0x80, number >> 7])
        return struct.pack(">h", 0) + head + entries(keys, flexible=True) + FLEXIBLE_END

    assert without_apis(response(keys), 4, {DESCRIBE_PRODUCERS}) == response(keys[1:])


def test_a_response_to_an_unsupported_version_is_unchanged():
    """The response has version 0, and the client repeats its request."""
    response = struct.pack(">hi", UNSUPPORTED_VERSION, 1) + entries([18], flexible=False)

    assert without_apis(response, 4, {18}) == response

"""A checksum carried over a change is the checksum of what was changed; a wrong one stays wrong."""

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.checksum_update import carried


@given(
    st.binary(min_size=1, max_size=64),
    st.binary(min_size=64, max_size=64),
    st.binary(max_size=300),
    st.integers(0, 70_000),
)
def test_it_is_what_a_pass_over_everything_gives(head, mask, tail, zeros):
    """Whatever is changed, and however much lies behind it."""
    changed = bytes(a ^ b for a, b in zip(head, mask, strict=False))
    behind = tail + bytes(zeros)

    assert crc32c(changed + behind) == crc32c(head + behind) ^ carried(
        crc32c(head) ^ crc32c(changed), len(behind)
    )


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_lengths_add_up(change, first, second):
    """Batches are up to two gigabytes long, and no test has one."""
    assert carried(carried(change, first), second) == carried(change, first + second)

"""Batches are split at their boundaries, verified by checksum, and rewritten without changing records."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire.batch import (
    BatchRefusal,
    checksum_holds,
    crc_delta,
    first_size_bytes,
    raw_refusal,
    rewrite,
    split,
)
from mirrorflow_core.wire.records import Record, decode
from tests.unit.core.wire.foreign import foreign_batch
from tests.unit.core.wire.strategies import CODECS, RECORDS, batch_of, numbered, with_attributes

PLAIN = [Record(0, 1_700_000_000_000, b"k", b"v"), Record(1, 1_700_000_000_005, None, b"")]


def refusal_of(batch, *, from_offset=0, max_bytes=1 << 20, codecs_allowed=None):
    return raw_refusal(batch, from_offset=from_offset, max_bytes=max_bytes, codecs_allowed=codecs_allowed)


@given(st.lists(RECORDS, min_size=1, max_size=3), st.integers(0, 400), st.sampled_from(CODECS))
def test_a_truncated_buffer_yields_exactly_its_whole_batches(batches, missing, codec):
    """A buffer can be truncated anywhere."""
    sources = []
    next_offset = 7
    for records in batches:
        sources.append(batch_of(records, codec=codec, base_offset=next_offset))
        next_offset += len(records)
    data = bytearray().join(batch.data for batch in sources)
    truncated = data[: max(len(data) - missing, 0)]

    batches_found = split(truncated)

    whole = [
        batch
        for i, batch in enumerate(sources)
        if sum(b.size_bytes for b in sources[: i + 1]) <= len(truncated)
    ]
    assert [bytes(batch.data) for batch in whole] == [bytes(batch.data) for batch in batches_found]
    assert [batch.next_offset for batch in whole] == [batch.next_offset for batch in batches_found]


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_split_within_the_buffer(data):
    """Random bytes cause no other error, and no batch extends beyond the buffer."""
    try:
        batches = split(bytearray(data))
    except CorruptRecordsError:
        return
    assert sum(batch.size_bytes for batch in batches) <= len(data)
    assert all(len(batch.data) == batch.size_bytes for batch in batches)


def test_the_size_of_a_truncated_first_batch_is_returned():
    """A caller whose fetch was too small can then fetch enough."""
    data = foreign_batch(PLAIN)

    assert split(data[:70]) == []
    assert len(data) == first_size_bytes(data[:70])
    assert first_size_bytes(data[:11]) == 0


def test_a_corrupt_first_batch_is_an_error_and_a_corrupt_later_one_is_left_out():
    """The batches before unreadable bytes are delivered before the partition stops."""
    good = foreign_batch(PLAIN)
    bad = bytearray(len(good))
    bad[16] = 9

    assert len(split(good + bad)) == 1
    with pytest.raises(CorruptRecordsError):
        split(bad)


def test_the_header_of_a_kafka_python_batch_is_parsed():
    (batch,) = split(foreign_batch(PLAIN))

    assert (
        batch.magic,
        batch.base_offset,
        batch.codec,
        batch.last_offset,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.count,
    ) == (2, 0, 0, 1, 1_700_000_000_000, 1_700_000_000_005, -1, -1, -1, 2)
    assert batch.is_dense
    assert checksum_holds(batch)


@given(RECORDS, st.sampled_from(CODECS), st.data())
def test_the_checksum_detects_one_changed_bit(records, codec, data):
    """The checksum covers all bytes from the attributes on."""
    batch = batch_of(records, codec=codec)
    index = data.draw(st.integers(21, batch.size_bytes - 1))
    batch.data[index] ^= 1 << data.draw(st.integers(0, 7))

    assert not checksum_holds(batch)


@given(
    RECORDS,
    st.sampled_from(CODECS),
    st.lists(
        st.tuples(
            st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.booleans()
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_a_batch_rewritten_several_times_has_the_same_records(records, codec, producers):
    """Rewriting changes only the producer fields."""
    batch = batch_of(records, codec=codec, base_offset=123, producer_id=77)
    body = bytes(batch.data[61:])

    for producer_id, producer_epoch, base_sequence, transactional in producers:
        data = rewrite(
            batch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )

        (rewritten,) = split(data)
        assert checksum_holds(rewritten)
        assert (0, -1, producer_id, producer_epoch, base_sequence, transactional, codec) == (
            rewritten.base_offset,
            rewritten.leader_epoch,
            rewritten.producer_id,
            rewritten.producer_epoch,
            rewritten.base_sequence,
            rewritten.is_transactional,
            rewritten.codec,
        )
        assert body == bytes(data[61:])
        assert numbered(records) == decode(rewritten)


def test_rewriting_drops_the_transaction_of_the_source():
    """A transactional source batch becomes a plain one unless it is written in a transaction."""
    batch = with_attributes(batch_of(PLAIN), 0x10)

    assert batch.is_transactional
    assert not split(rewrite(batch, producer_id=1, producer_epoch=0, base_sequence=0))[0].is_transactional


@pytest.mark.parametrize(
    ("bits", "refusal"),
    [
        (0, None),
        (0x08, BatchRefusal.LOG_APPEND_TIME),
        (0x40, BatchRefusal.DELETE_HORIZON),
        (0x10, None),
        (0x20, None),
    ],
)
def test_some_attributes_prevent_a_raw_copy(bits, refusal):
    """In the target's log, append time and delete horizon would have a different meaning."""
    assert refusal == refusal_of(with_attributes(batch_of(PLAIN), bits))


def test_other_properties_prevent_a_raw_copy():
    """These are the start offset, gaps, codec, size and magic."""
    batch = batch_of(PLAIN, codec=1, base_offset=10)

    assert None is refusal_of(batch, from_offset=10)
    assert refusal_of(batch, from_offset=11) == BatchRefusal.PARTIAL
    assert refusal_of(batch._replace(count=1)) == BatchRefusal.GAPS
    assert refusal_of(batch, codecs_allowed=frozenset({0, 2})) == BatchRefusal.CODEC
    assert None is refusal_of(batch, codecs_allowed=frozenset({1}))
    assert refusal_of(batch, max_bytes=batch.size_bytes - 1) == BatchRefusal.TOO_LARGE
    assert None is refusal_of(batch, max_bytes=batch.size_bytes)
    assert refusal_of(batch._replace(magic=1)) == BatchRefusal.OLD_MAGIC


@given(
    st.binary(min_size=1, max_size=64),
    st.binary(min_size=64, max_size=64),
    st.binary(max_size=300),
    st.integers(0, 70_000),
)
def test_the_crc_delta_equals_a_full_checksum(head, mask, tail, zeros):
    """This holds for any change and any number of bytes after it."""
    changed = bytes(a ^ b for a, b in zip(head, mask, strict=False))
    rest = tail + bytes(zeros)

    assert crc32c(changed + rest) == crc32c(head + rest) ^ crc_delta(
        crc32c(head) ^ crc32c(changed), len(rest)
    )


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_crc_deltas_over_two_lengths_add_up(change, first, second):
    """The sums cover batches of up to two gigabytes, which are too large for a test."""
    assert crc_delta(crc_delta(change, first), second) == crc_delta(change, first + second)

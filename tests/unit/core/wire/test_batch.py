"""Batches are cut without inventing any, checked as their source wrote them, and rewritten without touching records."""

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
def test_a_cut_buffer_gives_its_whole_batches_and_no_other(batches, missing, codec):
    """Whatever is cut off the end, what is returned are the batches that are whole."""
    sources = []
    next_offset = 7
    for records in batches:
        sources.append(batch_of(records, codec=codec, base_offset=next_offset))
        next_offset += len(records)
    data = bytearray().join(batch.data for batch in sources)
    kept = data[: max(len(data) - missing, 0)]

    found = split(kept)

    whole = [
        batch for i, batch in enumerate(sources) if sum(b.size_bytes for b in sources[: i + 1]) <= len(kept)
    ]
    assert [bytes(batch.data) for batch in whole] == [bytes(batch.data) for batch in found]
    assert [batch.next_offset for batch in whole] == [batch.next_offset for batch in found]


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_cut_inside_their_buffer(data):
    """Noise makes no other error than the one that says so, and no batch reaches beyond the buffer."""
    try:
        found = split(bytearray(data))
    except CorruptRecordsError:
        return
    assert sum(batch.size_bytes for batch in found) <= len(data)
    assert all(len(batch.data) == batch.size_bytes for batch in found)


def test_the_size_of_a_cut_first_batch_is_known():
    """A caller whose fetch was too small learns how much it needs."""
    data = foreign_batch(PLAIN)

    assert split(data[:70]) == []
    assert len(data) == first_size_bytes(data[:70])
    assert first_size_bytes(data[:11]) == 0


def test_a_corrupt_first_batch_is_said_and_a_corrupt_later_one_waits():
    """What comes before unreadable bytes is delivered before the partition stops."""
    good = foreign_batch(PLAIN)
    bad = bytearray(len(good))
    bad[16] = 9

    assert len(split(good + bad)) == 1
    with pytest.raises(CorruptRecordsError):
        split(bad)


def test_the_header_of_another_implementation_is_understood():
    """kafka-python's batch says the same of itself as our view of it."""
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
def test_one_changed_bit_is_found(records, codec, data):
    """No bit from the attributes on can change unnoticed."""
    batch = batch_of(records, codec=codec)
    at = data.draw(st.integers(21, batch.size_bytes - 1))
    batch.data[at] ^= 1 << data.draw(st.integers(0, 7))

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
def test_a_rewritten_batch_holds_the_same_records_however_often(records, codec, producers):
    """Rewriting changes whose batch it is, not what it says; and it can be done again."""
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

        (ours,) = split(data)
        assert checksum_holds(ours)
        assert (0, -1, producer_id, producer_epoch, base_sequence, transactional, codec) == (
            ours.base_offset,
            ours.leader_epoch,
            ours.producer_id,
            ours.producer_epoch,
            ours.base_sequence,
            ours.is_transactional,
            ours.codec,
        )
        assert body == bytes(data[61:])
        assert numbered(records) == decode(ours)


def test_the_last_source_transaction_is_forgotten():
    """A transactional source batch becomes a plain one where we do not write in a transaction."""
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
def test_the_attributes_that_forbid_a_raw_copy(bits, refusal):
    """Time of append and delete horizon mean other things in another log."""
    assert refusal == refusal_of(with_attributes(batch_of(PLAIN), bits))


def test_what_else_forbids_a_raw_copy():
    """Position, gaps, codec and size, each by its name."""
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
def test_it_is_what_a_pass_over_everything_gives(head, mask, tail, zeros):
    """Whatever is changed, and however much lies behind it."""
    changed = bytes(a ^ b for a, b in zip(head, mask, strict=False))
    behind = tail + bytes(zeros)

    assert crc32c(changed + behind) == crc32c(head + behind) ^ crc_delta(
        crc32c(head) ^ crc32c(changed), len(behind)
    )


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
def test_lengths_add_up(change, first, second):
    """Batches are up to two gigabytes long, and no test has one."""
    assert crc_delta(crc_delta(change, first), second) == crc_delta(change, first + second)

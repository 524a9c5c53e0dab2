"""A merged batch has the records of its batches in order. It ends where the next batch does not continue it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import DecompressedSizeError
from mirrorflow_core.wire import coalesce as coalesce_module
from mirrorflow_core.wire.batch import Batch, checksum_holds, split
from mirrorflow_core.wire.coalesce import RECORDS_MAX, SMALL_BYTES, coalesce, worth_coalescing
from mirrorflow_core.wire.produce import uncompressed_bytes
from mirrorflow_core.wire.records import Record, decode, encode_as_logged
from tests.unit.core.wire.strategies import CODECS, RECORDS, batch_of, numbered, with_attributes

PRODUCER: dict[str, Any] = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 9}


def consecutive_batches(parts, *, codec=0, base_offset=0):
    """Batches with consecutive offsets."""
    batches: list[Batch] = []
    for records in parts:
        batches.append(batch_of(records, codec=codec, base_offset=base_offset, producer_id=len(batches) - 1))
        base_offset += len(records)
    return batches


def single_record_batches(number, *, size_bytes=100, codec=0):
    return consecutive_batches(
        [[Record(0, 1_700_000_000_000 + i, b"k", b"v" * size_bytes)] for i in range(number)], codec=codec
    )


@given(
    st.lists(RECORDS, min_size=1, max_size=5), st.sampled_from(CODECS), st.integers(0, 2**40), st.booleans()
)
def test_the_merged_batch_has_the_records_of_all_batches(parts, codec, base_offset, transactional):
    """It is dense and has a valid checksum."""
    batches = consecutive_batches(parts, codec=codec, base_offset=base_offset)

    merged = coalesce(batches, max_bytes=1 << 20, transactional=transactional, **PRODUCER)

    (batch,) = split(merged.data)
    records = [record for part in parts for record in part]
    assert numbered(records) == decode(batch)
    assert numbered(records, base_offset) == [record for source in batches for record in decode(source)]
    assert checksum_holds(batch)
    assert batch.is_dense
    assert (len(batches), len(records), base_offset, base_offset + len(records) - 1) == (
        merged.batches,
        merged.records,
        merged.base_offset,
        merged.last_offset,
    )
    assert (codec, transactional, 5, 1, 9, 0) == (
        batch.codec,
        batch.is_transactional,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.base_offset,
    )
    assert max(record.timestamp for record in records) == batch.max_timestamp == merged.max_timestamp


@given(st.lists(RECORDS, min_size=1, max_size=5), st.sampled_from(CODECS), st.integers(100, 20_000))
def test_a_merged_batch_of_several_obeys_the_size_limit(parts, codec, max_bytes):
    """Batches that do not fit are left for the next merged batch."""
    merged = coalesce(consecutive_batches(parts, codec=codec), max_bytes=max_bytes, **PRODUCER)

    assert len(merged.data) <= max_bytes or merged.batches == 1
    assert numbered([r for part in parts[: merged.batches] for r in part]) == decode(split(merged.data)[0])


@given(st.lists(RECORDS, min_size=1, max_size=5), st.sampled_from(CODECS), st.integers(100, 20_000))
def test_a_merged_batch_of_several_obeys_the_uncompressed_size_limit(parts, codec, max_uncompressed_bytes):
    """The compressed size of the batches does not matter."""
    merged = coalesce(
        consecutive_batches(parts, codec=codec),
        max_bytes=1 << 20,
        max_uncompressed_bytes=max_uncompressed_bytes,
        **PRODUCER,
    )

    [batch] = split(merged.data)
    assert uncompressed_bytes(batch) <= max_uncompressed_bytes or merged.batches == 1
    assert numbered([r for part in parts[: merged.batches] for r in part]) == decode(batch)


@given(
    st.lists(st.lists(st.integers(0, 40_000), min_size=1, max_size=4), min_size=2, max_size=12),
    st.sampled_from(CODECS),
    st.booleans(),
)
def test_a_merged_batch_never_expands_beyond_what_clients_accept(sizes, codec, across_gaps):
    """This holds for any codec and limit. A batch that expands too much by itself is not merged."""
    parts = [[Record(0, 5, None, bytes(size)) for size in part] for part in sizes]
    batches = consecutive_batches(parts, codec=codec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coalesce_module, "MERGED_UNCOMPRESSED_BYTES_MAX", 60_000)
        patch.setattr(coalesce_module, "SMALL_UNCOMPRESSED_BYTES", 30_000)
        try:
            merged = coalesce(batches, max_bytes=1 << 30, across_gaps=across_gaps, **PRODUCER)
        except DecompressedSizeError:
            assert uncompressed_bytes(batches[0]) > 30_000
            return

    [batch] = split(merged.data)
    assert uncompressed_bytes(batch) <= 60_000 or merged.batches == 1
    assert numbered([r for part in parts[: merged.batches] for r in part]) == decode(batch)
    if codec and merged.batches < len(batches):
        next_bytes = uncompressed_bytes(batches[merged.batches])
        assert next_bytes > 30_000 or uncompressed_bytes(batch) + next_bytes > 60_000 - 16 * sum(
            map(len, parts)
        )


@given(st.integers(2, 9000))
def test_single_records_are_merged_at_any_offset_and_timestamp_delta(number):
    """Deltas may be negative, and larger than the table of small integers."""
    deltas = sorted({0, 1, 63, 64, 8191, 8192, number})
    batches = [
        batch_of([Record(0, 10_000 - delta, None, b"x" * (delta % 200))], base_offset=delta)
        for delta in deltas
    ]
    batches = [batch._replace(base_offset=i) for i, batch in enumerate(batches)]

    merged = coalesce(batches, max_bytes=1 << 20, **PRODUCER)

    assert [(i, 10_000 - delta, b"x" * (delta % 200)) for i, delta in enumerate(deltas)] == [
        (r.offset, r.timestamp, r.value) for r in decode(split(merged.data)[0])
    ]


def test_many_single_records_become_one_batch():
    """Their offset deltas take one, two and three bytes."""
    batches = single_record_batches(10_000, size_bytes=1)

    merged = coalesce(batches, max_bytes=1 << 22, **PRODUCER)

    assert merged.batches == 10_000
    assert [b.base_timestamp for b in batches] == [
        record.timestamp for record in decode(split(merged.data)[0])
    ]


def test_a_batch_with_a_padded_varint_is_merged():
    """A producer may encode a small integer in more bytes than necessary."""
    batch = batch_of([Record(0, 5, None, b"x")])
    data = bytearray(batch.data)
    length = data[61]
    data[61:62] = bytes([length | 128, 0])
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    (second,) = split(data)

    merged = coalesce([batch, second._replace(base_offset=1)], max_bytes=1000, **PRODUCER)

    assert [Record(0, 5, None, b"x"), Record(1, 5, None, b"x")] == decode(split(merged.data)[0])


@pytest.mark.parametrize("bits", [0x08, 0x20, 0x40, 0x01])
def test_a_run_ends_at_a_batch_that_cannot_be_merged(bits):
    """It ends at append times, markers, delete horizons and different codecs, without skipping a batch."""
    batches = single_record_batches(5)
    batches[3] = with_attributes(batches[3], bits)

    assert worth_coalescing(batches) == 3
    assert coalesce(batches, max_bytes=1 << 20, **PRODUCER).batches == 3


def test_a_run_ends_at_a_gap():
    """Source offsets are consecutive within a merged batch, so that one offset pair determines all."""
    batches = single_record_batches(5)
    del batches[2]

    assert worth_coalescing(batches) == 2
    assert coalesce(batches, max_bytes=1 << 20, **PRODUCER).batches == 2


def test_a_run_ends_at_a_compacted_batch():
    """Records missing within a batch are gaps too."""
    batches = single_record_batches(4)
    batches[2] = batches[2]._replace(last_offset_delta=3)

    assert worth_coalescing(batches) == 2
    assert coalesce(batches, max_bytes=1 << 20, **PRODUCER).batches == 2


@given(
    st.lists(RECORDS, min_size=1, max_size=5),
    st.data(),
    st.sampled_from(CODECS),
)
def test_across_gaps_each_record_keeps_its_source_offset(parts, data, codec):
    """There are gaps within batches and between them."""
    batches, expected, offset = [], [], 100
    for records in parts:
        records_at = []
        for record in records:
            offset += data.draw(st.integers(1, 300))
            records_at.append(record._replace(offset=offset))
        next_offset = offset + data.draw(st.integers(1, 3))
        (batch,) = split(encode_as_logged(records_at, codec=codec, next_offset=next_offset))
        offset = next_offset
        batches.append(batch)
        expected += records_at

    merged = coalesce(batches, max_bytes=1 << 20, across_gaps=True, **PRODUCER)

    offsets = [record.offset for record in expected]
    is_dense = offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    assert offsets == list(merged.offsets or range(merged.base_offset, merged.last_offset + 1))
    assert merged.offsets is None or not is_dense or batches[-1].next_offset > offsets[-1] + 1
    assert numbered(expected) == decode(split(merged.data)[0])
    assert worth_coalescing(batches, across_gaps=True, small_bytes=1 << 20) in {0, len(batches)}


def test_merging_a_batch_that_cannot_be_merged_is_an_error():
    """A caller that skips the check gets an error instead of a wrong batch."""
    with pytest.raises(ValueError, match="cannot be merged"):
        coalesce([with_attributes(single_record_batches(1)[0], 0x08)], max_bytes=1000, **PRODUCER)


def test_single_and_large_batches_are_not_merged():
    large = single_record_batches(3, size_bytes=SMALL_BYTES)

    assert worth_coalescing([]) == 0
    assert worth_coalescing(single_record_batches(1)) == 0
    assert worth_coalescing(large) == 0
    assert worth_coalescing(consecutive_batches([[Record(0, 1, None, b"")] * 17] * 3)) == 0
    assert (
        worth_coalescing(
            consecutive_batches([[Record(0, 1, None, b"")]] * 2 + [[Record(0, 1, None, b"v" * SMALL_BYTES)]])
        )
        == 2
    )


def test_the_records_of_a_merged_batch_are_limited():
    """This limits how many records are sent again after a lost response."""
    assert worth_coalescing(single_record_batches(RECORDS_MAX + 5, size_bytes=1)) == RECORDS_MAX

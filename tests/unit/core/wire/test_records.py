"""Records survive encoding in every codec, as Java's consumers and an independent implementation see them."""

import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire.batch import checksum_holds, seal, split
from mirrorflow_core.wire.codecs import compress
from mirrorflow_core.wire.produce import uncompressed_bytes
from mirrorflow_core.wire.records import Record, RecordOverLimitError, decode, encode, encode_split
from tests.unit.core.wire.foreign import DefaultRecordBatch, LegacyRecordBatchBuilder, foreign_batch
from tests.unit.core.wire.strategies import (
    CODECS,
    FIELDS,
    RECORDS,
    batch_of,
    numbered,
    with_attributes,
)

OURS: dict[str, Any] = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 9}
NEAR = st.integers(0, 2**41)
ASCII_HEADERS = st.lists(
    st.tuples(st.sampled_from([b"a", b"trace-id"]), st.one_of(st.none(), st.binary(max_size=9))), max_size=3
)
FOREIGN = st.lists(
    st.builds(Record, st.just(0), NEAR, FIELDS, FIELDS, ASCII_HEADERS.map(tuple)), min_size=1, max_size=8
)


@given(RECORDS, st.sampled_from(CODECS), st.booleans())
def test_records_survive_a_round_trip(records, codec, transactional):
    """Nulls, empty values, headers, timestamps of all 64 bits; in a dense batch whose checksum holds."""
    (batch,) = split(encode(records, codec=codec, transactional=transactional, **OURS))

    assert numbered(records) == decode(batch)
    assert checksum_holds(batch)
    assert batch.is_dense
    assert (codec, transactional, 5, 1, 9) == (
        batch.codec,
        batch.is_transactional,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
    )
    assert (records[0].timestamp, max(record.timestamp for record in records)) == (
        batch.base_timestamp,
        batch.max_timestamp,
    )


@given(FOREIGN, st.sampled_from((0, 1)))
def test_another_implementation_is_read(records, codec):
    """What kafka-python wrote is what we read."""
    (batch,) = split(foreign_batch(records, codec=codec))

    assert numbered(records) == decode(batch)


@given(FOREIGN, st.sampled_from((0, 1)))
def test_another_implementation_reads_us(records, codec):
    """What we wrote is what kafka-python reads, checksum included."""
    foreign = DefaultRecordBatch(encode(records, codec=codec, **OURS))

    assert foreign.validate_crc()
    assert numbered(records) == [
        Record(
            r.offset, r.timestamp, r.key, r.value, tuple((name.encode(), value) for name, value in r.headers)
        )
        for r in foreign
    ]


@given(FOREIGN)
def test_without_compression_the_bytes_are_those_of_another_implementation(records):
    """Not only the meaning but each byte agrees."""
    ours = encode(records, codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)

    assert bytes(foreign_batch(records))[21:] == bytes(ours)[21:]


def test_offsets_count_from_the_batch():
    """A fetched batch's records are at the source's offsets."""
    records = [Record(0, 1, b"a", None), Record(0, 2, b"b", None)]

    assert [record.offset for record in decode(batch_of(records, base_offset=40))] == [40, 41]


def test_log_append_time_goes_before_the_producers_own():
    """Every record has the time at which the broker appended the batch."""
    batch = with_attributes(batch_of([Record(0, 5, None, b"a"), Record(0, 9, None, b"b")]), 0x08)

    assert [record.timestamp for record in decode(batch)] == [9, 9]


def test_a_delete_horizon_is_a_base_like_any_other():
    """With the horizon in the base timestamp, differences are relative to it."""
    batch = with_attributes(batch_of([Record(0, 5, None, b"a"), Record(0, 9, None, b"b")]), 0x40)
    data = bytearray(batch.data)
    data[27:35] = (1000).to_bytes(8, "big")

    assert [record.timestamp for record in decode(split(seal(data))[0])] == [1000, 1004]


@given(RECORDS, st.sampled_from(CODECS), st.data())
def test_broken_records_are_said_to_be_broken(records, codec, data):
    """Any damage gives records or the one error that says so."""
    batch = batch_of(records, codec=codec)
    at = data.draw(st.integers(57, batch.size_bytes - 1))
    batch.data[at] ^= data.draw(st.integers(1, 255))
    (damaged,) = split(batch.data)

    try:
        decode(damaged)
    except CorruptRecordsError:
        return


@given(RECORDS, st.sampled_from(CODECS), st.integers(80, 12000))
def test_split_batches_hold_all_records_and_obey_the_limit(records, codec, max_bytes):
    """In order, each within the limit, sequences without a gap; or the record that is too large is named."""
    alone = [len(encode([record], codec=codec, **OURS)) for record in records]
    if max(alone) > max_bytes:
        with pytest.raises(RecordOverLimitError) as raised:
            encode_split(records, max_bytes=max_bytes, codec=codec, **OURS)
        assert max_bytes < alone[raised.value.index] == raised.value.size_bytes
        return
    batches = encode_split(
        records,
        max_bytes=max_bytes,
        codec=codec,
        producer_id=1,
        producer_epoch=0,
        base_sequence=2**31 - 2,
    )
    found, sequence = [], 2**31 - 2
    for data, count in batches:
        (batch,) = split(data)
        assert len(data) <= max_bytes
        assert (count, sequence) == (batch.count, batch.base_sequence)
        assert checksum_holds(batch)
        found += decode(batch)
        sequence = (sequence + count) % 2**31
    assert numbered(records) == numbered(found)


@given(RECORDS, st.sampled_from(CODECS), st.integers(100, 20_000))
def test_several_records_obey_the_limit_without_compression(records, codec, max_uncompressed_bytes):
    """One alone may have more: it cannot be split, and the target may take it."""
    parts = encode_split(
        records,
        max_bytes=1 << 20,
        max_uncompressed_bytes=max_uncompressed_bytes,
        codec=codec,
        producer_id=5,
        producer_epoch=1,
        base_sequence=0,
    )

    batches = [split(bytearray(data))[0] for data, _ in parts]
    assert all(uncompressed_bytes(batch) <= max_uncompressed_bytes or batch.count == 1 for batch in batches)
    assert len(records) == sum(count for _, count in parts) == sum(batch.count for batch in batches)


def test_a_batch_needs_a_record():
    """The broker refuses an empty batch, so none is made."""
    with pytest.raises(ValueError, match="needs a record"):
        encode([], codec=0, **OURS)


SMALL = st.one_of(st.none(), st.binary(max_size=30))
MESSAGES = st.lists(st.tuples(st.integers(0, 2**41), SMALL, SMALL), min_size=1, max_size=6)


def message(*, offset, magic, attributes, timestamp, key, value):
    fields = b"".join(
        struct.pack(">i", -1) if f is None else struct.pack(">i", len(f)) + f for f in (key, value)
    )
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"") + fields
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@given(MESSAGES, st.sampled_from((0, 1)))
def test_plain_messages_of_another_implementation_are_read(messages, magic):
    """One entry each; magic 0 knows no timestamp."""
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=1 << 20)
    for i, (timestamp, key, value) in enumerate(messages):
        builder.append(offset=i, timestamp=timestamp, key=key, value=value)

    batches = split(bytearray(builder.build()))

    assert all(checksum_holds(batch) and batch.magic == magic for batch in batches)
    assert list(range(len(messages))) == [batch.base_offset for batch in batches]
    assert [Record(i, t if magic else -1, k, v) for i, (t, k, v) in enumerate(messages)] == [
        record for batch in batches for record in decode(batch)
    ]


@given(MESSAGES, st.sampled_from((0, 1)))
def test_compressed_messages_of_another_implementation_are_read(messages, magic):
    """A wrapper holds its messages."""
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=1, batch_size=1 << 20)
    for i, (timestamp, key, value) in enumerate(messages):
        builder.append(offset=i, timestamp=timestamp, key=key, value=value)
    data = bytearray(builder.build())
    if magic:
        data[0:8] = struct.pack(">q", 99 + len(messages))  # as the broker sets it: the offset of the last

    (batch,) = split(data)

    first = 100 if magic else 0
    assert [Record(first + i, t if magic else -1, k, v) for i, (t, k, v) in enumerate(messages)] == decode(
        batch
    )


@pytest.mark.parametrize("codec", [1, 2, 3])
def test_inner_offsets_of_magic_1_count_from_the_wrappers(codec):
    """The wrapper's offset is that of its last message, also after compaction left gaps."""
    inner = b"".join(
        message(offset=relative, magic=1, attributes=0, timestamp=relative, key=None, value=b"x")
        for relative in (0, 2, 5)
    )
    entry = message(
        offset=105, magic=1, attributes=codec, timestamp=5, key=None, value=compress(codec, inner)
    )

    (batch,) = split(bytearray(entry))

    assert batch.next_offset == 106
    assert [(r.offset, r.timestamp) for r in decode(batch)] == [(100, 0), (102, 2), (105, 5)]


def test_the_brokers_time_goes_before_the_producers():
    """A wrapper stamped by the broker stamps its messages."""
    inner = message(offset=0, magic=1, attributes=0, timestamp=3, key=None, value=b"x")
    entry = message(offset=8, magic=1, attributes=1 | 8, timestamp=77, key=None, value=compress(1, inner))

    assert [Record(8, 77, None, b"x")] == decode(split(bytearray(entry))[0])


def test_a_wrong_lz4_descriptor_checksum_is_no_obstacle():
    """Brokers before 0.10 computed it wrongly (KAFKA-3160)."""
    inner = message(offset=4, magic=0, attributes=0, timestamp=-1, key=b"k", value=b"x")
    value = bytearray(compress(3, inner))
    value[6] ^= 0xFF
    entry = message(offset=4, magic=0, attributes=3, timestamp=-1, key=None, value=bytes(value))

    assert [Record(4, -1, b"k", b"x")] == decode(split(bytearray(entry))[0])


def test_old_and_new_entries_share_a_buffer():
    """After an upgrade of the format, one fetch may bring both."""
    old = message(offset=0, magic=1, attributes=0, timestamp=1, key=None, value=b"old" * 30)
    new = encode([Record(0, 2, None, b"new")], codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)

    found = split(bytearray(old) + new + old + old[:-1])

    assert [batch.magic for batch in found] == [1, 2, 1]
    assert [record.value for batch in found for record in decode(batch)] == [b"old" * 30, b"new", b"old" * 30]


@given(MESSAGES, st.data())
def test_broken_messages_are_said_to_be_broken(messages, data):
    """Any damage gives records or the one error that says so."""
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=1, batch_size=1 << 20)
    for i, (timestamp, key, value) in enumerate(messages):
        builder.append(offset=i, timestamp=timestamp, key=key, value=value)
    entry = bytearray(builder.build())
    entry[data.draw(st.integers(17, len(entry) - 1))] ^= data.draw(st.integers(1, 255))

    for batch in split(entry):
        assert not checksum_holds(batch)
        try:
            decode(batch)
        except CorruptRecordsError:
            continue

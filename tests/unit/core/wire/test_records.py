"""Records are encoded and decoded unchanged in every codec, in agreement with kafka-python."""

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

PRODUCER: dict[str, Any] = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 9}
NEAR = st.integers(0, 2**41)
ASCII_HEADERS = st.lists(
    st.tuples(st.sampled_from([b"a", b"trace-id"]), st.one_of(st.none(), st.binary(max_size=9))), max_size=3
)
FOREIGN = st.lists(
    st.builds(Record, st.just(0), NEAR, FIELDS, FIELDS, ASCII_HEADERS.map(tuple)), min_size=1, max_size=8
)


@given(RECORDS, st.sampled_from(CODECS), st.booleans())
def test_records_survive_a_round_trip(records, codec, transactional):
    """Records have nulls, empty values, headers and 64-bit timestamps; the batch is dense with a valid checksum."""
    (batch,) = split(encode(records, codec=codec, transactional=transactional, **PRODUCER))

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
def test_batches_of_kafka_python_are_decoded(records, codec):
    (batch,) = split(foreign_batch(records, codec=codec))

    assert numbered(records) == decode(batch)


@given(FOREIGN, st.sampled_from((0, 1)))
def test_kafka_python_decodes_encoded_batches(records, codec):
    """The checksum is valid too."""
    foreign = DefaultRecordBatch(encode(records, codec=codec, **PRODUCER))

    assert foreign.validate_crc()
    assert numbered(records) == [
        Record(
            r.offset, r.timestamp, r.key, r.value, tuple((name.encode(), value) for name, value in r.headers)
        )
        for r in foreign
    ]


@given(FOREIGN)
def test_uncompressed_batches_equal_those_of_kafka_python(records):
    encoded = encode(records, codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)

    assert bytes(foreign_batch(records))[21:] == bytes(encoded)[21:]


def test_record_offsets_start_at_the_base_offset():
    records = [Record(0, 1, b"a", None), Record(0, 2, b"b", None)]

    assert [record.offset for record in decode(batch_of(records, base_offset=40))] == [40, 41]


def test_log_append_time_replaces_the_record_timestamps():
    batch = with_attributes(batch_of([Record(0, 5, None, b"a"), Record(0, 9, None, b"b")]), 0x08)

    assert [record.timestamp for record in decode(batch)] == [9, 9]


def test_timestamp_deltas_are_relative_to_the_delete_horizon_if_there_is_one():
    """The delete horizon replaces the base timestamp."""
    batch = with_attributes(batch_of([Record(0, 5, None, b"a"), Record(0, 9, None, b"b")]), 0x40)
    data = bytearray(batch.data)
    data[27:35] = (1000).to_bytes(8, "big")

    assert [record.timestamp for record in decode(split(seal(data))[0])] == [1000, 1004]


@given(RECORDS, st.sampled_from(CODECS), st.data())
def test_damaged_records_cause_only_the_error_for_corrupt_records(records, codec, data):
    batch = batch_of(records, codec=codec)
    index = data.draw(st.integers(57, batch.size_bytes - 1))
    batch.data[index] ^= data.draw(st.integers(1, 255))
    (damaged,) = split(batch.data)

    try:
        decode(damaged)
    except CorruptRecordsError:
        return


@given(RECORDS, st.sampled_from(CODECS), st.integers(80, 12000))
def test_split_batches_have_all_records_and_obey_the_limit(records, codec, max_bytes):
    """Sequence numbers have no gap. A record that exceeds the limit is reported instead."""
    single_sizes = [len(encode([record], codec=codec, **PRODUCER)) for record in records]
    if max(single_sizes) > max_bytes:
        with pytest.raises(RecordOverLimitError) as raised:
            encode_split(records, max_bytes=max_bytes, codec=codec, **PRODUCER)
        assert max_bytes < single_sizes[raised.value.index] == raised.value.size_bytes
        return
    batches = encode_split(
        records,
        max_bytes=max_bytes,
        codec=codec,
        producer_id=1,
        producer_epoch=0,
        base_sequence=2**31 - 2,
    )
    decoded, sequence = [], 2**31 - 2
    for data, count in batches:
        (batch,) = split(data)
        assert len(data) <= max_bytes
        assert (count, sequence) == (batch.count, batch.base_sequence)
        assert checksum_holds(batch)
        decoded += decode(batch)
        sequence = (sequence + count) % 2**31
    assert numbered(records) == numbered(decoded)


@given(RECORDS, st.sampled_from(CODECS), st.integers(100, 20_000))
def test_batches_of_several_records_obey_the_uncompressed_limit(records, codec, max_uncompressed_bytes):
    """A single record may exceed the limit. It cannot be split, and the target may accept it."""
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
    """The broker refuses empty batches."""
    with pytest.raises(ValueError, match="needs a record"):
        encode([], codec=0, **PRODUCER)


SMALL = st.one_of(st.none(), st.binary(max_size=30))
MESSAGES = st.lists(st.tuples(st.integers(0, 2**41), SMALL, SMALL), min_size=1, max_size=6)


def message(*, offset, magic, attributes, timestamp, key, value):
    fields = b"".join(
        struct.pack(">i", -1) if f is None else struct.pack(">i", len(f)) + f for f in (key, value)
    )
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"") + fields
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@given(MESSAGES, st.sampled_from((0, 1)))
def test_uncompressed_messages_of_kafka_python_are_decoded(messages, magic):
    """Each message is one entry. Magic 0 has no timestamp."""
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
def test_compressed_messages_of_kafka_python_are_decoded(messages, magic):
    """A wrapper message contains them."""
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=1, batch_size=1 << 20)
    for i, (timestamp, key, value) in enumerate(messages):
        builder.append(offset=i, timestamp=timestamp, key=key, value=value)
    data = bytearray(builder.build())
    if magic:
        data[0:8] = struct.pack(">q", 99 + len(messages))  # the broker sets the offset of the last message

    (batch,) = split(data)

    first = 100 if magic else 0
    assert [Record(first + i, t if magic else -1, k, v) for i, (t, k, v) in enumerate(messages)] == decode(
        batch
    )


@pytest.mark.parametrize("codec", [1, 2, 3])
def test_inner_offsets_of_magic_1_are_relative_to_the_wrapper(codec):
    """The wrapper has the offset of its last message, even if compaction has left gaps."""
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


def test_the_append_time_of_a_wrapper_applies_to_its_messages():
    inner = message(offset=0, magic=1, attributes=0, timestamp=3, key=None, value=b"x")
    entry = message(offset=8, magic=1, attributes=1 | 8, timestamp=77, key=None, value=compress(1, inner))

    assert [Record(8, 77, None, b"x")] == decode(split(bytearray(entry))[0])


def test_a_wrong_lz4_descriptor_checksum_is_ignored():
    """Brokers before 0.10 computed it wrongly (KAFKA-3160)."""
    inner = message(offset=4, magic=0, attributes=0, timestamp=-1, key=b"k", value=b"x")
    value = bytearray(compress(3, inner))
    value[6] ^= 0xFF
    entry = message(offset=4, magic=0, attributes=3, timestamp=-1, key=None, value=bytes(value))

    assert [Record(4, -1, b"k", b"x")] == decode(split(bytearray(entry))[0])


def test_batches_of_old_and_new_formats_in_one_buffer_are_decoded():
    """After a format upgrade, one fetch response may have both."""
    old = message(offset=0, magic=1, attributes=0, timestamp=1, key=None, value=b"old" * 30)
    new = encode([Record(0, 2, None, b"new")], codec=0, producer_id=-1, producer_epoch=-1, base_sequence=-1)

    batches = split(bytearray(old) + new + old + old[:-1])

    assert [batch.magic for batch in batches] == [1, 2, 1]
    assert [record.value for batch in batches for record in decode(batch)] == [
        b"old" * 30,
        b"new",
        b"old" * 30,
    ]


@given(MESSAGES, st.data())
def test_damaged_messages_cause_only_the_error_for_corrupt_records(messages, data):
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

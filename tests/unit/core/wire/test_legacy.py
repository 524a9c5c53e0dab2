"""Messages of magic 0 and 1 are read as Java's consumers read them."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire.batch import checksum_holds, split
from mirrorflow_core.wire.codecs import compress
from mirrorflow_core.wire.records import Record, decode, encode
from tests.unit.core.wire.foreign import LegacyRecordBatchBuilder

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

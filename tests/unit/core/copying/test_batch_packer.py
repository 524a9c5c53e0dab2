"""The packer emits each queued record once, in order, with correct sequence numbers and within the batch limits."""

import tracemalloc
from itertools import pairwise

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.copying import batch_packer
from mirrorflow_core.copying.batch_packer import Packer
from mirrorflow_core.errors import (
    CorruptBatchError,
    PartitionError,
    RecordTooLargeError,
    UnsupportedBatchError,
)
from mirrorflow_core.partitions import OffsetPair
from mirrorflow_core.source_epochs import SourceEpochs, followed_by
from mirrorflow_core.wire import coalesce, codecs
from mirrorflow_core.wire.batch import (
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    checksum_holds,
    split,
)
from mirrorflow_core.wire.coalesce import MERGED_UNCOMPRESSED_BYTES_MAX
from mirrorflow_core.wire.produce import BatchLimit, uncompressed_bytes
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.stream import Stream
from mirrorflow_core.writer.transaction_log import SEQUENCES
from tests.unit.core.wire.foreign import LegacyRecordBatchBuilder
from tests.unit.core.wire.strategies import CODECS, RECORDS, batch_of, numbered, with_attributes

PLAIN_PRODUCER = Producer("mirrorflow:east:task-0-plain", 77, 3)
TIMESTAMP_MS = 1_700_000_000_000


def stream_at(offset, ordinal=0):
    """A stream that continues with the record at source *offset*, whose ordinal is *ordinal*."""
    return Stream(OffsetPair(source_offset=offset - 1, ordinal=ordinal - 1, target_offset=-1))


def packer_with(batches, *, max_bytes=1 << 20, codecs_allowed=None):
    packer = Packer("orders", 2, "east.orders", PLAIN_PRODUCER)
    packer.limit = BatchLimit(max_batch_bytes=max_bytes, compression_type="producer")
    packer.codecs_allowed = codecs_allowed
    for batch in batches:
        packer.add(batch)
    return packer


def pack_all(packer, stream):
    """All batches of the packer, each taken by the stream as a copier does it."""
    batches = []
    while (batch := packer.next(stream)) is not None:
        data, span = batch
        stream.take(span)
        batches.append((bytes(data), span))
    return batches


def without_offsets(records):
    """The records without their offsets, which may differ in the target."""
    return [record[1:] for record in records]


def small_records(number, size_bytes=20):
    return [Record(0, TIMESTAMP_MS + i, b"k%d" % i, b"v" * size_bytes) for i in range(number)]


def compacted(batch, removed):
    """The batch after compaction without the records at the indexes *removed*, as LogCleaner writes it."""
    kept = [record for i, record in enumerate(decode(batch)) if i not in removed]
    count = batch.last_offset_delta + 1
    builder = bytearray(
        batch_of([r._replace(offset=0) for r in kept] or small_records(1), base_offset=batch.base_offset).data
    )
    (dense,) = split(builder)
    if not kept:
        return None
    body = bytearray(builder[61:])
    # Each offset delta takes one byte: rewrite it to the original offset of the record.
    position = 0
    out = bytearray()
    for record in kept:
        length, start = _varint(body, position)
        end = start + length
        _, after_time = _varint(body, start + 1)
        _, after_delta = _varint(body, after_time)
        fields = body[start:after_time] + _zigzag(record.offset - batch.base_offset) + body[after_delta:end]
        out += _zigzag(len(fields)) + fields
        position = end
    data = bytearray(builder[:61]) + out
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[23:27] = (count - 1).to_bytes(4, "big")
    _seal(data)
    (gapped,) = split(data)
    assert not gapped.is_dense or not removed
    assert dense.count == gapped.count
    return gapped


def _varint(body, position):
    value = shift = 0
    while True:
        byte = body[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position


def _zigzag(value):
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return out


def _seal(data):
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")


@st.composite
def sources(draw):
    """Source batches as a broker serves them: any codec, any attribute bits, gaps inside and between batches."""
    offset = draw(st.integers(0, 2**40))
    codec = draw(st.sampled_from(CODECS))
    batches = []
    for _ in range(draw(st.integers(1, 6))):
        codec = draw(st.sampled_from((codec, *CODECS)))
        batch = batch_of(draw(RECORDS), codec=codec, base_offset=offset, producer_id=draw(st.integers(-1, 5)))
        bits = draw(st.sampled_from((0, 0, 0, TRANSACTIONAL_BIT, LOG_APPEND_TIME_BIT, DELETE_HORIZON_BIT)))
        offset = batch.next_offset + draw(st.sampled_from((0, 0, 0, 1, 7)))
        if bits:
            batch = with_attributes(batch, bits)
        elif batch.count > 1 and draw(st.integers(0, 3)) == 0:
            batch = compacted(batch, draw(st.sets(st.integers(0, batch.count - 1), max_size=3))) or batch
        batches.append(batch)
    return batches


def test_compacted_batches_are_not_merged_in_a_codec_that_the_target_refuses():
    """Merging would keep the codec, so these batches are encoded again."""
    batches = [compacted(batch_of(small_records(3), base_offset=offset), {1}) for offset in (0, 3)]
    packer = packer_with(batches, codecs_allowed=frozenset({4}))
    packer.merges_across_gaps = True

    out = pack_all(packer, stream_at(0, 0))

    assert {4} == {split(bytearray(body))[0].codec for body, _ in out}
    assert 4 == sum(span.count for _, span in out)


@given(
    sources(),
    st.data(),
    st.sampled_from((0, 5, SEQUENCES - 2, SEQUENCES + 9)),
    st.sampled_from((20_000, 30_000, 1 << 20)),  # one record has at most 18,000 bytes and headers
    st.sampled_from((None, frozenset(CODECS), frozenset({0, 1, 2, 3}), frozenset({4}))),
    st.booleans(),
)
def test_the_packer_emits_exactly_the_queued_records(
    batches, data, ordinal, max_bytes, codecs_allowed, merges_across_gaps
):
    """The start may lie inside a batch. Spans follow each other, and sequence numbers wrap at 2^31."""
    records = [record for batch in batches for record in decode(batch)]
    start = data.draw(st.integers(batches[0].base_offset, batches[0].last_offset))
    expected = [record for record in records if record.offset >= start]
    end = batches[-1].next_offset
    stream = stream_at(start, ordinal)
    packer = packer_with(batches, max_bytes=max_bytes, codecs_allowed=codecs_allowed)
    packer.merges_across_gaps = merges_across_gaps

    out = pack_all(packer, stream)

    sent = []
    for body, span in out:
        (batch,) = split(bytearray(body))
        decoded = decode(batch)
        sent += decoded
        assert checksum_holds(batch)
        assert batch.is_dense
        assert len(body) <= max_bytes
        assert (0, -1, 77, 3, span.first % SEQUENCES, span.count, len(body), batch.max_timestamp) == (
            batch.base_offset,
            batch.leader_epoch,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.count,
            span.size_bytes,
            span.max_timestamp,
        )
        assert not batch.attributes & (TRANSACTIONAL_BIT | LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT)
        assert codecs_allowed is None or batch.codec in codecs_allowed
    assert without_offsets(expected) == without_offsets(sent)
    spans = [span for _, span in out]
    assert all(before.last + 1 == after.first for before, after in pairwise(spans))
    assert all(before.next_offset <= after.base_offset for before, after in pairwise(spans))
    assert (end, ordinal + len(expected)) == (stream.next_offset, stream.next_ordinal)
    ordinals = range(ordinal, ordinal + len(expected))
    span_of = {span.first + i: span for span in spans for i in range(span.count)}
    assert [r.offset for r in expected] == [span_of[n].source_offset(n) for n in ordinals]
    assert not packer
    assert 0 == packer.queued_bytes
    assert len(batches) >= packer.raw + packer.coalesced + packer.reencoded


def test_compacted_batches_are_sent_as_one_if_merging_across_gaps_is_on():
    """A compacted log has many batches of few records; one round trip for each would be too slow."""
    source, offset = [], 10
    for _ in range(10):
        source.append(compacted(batch_of(numbered(small_records(8)), base_offset=offset), {0, 3, 4, 7}))
        offset += 9  # eight records and a marker
    packer, stream = packer_with(source), stream_at(10)
    packer.merges_across_gaps = True

    [(_, span)] = pack_all(packer, stream)

    assert [r.offset for batch in source for r in decode(batch)] == list(span.offsets)
    assert source[-1].next_offset == span.next_offset


def test_a_large_batch_is_sent_unchanged():
    """The bytes after the header stay the same, in the same memory."""
    batch = batch_of(small_records(50, 200), codec=4, base_offset=7)
    packer = packer_with([batch])
    before = bytes(batch.data[61:])

    data, _ = packer.next(stream_at(7))

    assert data is batch.data
    assert before == bytes(data[61:])
    assert (1, 0, 0) == (packer.raw, packer.coalesced, packer.reencoded)


def test_small_batches_are_merged():
    """The overhead of separate batches would exceed their size."""
    batches = [batch_of(small_records(1), base_offset=i) for i in range(100)]
    packer = packer_with(batches)

    out = pack_all(packer, stream_at(0))

    assert [100] == [span.count for _, span in out]
    assert (0, 100, 0) == (packer.raw, packer.coalesced, packer.reencoded)


def test_a_single_small_batch_is_sent_unchanged():
    """The packer does not wait for more batches."""
    packer = packer_with([batch_of(small_records(1))])

    pack_all(packer, stream_at(0))

    assert (1, 0, 0) == (packer.raw, packer.coalesced, packer.reencoded)


def test_messages_of_old_formats_are_encoded_as_batches():
    """Brokers accept only magic 2."""
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1 << 20)
    for i in range(3):
        builder.append(offset=i, timestamp=TIMESTAMP_MS + i, key=b"k", value=b"%d" % i)
    packer = packer_with(split(bytearray(builder.build())))

    out = pack_all(packer, stream_at(0))

    assert [b"0", b"1", b"2"] == [
        record.value for data, _ in out for batch in split(bytearray(data)) for record in decode(batch)
    ]
    assert 3 == packer.reencoded


def corrupted(batch):
    data = bytearray(batch.data)
    data[-1] ^= 1
    (broken,) = split(data)
    return broken


@pytest.mark.parametrize("bits", [0, LOG_APPEND_TIME_BIT])
def test_a_corrupt_batch_never_gets_a_new_checksum(bits):
    """A new checksum would hide the corruption, however the batch is packed."""
    batch = batch_of(small_records(5), base_offset=40)
    packer = packer_with([corrupted(with_attributes(batch, bits) if bits else batch)])
    packer.verifies = True

    with pytest.raises(CorruptBatchError) as caught:
        packer.next(stream_at(40))

    assert 40 == caught.value.offset


def test_a_corrupt_batch_that_is_sent_unchanged_fails_the_checksum_at_the_target():
    """The checksum is adjusted without reading the records, so it stays wrong and the target refuses the batch."""
    packer = packer_with([corrupted(batch_of(small_records(5), base_offset=40))])

    data, _ = packer.next(stream_at(40))

    assert not checksum_holds(split(data)[0])


def test_batches_before_a_corrupt_one_are_copied():
    """A corrupt batch among small ones that are merged stops only itself and the batches after it."""
    batches = [batch_of(small_records(1), base_offset=i) for i in range(10)]
    batches[4] = corrupted(batches[4])
    packer, stream = packer_with(batches), stream_at(0)
    packer.verifies = True

    stream.take(packer.next(stream)[1])

    assert 4 == stream.next_ordinal
    with pytest.raises(CorruptBatchError) as caught:
        packer.next(stream)
    assert 4 == caught.value.offset


def test_an_undecodable_batch_with_a_valid_checksum_is_sent_to_the_target():
    """A valid checksum shows that the source has stored these bytes; the target decides about them."""
    batches = [batch_of(small_records(1), base_offset=i) for i in range(4)]
    data = bytearray(batches[2].data)
    data[61] = 0x7F
    _seal(data)
    (batches[2],) = split(data)
    packer, stream = packer_with(batches), stream_at(0)

    spans = [span for _, span in pack_all(packer, stream)]

    assert 4 == sum(span.count for span in spans)


def test_a_corrupt_batch_stays_queued_after_its_error():
    """The copier packs the batch again when nothing is in flight, and must get the same error."""
    packer, stream = packer_with([corrupted(batch_of(small_records(2)))]), stream_at(0)
    packer.verifies = True

    for _ in range(2):
        with pytest.raises(PartitionError):
            packer.next(stream)


def test_a_record_that_is_too_large_is_reported_by_offset_size_and_topic():
    """The records before it in its batch are sent first."""
    records = [*small_records(2), Record(0, TIMESTAMP_MS, b"k", bytes(5000))]
    packer, stream = packer_with([batch_of(records, base_offset=100)], max_bytes=1000), stream_at(100)

    data, span = packer.next(stream)
    stream.take(span)
    with pytest.raises(RecordTooLargeError, match=r"orders-2: .* 102 .* east\.orders") as caught:
        packer.next(stream)

    assert without_offsets(small_records(2)) == without_offsets(decode(split(bytearray(data))[0]))
    assert 102 == span.next_offset
    assert (102, True) == (caught.value.offset, caught.value.size_bytes > 5000)


def test_a_batch_without_records_to_copy_advances_the_stream():
    """Compaction left only records before the offset at which copying continues, so there is nothing to send."""
    gapped = compacted(batch_of(numbered(small_records(4)), base_offset=10), {2, 3})
    packer, stream = packer_with([gapped]), stream_at(12)

    assert packer.next(stream) is None
    assert (14, 13) == (stream.next_offset, stream.delivered.source_offset)


def test_skipped_offsets_are_delivered_with_the_batch_before_them():
    """A marker after a queued batch is delivered with it, so that a position does not stay before the marker."""
    packer, stream = packer_with([batch_of(small_records(2))]), stream_at(0)
    packer.pass_over(5, -1, stream)

    [(_, span)] = pack_all(packer, stream)

    assert (5, 1) == (span.next_offset, span.source_offset(1))


def test_skipped_offsets_after_a_split_batch_are_delivered_with_its_last_part():
    """Only the last part of the batch extends to these offsets."""
    packer, stream = packer_with([batch_of(small_records(8, 300))], max_bytes=1000), stream_at(0)
    first = packer.next(stream)[1]
    stream.take(first)
    packer.pass_over(20, -1, stream)

    spans = [span for _, span in pack_all(packer, stream)]

    assert first.next_offset <= 8
    assert [20] == [span.next_offset for span in spans if span.next_offset > 8]


def test_clear_removes_all_queued_records():
    """After a resync all records are fetched again, so a queued one would be sent twice."""
    packer, stream = (
        packer_with([batch_of(small_records(8, 300), base_offset=o) for o in (0, 8)], max_bytes=1000),
        stream_at(0),
    )
    packer.next(stream)

    packer.clear()

    assert (False, 0, None) == (bool(packer), packer.queued_bytes, packer.next(stream))


def batch_with_timestamps(*timestamps, base_offset=0):
    """A batch of records with these timestamps."""
    return batch_of(
        [Record(0, timestamp, b"k", b"v" * 5_000) for timestamp in timestamps], base_offset=base_offset
    )


def test_an_old_batch_waits_for_the_transaction():
    """The header shows that the oldest record is too old; the batches before it are sent as plain ones."""
    packer = packer_with(
        [
            batch_with_timestamps(TIMESTAMP_MS),
            batch_with_timestamps(TIMESTAMP_MS - 10, TIMESTAMP_MS, base_offset=1),
            batch_with_timestamps(-1, base_offset=3),
        ]
    )
    packer.old_before_ms = TIMESTAMP_MS - 5
    stream = stream_at(0)

    before = pack_all(packer, stream)
    needed, packer.transactional = packer.needs_transaction, True
    after = pack_all(packer, stream)

    assert needed
    assert [1, 2] == [len(before), len(after)]
    assert [0, 1, 1] == [
        bool(split(bytearray(data))[0].attributes & TRANSACTIONAL_BIT) for data, _ in (*before, *after)
    ]
    assert all(checksum_holds(split(bytearray(data))[0]) for data, _ in (*before, *after))


def with_leader_epoch(batch, epoch):
    """The batch as a source leader of *epoch* has appended it."""
    data = bytearray(batch.data)
    data[12:16] = epoch.to_bytes(4, "big")
    (changed,) = split(data)
    return changed


@pytest.mark.parametrize("merges_across_gaps", [True, False])
def test_batches_are_merged_up_to_a_new_leader_epoch(merges_across_gaps):
    """A position has one leader epoch. If the source loses that epoch, records of earlier epochs stay valid."""
    batches = [
        with_leader_epoch(batch_of(small_records(1), base_offset=offset), offset // 4) for offset in range(8)
    ]
    packer = packer_with(batches)
    packer.merges_across_gaps = merges_across_gaps

    spans = [span for _, span in pack_all(packer, stream_at(0))]

    assert [(4, 0), (4, 1)] == [(span.count, span.source_epoch) for span in spans]


def test_plain_batches_are_merged_up_to_an_old_record():
    batches = [
        batch_of([Record(0, timestamp, b"k", b"v")], base_offset=offset)
        for offset, timestamp in enumerate((TIMESTAMP_MS, TIMESTAMP_MS, TIMESTAMP_MS - 10, TIMESTAMP_MS))
    ]
    packer, stream = packer_with(batches), stream_at(0)
    packer.old_before_ms = TIMESTAMP_MS - 5

    before = pack_all(packer, stream)
    needed, packer.transactional = packer.needs_transaction, True
    after = pack_all(packer, stream)

    assert needed
    assert 2 == sum(span.count for _, span in before)
    assert 2 == sum(span.count for _, span in after)


def test_parts_of_a_split_batch_follow_the_current_write_mode():
    """The batch is split in two, with a commit in between."""
    packer = packer_with([batch_with_timestamps(TIMESTAMP_MS, TIMESTAMP_MS)], max_bytes=6_000)
    stream = stream_at(0)
    packer.transactional = True

    (first, span), packer.transactional = packer.next(stream), False
    stream.take(span)
    (second, _) = packer.next(stream)

    assert [True, False] == [
        bool(split(bytearray(data))[0].attributes & TRANSACTIONAL_BIT) for data in (first, second)
    ]
    assert checksum_holds(split(bytearray(second))[0])


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=12),
    st.sampled_from([400, 1 << 20]),
    st.integers(0, 5),
)
def test_the_start_offset_of_each_leader_epoch_is_recorded(entries, max_bytes, fetched_ahead):
    """An epoch may start with a record or a skipped offset, and after queued, split, sent or no batches."""
    packer, stream = packer_with([], max_bytes=max_bytes), stream_at(0)
    offset, epoch, ordinal = 0, 0, -1
    epochs: SourceEpochs = ()
    for index, (is_batch, count, newer) in enumerate(entries):
        epoch += newer
        epochs = followed_by(epochs, epoch, offset)
        offset += count
        if is_batch:
            packer.add(
                with_leader_epoch(batch_of(small_records(count, 100), base_offset=offset - count), epoch)
            )
            ordinal += count
        else:
            packer.pass_over(offset, epoch, stream)
        if index >= fetched_ahead and (sent := packer.next(stream)) is not None:
            stream.take(sent[1])
    pack_all(packer, stream)
    while stream.in_flight:
        stream.acknowledge(stream.in_flight[0].first)

    assert epochs == stream.epochs
    assert (offset - 1, ordinal, epoch) == (
        stream.delivered.source_offset,
        stream.delivered.ordinal,
        stream.delivered.source_epoch,
    )


def padding_batches(number, *, padding_bytes, codec):
    """Batches of one record each that is almost all padding."""
    padding = bytes(padding_bytes)
    return [
        batch_of([Record(0, TIMESTAMP_MS + i, b"k%d" % i, padding)], codec=codec, base_offset=i)
        for i in range(number)
    ]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("across_gaps", [False, True])
def test_batches_of_padding_are_merged_within_bounded_memory(codec, across_gaps):
    """Merged batches and the memory for merging are limited by the uncompressed size."""
    batches = padding_batches(200, padding_bytes=200 << 10, codec=codec)
    packer, stream = packer_with(batches), stream_at(0)
    packer.merges_across_gaps = across_gaps

    tracemalloc.start()
    sent = pack_all(packer, stream)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    out = [split(bytearray(data))[0] for data, _ in sent]
    assert sum(batch.count for batch in out) == 200
    assert [span.base_offset for _, span in sent] == [0, *(span.next_offset for _, span in sent)][:-1]
    assert max(uncompressed_bytes(batch) for batch in out) <= MERGED_UNCOMPRESSED_BYTES_MAX
    assert peak_bytes < 5 * MERGED_UNCOMPRESSED_BYTES_MAX


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_expands_too_much_to_be_merged_is_sent_unchanged(codec, monkeypatch):
    """Its compressed size does not matter."""
    monkeypatch.setattr(coalesce, "SMALL_UNCOMPRESSED_BYTES", 60_000)
    batches = padding_batches(3, padding_bytes=60_000, codec=codec)
    packer = packer_with(batches)

    sent = pack_all(packer, stream_at(0))

    assert (packer.raw, packer.coalesced, packer.reencoded) == (3, 0, 0)
    assert [bytes(batch.data)[61:] for batch in batches] == [data[61:] for data, _ in sent]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_expands_much_is_encoded_again_in_pieces(codec, monkeypatch):
    """The pieces have all records of the batch, and the queued bytes are limited."""
    monkeypatch.setattr(batch_packer, "REENCODED_BYTES_MAX", 10_000)
    batch = with_attributes(batch_of(small_records(200, 300), codec=codec), LOG_APPEND_TIME_BIT)
    packer, stream = packer_with([batch, batch_of(small_records(3), base_offset=200)]), stream_at(0)

    records, largest_bytes = [], 0
    while (batch_and_span := packer.next(stream)) is not None:
        data, span = batch_and_span
        stream.take(span)
        [piece] = split(bytearray(data))
        assert uncompressed_bytes(piece) <= 10_000
        records += decode(piece)
        largest_bytes = max(largest_bytes, packer.queued_bytes)

    assert without_offsets(decode(batch) + small_records(3)) == without_offsets(records)
    assert 0 == packer.queued_bytes
    assert largest_bytes <= batch.size_bytes + 10_000 + 200


def test_a_batch_that_must_be_decoded_but_expands_too_much_stops_the_partition(monkeypatch):
    """The error names the offset and the limit, and does not call the batch corrupt."""
    monkeypatch.setattr(codecs, "DECOMPRESSED_BYTES_MAX", 100_000)
    batch = with_attributes(padding_batches(1, padding_bytes=200_000, codec=4)[0], LOG_APPEND_TIME_BIT)

    with pytest.raises(UnsupportedBatchError, match=r"offset 0 .* expands to more than 100000 bytes"):
        packer_with([batch]).next(stream_at(0))

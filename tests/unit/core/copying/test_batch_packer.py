"""Whatever batches come in, what goes out are the same records: once, in order, in sequence, within the limits."""

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

WRITER = Producer("mirrorflow:east:task-0-plain", 77, 3)
WHEN = 1_700_000_000_000


def stream_at(offset, ordinal=0):
    """A stream that continues with the record at source *offset*, whose ordinal is *ordinal*."""
    return Stream(OffsetPair(source_offset=offset - 1, ordinal=ordinal - 1, target_offset=-1))


def packer_of(batches, *, max_bytes=1 << 20, codecs_allowed=None):
    packer = Packer("orders", 2, "east.orders", WRITER)
    packer.limit = BatchLimit(max_batch_bytes=max_bytes, compression_type="producer")
    packer.codecs_allowed = codecs_allowed
    for batch in batches:
        packer.add(batch)
    return packer


def packed(packer, stream):
    """Everything the packer gives, taken by the stream as a copier would."""
    found = []
    while (one := packer.next(stream)) is not None:
        data, span = one
        stream.take(span)
        found.append((bytes(data), span))
    return found


def as_seen(records):
    """What a consumer compares: all but the offset."""
    return [record[1:] for record in records]


def small(number, size_bytes=20):
    return [Record(0, WHEN + i, b"k%d" % i, b"v" * size_bytes) for i in range(number)]


def without(batch, places):
    """The same batch after compaction: the records at *places* are gone, offsets and the rest stay (LogCleaner)."""
    kept = [record for i, record in enumerate(decode(batch)) if i not in places]
    count = batch.last_offset_delta + 1
    builder = bytearray(
        batch_of([r._replace(offset=0) for r in kept] or small(1), base_offset=batch.base_offset).data
    )
    (dense,) = split(builder)
    if not kept:
        return None
    body = bytearray(builder[61:])
    # Deltas of one byte each: rewrite them to the places that were kept.
    at = 0
    out = bytearray()
    for record in kept:
        length, start = _varint(body, at)
        end = start + length
        _, after_time = _varint(body, start + 1)
        _, after_delta = _varint(body, after_time)
        fields = body[start:after_time] + _zigzag(record.offset - batch.base_offset) + body[after_delta:end]
        out += _zigzag(len(fields)) + fields
        at = end
    data = bytearray(builder[:61]) + out
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[23:27] = (count - 1).to_bytes(4, "big")
    _seal(data)
    (gapped,) = split(data)
    assert not gapped.is_dense or not places
    assert dense.count == gapped.count
    return gapped


def _varint(body, at):
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


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
    """Batches of a source as a broker serves them: any codec, bits, gaps within and between them."""
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
            batch = without(batch, draw(st.sets(st.integers(0, batch.count - 1), max_size=3))) or batch
        batches.append(batch)
    return batches


def test_compacted_batches_of_a_codec_that_the_target_refuses_are_not_merged_in_it():
    """Merging keeps the codec, so they are encoded anew instead."""
    batches = [without(batch_of(small(3), base_offset=offset), {1}) for offset in (0, 3)]
    packer = packer_of(batches, codecs_allowed=frozenset({4}))
    packer.merges_across_gaps = True

    out = packed(packer, stream_at(0, 0))

    assert {4} == {split(bytearray(body))[0].codec for body, _ in out}
    assert 4 == sum(span.count for _, span in out)


@given(
    sources(),
    st.data(),
    st.sampled_from((0, 5, SEQUENCES - 2, SEQUENCES + 9)),
    st.sampled_from((20_000, 30_000, 1 << 20)),  # a record alone has at most 9,000 bytes twice, and headers
    st.sampled_from((None, frozenset(CODECS), frozenset({0, 1, 2, 3}), frozenset({4}))),
    st.booleans(),
)
def test_what_goes_out_are_the_records_that_came_in(
    batches, data, ordinal, max_bytes, codecs_allowed, merges_across_gaps
):
    """From any offset on, also one inside a batch: same records, spans without a gap, sequences modulo 2^31."""
    records = [record for batch in batches for record in decode(batch)]
    start = data.draw(st.integers(batches[0].base_offset, batches[0].last_offset))
    wanted = [record for record in records if record.offset >= start]
    end = batches[-1].next_offset
    stream = stream_at(start, ordinal)
    packer = packer_of(batches, max_bytes=max_bytes, codecs_allowed=codecs_allowed)
    packer.merges_across_gaps = merges_across_gaps

    out = packed(packer, stream)

    sent = []
    for body, span in out:
        (batch,) = split(bytearray(body))
        found = decode(batch)
        sent += found
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
    assert as_seen(wanted) == as_seen(sent)
    spans = [span for _, span in out]
    assert all(before.last + 1 == after.first for before, after in pairwise(spans))
    assert all(before.next_offset <= after.base_offset for before, after in pairwise(spans))
    assert (end, ordinal + len(wanted)) == (stream.next_offset, stream.next_ordinal)
    ordinals = range(ordinal, ordinal + len(wanted))
    where = {span.first + i: span for span in spans for i in range(span.count)}
    assert [r.offset for r in wanted] == [
        where[n].source_offset(n)
        if n != where[n].last
        else where[n].next_offset - 1 - _behind(where[n], wanted, n - ordinal)
        for n in ordinals
    ]
    assert not packer
    assert 0 == packer.queued_bytes
    assert len(batches) >= packer.raw + packer.coalesced + packer.reencoded


def _behind(span, wanted, index):
    """How many offsets the span counts behind its last record: nothing of the stream was there."""
    return span.next_offset - 1 - wanted[index].offset


def test_what_compaction_has_left_goes_out_as_one_batch_where_batches_merge_across_gaps():
    """A cleaned log is many batches of few records: one round trip for each would take for ever."""
    source, offset = [], 10
    for _ in range(10):
        source.append(without(batch_of(numbered(small(8)), base_offset=offset), {0, 3, 4, 7}))
        offset += 9  # a marker, too, was between two of them
    packer, stream = packer_of(source), stream_at(10)
    packer.merges_across_gaps = True

    [(_, span)] = packed(packer, stream)

    assert [r.offset for batch in source for r in decode(batch)] == list(span.offsets)
    assert source[-1].next_offset == span.next_offset


def test_a_large_batch_goes_out_as_it_came():
    """Its records are not touched: the same bytes behind the header, in the same memory."""
    batch = batch_of(small(50, 200), codec=4, base_offset=7)
    packer = packer_of([batch])
    before = bytes(batch.data[61:])

    data, _ = packer.next(stream_at(7))

    assert data is batch.data
    assert before == bytes(data[61:])
    assert (1, 0, 0) == (packer.raw, packer.coalesced, packer.reencoded)


def test_small_batches_go_out_together():
    """A request's share each would cost more than their bytes."""
    batches = [batch_of(small(1), base_offset=i) for i in range(100)]
    packer = packer_of(batches)

    out = packed(packer, stream_at(0))

    assert [100] == [span.count for _, span in out]
    assert (0, 100, 0) == (packer.raw, packer.coalesced, packer.reencoded)


def test_a_lone_small_batch_goes_out_as_it_came():
    """Nothing is held back to wait for another."""
    packer = packer_of([batch_of(small(1))])

    packed(packer, stream_at(0))

    assert (1, 0, 0) == (packer.raw, packer.coalesced, packer.reencoded)


def test_old_messages_are_written_as_batches():
    """Brokers take magic 2 alone."""
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1 << 20)
    for i in range(3):
        builder.append(offset=i, timestamp=WHEN + i, key=b"k", value=b"%d" % i)
    packer = packer_of(split(bytearray(builder.build())))

    out = packed(packer, stream_at(0))

    assert [b"0", b"1", b"2"] == [
        record.value for data, _ in out for batch in split(bytearray(data)) for record in decode(batch)
    ]
    assert 3 == packer.reencoded


def corrupt(batch):
    data = bytearray(batch.data)
    data[-1] ^= 1
    (broken,) = split(data)
    return broken


@pytest.mark.parametrize("bits", [0, LOG_APPEND_TIME_BIT])
def test_a_corrupt_batch_is_never_laundered(bits):
    """A fresh checksum would make wrong bytes look right, on every path."""
    batch = batch_of(small(5), base_offset=40)
    packer = packer_of([corrupt(with_attributes(batch, bits) if bits else batch)])
    packer.verifies = True

    with pytest.raises(CorruptBatchError) as caught:
        packer.next(stream_at(40))

    assert 40 == caught.value.offset


def test_a_corrupt_batch_that_goes_as_it_is_fails_the_targets_check():
    """Its checksum is carried over, wrong as it is: the target says so before anybody takes it for whole."""
    packer = packer_of([corrupt(batch_of(small(5), base_offset=40))])

    data, _ = packer.next(stream_at(40))

    assert not checksum_holds(split(data)[0])


def test_what_comes_before_a_corrupt_batch_is_copied():
    """Among small batches that would go out together, one broken one stops itself and what follows, no more."""
    batches = [batch_of(small(1), base_offset=i) for i in range(10)]
    batches[4] = corrupt(batches[4])
    packer, stream = packer_of(batches), stream_at(0)
    packer.verifies = True

    stream.take(packer.next(stream)[1])

    assert 4 == stream.next_ordinal
    with pytest.raises(CorruptBatchError) as caught:
        packer.next(stream)
    assert 4 == caught.value.offset


def test_a_batch_that_cannot_be_taken_apart_stops_no_other():
    """Its checksum holds, so these are the source's bytes: the target judges them."""
    batches = [batch_of(small(1), base_offset=i) for i in range(4)]
    data = bytearray(batches[2].data)
    data[61] = 0x7F
    _seal(data)
    (batches[2],) = split(data)
    packer, stream = packer_of(batches), stream_at(0)

    spans = [span for _, span in packed(packer, stream)]

    assert 4 == sum(span.count for span in spans)


def test_a_corrupt_batch_is_met_again_after_what_comes_before_is_through():
    """The copier takes the next batch again when nothing is in flight any more: the refusal must not have removed it."""
    packer, stream = packer_of([corrupt(batch_of(small(2)))]), stream_at(0)
    packer.verifies = True

    for _ in range(2):
        with pytest.raises(PartitionError):
            packer.next(stream)


def test_a_record_that_is_too_large_alone_is_named():
    """By its source offset and size, with the limit's topic, once what comes before it in its batch is out."""
    records = [*small(2), Record(0, WHEN, b"k", bytes(5000))]
    packer, stream = packer_of([batch_of(records, base_offset=100)], max_bytes=1000), stream_at(100)

    data, span = packer.next(stream)
    stream.take(span)
    with pytest.raises(RecordTooLargeError, match=r"orders-2: .* 102 .* east\.orders") as caught:
        packer.next(stream)

    assert as_seen(small(2)) == as_seen(decode(split(bytearray(data))[0]))
    assert 102 == span.next_offset
    assert (102, True) == (caught.value.offset, caught.value.size_bytes > 5000)


def test_a_batch_of_nothing_wanted_moves_the_stream():
    """Compaction left only records before the one we go on with: nothing to send, and no waiting for it either."""
    gapped = without(batch_of(numbered(small(4)), base_offset=10), {2, 3})
    packer, stream = packer_of([gapped]), stream_at(12)

    assert packer.next(stream) is None
    assert (14, 13) == (stream.next_offset, stream.delivered.source_offset)


def test_what_is_left_out_counts_with_what_comes_before_it():
    """A marker behind a queued batch: delivered together, so that a position never stays below it."""
    packer, stream = packer_of([batch_of(small(2))]), stream_at(0)
    packer.pass_over(5, -1, stream)

    [(_, span)] = packed(packer, stream)

    assert (5, 4) == (span.next_offset, span.source_offset(1))


def test_what_is_left_out_behind_a_batch_that_is_being_cut_counts_with_its_last_part():
    """It was cut into several; only the last of them reaches so far."""
    packer, stream = packer_of([batch_of(small(8, 300))], max_bytes=1000), stream_at(0)
    first = packer.next(stream)[1]
    stream.take(first)
    packer.pass_over(20, -1, stream)

    spans = [span for _, span in packed(packer, stream)]

    assert first.next_offset <= 8
    assert [20] == [span.next_offset for span in spans if span.next_offset > 8]


def test_forgetting_leaves_nothing():
    """After a resync all is fetched again: what was kept would be sent twice."""
    packer, stream = (
        packer_of([batch_of(small(8, 300), base_offset=o) for o in (0, 8)], max_bytes=1000),
        stream_at(0),
    )
    packer.next(stream)

    packer.clear()

    assert (False, 0, None) == (bool(packer), packer.queued_bytes, packer.next(stream))


def aged(*timestamps, base_offset=0):
    """A batch of records of these times."""
    return batch_of([Record(0, at, b"k", b"v" * 5_000) for at in timestamps], base_offset=base_offset)


def test_an_old_batch_waits_for_the_transaction():
    """A batch whose oldest record is old by its header; those before it are copied unchanged."""
    packer = packer_of([aged(WHEN), aged(WHEN - 10, WHEN, base_offset=1), aged(-1, base_offset=3)])
    packer.old_before_ms = WHEN - 5
    stream = stream_at(0)

    before = packed(packer, stream)
    needed, packer.transactional = packer.needs_transaction, True
    behind = packed(packer, stream)

    assert needed
    assert [1, 2] == [len(before), len(behind)]
    assert [0, 1, 1] == [
        bool(split(bytearray(data))[0].attributes & TRANSACTIONAL_BIT) for data, _ in (*before, *behind)
    ]
    assert all(checksum_holds(split(bytearray(data))[0]) for data, _ in (*before, *behind))


def in_epoch(batch, epoch):
    """The same batch, appended by another leader of the source."""
    data = bytearray(batch.data)
    data[12:16] = epoch.to_bytes(4, "big")
    (changed,) = split(data)
    return changed


@pytest.mark.parametrize("merges_across_gaps", [True, False])
def test_batches_are_merged_up_to_a_new_leader_epoch(merges_across_gaps):
    """A position names one leader epoch; where the source loses it, what was copied of the epoch before stays copied."""
    batches = [in_epoch(batch_of(small(1), base_offset=at), at // 4) for at in range(8)]
    packer = packer_of(batches)
    packer.merges_across_gaps = merges_across_gaps

    spans = [span for _, span in packed(packer, stream_at(0))]

    assert [(4, 0), (4, 1)] == [(span.count, span.source_epoch) for span in spans]


def test_plain_batches_are_merged_up_to_an_old_record():
    batches = [
        batch_of([Record(0, at, b"k", b"v")], base_offset=offset)
        for offset, at in enumerate((WHEN, WHEN, WHEN - 10, WHEN))
    ]
    packer, stream = packer_of(batches), stream_at(0)
    packer.old_before_ms = WHEN - 5

    before = packed(packer, stream)
    needed, packer.transactional = packer.needs_transaction, True
    behind = packed(packer, stream)

    assert needed
    assert 2 == sum(span.count for _, span in before)
    assert 2 == sum(span.count for _, span in behind)


def test_what_was_encoded_before_the_transaction_goes_inside_it_and_out_of_it():
    """A batch that was cut in two, with a commit in between."""
    packer = packer_of([aged(WHEN, WHEN)], max_bytes=6_000)
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
def test_a_leader_epoch_is_known_by_where_it_begins_in_the_source(entries, max_bytes, fetched_ahead):
    """Whether it begins with a record or with a skipped offset, behind queued, split and sent batches or none."""
    packer, stream = packer_of([], max_bytes=max_bytes), stream_at(0)
    offset, epoch, ordinal = 0, 0, -1
    epochs: SourceEpochs = ()
    for index, (is_batch, count, newer) in enumerate(entries):
        epoch += newer
        epochs = followed_by(epochs, epoch, offset)
        offset += count
        if is_batch:
            packer.add(in_epoch(batch_of(small(count, 100), base_offset=offset - count), epoch))
            ordinal += count
        else:
            packer.pass_over(offset, epoch, stream)
        if index >= fetched_ahead and (one := packer.next(stream)) is not None:
            stream.take(one[1])
    packed(packer, stream)
    while stream.in_flight:
        stream.acknowledge(stream.in_flight[0].first)

    assert epochs == stream.epochs
    assert (offset - 1, ordinal, epoch) == (
        stream.delivered.source_offset,
        stream.delivered.ordinal,
        stream.delivered.source_epoch,
    )


def padded(number, *, padding_bytes, codec):
    """Batches of one record each, nearly all padding."""
    padding = bytes(padding_bytes)
    return [
        batch_of([Record(0, WHEN + i, b"k%d" % i, padding)], codec=codec, base_offset=i)
        for i in range(number)
    ]


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("across_gaps", [False, True])
def test_batches_of_padding_are_merged_within_bounded_memory(codec, across_gaps):
    """However small they are compressed: each merged batch, and the memory of merging, has a limit."""
    batches = padded(200, padding_bytes=200 << 10, codec=codec)
    packer, stream = packer_of(batches), stream_at(0)
    packer.merges_across_gaps = across_gaps

    tracemalloc.start()
    sent = packed(packer, stream)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    out = [split(bytearray(data))[0] for data, _ in sent]
    assert sum(batch.count for batch in out) == 200
    assert [span.base_offset for _, span in sent] == [0, *(span.next_offset for _, span in sent)][:-1]
    assert max(uncompressed_bytes(batch) for batch in out) <= MERGED_UNCOMPRESSED_BYTES_MAX
    assert peak_bytes < 5 * MERGED_UNCOMPRESSED_BYTES_MAX


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_a_batch_that_expands_too_much_to_be_merged_is_sent_unchanged(codec, monkeypatch):
    """However small it is compressed."""
    monkeypatch.setattr(coalesce, "SMALL_UNCOMPRESSED_BYTES", 60_000)
    batches = padded(3, padding_bytes=60_000, codec=codec)
    packer = packer_of(batches)

    sent = packed(packer, stream_at(0))

    assert (packer.raw, packer.coalesced, packer.reencoded) == (3, 0, 0)
    assert [bytes(batch.data)[61:] for batch in batches] == [data[61:] for data, _ in sent]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_that_expands_much_is_encoded_again_in_pieces(codec, monkeypatch):
    """The pieces together are the batch; what waits to be sent is counted and bounded."""
    monkeypatch.setattr(batch_packer, "REENCODED_BYTES_MAX", 10_000)
    batch = with_attributes(batch_of(small(200, 300), codec=codec), LOG_APPEND_TIME_BIT)
    packer, stream = packer_of([batch, batch_of(small(3), base_offset=200)]), stream_at(0)

    found, largest_bytes = [], 0
    while (one := packer.next(stream)) is not None:
        data, span = one
        stream.take(span)
        [piece] = split(bytearray(data))
        assert uncompressed_bytes(piece) <= 10_000
        found += decode(piece)
        largest_bytes = max(largest_bytes, packer.queued_bytes)

    assert as_seen(decode(batch) + small(3)) == as_seen(found)
    assert 0 == packer.queued_bytes
    assert largest_bytes <= batch.size_bytes + 10_000 + 200


def test_a_batch_that_must_be_decoded_but_expands_too_much_stops_its_partition(monkeypatch):
    """The error names the offset and the limit, and does not call the batch corrupt."""
    monkeypatch.setattr(codecs, "DECOMPRESSED_BYTES_MAX", 100_000)
    batch = with_attributes(padded(1, padding_bytes=200_000, codec=4)[0], LOG_APPEND_TIME_BIT)

    with pytest.raises(UnsupportedBatchError, match=r"offset 0 .* expands to more than 100000 bytes"):
        packer_of([batch]).next(stream_at(0))

"""With any codec and size limit of the target, each record is copied once and in order with few refusals.

The stub target checks sizes as a broker does (UnifiedLog.append): on arrival, and again after recompression.
"""

from dataclasses import dataclass, field
from functools import cache
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorflow_core.copying.batch_packer import Packer
from mirrorflow_core.errors import RecordTooLargeError
from mirrorflow_core.wire.batch import HEADER_BYTES, Batch, split
from mirrorflow_core.wire.codecs import LZ4, NAMES, NONE, ZSTD, compress, decompress
from mirrorflow_core.wire.produce import DEFAULT_BYTES, UNLIMITED, limit_of
from mirrorflow_core.wire.records import Record, decode
from mirrorflow_core.writer.stream import Stream
from tests.unit.core.copying.test_batch_packer import PLAIN_PRODUCER, TIMESTAMP_MS, stream_at, without_offsets
from tests.unit.core.wire.strategies import CODECS, batch_of

PRODUCER = "producer"
CODEC_OF = {"uncompressed": NONE} | {name: codec for codec, name in enumerate(NAMES) if codec}
COMPRESSION_TYPES = (PRODUCER, *CODEC_OF)


@dataclass
class Target:
    """A topic's leader that checks batch sizes."""

    max_message_bytes: int
    compression_type: str
    describes_limits: bool  # DescribeConfigs is allowed
    appended: list[Record] = field(default_factory=list)
    refusals: int = 0

    @property
    def described(self) -> dict[str, str]:
        """The settings that DescribeConfigs returns."""
        return {
            "max.message.bytes": str(self.max_message_bytes),
            "segment.bytes": str(1 << 30),
            "compression.type": self.compression_type,
        }

    def append(self, data: bytes) -> bool:
        """Appends the batch, or returns False if it is too large."""
        [batch] = split(bytearray(data))
        if max(len(data), self._stored_bytes(batch)) > self.max_message_bytes:
            self.refusals += 1
            return False
        self.appended += decode(batch)
        return True

    def _stored_bytes(self, batch: Batch) -> int:
        codec = CODEC_OF.get(self.compression_type, batch.codec)
        if codec == batch.codec:
            return batch.size_bytes
        return HEADER_BYTES + len(compress(codec, decompress(batch.codec, batch.data[HEADER_BYTES:])))


def copy(source: list[bytes], target: Target) -> RecordTooLargeError | None:
    """Copies *source*, adapting limits as `copy.batch_limits` does; returns the error that stops the partition."""
    packer = Packer("orders", 2, "east.orders", PLAIN_PRODUCER)
    stream = stream_at(0)
    known_limit = None
    _fetch(source, packer, stream)
    while True:
        try:
            packed = packer.next(stream)
        except RecordTooLargeError as error:
            return error
        if packed is None:
            return None
        data, span = packed
        if target.append(bytes(data)):
            stream.take(span)
            stream.acknowledge(span.first)
            continue
        if span.count > 1:
            packer.limit = packer.limit.after_refusal()
        limit = limit_of(target.described) if target.describes_limits else None
        if limit is not None and limit != known_limit:
            known_limit = packer.limit = limit
        elif span.count == 1:
            return packer.too_large(span.base_offset, span.size_bytes)
        packer.clear()
        _fetch(source, packer, stream)


def _fetch(source: list[bytes], packer: Packer, stream: Stream) -> None:
    """Adds copies of all undelivered batches, because packing changes a batch in place."""
    for data in source:
        for batch in split(bytearray(data)):
            if batch.next_offset > stream.next_offset:
                packer.add(batch)


def source_of(*batches: tuple[int, list[Record]]) -> list[bytes]:
    """The (codec, records) batches as a log stores them, one after the other."""
    offset = 0
    encoded = []
    for codec, records in batches:
        batch = batch_of(records, codec=codec, base_offset=offset)
        offset = batch.next_offset
        encoded.append(bytes(batch.data))
    return encoded


def records_of(source: list[bytes]) -> list[Record]:
    return [record for data in source for batch in split(bytearray(data)) for record in decode(batch)]


def compressible_records(count: int, size_bytes: int) -> list[Record]:
    """Different records that compress very well."""
    return [Record(0, TIMESTAMP_MS + n, b"k%d" % n, b"%08d" % n + bytes(size_bytes)) for n in range(count)]


VALUES = st.one_of(
    st.binary(max_size=40),
    st.integers(0, 6_000).map(bytes),
    st.tuples(st.binary(min_size=1, max_size=8), st.integers(1, 400)).map(lambda it: it[0] * it[1]),
    st.tuples(st.randoms(use_true_random=False), st.integers(0, 3_000)).map(
        lambda it: it[0].randbytes(it[1])
    ),
)
BATCHES = st.lists(
    st.tuples(
        st.sampled_from(CODECS),
        st.lists(VALUES, min_size=1, max_size=30).map(
            lambda values: [Record(0, TIMESTAMP_MS + n, None, value) for n, value in enumerate(values)]
        ),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=2 * settings().max_examples)
@given(
    BATCHES,
    st.sampled_from((300, 1_000, 4_000, 20_000, DEFAULT_BYTES)),
    st.sampled_from(COMPRESSION_TYPES),
    st.booleans(),
)
def test_any_source_is_copied_to_any_target_with_few_refusals(
    batches, limit, compression_type, describes_limits
):
    source = source_of(*batches)
    target = Target(limit, compression_type, describes_limits)

    error = copy(source, target)

    expected = without_offsets(records_of(source))
    assert without_offsets(target.appended) == expected[: len(target.appended)]
    # If settings can be read, one refusal is enough; otherwise sizes are halved until they fit.
    assert target.refusals <= (
        1 if describes_limits else 2 + ceil(log2(DEFAULT_BYTES / limit)) + (error is not None)
    )
    if error is None:
        assert len(expected) == len(target.appended)
    else:
        record = records_of(source)[error.offset]
        assert len(target.appended) == error.offset
        assert limit < max(len(batch_of([record], codec=codec).data) for codec in CODECS)


@cache
def large_and_small_sources(codec: int) -> list[tuple[list[bytes], list[object]]]:
    """Two sources, each with the records that a consumer receives."""
    huge = source_of((codec, compressible_records(3_000, 1_000)))
    small_records = source_of(*[(codec, compressible_records(8, 1_000)) for _ in range(300)])
    return [(source, without_offsets(records_of(source))) for source in (huge, small_records)]


@pytest.mark.parametrize("describes_limits", [True, False])
@pytest.mark.parametrize("compression_type", COMPRESSION_TYPES)
@pytest.mark.parametrize("codec", CODECS)
def test_a_large_batch_and_many_small_ones_cause_at_most_two_refusals(
    codec, compression_type, describes_limits
):
    """The first estimate is the default limit, so unknown settings cost at most one more refusal."""
    for source, expected in large_and_small_sources(codec):
        target = Target(DEFAULT_BYTES, compression_type, describes_limits)
        assert copy(source, target) is None
        assert expected == without_offsets(target.appended)
        assert target.refusals <= 1 if describes_limits else target.refusals <= 2


@pytest.mark.parametrize("describes_limits", [True, False])
def test_a_record_that_is_too_large_after_recompression_stops_the_partition(describes_limits):
    """The records before it in its batch are copied."""
    source = source_of(
        (
            ZSTD,
            [*compressible_records(5, 100), *compressible_records(1, 50_000), *compressible_records(5, 100)],
        )
    )
    target = Target(20_000, "uncompressed", describes_limits)

    error = copy(source, target)

    assert error is not None
    assert (5, 5) == (error.offset, len(target.appended))
    assert "recompression" in str(error)
    assert "raise max.message.bytes of east.orders" in str(error)


def test_a_record_that_fits_after_recompression_is_copied():
    """The target compresses it with zstd, although the source stores it uncompressed."""
    source = source_of(
        (NONE, compressible_records(5, 100)),
        (NONE, compressible_records(1, 50_000)),
        (LZ4, compressible_records(5, 100)),
    )
    target = Target(20_000, "zstd", describes_limits=True)

    assert copy(source, target) is None
    assert (11, 1) == (len(target.appended), target.refusals)


def test_the_estimate_halves_with_each_refusal_and_never_grows():
    limit, sizes = UNLIMITED, []
    for _ in range(30):
        limit = limit.after_refusal()
        sizes.append(limit.max_uncompressed_bytes)

    assert DEFAULT_BYTES == sizes[0]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1


def test_incomplete_settings_yield_no_limit():
    """An older broker, or one that hides a setting, returns incomplete settings."""
    assert limit_of({"max.message.bytes": "1000"}) is None
    assert limit_of({"compression.type": "producer"}) is None
    assert limit_of({"max.message.bytes": "1000", "compression.type": "brotli"}) is None


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_no_batch_crosses_a_cut(counts, data):
    """Each record is sent once and in order, whether its batch is merged or sent unchanged."""
    source = source_of(*((NONE, compressible_records(count, 10)) for count in counts))
    cut_at = data.draw(st.integers(0, sum(counts)))
    packer = Packer("orders", 2, "east.orders", PLAIN_PRODUCER)
    packer.cut_at = cut_at
    stream = stream_at(0)
    _fetch(source, packer, stream)

    appended = []
    while (packed := packer.next(stream)) is not None:
        encoded, span = packed
        assert not span.base_offset < cut_at <= span.source_offset(span.last)
        stream.take(span)
        stream.acknowledge(span.first)
        [batch] = split(bytearray(encoded))
        appended += decode(batch)

    assert [record.value for record in appended] == [record.value for record in records_of(source)]

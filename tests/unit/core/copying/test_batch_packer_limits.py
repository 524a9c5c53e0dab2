"""Whatever the codecs and the limit of a target, packing ends, keeps every record once and in order, and is hardly refused.

The target here checks as a broker does (UnifiedLog.append): the batch as it arrives, and again after recompression.
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
from tests.unit.core.copying.test_batch_packer import WHEN, WRITER, as_seen, stream_at
from tests.unit.core.wire.strategies import CODECS, batch_of

PRODUCER = "producer"
CODEC_OF = {"uncompressed": NONE} | {name: codec for codec, name in enumerate(NAMES) if codec}
COMPRESSION_TYPES = (PRODUCER, *CODEC_OF)


@dataclass
class Target:
    """A topic's leader, as far as sizes go."""

    max_message_bytes: int
    compression_type: str
    describes_limits: bool  # DescribeConfigs is allowed
    taken: list[Record] = field(default_factory=list)
    refusals: int = 0

    @property
    def told(self) -> dict[str, str]:
        """What DescribeConfigs returns."""
        return {
            "max.message.bytes": str(self.max_message_bytes),
            "segment.bytes": str(1 << 30),
            "compression.type": self.compression_type,
        }

    def takes(self, data: bytes) -> bool:
        """Append the batch, or refuse it for its size."""
        [batch] = split(bytearray(data))
        if max(len(data), self._stored_bytes(batch)) > self.max_message_bytes:
            self.refusals += 1
            return False
        self.taken += decode(batch)
        return True

    def _stored_bytes(self, batch: Batch) -> int:
        codec = CODEC_OF.get(self.compression_type, batch.codec)
        if codec == batch.codec:
            return batch.size_bytes
        return HEADER_BYTES + len(compress(codec, decompress(batch.codec, batch.data[HEADER_BYTES:])))


def copy(source: list[bytes], target: Target) -> RecordTooLargeError | None:
    """Copy all batches of *source*, learning as `copy.batch_limits` does; the error that stops the partition."""
    packer = Packer("orders", 2, "east.orders", WRITER)
    stream = stream_at(0)
    told = None
    _fetch(source, packer, stream)
    while True:
        try:
            packed = packer.next(stream)
        except RecordTooLargeError as error:
            return error
        if packed is None:
            return None
        data, span = packed
        if target.takes(bytes(data)):
            stream.take(span)
            stream.acknowledge(span.first)
            continue
        if span.count > 1:
            packer.limit = packer.limit.after_refusal()
        now = limit_of(target.told) if target.describes_limits else None
        if now is not None and now != told:
            told = packer.limit = now
        elif span.count == 1:
            return packer.too_large(span.base_offset, span.size_bytes)
        packer.clear()
        _fetch(source, packer, stream)


def _fetch(source: list[bytes], packer: Packer, stream: Stream) -> None:
    """Fresh bytes of what is not delivered yet: packing has changed the previous ones."""
    for data in source:
        for batch in split(bytearray(data)):
            if batch.next_offset > stream.next_offset:
                packer.add(batch)


def source_of(*batches: tuple[int, list[Record]]) -> list[bytes]:
    """Batches of (codec, records) as a log holds them, one after the other."""
    offset = 0
    found = []
    for codec, records in batches:
        batch = batch_of(records, codec=codec, base_offset=offset)
        offset = batch.next_offset
        found.append(bytes(batch.data))
    return found


def records_of(source: list[bytes]) -> list[Record]:
    return [record for data in source for batch in split(bytearray(data)) for record in decode(batch)]


def alike(count: int, size_bytes: int) -> list[Record]:
    """Records that differ and compress very well."""
    return [Record(0, WHEN + n, b"k%d" % n, b"%08d" % n + bytes(size_bytes)) for n in range(count)]


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
            lambda values: [Record(0, WHEN + n, None, value) for n, value in enumerate(values)]
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
def test_any_source_is_copied_to_any_target_within_a_few_refusals(
    batches, limit, compression_type, describes_limits
):
    source = source_of(*batches)
    target = Target(limit, compression_type, describes_limits)

    error = copy(source, target)

    wanted = as_seen(records_of(source))
    assert as_seen(target.taken) == wanted[: len(target.taken)]
    # Where settings may be read the first refusal explains all; else sizes are halved until they fit.
    assert target.refusals <= (
        1 if describes_limits else 2 + ceil(log2(DEFAULT_BYTES / limit)) + (error is not None)
    )
    if error is None:
        assert len(wanted) == len(target.taken)
    else:
        record = records_of(source)[error.offset]
        assert len(target.taken) == error.offset
        assert limit < max(len(batch_of([record], codec=codec).data) for codec in CODECS)


@cache
def huge_and_small(codec: int) -> list[tuple[list[bytes], list[object]]]:
    """Two sources, each with the records that a reader sees."""
    huge = source_of((codec, alike(3_000, 1_000)))
    small = source_of(*[(codec, alike(8, 1_000)) for _ in range(300)])
    return [(source, as_seen(records_of(source))) for source in (huge, small)]


@pytest.mark.parametrize("describes_limits", [True, False])
@pytest.mark.parametrize("compression_type", COMPRESSION_TYPES)
@pytest.mark.parametrize("codec", CODECS)
def test_a_huge_batch_and_many_small_ones_take_one_refusal(codec, compression_type, describes_limits):
    """The default limit is what is guessed first, so not knowing the settings costs nothing more."""
    for source, wanted in huge_and_small(codec):
        target = Target(DEFAULT_BYTES, compression_type, describes_limits)
        assert copy(source, target) is None
        assert wanted == as_seen(target.taken)
        assert target.refusals <= 1 if describes_limits else target.refusals <= 2


@pytest.mark.parametrize("describes_limits", [True, False])
def test_one_record_too_large_after_recompression_stops_its_partition(describes_limits):
    """What comes before it in its batch is copied."""
    source = source_of((ZSTD, [*alike(5, 100), *alike(1, 50_000), *alike(5, 100)]))
    target = Target(20_000, "uncompressed", describes_limits)

    error = copy(source, target)

    assert error is not None
    assert (5, 5) == (error.offset, len(target.taken))
    assert "recompression" in str(error)
    assert "raise max.message.bytes of east.orders" in str(error)


def test_one_record_that_the_target_makes_small_is_copied():
    """Its size counts as zstd, although it arrives from the source without compression."""
    source = source_of((NONE, alike(5, 100)), (NONE, alike(1, 50_000)), (LZ4, alike(5, 100)))
    target = Target(20_000, "zstd", describes_limits=True)

    assert copy(source, target) is None
    assert (11, 1) == (len(target.taken), target.refusals)


def test_a_guess_that_was_learned_is_not_forgotten():
    """Half as much after each refusal, never more again."""
    limit, sizes = UNLIMITED, []
    for _ in range(30):
        limit = limit.after_refusal()
        sizes.append(limit.max_uncompressed_bytes)

    assert DEFAULT_BYTES == sizes[0]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1


def test_settings_that_say_too_little_make_no_limit():
    """A broker older than a setting, or one that hides it."""
    assert limit_of({"max.message.bytes": "1000"}) is None
    assert limit_of({"compression.type": "producer"}) is None
    assert limit_of({"max.message.bytes": "1000", "compression.type": "brotli"}) is None


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.data())
def test_no_batch_holds_records_from_both_sides_of_a_cut(counts, data):
    """Whatever is merged or sent as it is: every record once and in order."""
    source = source_of(*((NONE, alike(count, 10)) for count in counts))
    cut_at = data.draw(st.integers(0, sum(counts)))
    packer = Packer("orders", 2, "east.orders", WRITER)
    packer.cut_at = cut_at
    stream = stream_at(0)
    _fetch(source, packer, stream)

    taken = []
    while (packed := packer.next(stream)) is not None:
        encoded, span = packed
        assert not span.base_offset < cut_at <= span.source_offset(span.last)
        stream.take(span)
        stream.acknowledge(span.first)
        [batch] = split(bytearray(encoded))
        taken += decode(batch)

    assert [one.value for one in taken] == [one.value for one in records_of(source)]

"""Strategies for records and batches of the wire format."""

from collections.abc import Sequence

from hypothesis import strategies as st

from mirrorflow_core.wire.batch import Batch, seal, split
from mirrorflow_core.wire.records import Record, encode

CODECS = (0, 1, 2, 3, 4)
TIMESTAMPS = st.one_of(
    st.just(-1),
    st.integers(1_700_000_000_000, 1_700_000_020_000),
    st.integers(-(2**63), 2**63 - 1),
)
FIELDS = st.one_of(
    st.none(), st.just(b""), st.binary(max_size=40), st.integers(50, 9000).map(lambda size: b"v" * size)
)
HEADERS = st.lists(
    st.tuples(st.binary(max_size=9), st.one_of(st.none(), st.binary(max_size=9))), max_size=3
).map(tuple)
RECORDS = st.lists(
    st.builds(Record, st.just(0), TIMESTAMPS, FIELDS, FIELDS, HEADERS),
    min_size=1,
    max_size=8,
)


def numbered(records: Sequence[Record], first_offset: int = 0) -> list[Record]:
    """The records with consecutive offsets."""
    return [record._replace(offset=first_offset + i) for i, record in enumerate(records)]


def batch_of(
    records: Sequence[Record], *, codec: int = 0, base_offset: int = 0, producer_id: int = -1
) -> Batch:
    """A dense batch with offsets from *base_offset* on, as a source broker serves it."""
    data = encode(records, codec=codec, producer_id=producer_id, producer_epoch=0, base_sequence=0)
    data[0:8] = base_offset.to_bytes(8, "big")
    (batch,) = split(data)
    return batch


def with_attributes(batch: Batch, bits: int) -> Batch:
    """The batch with additional attribute bits and a new checksum."""
    data = bytearray(batch.data)
    data[21:23] = (batch.attributes | bits).to_bytes(2, "big")
    seal(data)
    data[0:8] = batch.base_offset.to_bytes(8, "big")
    (changed,) = split(data)
    return changed

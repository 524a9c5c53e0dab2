"""Tests that columns become the batches that a log stores, with the same records as columns decoded from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.batch import checksum_holds, split
from mirrorflow_core.wire.records import Record, decode, encode_as_logged
from mirrorflow_seed.archive import log_batches
from mirrorflow_seed.archive.log_batches import BATCH_OFFSETS, BATCH_RECORDS, EncodedBatch
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of
from tests.unit.core.wire.strategies import CODECS, RECORDS

pytest.importorskip("pyarrow")


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records with increasing offsets and gaps of any size between them."""
    log, offset = [], draw(st.integers(0, 2**40))
    for drawn in draw(RECORDS):
        log.append(drawn._replace(offset=offset))
        offset += 1 + draw(st.sampled_from([0, 0, 0, 1, 100, 2**31, 2**35]))
    return log


def batches_of(log: list[Record]) -> list[EncodedBatch]:
    return list(log_batches.log_batches(columns_of(log, CREATE_TIME)))


@given(logs(), st.sampled_from(CODECS), st.integers(0, 1000))
def test_batches_are_those_of_the_records(log: list[Record], codec: int, beyond: int) -> None:
    """Byte for byte as the records one by one, where a batch begins and ends."""
    rest = list(log)
    for batch in batches_of(log):
        part, rest = rest[: batch.count], rest[batch.count :]
        next_offset = batch.last_offset + 1 + beyond
        data = batch.encode(codec=codec, next_offset=next_offset)

        (logged,) = split(data)
        assert checksum_holds(logged)
        assert decode(logged) == part
        assert data == encode_as_logged(part, codec=codec, next_offset=next_offset)
    assert rest == []


@given(logs(), st.integers(0, 8), st.data())
def test_rows_of_a_part_of_columns_become_batches(log: list[Record], row: int, data: st.DataObject) -> None:
    """The buffers of such a part begin before its rows."""
    count = data.draw(st.integers(0, 8))
    part = columns_of(log, CREATE_TIME).slice(min(row, len(log)), count)

    records = [
        record
        for batch in log_batches.log_batches(part)
        for record in decode(split(batch.encode(codec=0, next_offset=batch.last_offset + 1))[0])
    ]

    assert records == log[row : row + count]


def test_a_batch_ends_after_the_record_that_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_batches, "BATCH_BYTES", 20)
    log = [Record(offset, 1, None, b"v" * size) for offset, size in enumerate((4, 3, 9, 20, 1))]

    assert [batch.count for batch in batches_of(log)] == [3, 1, 1]


def test_a_batch_has_a_limited_number_of_records_and_offsets() -> None:
    log = [Record(offset, 1, None, None) for offset in range(BATCH_RECORDS + 3)]
    far = [Record(offset, 1, None, None) for offset in (0, BATCH_OFFSETS - 1, BATCH_OFFSETS)]

    assert [batch.count for batch in batches_of(log)] == [BATCH_RECORDS, 3]
    assert [batch.count for batch in batches_of(far)] == [2, 1]

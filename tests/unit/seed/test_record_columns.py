"""Tests that batches become the same records as columns as they do one by one, and damaged ones the same error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire.batch import LOG_APPEND_TIME_BIT, Batch, seal, split
from mirrorflow_core.wire.records import Record, decode, encode, encode_as_logged
from mirrorflow_seed.record_columns import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP_TYPE,
    ColumnBuilder,
    columns_of,
    records_of,
    timestamp_type,
)
from tests.unit.core.wire.old_messages import log_of_wrappers
from tests.unit.core.wire.strategies import CODECS, RECORDS, batch_of, numbered, with_attributes

pytest.importorskip("pyarrow")

VARINT_BYTES_MAX = 10


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Batches of any codec and timestamp type, with gaps in them and between them."""
    log, offset = [], draw(st.integers(0, 2**40))
    for drawn in draw(st.lists(RECORDS, min_size=1, max_size=4)):
        records = []
        for record in drawn:
            offset += draw(st.sampled_from([0, 0, 0, 1, 100, 2**20]))
            records.append(record._replace(offset=offset))
            offset += 1
        offset += draw(st.sampled_from([0, 0, 3]))
        data = encode_as_logged(records, codec=draw(st.sampled_from(CODECS)), next_offset=offset)
        (batch,) = split(data)
        log.append(with_attributes(batch, LOG_APPEND_TIME_BIT) if draw(st.booleans()) else batch)
    return log


def decoded(*batches: Batch, start: int | None = None, end: int | None = None) -> list[Record]:
    """Returns the records of *batches* as columns have them."""
    builder = ColumnBuilder() if start is None or end is None else ColumnBuilder(start=start, end=end)
    for batch in batches:
        builder.add(batch)
    return records_of(builder.finish())


@given(logs(), st.data())
def test_batches_become_the_records_that_consumers_see(log: list[Batch], data: st.DataObject) -> None:
    expected = [(record, timestamp_type(batch)) for batch in log for record in decode(batch)]
    start = data.draw(st.integers(log[0].base_offset - 1, log[-1].next_offset))
    end = data.draw(st.integers(start, log[-1].next_offset + 1))
    builder = ColumnBuilder(start=start, end=end)
    for batch in log:
        builder.add(batch)

    columns = builder.finish()

    wanted = [(record, kind) for record, kind in expected if start <= record.offset < end]
    assert records_of(columns) == [record for record, _ in wanted]
    assert columns.column("timestamp_type").to_pylist() == [kind for _, kind in wanted]
    if wanted:
        # Bit by bit what the other way of decoding makes of the records, including the headers that are no text.
        kinds = {kind for _, kind in wanted}
        if len(kinds) == 1:
            assert columns.equals(columns_of([record for record, _ in wanted], kinds.pop()))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_become_records_with_their_offsets(magic: int) -> None:
    log = split(log_of_wrappers(0, end=60, magic=magic))
    builder = ColumnBuilder(start=25, end=47)
    for batch in log:
        builder.add(batch)

    columns = builder.finish()

    expected = [record for batch in log for record in decode(batch) if 25 <= record.offset < 47]
    assert records_of(columns) == expected
    assert set(columns.column("timestamp_type").to_pylist()) == {CREATE_TIME if magic else NO_TIMESTAMP_TYPE}


def test_a_batch_without_records_becomes_no_rows() -> None:
    assert decoded() == []
    (batch,) = split(encode([Record(0, 1, b"k", b"v")], codec=0))
    assert decoded(batch, start=5, end=9) == []


def test_log_append_time_replaces_the_timestamps_of_records() -> None:
    batch = with_attributes(
        batch_of(numbered([Record(0, 5, None, b"a"), Record(0, 9, None, b"b")])), LOG_APPEND_TIME_BIT
    )
    builder = ColumnBuilder()
    builder.add(batch)

    columns = builder.finish()

    assert columns.column("timestamp_ms").to_pylist() == [9, 9]
    assert columns.column("timestamp_type").to_pylist() == [LOG_APPEND_TIME] * 2


@given(RECORDS, RECORDS, st.data())
def test_damaged_records_cause_the_error_for_corrupt_records_as_one_by_one(
    before: list[Record], records: list[Record], data: st.DataObject
) -> None:
    """A batch may be damaged before its checksum is computed. Records of another batch do not hide it."""
    damaged = bytearray(batch_of(numbered(records)).data)
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(61, len(damaged) - 1))
        damaged[index] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 5))
    if cut:
        del damaged[max(62, len(damaged) - cut) :]
    (batch,) = split(seal(damaged))
    whole = batch_of(numbered(before))

    try:
        expected = decode(batch)
    except CorruptRecordsError:
        expected = None

    try:
        records_read = decoded(whole, batch, whole)
    except CorruptRecordsError:
        assert expected is None
    else:
        assert expected is not None
        assert records_read == [*decode(whole), *expected, *decode(whole)]


def test_a_number_of_more_than_ten_bytes_is_corrupt() -> None:
    body = b"\0" + b"\xff" * VARINT_BYTES_MAX + b"\0"
    data = bytearray(encode([Record(0, 1, None, b"v" * (len(body) - 6))], codec=0))
    data[62 : 62 + len(body)] = body
    (batch,) = split(seal(data))

    with pytest.raises(CorruptRecordsError, match="batch at offset 0"):
        decoded(batch)

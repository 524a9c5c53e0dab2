"""Tests that records are unchanged after a round trip through Parquet columns or the batches of a spool."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.batch import checksum_holds, split
from mirrorflow_core.wire.records import Header, Record, decode
from mirrorflow_seed.archive.archive_source import Spool
from mirrorflow_seed.archive.manifest import TimeBounds
from mirrorflow_seed.archive.parquet_files import FileWriter, read_records
from mirrorflow_seed.archive.record_tally import TallyBuilder
from mirrorflow_seed.record_columns import CREATE_TIME, TIMESTAMP_MS_MAX, columns_of, records_of

pytest.importorskip("pyarrow")

INT64 = 2**63
contents = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.binary(max_size=5), contents), max_size=4).map(tuple)
timestamps = st.sampled_from([-1, 0]) | st.integers(0, INT64 // 4)


def record(
    offset: int, timestamp: int, key: bytes | None, value: bytes | None, record_headers: tuple[Header, ...]
) -> Record:
    return Record(offset, timestamp, key, value, record_headers)


records = st.builds(record, st.integers(0, INT64 // 4), timestamps, contents, contents, headers)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records with increasing offsets and gaps of any size between them."""
    log, offset = [], draw(st.integers(0, 2**40))
    for drawn in draw(st.lists(records, min_size=1, max_size=30)):
        log.append(drawn._replace(offset=offset))
        offset += 1 + draw(st.sampled_from([0, 0, 0, 1, 100, 2**31, 2**35]))
    return log


@given(st.lists(records, min_size=1, max_size=20))
def test_records_are_unchanged_by_a_round_trip_through_columns(original: list[Record]) -> None:
    assert records_of(columns_of(original, CREATE_TIME)) == original


@given(st.lists(records, min_size=1, max_size=20))
def test_record_timestamps_that_parquet_can_represent_are_kept(original: list[Record]) -> None:
    """Other timestamps become null and are no bounds of a file, which has whether some are later."""
    from pyarrow import parquet

    sink = io.BytesIO()
    with FileWriter(sink) as writer:
        writer.add(columns_of(original, CREATE_TIME))
        writer.finish()
    expected = [
        record.timestamp if 0 <= record.timestamp <= TIMESTAMP_MS_MAX else None for record in original
    ]
    present = [time_ms for time_ms in expected if time_ms is not None]

    times = parquet.read_table(io.BytesIO(sink.getvalue()))["timestamp"].cast("int64").to_pylist()
    assert [None if time_us is None else time_us // 1_000 for time_us in times] == expected
    assert writer.times == TimeBounds(
        first_ms=min(present, default=None),
        last_ms=max(present, default=None),
        has_later=any(record.timestamp > TIMESTAMP_MS_MAX for record in original),
    )


@given(st.lists(records, min_size=1, max_size=20))
def test_raw_headers_are_kept_only_for_names_that_are_not_utf8(original: list[Record]) -> None:
    rows = columns_of(original, CREATE_TIME).to_pylist()

    for record, row in zip(original, rows, strict=True):
        assert len(row["headers"]) == len(record.headers)
        assert all(isinstance(header["key"], str) for header in row["headers"])
        assert (row["headers_raw"] is None) == all(_is_text(name) for name, _ in record.headers)


@given(logs(), st.data())
def test_file_yields_the_records_of_a_range_in_order(log: list[Record], data: st.DataObject) -> None:
    start = data.draw(st.integers(log[0].offset - 1, log[-1].offset + 1))
    end = data.draw(st.integers(start, log[-1].offset + 2))
    sink = io.BytesIO()
    with FileWriter(sink) as writer:
        for index in range(0, len(log), 7):
            writer.add(columns_of(log[index : index + 7], CREATE_TIME))
        writer.finish()

    chunks = read_records(io.BytesIO(sink.getvalue()), start=start, end=end)

    assert [record for chunk in chunks for record in chunk] == [
        record for record in log if start <= record.offset < end
    ]


def test_large_records_are_decoded_a_few_at_a_time() -> None:
    """A file of large records then takes no more memory than others."""
    log = [Record(offset, 0, None, bytes(1 << 20)) for offset in range(40)]
    sink = io.BytesIO()
    with FileWriter(sink) as writer:
        for record in log:
            writer.add(columns_of([record], CREATE_TIME))
        writer.finish()

    sizes = [len(chunk) for chunk in read_records(io.BytesIO(sink.getvalue()), start=0, end=40)]

    assert (sum(sizes), max(sizes)) == (40, 3)


@given(logs(), st.integers(0, 2**36), st.integers(0, 2), st.data())
def test_spool_reads_from_any_offset(log: list[Record], beyond: int, codec: int, data: st.DataObject) -> None:
    end = log[-1].offset + 1 + beyond
    wanted = data.draw(st.integers(log[0].offset, end))
    with Spool(start=log[0].offset, end=end, codec=codec) as spool:
        for index in range(0, len(log), 7):
            spool.add(columns_of(log[index : index + 7], CREATE_TIME))
        spool.finish()
        records_read, offset = [], wanted
        while fetched := split(spool.read(offset, 1)):
            for batch in fetched:
                assert checksum_holds(batch)
                records_read += [record for record in decode(batch) if record.offset >= offset]
            offset = fetched[-1].next_offset
            if offset <= wanted:
                break

    assert records_read == [record for record in log if record.offset >= wanted]


@given(st.lists(records, max_size=8), st.data())
def test_tally_detects_changed_and_reordered_records(original: list[Record], data: st.DataObject) -> None:
    permuted = data.draw(st.permutations(original))
    of_original, of_permuted = TallyBuilder("archive", 3), TallyBuilder("archive", 3)
    of_original.extend(original)
    for record in permuted:
        of_permuted.extend([record])

    same = [record._replace(offset=0) for record in original] == [
        record._replace(offset=0) for record in permuted
    ]
    assert (of_original.tally == of_permuted.tally) == same


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True

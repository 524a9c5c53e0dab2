"""Tests that every record survives as a row of an archive and as a batch of a spool."""

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.batch import checksum_holds, split
from mirrorflow_core.wire.records import Header, Record, decode
from mirrorflow_seed.archive.archive_source import Spool
from mirrorflow_seed.archive.parquet_rows import CREATE_TIME, record_of, row_of
from mirrorflow_seed.verify.record_digests import TallyBuilder

INT64 = 2**63
contents = st.none() | st.binary(max_size=20)
headers = st.lists(st.tuples(st.binary(max_size=5), contents), max_size=4).map(tuple)
timestamps = st.sampled_from([-1, 0]) | st.integers(0, INT64 // 4)


def record(
    offset: int, timestamp: int, key: bytes | None, value: bytes | None, given: tuple[Header, ...]
) -> Record:
    return Record(offset, timestamp, key, value, given)


records = st.builds(record, st.integers(0, INT64 // 4), timestamps, contents, contents, headers)


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Records with increasing offsets and gaps of any size between them."""
    found, offset = [], draw(st.integers(0, 2**40))
    for one in draw(st.lists(records, min_size=1, max_size=30)):
        found.append(one._replace(offset=offset))
        offset += 1 + draw(st.sampled_from([0, 0, 0, 1, 100, 2**31, 2**35]))
    return found


@given(records)
def test_record_round_trips_through_its_row(one: Record) -> None:
    assert record_of(row_of(one, CREATE_TIME)) == one


@given(records)
def test_raw_headers_are_kept_only_for_names_that_are_not_utf8(one: Record) -> None:
    row = row_of(one, CREATE_TIME)

    assert len(row.headers) == len(one.headers)
    assert all(isinstance(name, str) for name, _ in row.headers)
    assert (row.headers_raw is None) == all(_is_text(name) for name, _ in one.headers)


@given(logs(), st.integers(0, 2**36), st.integers(0, 2), st.data())
def test_spool_reads_from_any_offset(log: list[Record], beyond: int, codec: int, data: st.DataObject) -> None:
    end = log[-1].offset + 1 + beyond
    wanted = data.draw(st.integers(log[0].offset, end))
    with Spool(start=log[0].offset, end=end, codec=codec) as spool:
        for one in log:
            spool.add(one)
        spool.finish()
        found, at = [], wanted
        while fetched := split(spool.read(at, 1)):
            for batch in fetched:
                assert checksum_holds(batch)
                found += [one for one in decode(batch) if one.offset >= at]
            at = fetched[-1].next_offset
            if at <= wanted:
                break

    assert found == [one for one in log if one.offset >= wanted]


@given(st.lists(records, max_size=8), st.data())
def test_tally_detects_changed_and_reordered_records(given: list[Record], data: st.DataObject) -> None:
    order = data.draw(st.permutations(given))
    one, other = TallyBuilder("archive", 3), TallyBuilder("archive", 3)
    for record in given:
        one.add(record)
    for record in order:
        other.add(record)

    assert one.tally.sum == other.tally.sum
    same = [record._replace(offset=0) for record in given] == [record._replace(offset=0) for record in order]
    assert (one.tally.chain == other.tally.chain) == same


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True

"""Tests that a tally does not depend on how records come in, and that each change of a record changes it."""

import struct
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.wire.records import Record
from mirrorflow_seed.archive.record_tally import Tally, TallyBuilder
from mirrorflow_seed.record_columns import CREATE_TIME, LOG_APPEND_TIME, columns_of, encode_headers
from tests.unit.core.wire.strategies import RECORDS, numbered

pytest.importorskip("pyarrow")

RECORD = Record(7, 5, b"key", b"value", ((b"name", b"content"), (b"other", None)))


def tally_of(records: list[Record], *, archive_id: str = "archive", partition: int = 3) -> Tally:
    builder = TallyBuilder(archive_id, partition)
    builder.extend(records)
    return builder.tally


@given(RECORDS, st.data())
def test_a_tally_is_the_same_for_any_division_of_the_records(
    records: list[Record], data: st.DataObject
) -> None:
    """Also for parts of a larger Arrow record batch, whose buffers begin before their rows."""
    whole = columns_of(numbered(records, 40), LOG_APPEND_TIME)
    builder, row = TallyBuilder("archive", 3), 0
    while row < len(records):
        count = data.draw(st.integers(1, len(records)))
        builder.add_columns(whole.slice(row, count))
        row += count

    assert builder.tally == tally_of(records)


@given(RECORDS)
def test_a_tally_has_the_number_of_records_and_their_bytes(records: list[Record]) -> None:
    texts = [record._replace(headers=((b"a", b"1"), (b"", None))) for record in records]
    tally = tally_of(texts)

    contents = sum(len(record.key or b"") + len(record.value or b"") + len(b"a1") for record in texts)
    assert (tally.records, tally.bytes) == (len(records), contents)


@pytest.mark.parametrize(
    "changed",
    [
        RECORD._replace(timestamp=6),
        RECORD._replace(key=None),
        RECORD._replace(key=b""),
        RECORD._replace(value=None),
        RECORD._replace(value=b""),
        RECORD._replace(key=b"keyv", value=b"alue"),
        RECORD._replace(headers=()),
        RECORD._replace(headers=RECORD.headers[:1]),
        RECORD._replace(headers=RECORD.headers[::-1]),
        RECORD._replace(headers=((b"name", b"content"), (b"other", b""))),
        RECORD._replace(headers=((b"named", b"ontent"), (b"other", None))),
        RECORD._replace(headers=((b"\xff", b"content"), (b"other", None))),
        RECORD._replace(headers=((b"\xfe", b"content"), (b"other", None))),
    ],
)
def test_each_change_of_a_record_changes_the_tally(changed: Record) -> None:
    tallies = {tally_of([RECORD, RECORD]), tally_of([changed, RECORD]), tally_of([RECORD, changed])}

    assert len(tallies) == 3


def test_headers_of_another_record_change_the_tally() -> None:
    without = RECORD._replace(headers=())

    assert tally_of([RECORD, without]) != tally_of([without, RECORD])


def test_records_without_a_field_differ_from_records_with_an_empty_one() -> None:
    none, empty = Record(0, 1, None, None), Record(0, 1, b"", b"")

    assert len({tally_of([none, none]), tally_of([empty, empty]), tally_of([none, empty])}) == 3


def test_archives_and_partitions_have_their_own_digests() -> None:
    assert len({tally_of([RECORD]), tally_of([RECORD], archive_id="b"), tally_of([RECORD], partition=4)}) == 3


@given(RECORDS)
def test_the_digest_is_the_documented_one(records: list[Record]) -> None:
    """Archives of one release are read by others, so it is computed here as `record_tally` describes it."""
    streams: list[list[bytes]] = [[] for _ in range(12)]

    def add_field(stream: int, content: bytes | None) -> None:
        streams[stream].append(struct.pack("<i", -1 if content is None else len(content)))
        streams[stream + 1].append(content or b"")

    for record in records:
        streams[0].append(struct.pack("<q", record.timestamp))
        add_field(1, record.key)
        add_field(3, record.value)
        streams[5].append(struct.pack("<i", len(record.headers)))
        names = [str(name, "utf-8", "replace").encode() for name, _ in record.headers]
        for name, (_, content) in zip(names, record.headers, strict=True):
            add_field(6, name)
            add_field(8, content)
        is_text = names == [name for name, _ in record.headers]
        add_field(10, None if is_text else encode_headers(record.headers))
    digests = b"".join(sha256(b"".join(stream)).digest() for stream in streams)

    assert tally_of(records).digest == sha256(b"archive" + struct.pack("<i", 3) + digests).hexdigest()[:32]


def test_bytes_at_the_place_of_a_null_do_not_count() -> None:
    import pyarrow as pa

    keys = pa.Array.from_buffers(
        pa.binary(),
        2,
        [pa.py_buffer(b"\x01"), pa.py_buffer(b"\0\0\0\0\1\0\0\0\3\0\0\0"), pa.py_buffer(b"abc")],
    )
    records = [Record(0, 1, b"a", b"v"), Record(1, 1, None, b"v")]
    batch = columns_of(records, CREATE_TIME)
    builder = TallyBuilder("archive", 3)
    builder.add_columns(batch.set_column(3, batch.schema.field(3), keys))

    assert builder.tally == tally_of(records)

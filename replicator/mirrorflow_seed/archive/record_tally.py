"""Computes tallies of an archive's records: how many there are, their bytes, and one digest of all of them.

The digest is of columns, so that it costs a pass over their bytes and nothing for each record. Each of these streams has a
SHA-256 of its own, which continues from one Arrow record batch to the next, however records are divided among these:

    timestamp_ms, as INT64; of each list of headers, how many it has, as INT32
    of keys, values, headers' names, headers' values and headers_raw: the lengths as INT32, -1 for null, and the bytes

All numbers are little-endian. The digest is the first DIGEST_BYTES of a SHA-256 of the archive's id, the partition and the
digests of the streams. The lengths of fields decide which bytes are whose, and a null has another length than an empty field,
so different records have different streams. A copy has other offsets and always CreateTime; both are not part of it.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from mirrorflow_core.wire.records import Record
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of

DIGEST_BYTES: Final = 16
COLUMNS: Final = ("timestamp_ms", "key", "value", "headers", "headers_raw")
STREAMS: Final = 12  # of these columns
CONTENT_STREAMS: Final = (2, 4, 7, 9)  # the bytes of keys, values, headers' names and headers' values
_PARTITION = _BOUND = struct.Struct("<i")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Count, bytes and digest of consecutive records, as in the commits of an archive."""

    records: int
    bytes: int  # of keys, values and headers
    digest: str  # hexadecimal


class TallyBuilder:
    """Computes the tally of records of one partition, added in offset order."""

    def __init__(self, archive_id: str, partition: int) -> None:
        self._begin = archive_id.encode() + _PARTITION.pack(partition)
        self._records = self._bytes = 0
        self._streams = [sha256() for _ in range(STREAMS)]

    def extend(self, records: Sequence[Record]) -> None:
        """Adds the next records."""
        if records:
            self.add_columns(columns_of(records, CREATE_TIME))

    def add_columns(self, batch: Any) -> None:
        """Adds the next records, an Arrow record batch with the columns of `record_columns.schema`."""
        self._records += batch.num_rows
        parts = [part for name in COLUMNS for part in _parts(batch.column(name))]
        for stream, part in zip(self._streams, parts, strict=True):
            stream.update(part)
        self._bytes += sum(parts[index].nbytes for index in CONTENT_STREAMS)

    @property
    def tally(self) -> Tally:
        """The tally of all records that were added."""
        streams = b"".join(stream.digest() for stream in self._streams)
        digest = sha256(self._begin + streams).digest()[:DIGEST_BYTES]
        return Tally(records=self._records, bytes=self._bytes, digest=digest.hex())


def _parts(column: Any) -> Iterator[memoryview]:
    """Yields what the streams of a column get."""
    import pyarrow as pa  # noqa: PLC0415 the extra `seed`
    import pyarrow.compute as pc  # noqa: PLC0415

    kind = column.type
    if pa.types.is_struct(kind):
        for field in column.flatten():
            yield from _parts(field)
    elif pa.types.is_list(kind):
        yield _numbers(pc.list_value_length(column))
        yield from _parts(column.flatten())
    elif pa.types.is_binary(kind) or pa.types.is_string(kind):
        lengths = pc.binary_length(column)
        yield _numbers(pc.fill_null(lengths, pa.scalar(-1, lengths.type)))
        yield _contents(column, pc.sum(lengths, min_count=0).as_py())
    else:
        yield _numbers(column)


def _numbers(column: Any) -> memoryview:
    width = column.type.bit_width // 8
    return memoryview(column.buffers()[1] or b"")[column.offset * width :][: len(column) * width]


def _contents(column: Any, size_bytes: int) -> memoryview:
    """Returns the bytes of all fields of a column, which are *size_bytes*."""
    import pyarrow as pa  # noqa: PLC0415 see above
    import pyarrow.compute as pc  # noqa: PLC0415

    if not size_bytes:
        return memoryview(b"")
    _, bounds, content = column.buffers()
    start = _BOUND.unpack_from(bounds, column.offset * _BOUND.size)[0]
    end = _BOUND.unpack_from(bounds, (column.offset + len(column)) * _BOUND.size)[0]
    if end - start != size_bytes:  # Arrow allows any bytes at the place of a null
        return _contents(pc.fill_null(column, pa.scalar(b"", column.type)), size_bytes)
    return memoryview(content)[start:end]

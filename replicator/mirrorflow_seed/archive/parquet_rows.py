"""Converts records to rows of an archive's Parquet files and back, without loss.

A file has these columns, in this order; its folders name topic and partition,
`topic=<name>/partition=<number>/`:

    offset          BIGINT    of the source
    timestamp       BIGINT    milliseconds since 1970, as Kafka has it; -1: none
    timestamp_type  INT       0 CreateTime, 1 LogAppendTime, -1 none (as Java's TimestampType)
    key, value      BINARY    null and empty are different
    headers         ARRAY<STRUCT<key STRING, value BINARY>>, in their order, names may repeat
    headers_raw     BINARY    the headers as Kafka encodes them, only if a name is not valid UTF-8; else null

A timestamp is a number, not a TIMESTAMP, because Kafka's range is larger than Parquet's microseconds.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire import primitives
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.records import Header, Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark schemas. Written rows begin with the columns that become folders.
FILE_SCHEMA: Final = (
    "offset BIGINT, timestamp BIGINT, timestamp_type INT, key BINARY, value BINARY,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, headers_raw BINARY"
)
FOLDER_COLUMNS: Final = ("topic", "partition")
ROW_SCHEMA: Final = f"topic STRING, partition INT, {FILE_SCHEMA}"

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1
NO_TIMESTAMP_TYPE: Final = -1


class ArchiveRow(NamedTuple):
    """A row of a file."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    headers_raw: bytes | None


def timestamp_type(batch: Batch) -> int:
    """Returns the timestamp type of a batch, as Java's TimestampType."""
    if batch.magic == 0:
        return NO_TIMESTAMP_TYPE
    return LOG_APPEND_TIME if batch.is_log_append_time else CREATE_TIME


def row_of(record: Record, kind: int) -> ArchiveRow:
    """Returns the row of a record whose timestamp type is *kind*."""
    offset, timestamp, key, value, headers = record
    raw = None
    try:
        shown = [(str(name, "utf-8"), content) for name, content in headers]
    except UnicodeDecodeError:
        shown = [(str(name, "utf-8", "replace"), content) for name, content in headers]
        raw = _encoded(headers)
    return ArchiveRow(offset, timestamp, kind, key, value, shown, raw)


def record_of(row: Sequence[Any]) -> Record:
    """Returns the record of a Spark row, with columns in the order of `ArchiveRow`. Raises CorruptRecordsError."""
    offset, timestamp, _, key, value, headers, raw = row
    if raw is not None:
        found = _decoded(bytes(raw))
    else:
        found = tuple(
            (name.encode(), None if content is None else bytes(content)) for name, content in headers
        )
    return Record(
        offset, timestamp, None if key is None else bytes(key), None if value is None else bytes(value), found
    )


def _encoded(headers: Sequence[Header]) -> bytes:
    """Encodes headers as a record of magic 2 does: count, then each name and value after its length."""
    parts = [primitives.encode_varint(len(headers))]
    for name, content in headers:
        parts += (primitives.encode_varint(len(name)), name)
        parts += (
            (primitives.encode_varint(-1),)
            if content is None
            else (primitives.encode_varint(len(content)), content)
        )
    return b"".join(parts)


def _decoded(raw: bytes) -> tuple[Header, ...]:
    headers: list[Header] = []
    try:
        count, at = primitives.decode_varint(raw, 0)
        for _ in range(count):
            name, at = _field(raw, at)
            content, at = _field(raw, at)
            headers.append((name or b"", content))
    except IndexError as error:
        raise CorruptRecordsError("headers_raw of an archived record ends too early") from error
    if at != len(raw):
        raise CorruptRecordsError("headers_raw of an archived record holds more than its headers")
    return tuple(headers)


def _field(raw: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = primitives.decode_varint(raw, at)
    if length < 0:
        return None, at
    if at + length > len(raw):
        raise CorruptRecordsError("headers_raw of an archived record ends too early")
    return raw[at : at + length], at + length


# One task reads a whole file of any size, so that its rows arrive in order.
ONE_TASK_CONF: Final = {
    "spark.sql.files.maxPartitionBytes": str(1 << 40),
    "spark.sql.files.openCostInBytes": str(1 << 40),
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Read row by row: a batch of thousands of rows of a megabyte each would not fit into memory.
    "spark.sql.parquet.enableVectorizedReader": "false",
}


def one_task_session(spark: "SparkSession") -> "SparkSession":
    """Returns a session whose tasks each read a whole file."""
    session = spark.newSession()
    for key, value in ONE_TASK_CONF.items():
        session.conf.set(key, value)
    return session

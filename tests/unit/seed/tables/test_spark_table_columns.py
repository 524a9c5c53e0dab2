"""Tests that records become the columns that Spark expects: it refuses Arrow batches with a different schema."""

import datetime as dt

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.record_columns import CREATE_TIME, columns_of
from mirrorflow_seed.tables.table_plan import TableRange
from mirrorflow_seed.verify.range_reader import OffsetRange

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

READ = TableRange(partition=TopicPartition("orders", 3), offsets=OffsetRange(0, 9))


def test_the_schema_is_that_of_spark():
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

    from mirrorflow_seed.tables.topic_table import SCHEMA, table_schema

    header = StructType().add("key", StringType()).add("value", BinaryType())
    types = {
        "BINARY": BinaryType(),
        "STRING": StringType(),
        "INT": IntegerType(),
        "BIGINT": LongType(),
        "TIMESTAMP": TimestampType(),
    }
    expected = StructType()
    for column in SCHEMA.split(", headers")[0].split(", "):
        name, kind = column.split()
        expected = expected.add(name, types[kind])
    expected = expected.add("headers", ArrayType(header))

    assert table_schema() == to_arrow_schema(expected, timezone="UTC")


def test_each_part_of_a_record_has_its_column():
    from mirrorflow_seed.tables.topic_table import table_columns, table_schema

    records = [
        Record(0, 1_700_000_000_123, b"k", None, ((b"a", b"1"), (b"a", None))),
        Record(1, -1, None, b"", ((b"\xff", b"x"),)),
        Record(2, 1 << 62, b"", b"v"),
    ]
    columns = table_columns(READ, columns_of(records, CREATE_TIME))

    assert columns.schema == table_schema()
    first, second, third = columns.to_pylist()
    assert first == {
        "key": b"k",
        "value": None,
        "topic": "orders",
        "partition": 3,
        "offset": 0,
        "timestamp": dt.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=dt.UTC),
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    }
    assert (second["key"], second["value"], second["headers"]) == (None, b"", [{"key": "�", "value": b"x"}])
    assert second["timestamp"] is None
    # Python has no such time.
    assert (third["timestamp"], third["headers"]) == (None, [])

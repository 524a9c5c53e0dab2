"""Tests what a query on the table of topics reads: conditions that are pushed down, options, and the batches of a stream."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_seed.errors import JobSettingError
from mirrorflow_seed.tables import table_plan
from mirrorflow_seed.tables.table_filters import UNBOUNDED, Bounds, TableFilter, push_filters
from mirrorflow_seed.tables.table_options import OFFSETS_PER_TASK, StartingOffsets, read_options
from mirrorflow_seed.tables.table_plan import (
    StreamPlanner,
    as_stream_offsets,
    cut,
    limited,
    of_stream_offsets,
    read_ranges,
)
from mirrorflow_seed.topic_range_reader import SourceClient
from mirrorflow_seed.verify.range_reader import OffsetRange

NEEDED = {"kafka.bootstrap.servers": "east:9092", "subscribe": "orders, payments"}
ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 3)
TIME = datetime(2026, 1, 1, tzinfo=UTC)
TIME_MS = int(TIME.timestamp()) * 1_000


def condition(kind: str, column: str, value: Any = None) -> Any:
    """Returns a condition as Spark passes it, without Spark: only the names of its classes matter."""
    made: Any = dataclass(type(kind, (), {"__annotations__": {"attribute": tuple, "value": object}}))
    return made((column,), value)


@pytest.mark.parametrize(
    ("kind", "bounds"),
    [
        ("EqualTo", Bounds(low=5, high=5)),
        ("GreaterThan", Bounds(low=6, high=UNBOUNDED)),
        ("GreaterThanOrEqual", Bounds(low=5, high=UNBOUNDED)),
        ("LessThan", Bounds(low=-UNBOUNDED, high=4)),
        ("LessThanOrEqual", Bounds(low=-UNBOUNDED, high=5)),
    ],
)
def test_comparisons_of_offsets_and_partitions_are_evaluated_exactly(kind: str, bounds: Bounds) -> None:
    for column in ("offset", "partition"):
        pushed, rest = push_filters([condition(kind, column, 5)])
        assert rest == []
        assert getattr(pushed, column) == bounds


def test_several_conditions_are_combined() -> None:
    conditions = [
        condition("In", "topic", ("a", "b")),
        condition("EqualTo", "topic", "a"),
        condition("IsNotNull", "topic"),
        condition("In", "partition", (1, 2, 9)),
        condition("LessThan", "partition", 9),
        condition("GreaterThanOrEqual", "offset", 10),
        condition("LessThan", "offset", 20),
    ]
    pushed, rest = push_filters(conditions)

    assert rest == []
    assert [(topic, number) for topic in "ab" for number in range(10) if pushed.selects(topic, number)] == [
        ("a", 1),
        ("a", 2),
    ]
    assert pushed.offset == Bounds(low=10, high=19)


def test_times_reduce_what_is_read_and_are_checked_by_spark() -> None:
    since, until = condition("GreaterThan", "timestamp", TIME), condition("LessThan", "timestamp", TIME)
    pushed, rest = push_filters([since])
    assert rest == [since]
    assert pushed.timestamp_ms == Bounds(low=TIME_MS, high=UNBOUNDED)
    assert push_filters([until])[0].timestamp_ms.high == TIME_MS


def test_other_conditions_are_left_to_spark() -> None:
    others = [
        condition("EqualTo", "key", b"k"),
        condition("StringStartsWith", "topic", "o"),
        condition("EqualNullSafe", "offset", 3),
        condition("EqualTo", "offset", None),
        condition("Not", "offset", 3),
        condition("IsNotNull", "timestamp"),
    ]
    pushed, rest = push_filters(others)

    assert rest == others
    assert pushed.selects("any", 7)
    assert pushed.offset == Bounds()


def test_options_have_the_names_of_the_source_of_spark() -> None:
    options = read_options(
        {
            **NEEDED,
            "kafka.security.protocol": "SSL",
            "kafka.isolation.level": "read_committed",
            "startingOffsets": "latest",
            "failOnDataLoss": "false",
            "maxOffsetsPerTrigger": "500",
        },
        is_stream=True,
    )

    assert options.topics == {"orders", "payments"}
    assert options.selects("orders")
    assert not options.selects("orders2")
    assert options.client.read_committed
    assert options.client.settings.properties["security.protocol"] == "SSL"
    assert (options.start, options.fails_on_loss) == (StartingOffsets.LATEST, False)
    assert (options.offsets_per_trigger, options.offsets_per_task) == (500, OFFSETS_PER_TASK)


def test_a_table_begins_at_the_beginning_and_a_stream_at_the_end() -> None:
    assert read_options(NEEDED, is_stream=False).start is StartingOffsets.EARLIEST
    assert read_options(NEEDED, is_stream=True).start is StartingOffsets.LATEST


@pytest.mark.parametrize(("start_ms", "offset"), [(999, 1), (1_000, 2), (1_001, 3), (1_002, 4)])
def test_a_query_with_a_start_time_begins_with_the_first_record_that_is_as_new(
    monkeypatch: pytest.MonkeyPatch, start_ms: int, offset: int
) -> None:
    """As with Spark's own source, but a partition without such a record is read from its end."""
    timestamps_ms = [998, 999, 1_000, 1_001]

    async def offsets_at(_: object, partitions: list[TopicPartition], time_ms: int, **__: object) -> Any:
        known = {EARLIEST: 0, LATEST: len(timestamps_ms)}
        offsets = (index for index, other_ms in enumerate(timestamps_ms) if other_ms >= time_ms)
        return dict.fromkeys(partitions, known.get(time_ms, next(offsets, -1)))

    async def no_partitions_but_one(*_: object) -> list[TopicPartition]:
        return [ORDERS]

    async def connect(_: object) -> Any:
        return AsyncMock()

    monkeypatch.setattr(admin, "offsets_at", offsets_at)
    monkeypatch.setattr(table_plan, "_partitions", no_partitions_but_one)
    monkeypatch.setattr(SourceClient, "connect", connect)
    options = read_options({**NEEDED, "startingTimestamp": str(start_ms)}, is_stream=False)

    read = [table_range.offsets for table_range in read_ranges(options, TableFilter())]
    assert read == ([OffsetRange(offset, 4)] if offset < 4 else [])
    assert StreamPlanner(options).begin() == {"orders": {"0": offset}}


def test_a_pattern_selects_whole_names() -> None:
    options = read_options(
        {"kafka.bootstrap.servers": "east:9092", "subscribePattern": "orders.*"}, is_stream=False
    )

    assert options.selects("orders.eu")
    assert not options.selects("my.orders")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers"),
        ({"subscribe": ""}, "subscribe"),
        ({"subscribePattern": "x"}, "subscribe"),
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
        ({"maxRecordsPerPartition": "many"}, "maxRecordsPerPartition"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss"),
        ({"topics": "x"}, "topics"),
    ],
)
def test_the_error_names_an_invalid_option(changes: dict[str, str], key: str) -> None:
    with pytest.raises(JobSettingError, match=f"^{key}: "):
        read_options({**NEEDED, **changes}, is_stream=False)


def test_secrets_are_not_in_the_text_of_options() -> None:
    options = read_options({**NEEDED, "kafka.sasl.jaas.config": "hunter2"}, is_stream=False)

    assert "hunter2" not in repr(options)


extents = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 2)),
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: OffsetRange(pair[0], sum(pair))),
)


@given(extents, st.integers(1, 30))
def test_ranges_of_tasks_cover_each_offset_once(
    logs: dict[TopicPartition, OffsetRange], offsets_per_task: int
) -> None:
    ranges = cut(logs, offsets_per_task)
    read = [
        (*part.partition, offset) for part in ranges for offset in range(part.offsets.start, part.offsets.end)
    ]

    assert sorted(read) == sorted(
        (*partition, offset)
        for partition, extent in logs.items()
        for offset in range(extent.start, extent.end)
    )
    assert all(part.offsets.end - part.offsets.start <= offsets_per_task for part in ranges)


@given(extents, st.integers(1, 30))
def test_limited_batches_advance_to_the_ends(
    logs: dict[TopicPartition, OffsetRange], offsets_max: int
) -> None:
    offsets: dict[TopicPartition, int] = {}
    for _ in range(1 + sum(extent.end - extent.start for extent in logs.values())):
        reached = of_stream_offsets(limited(as_stream_offsets(offsets), logs, offsets_max))
        assert all(reached[key] >= offset for key, offset in offsets.items())
        read = sum(offset - offsets.get(key, logs[key].start) for key, offset in reached.items())
        assert read <= offsets_max + len(logs)
        if reached == offsets:
            break
        offsets = reached

    assert offsets == {key: extent.end for key, extent in logs.items()}


def test_a_batch_without_a_limit_reads_all_and_a_deleted_topic_keeps_its_position() -> None:
    start = as_stream_offsets({ORDERS: 5, PAYMENTS: 7})

    assert of_stream_offsets(limited(start, {ORDERS: OffsetRange(0, 9)}, None)) == {ORDERS: 9, PAYMENTS: 7}
    # The source has fewer offsets than the checkpoint: the loss is reported when the batch is planned.
    assert of_stream_offsets(limited(start, {ORDERS: OffsetRange(0, 3)}, 2))[ORDERS] == 5

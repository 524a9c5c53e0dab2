"""Tests which records a repair copies, and that a list of differences has each of them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_configs import ConfigEntry, ConfigSource
from mirrorflow_core.wire.records import Record
from mirrorflow_seed.errors import JobSettingError
from mirrorflow_seed.repair.repair_driver import MAX_MESSAGE_BYTES_DEFAULT, quarantine_configs
from mirrorflow_seed.repair.repair_plan import (
    DifferenceCursor,
    UnequalRows,
    covered_windows,
    marked,
    plan_repair,
    quarantine_topic,
    ranges_to_read,
    source_offset_of,
)
from mirrorflow_seed.verify.offset_windows import (
    DifferenceKind,
    DifferenceRun,
    VerifyRange,
    WindowOutcome,
    WindowResult,
    add_to_runs,
)
from mirrorflow_seed.verify.window_table import UnequalRow

MISSING, EXTRA, CHANGED, MOVED = (
    DifferenceKind.MISSING,
    DifferenceKind.EXTRA,
    DifferenceKind.CHANGED,
    DifferenceKind.MOVED,
)


def window(
    begin: int,
    *runs: DifferenceRun,
    outcome: WindowOutcome = WindowOutcome.DIFFERENT,
    reason: str | None = None,
) -> WindowResult:
    return WindowResult(
        topic="orders",
        partition=3,
        target_topic="east.orders",
        from_offset=begin,
        to_offset=begin + 100,
        outcome=outcome,
        reason=reason,
        difference_runs=runs,
    )


@given(st.lists(st.tuples(st.sampled_from(DifferenceKind), st.integers(0, 30)), max_size=40))
def test_runs_have_exactly_the_added_records(added: list[tuple[DifferenceKind, int]]) -> None:
    runs: list[DifferenceRun] = []
    for kind, offset in added:
        add_to_runs(runs, kind, offset)

    assert added == [(run.kind, offset) for run in runs for offset in range(run.begin, run.end)]


def test_records_on_the_target_only_are_counted_and_not_copied() -> None:
    plan = plan_repair(
        "7",
        [
            window(100, DifferenceRun(MOVED, 120, 122), DifferenceRun(EXTRA, 90, 93)),
            window(0, DifferenceRun(CHANGED, 7, 8), DifferenceRun(MISSING, 20, 60)),
            window(200, outcome=WindowOutcome.UNDECIDED, reason="its end is unknown"),
        ],
    )

    [partition] = plan.partitions
    assert TopicPartition("orders", 3) == partition.source
    assert [(7, 8), (20, 60), (120, 122)] == [(run.begin, run.end) for run in partition.runs]
    assert (43, 3, 1) == (plan.records, plan.extra, plan.undecided)
    assert {"east.orders": "east.orders.repair.7"} == plan.topics
    assert [0, 100, 200] == [entry["fromOffset"] for entry in plan.as_json()["windows"]]
    assert "3 records are only on the target" in plan.rest


def test_windows_that_the_source_has_deleted_do_not_count_as_equal() -> None:
    def row(topic: str, begin: int, *, is_of_keys: bool = False) -> UnequalRow:
        return UnequalRow(
            flow="f", topic=topic, partition=0, begin=begin, end=begin + 100, is_of_keys=is_of_keys
        )

    rows = UnequalRows(
        [*(row("plain", begin) for begin in (0, 100, 200)), row("keys", 0, is_of_keys=True), row("gone", 0)]
    )

    deleted = rows.deleted({TopicPartition("plain", 0): 150, TopicPartition("keys", 0): 50})
    plan = plan_repair("7", [], deleted=deleted)

    assert plan.records == 0
    assert [
        ("gone", 0, 0, 100, None),
        ("plain", 0, 0, 100, 150),
        ("plain", 0, 100, 200, 150),
    ] == [tuple(entry.values()) for entry in plan.as_json()["deletedWindows"]]
    assert plan.rest == (
        " 3 windows cannot be repaired any more: they differed, and the source has deleted offsets of them since."
    )


def test_windows_whose_records_are_all_copied_or_equal_are_covered_and_known_to_the_next_start() -> None:
    """Not covered: an extra record, an undecided window, a partition whose records the source deleted meanwhile, and what it has deleted."""
    rows = UnequalRows(
        UnequalRow(
            flow="f", topic="orders", partition=partition, begin=begin, end=begin + 100, is_of_keys=False
        )
        for partition in (3, 4, 5)
        for begin in (0, 100, 200, 300)
    )
    plan = plan_repair(
        "7",
        [
            window(100, DifferenceRun(CHANGED, 107, 108)),
            window(200, DifferenceRun(MISSING, 207, 208), DifferenceRun(EXTRA, 90, 93)),
            window(300, outcome=WindowOutcome.UNDECIDED, reason="its end is unknown"),
        ],
    )
    starts = {
        TopicPartition("orders", 3): 0,
        TopicPartition("orders", 4): 0,
        TopicPartition("orders", 5): 250,
    }

    covered = rows.covered(plan, starts, {TopicPartition("orders", 4)})

    assert [(3, 0), (3, 100), (5, 300)] == [(window.partition, window.begin) for window in covered]
    written = json.loads(json.dumps({"coveredWindows": [window.as_json() for window in covered]}))
    assert covered == covered_windows(written)
    assert [] == covered_windows({})


def test_a_name_that_kafka_does_not_allow_is_refused() -> None:
    with pytest.raises(JobSettingError, match="Kafka allows 249"):
        quarantine_topic("t" * 240, "run-with-a-name")


def test_a_row_covers_overlapping_windows_and_a_row_of_keys_the_whole_partition() -> None:
    def row(topic: str, begin: int, end: int, *, is_of_keys: bool = False) -> UnequalRow:
        return UnequalRow(flow="f", topic=topic, partition=0, begin=begin, end=end, is_of_keys=is_of_keys)

    rows = UnequalRows([row("plain", 100, 200), row("empty", 0, 0), row("keys", 0, 10, is_of_keys=True)])

    def covers(topic: str, begin: int, end: int) -> bool:
        return rows.cover(
            VerifyRange(
                topic=topic,
                partition=0,
                target_topic="c",
                source_from=begin,
                source_to=end,
                target_from=0,
                target_to=0,
            )
        )

    assert [False, True, True, False] == [
        covers("plain", *ends) for ends in ((0, 100), (150, 300), (199, 300), (200, 300))
    ]
    assert [True, False] == [covers("empty", *ends) for ends in ((0, 0), (5, 9))]
    assert covers("keys", 500, 600)
    assert not covers("other", 0, 1_000)


def test_the_kind_of_a_difference_is_found_by_offset() -> None:
    runs = [DifferenceRun(MISSING, 3, 5), DifferenceRun(CHANGED, 5, 6), DifferenceRun(MOVED, 9, 10)]
    cursor = DifferenceCursor(runs)

    kinds = [cursor.kind_at(offset) for offset in range(1, 12)]

    assert [None, None, MISSING, MISSING, CHANGED, None, None, None, MOVED, None, None] == kinds
    assert [(3, 6), (9, 10)] == ranges_to_read(runs, 2)
    assert [(3, 10)] == ranges_to_read(runs, 3)


def test_the_source_offset_of_a_quarantined_record_is_in_its_last_headers() -> None:
    record = Record(55, 1, b"k", b"v", ((b"mirrorflow.repair.offset", b"1"), (b"h", None)))

    assert 55 == source_offset_of(marked(record, MISSING))
    assert source_offset_of(record) is None
    assert ((b"h", None), (b"mirrorflow.repair.kind", b"missing")) == marked(record, MISSING).headers[1::2]


def test_a_quarantine_topic_has_the_settings_of_the_copy_but_keeps_all_records() -> None:
    entries = [
        ConfigEntry(name="cleanup.policy", value="compact"),
        ConfigEntry(name="compression.type", value="zstd"),
        ConfigEntry(name="retention.ms", value="5"),
        ConfigEntry(name="message.timestamp.before.max.ms", value="5"),
        ConfigEntry(name="segment.ms", value="9", source=ConfigSource.DEFAULT),
        ConfigEntry(name="max.message.bytes", value="1000", source=ConfigSource.DEFAULT),
    ]

    assert {
        "cleanup.policy": "delete",
        "compression.type": "zstd",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "message.timestamp.type": "CreateTime",
        "max.message.bytes": "2024",
    } == quarantine_configs(entries)
    assert MAX_MESSAGE_BYTES_DEFAULT < int(quarantine_configs(())["max.message.bytes"])

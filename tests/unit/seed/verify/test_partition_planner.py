"""Tests how a partition is split into ranges to compare; each record of both sides is in one range."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.offsets.offset_map import MapStream, OffsetMap, Run
from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.record_digests import DigestedRecord, RecordDigester
from mirrorflow_core.settings import StartPosition
from mirrorflow_core.transforms import TopicTransforms, Transforms
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.error_codes import error_for
from mirrorflow_seed.verify import partition_planner
from mirrorflow_seed.verify.in_order_comparison import InOrderComparison
from mirrorflow_seed.verify.offset_windows import (
    RANGES_MAX,
    VerifyPlanSettings,
    WindowOutcome,
    WindowResult,
)
from mirrorflow_seed.verify.partition_planner import (
    BoundaryLog,
    BoundaryRecord,
    PartitionLayout,
    PartitionPlanner,
    VerifyPlan,
)
from mirrorflow_seed.verify.range_reader import OffsetRange
from mirrorflow_seed.verify.stored_offsets import StoredOffsets
from mirrorflow_seed.verify.verify_plan import (
    READS_OF_TASK,
    cut_at_source_end,
    joined_plan,
    limit_ranges,
    planning_groups,
)
from tests.unit.seed.verify.test_comparison import batches, record

SOURCE, COPY = TopicPartition("t", 0), TopicPartition("e.t", 0)
DIGEST = RecordDigester("run", 0)
NOTHING_STORED = StoredOffsets()


class LogPair:
    """The logs of both sides. Records have consecutive offsets from the first of each side."""

    def __init__(self, source: Sequence[int], target: Sequence[int], begins: tuple[int, int]) -> None:
        self.numbers = {SOURCE: source, COPY: target}
        self.begins = dict(zip((SOURCE, COPY), begins, strict=True))

    def ends(self, partition: TopicPartition) -> OffsetRange:
        return OffsetRange(self.begins[partition], self.begins[partition] + len(self.numbers[partition]))

    def records(self, partition: TopicPartition) -> list[tuple[int, Any]]:
        begin = self.begins[partition]
        return [(begin + index, record(number)) for index, number in enumerate(self.numbers[partition])]


class MemoryLog:
    def __init__(
        self,
        cluster: LogPair,
        partition: TopicPartition,
        offsets: OffsetRange,
        _: RecordDigester,
        **__: object,
    ) -> None:
        (self.start, self.end), self.partition = offsets, partition
        self._records = cluster.records(partition)

    async def records(self, offset: int, count: int) -> list[BoundaryRecord]:
        boundary_records = [
            BoundaryRecord(DigestedRecord(record_offset, DIGEST.digest(record)), record.timestamp)
            for record_offset, record in self._records
            if record_offset >= offset
        ]
        return boundary_records[:count]

    async def offset_at(self, timestamp: int) -> int | None:
        return next((offset for offset, record in self._records if record.timestamp >= timestamp), None)


def plan_and_compare(
    source: Sequence[int],
    target: Sequence[int],
    *,
    begins: tuple[int, int] = (0, 0),
    sample: float = 1.0,
    known: StoredOffsets = NOTHING_STORED,
    copied_before: int | None = 1 << 40,
    deleted_before_ms: float | None = None,
) -> tuple[VerifyPlan, list[WindowResult]]:
    logs = LogPair(source, target, begins)
    layout = PartitionLayout(
        source=SOURCE,
        target=COPY,
        source_offsets=logs.ends(SOURCE),
        target_offsets=logs.ends(COPY),
        stored=known,
        copied_before=copied_before,
        is_compacted=False,
        can_expire=False,
        timestamps=True,
        deleted_before_ms=deleted_before_ms,
    )
    plan = VerifyPlan()
    plan_settings = VerifyPlanSettings(run_id="run", sample=sample, window_offsets=10, range_windows=2)
    flow_settings: Any = SimpleNamespace(start=StartPosition.EARLIEST, read_committed=False)
    side: Any = logs
    asyncio.run(PartitionPlanner(side, side, flow_settings, plan_settings, layout, plan).plan_partition())
    results = list(plan.undecided)
    for verify_range in plan.ranges:
        comparison = InOrderComparison(verify_range, source=DIGEST, target=DIGEST)
        for side_name, partition, begin, end in (
            ("source", SOURCE, verify_range.source_from, verify_range.source_to),
            ("target", COPY, verify_range.target_from, verify_range.target_to),
        ):
            within = [(offset, record) for offset, record in logs.records(partition) if begin <= offset < end]
            if within:
                comparison.feed(
                    **{side_name: batches([record for _, record in within], [3], first=within[0][0])}
                )
        comparison.end(source=True, target=True)
        assert not any(comparison.advance())
        results += comparison.results()
    return plan, results


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def naming(_: object) -> TopicTransforms:
        policy: Any = SimpleNamespace(
            remote_topic=lambda _, topic: f"e.{topic}", is_heartbeats_topic=lambda _: False
        )
        return TopicTransforms(policy, "e", Transforms())

    monkeypatch.setattr(partition_planner, "BoundaryLog", MemoryLog)
    monkeypatch.setattr(partition_planner, "make_naming", naming)


def outcomes(results: Iterable[WindowResult]) -> set[str]:
    return {window.outcome.value for window in results}


def test_a_long_partition_is_split_without_stored_offsets() -> None:
    plan, results = plan_and_compare(range(100), range(100), begins=(0, 40))
    assert 5 == len(plan.ranges)
    assert {"equal"} == outcomes(results)
    assert 100 == sum(window.source_count for window in results)


def test_repeated_records_cannot_be_a_boundary() -> None:
    plan, results = plan_and_compare([1] * 100, [1] * 100)
    assert 1 == len(plan.ranges)
    assert {"equal"} == outcomes(results)


def test_lost_record_makes_one_window_different() -> None:
    target = [number for number in range(100) if number != 55]
    _, results = plan_and_compare(range(100), target)
    assert [(50, "different")] == [
        (window.from_offset, window.outcome.value)
        for window in results
        if window.outcome is not WindowOutcome.EQUAL
    ]


@pytest.mark.parametrize(
    ("deleted_before_ms", "missing"),
    [
        (-math.inf, 60),  # the target has no retention
        (record(59).timestamp, 60),  # the newest missing record is too young
        (record(59).timestamp + 1, 0),
        (math.inf, 0),  # retention by size
        (None, 0),  # its settings are unknown
    ],
)
def test_records_lost_at_the_start_of_the_target_are_missing_unless_retention_deleted_them(
    deleted_before_ms: float | None, missing: int
) -> None:
    plan, results = plan_and_compare(
        range(200), range(60, 200), begins=(0, 60), deleted_before_ms=deleted_before_ms
    )

    assert missing == sum(window.differing for window in results)
    assert bool(plan.notes) is not bool(missing)
    assert 140 + missing == sum(window.source_count for window in results)


@pytest.mark.parametrize("copied_before", [50, 80])
def test_all_records_of_a_target_that_was_emptied_are_missing(copied_before: int) -> None:
    """The flow's stored offset says what it had; of an archive, the source may end before that."""
    _, results = plan_and_compare(
        range(50), [], begins=(0, 60), copied_before=copied_before, deleted_before_ms=-math.inf
    )

    assert {"different"} == outcomes(window for window in results if window.source_count)
    assert 50 == sum(window.differing for window in results)


def test_an_emptied_target_without_a_stored_offset_is_undecided() -> None:
    _, results = plan_and_compare(
        range(50), [], begins=(0, 60), copied_before=None, deleted_before_ms=-math.inf
    )

    assert {"undecided"} == outcomes(results)


def test_records_deleted_on_one_side_become_a_note_and_the_rest_is_compared() -> None:
    plan, results = plan_and_compare(range(30, 100), range(100), begins=(30, 0))
    assert ({"equal"}, 1, 70) == (
        outcomes(results),
        len(plan.notes),
        sum(window.source_count for window in results),
    )
    plan, results = plan_and_compare(range(100), range(30, 100), begins=(0, 30))
    assert ({"equal"}, 1, 70) == (
        outcomes(results),
        len(plan.notes),
        sum(window.source_count for window in results),
    )


def test_missing_first_records_of_an_undeleted_target_are_different() -> None:
    _, results = plan_and_compare(range(100), range(30, 100))
    assert 30 == sum(window.differing for window in results)
    assert {"equal", "different"} == outcomes(results)


@pytest.mark.parametrize(
    ("first", "is_missing"),
    [(Run(30, 0, 100, 70, 70), False), (Run(60, 30, 100, 70, 40), True)],
    ids=["with the copy", "later"],
)
def test_a_map_that_begins_with_the_copy_shows_where_the_flow_began(first: Run, *, is_missing: bool) -> None:
    """One that begins later was cleared meanwhile, or the flow copied with Java MM2 before."""
    offset_map = OffsetMap(stream=MapStream(1, "", ""), ordinal=70, upstream_end=100, runs=(first,))

    plan, results = plan_and_compare(range(100), range(30, 100), known=StoredOffsets(map=offset_map))

    assert bool(plan.notes) is not is_missing
    assert sum(window.differing for window in results) == (30 if is_missing else 0)


def test_target_records_before_an_undeleted_source_are_extra() -> None:
    _, results = plan_and_compare(range(50), [200, 201, *range(50)])
    assert 2 == sum(window.differing for window in results)


def test_unrelated_records_are_never_equal() -> None:
    _, results = plan_and_compare(range(50), range(200, 250))
    assert {"different"} == outcomes(results)
    _, results = plan_and_compare(range(30, 50), range(200, 250), begins=(30, 200))
    assert {"undecided"} == outcomes(results)


def test_sampled_window_is_located_or_undecided() -> None:
    plan, results = plan_and_compare(range(400), range(400), sample=0.3)
    assert {"equal"} == outcomes(results)
    assert 0 < sum(window.source_count for window in results) < 300
    assert "undecided" in outcomes(plan_and_compare([1] * 400, [1] * 400, sample=0.3)[1])
    assert not plan.undecided


def fail_reads(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Makes every read of both sides fail with *code*."""

    async def fail(*_: object) -> list[BoundaryRecord]:
        raise error_for(code, cluster="east", request="Fetch", subject="t-0")

    monkeypatch.setattr(MemoryLog, "records", fail)


def test_transient_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_reads(monkeypatch, 6)

    with pytest.raises(BrokerError):
        plan_and_compare(range(100), range(100))


def test_permanent_error_leaves_the_partition_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_reads(monkeypatch, 45)

    plan, _ = plan_and_compare(range(100), range(100))

    assert ["undecided"] == [window.outcome.value for window in plan.undecided]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(1, 90), st.sampled_from((3, 1_000)), st.sampled_from((0, 25)))
def test_each_record_of_both_sides_is_in_one_window(
    data: st.DataObject, count: int, values: int, begin: int
) -> None:
    """All windows are equal only if both sides are equal."""
    source = [number % values for number in range(count)]
    target = list(source)
    for _ in range(data.draw(st.integers(0, 3))):
        index = data.draw(st.integers(0, len(target)))
        inserted = data.draw(st.lists(st.integers(0, 99), max_size=2))
        target[index : index + data.draw(st.integers(0, 20))] = inserted

    plan, results = plan_and_compare(source, target, begins=(0, begin))

    if not plan.undecided and not plan.notes:
        assert len(source) == sum(window.source_count for window in results)
        assert len(target) == sum(window.target_count for window in results)
        assert (source == target) == (outcomes(results) <= {"equal"})
    if source != target and not plan.notes:
        assert outcomes(results) != {"equal"}


@pytest.mark.parametrize(
    ("copied", "runs", "expected"),
    [
        (
            100,
            (Run(0, 5, 200, 205, 200),),
            205,
        ),  # nothing was copied after the archive
        (200, (Run(0, 5, 200, 205, 200),), 105),
        (
            200,
            (Run(0, 5, 90, 95, 90), Run(120, 95, 200, 175, 80)),
            95,
        ),  # the end is in a gap of the source
        (200, (Run(0, 5, 200, 205, 150),), None),  # unknown: not all offsets of this run are records
        (200, (), None),
    ],
)
def test_the_target_is_cut_at_the_end_of_the_archive(
    copied: int, runs: tuple[Run, ...], expected: int | None
) -> None:
    """The offset map translates the end. If it is not exact there, the partition is undecided, not different."""
    stream = MapStream(1, "", "")
    stored = StoredOffsets(
        position=Position(topic=SOURCE.topic, partition=SOURCE.partition, source_offset=copied - 1),
        map=OffsetMap(stream=stream, ordinal=200, upstream_end=200, runs=runs) if runs else None,
    )
    layout = PartitionLayout(
        source=SOURCE,
        target=COPY,
        source_offsets=OffsetRange(0, 100),
        target_offsets=OffsetRange(5, 205),
        stored=stored,
        copied_before=stored.copied_before,
        is_compacted=False,
        can_expire=False,
        timestamps=True,
    )

    cut = cut_at_source_end(layout)

    assert cut.is_end_unknown is (expected is None)
    assert cut.target_offsets is not None
    if expected is not None:
        assert cut.target_offsets == OffsetRange(5, expected)


@pytest.mark.parametrize(
    ("log_bytes", "classes", "parts"),
    [(460_000, 1, 1), (10 << 30, 5_000, 40), (None, 5_000, 1)],
)
def test_a_compacted_log_is_divided_by_its_size_not_by_its_offsets(
    log_bytes: int | None, classes: int, parts: int
) -> None:
    """Cleaned logs have few records in wide offsets. A log of unknown size is read by one task."""
    offsets = OffsetRange(0, 1_000_000_000)
    layout = PartitionLayout(
        source=SOURCE,
        target=COPY,
        source_offsets=offsets,
        target_offsets=offsets,
        stored=NOTHING_STORED,
        copied_before=None,
        is_compacted=True,
        can_expire=False,
        timestamps=True,
        log_bytes=log_bytes,
    )
    plan = VerifyPlan()
    side: Any = LogPair([], [], (0, 0))
    flow_settings: Any = SimpleNamespace(start=StartPosition.EARLIEST, read_committed=False)
    planner = PartitionPlanner(side, side, flow_settings, VerifyPlanSettings(run_id="run"), layout, plan)

    asyncio.run(planner.plan_partition())

    [verify_range] = plan.ranges
    assert (classes, parts) == (verify_range.key_class_count, verify_range.log_parts)
    assert tuple(range(classes)) == verify_range.key_classes


@given(st.lists(st.integers(0, 20_000), max_size=30))
def test_partitions_are_planned_in_groups_of_a_bounded_number_of_reads(sizes: list[int]) -> None:
    """A partition is planned in one task; one that has more reads is alone."""
    plan_settings = VerifyPlanSettings(run_id="run", window_offsets=10, range_windows=2)
    layouts = [
        PartitionLayout(
            source=TopicPartition("orders", number),
            target=TopicPartition("east.orders", number),
            source_offsets=OffsetRange(0, offsets),
            target_offsets=OffsetRange(0, offsets),
            stored=NOTHING_STORED,
            copied_before=None,
            is_compacted=False,
            can_expire=False,
            timestamps=True,
        )
        for number, offsets in enumerate(sizes)
    ]
    groups = planning_groups(layouts, plan_settings)
    assert layouts == [layout for group in groups for layout in group]
    assert all(
        len(group) == 1 or sum(layout.expected_reads(plan_settings) for layout in group) <= READS_OF_TASK
        for group in groups
    )
    if sum(layout.expected_reads(plan_settings) for layout in layouts) <= READS_OF_TASK:
        assert len(groups) <= 1


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, [13, 14, 15, 16]), (13, [13, 14, 15, 16]), (18, [18, 19]), (20, [])]
)
def test_records_that_were_deleted_from_the_beginning_of_a_batch_are_not_read(
    monkeypatch: pytest.MonkeyPatch, offset: int, expected: list[int]
) -> None:
    """A broker returns the first batch whole: here from offset 10 on, while the log begins at 13."""

    class WholeBatches:
        def __init__(self, *_: object, **__: object) -> None:
            self._responses = [batches([record(number) for number in range(10, 20)], [10], first=10)]

        async def more(self) -> list[Batch] | None:
            return self._responses.pop() if self._responses else None

        async def close(self) -> None: ...

    monkeypatch.setattr(partition_planner, "OffsetRangeReader", WholeBatches)
    cluster: Any = None
    log = BoundaryLog(cluster, COPY, OffsetRange(13, 20), DIGEST, read_committed=True)

    read = asyncio.run(log.records(offset, 4))

    assert expected == [boundary_record.offset for boundary_record in read]


@pytest.mark.parametrize(
    ("partitions", "offsets", "range_windows"),
    [(1, 0, 10), (10_000, 5_000_000, 10), (10_000, 50_000_000, 50), (1, 5 * 10**15, 500_000)],
)
def test_a_large_plan_has_a_bounded_number_of_larger_ranges(
    partitions: int, offsets: int, range_windows: int
) -> None:
    """Each partition still has one range at least."""
    layout = PartitionLayout(
        source=SOURCE,
        target=COPY,
        source_offsets=OffsetRange(7, 7 + offsets),
        target_offsets=OffsetRange(0, offsets),
        stored=NOTHING_STORED,
        copied_before=None,
        is_compacted=False,
        can_expire=False,
        timestamps=True,
    )

    limited = limit_ranges([layout] * partitions, VerifyPlanSettings(run_id="run"))

    assert range_windows == limited.range_windows
    assert len(limited.sampled_ranges(SOURCE, 0, min(offsets, 50_000_000))) * partitions <= RANGES_MAX


def test_plans_of_tasks_are_joined_with_the_largest_range_first() -> None:
    small, _ = plan_and_compare(range(40), range(40))
    large, _ = plan_and_compare(range(100), range(50, 100))
    small.partitions = large.partitions = 1
    small.notes.append("a note of a task")

    joined = joined_plan([small, large], ["a note of the driver"])

    assert (2, ["a note of the driver", "a note of a task", *large.notes]) == (
        joined.partitions,
        joined.notes,
    )
    assert len(small.ranges) + len(large.ranges) == len(joined.ranges)
    offsets = [verify_range.offsets for verify_range in joined.ranges]
    assert sorted(offsets, reverse=True) == offsets

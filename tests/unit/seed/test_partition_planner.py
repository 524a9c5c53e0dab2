"""Tests how partitions are cut and compared: no record of either side is left out between two ranges."""

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
from mirrorflow_core.settings import StartPosition
from mirrorflow_core.transforms import TopicTransforms, Transforms
from mirrorflow_core.wire.error_codes import error_for
from mirrorflow_seed.verify import partition_planner
from mirrorflow_seed.verify.offset_windows import VerifyPlanSettings, WindowOutcome, WindowResult
from mirrorflow_seed.verify.partition_planner import (
    BoundaryRecord,
    PartitionLayout,
    PartitionPlanner,
    VerifyPlan,
)
from mirrorflow_seed.verify.range_comparison import InOrderComparison
from mirrorflow_seed.verify.range_reader import OffsetRange
from mirrorflow_seed.verify.record_digests import DigestedRecord, RecordDigester
from mirrorflow_seed.verify.stored_offsets import StoredOffsets
from mirrorflow_seed.verify.verify_plan import cut_at_source_end
from tests.unit.seed.test_comparison import batches, record

AT, COPY = TopicPartition("t", 0), TopicPartition("e.t", 0)
DIGEST = RecordDigester("run", 0)
NOTHING_STORED = StoredOffsets()


class Logs:
    """Both sides; records have consecutive offsets from each side's first."""

    def __init__(self, source: Sequence[int], target: Sequence[int], begins: tuple[int, int]) -> None:
        self.numbers = {AT: source, COPY: target}
        self.begins = dict(zip((AT, COPY), begins, strict=True))

    def ends(self, at: TopicPartition) -> OffsetRange:
        return OffsetRange(self.begins[at], self.begins[at] + len(self.numbers[at]))

    def records(self, at: TopicPartition) -> list[tuple[int, Any]]:
        return [(self.begins[at] + place, record(number)) for place, number in enumerate(self.numbers[at])]


class MemoryLog:
    def __init__(
        self, cluster: Logs, partition: TopicPartition, offsets: OffsetRange, _: RecordDigester, **__: object
    ) -> None:
        (self.start, self.end), self.partition = offsets, partition
        self._records = cluster.records(partition)

    async def records(self, offset: int, count: int) -> list[BoundaryRecord]:
        found = [
            BoundaryRecord(DigestedRecord(at, DIGEST.digest(one)), one.timestamp)
            for at, one in self._records
            if at >= offset
        ]
        return found[:count]

    async def offset_at(self, timestamp: int) -> int | None:
        return next((at for at, one in self._records if one.timestamp >= timestamp), None)


def verified(
    source: Sequence[int],
    target: Sequence[int],
    *,
    begins: tuple[int, int] = (0, 0),
    sample: float = 1.0,
    known: StoredOffsets = NOTHING_STORED,
    copied_before: int | None = 1 << 40,
    deleted_before_ms: float | None = None,
) -> tuple[VerifyPlan, list[WindowResult]]:
    logs = Logs(source, target, begins)
    one = PartitionLayout(
        source=AT,
        target=COPY,
        source_offsets=logs.ends(AT),
        target_offsets=logs.ends(COPY),
        stored=known,
        copied_before=copied_before,
        is_compacted=False,
        can_expire=False,
        timestamps=True,
        deleted_before_ms=deleted_before_ms,
    )
    plan = VerifyPlan()
    cut = VerifyPlanSettings(run_id="run", sample=sample, window_offsets=10, range_windows=2)
    flow_settings: Any = SimpleNamespace(start=StartPosition.EARLIEST, read_committed=False)
    side: Any = logs
    asyncio.run(PartitionPlanner(side, side, flow_settings, cut, one, plan).plan_partition())
    results = list(plan.undecided)
    for verify_range in plan.ranges:
        comparison = InOrderComparison(verify_range, source=DIGEST, target=DIGEST)
        for name, at, begin, end in (
            ("source", AT, verify_range.source_from, verify_range.source_to),
            ("target", COPY, verify_range.target_from, verify_range.target_to),
        ):
            within = [(place, found) for place, found in logs.records(at) if begin <= place < end]
            if within:
                comparison.feed(**{name: batches([found for _, found in within], [3], first=within[0][0])})
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


def kinds(results: Iterable[WindowResult]) -> set[str]:
    return {one.outcome.value for one in results}


def test_long_partition_is_split_without_known_offsets() -> None:
    plan, results = verified(range(100), range(100), begins=(0, 40))
    assert 5 == len(plan.ranges)
    assert {"equal"} == kinds(results)
    assert 100 == sum(one.source_count for one in results)


def test_equal_records_are_no_boundary() -> None:
    plan, results = verified([1] * 100, [1] * 100)
    assert 1 == len(plan.ranges)
    assert {"equal"} == kinds(results)


def test_lost_record_makes_one_window_different() -> None:
    target = [number for number in range(100) if number != 55]
    _, results = verified(range(100), target)
    assert [(50, "different")] == [
        (one.from_offset, one.outcome.value) for one in results if one.outcome is not WindowOutcome.EQUAL
    ]


@pytest.mark.parametrize(
    ("deleted_before_ms", "missing"),
    [
        (-math.inf, 60),  # the target deletes nothing by itself
        (record(59).timestamp, 60),  # the newest of them is too young
        (record(59).timestamp + 1, 0),
        (math.inf, 0),  # by size
        (None, 0),  # its settings are unknown
    ],
)
def test_records_that_the_target_lost_at_its_head_are_missing_unless_retention_explains_it(
    deleted_before_ms: float | None, missing: int
) -> None:
    plan, results = verified(range(200), range(60, 200), begins=(0, 60), deleted_before_ms=deleted_before_ms)

    assert missing == sum(one.differing for one in results)
    assert bool(plan.notes) is not bool(missing)
    assert 140 + missing == sum(one.source_count for one in results)


def test_retention_on_one_side_becomes_a_note_and_the_rest_is_compared() -> None:
    plan, results = verified(range(30, 100), range(100), begins=(30, 0))
    assert ({"equal"}, 1, 70) == (kinds(results), len(plan.notes), sum(one.source_count for one in results))
    plan, results = verified(range(100), range(30, 100), begins=(0, 30))
    assert ({"equal"}, 1, 70) == (kinds(results), len(plan.notes), sum(one.source_count for one in results))


def test_target_that_starts_later_without_retention_lacks_records() -> None:
    _, results = verified(range(100), range(30, 100))
    assert 30 == sum(one.differing for one in results)
    assert {"equal", "different"} == kinds(results)


def test_target_records_before_an_undeleted_source_are_extra() -> None:
    _, results = verified(range(50), [200, 201, *range(50)])
    assert 2 == sum(one.differing for one in results)


def test_unrelated_records_are_never_equal() -> None:
    _, results = verified(range(50), range(200, 250))
    assert {"different"} == kinds(results)
    _, results = verified(range(30, 50), range(200, 250), begins=(30, 200))
    assert {"undecided"} == kinds(results)


def test_sampled_window_is_located_or_undecided() -> None:
    plan, results = verified(range(400), range(400), sample=0.3)
    assert {"equal"} == kinds(results)
    assert 0 < sum(one.source_count for one in results) < 300
    assert "undecided" in kinds(verified([1] * 400, [1] * 400, sample=0.3)[1])
    assert not plan.undecided


def refuse_reads(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Makes every read of both sides fail with *code*."""

    async def refused(*_: object) -> list[BoundaryRecord]:
        raise error_for(code, cluster="east", request="Fetch", subject="t-0")

    monkeypatch.setattr(MemoryLog, "records", refused)


def test_transient_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_reads(monkeypatch, 6)

    with pytest.raises(BrokerError):
        verified(range(100), range(100))


def test_permanent_error_leaves_the_partition_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_reads(monkeypatch, 45)

    plan, _ = verified(range(100), range(100))

    assert ["undecided"] == [one.outcome.value for one in plan.undecided]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.integers(1, 90), st.sampled_from((3, 1_000)), st.sampled_from((0, 25)))
def test_every_record_of_both_sides_is_in_one_window(
    data: st.DataObject, count: int, values: int, begin: int
) -> None:
    """All windows are equal only if both sides are."""
    source = [number % values for number in range(count)]
    target = list(source)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(target)))
        put = data.draw(st.lists(st.integers(0, 99), max_size=2))
        target[at : at + data.draw(st.integers(0, 20))] = put

    plan, results = verified(source, target, begins=(0, begin))

    if not plan.undecided and not plan.notes:
        assert len(source) == sum(one.source_count for one in results)
        assert len(target) == sum(one.target_count for one in results)
        assert (source == target) == (kinds(results) <= {"equal"})
    if source != target and not plan.notes:
        assert kinds(results) != {"equal"}


@pytest.mark.parametrize(
    ("copied", "runs", "expected"),
    [
        (
            100,
            (Run(0, 5, 200, 205, 200),),
            205,
        ),  # no further than the source: all of the target belongs to it
        (200, (Run(0, 5, 200, 205, 200),), 105),
        (
            200,
            (Run(0, 5, 90, 95, 90), Run(120, 95, 200, 175, 80)),
            95,
        ),  # the end lies in a hole of the source
        (200, (Run(0, 5, 200, 205, 150),), None),  # it is unknown which of these offsets are records
        (200, (), None),
    ],
)
def test_records_copied_after_the_archive_are_left_out(
    copied: int, runs: tuple[Run, ...], expected: int | None
) -> None:
    """By the offset map; if it is not exact there, the partition is undecided, never different."""
    stream = MapStream(1, "", "")
    known = StoredOffsets(
        position=Position(topic=AT.topic, partition=AT.partition, source_offset=copied - 1),
        map=OffsetMap(stream=stream, ordinal=200, upstream_end=200, runs=runs) if runs else None,
    )
    one = PartitionLayout(
        source=AT,
        target=COPY,
        source_offsets=OffsetRange(0, 100),
        target_offsets=OffsetRange(5, 205),
        stored=known,
        copied_before=known.copied_before,
        is_compacted=False,
        can_expire=False,
        timestamps=True,
    )

    found = cut_at_source_end(one)

    assert found.is_end_unknown is (expected is None)
    assert found.target_offsets is not None
    if expected is not None:
        assert found.target_offsets == OffsetRange(5, expected)

"""Tests the comparison of a range whose reads fail: transient errors fail the task, others leave it undecided.

And records that differ and cannot be read again have no details, unlike the others.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import BrokerError, CorruptRecordsError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.transforms import NO_EDITS
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.wire.error_codes import error_for
from mirrorflow_seed.verify import compared_sides, record_details
from mirrorflow_seed.verify.compared_sides import CompareSettings
from mirrorflow_seed.verify.offset_windows import Difference, VerifyRange, VerifyRangeResult
from mirrorflow_seed.verify.range_comparison import compare_range
from mirrorflow_seed.verify.range_reader import DeletedMeanwhileError, OffsetRange
from mirrorflow_seed.verify.record_details import describe_results
from tests.unit.seed.verify.test_comparison import batches, record

RANGE = VerifyRange(
    topic="t",
    partition=0,
    target_topic="e.t",
    source_from=0,
    source_to=10,
    target_from=0,
    target_to=10,
)


def use_reader(monkeypatch: pytest.MonkeyPatch, reader: type) -> None:
    """Lets comparisons, and what reads records again, use *reader*, without transforms."""
    naming = SimpleNamespace(header_edits=lambda _: NO_EDITS)
    for module in (compared_sides, record_details):
        monkeypatch.setattr(module, "OffsetRangeReader", reader)
        monkeypatch.setattr(module, "make_naming", lambda _: naming)


def compare_with_failing_reads(monkeypatch: pytest.MonkeyPatch, code: int) -> VerifyRangeResult:
    """Compares a range whose fetches all fail with *code*."""

    class FailingReader:
        bytes_read = 0

        def __init__(self, *_: object, **__: object) -> None:
            pass

        def start(self) -> None:
            pass

        async def more(self) -> None:
            raise error_for(code, cluster="east", request="Fetch", subject="t-0")

        async def close(self) -> None:
            pass

    use_reader(monkeypatch, FailingReader)
    settings: Any = SimpleNamespace(read_committed=False)
    sides: Any = {"source": None, "target": None}
    return asyncio.run(compare_range(sides, settings, RANGE, CompareSettings(run_id="run")))


def test_transient_error_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerError):
        compare_with_failing_reads(monkeypatch, 6)


def test_permanent_error_leaves_the_range_undecided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [window] = compare_with_failing_reads(monkeypatch, 45).windows

    assert ("undecided", True) == (
        window.outcome.value,
        "OUT_OF_ORDER_SEQUENCE_NUMBER" in (window.reason or ""),
    )


DELETED = DeletedMeanwhileError(cluster="east", partition=TopicPartition("t", 0), offset=1)


def read_again_except_first(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Lets readers return records of which 1, 5 and 9 differ; reading 1 again raises *error*."""

    class PartlyFailingReader:
        bytes_read = 0

        def __init__(
            self,
            side: Any,
            _: TopicPartition,
            offsets: OffsetRange,
            *,
            reads_ahead: bool = True,
            **__: object,
        ) -> None:
            self._is_failing = not reads_ahead and offsets.start == 1
            records = [record(number) for number in range(10)]
            for number in (1, 5, 9) if side == "target" else ():
                records[number] = record(number, value=b"other")
            self._left: list[Sequence[Batch]] = [batches(records, [1])]

        def start(self) -> None:
            pass

        async def more(self) -> Sequence[Batch] | None:
            if self._is_failing:
                raise error
            return self._left.pop() if self._left else None

        async def close(self) -> None:
            pass

    use_reader(monkeypatch, PartlyFailingReader)


def details(differences: Sequence[Difference]) -> list[tuple[int | None, str | None, tuple[str, ...]]]:
    return [(difference.source_offset, difference.key, difference.fields) for difference in differences]


@pytest.mark.parametrize("error", [DELETED, CorruptRecordsError("bad")], ids=["deleted", "corrupt"])
def test_a_record_that_cannot_be_read_again_leaves_the_others_their_details(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A range names them as it is compared, classes of keys afterwards."""
    read_again_except_first(monkeypatch, error)
    settings: Any = SimpleNamespace(read_committed=False)
    sides: Any = {"source": "source", "target": "target"}

    async def open_sides(_: object, ranges: Sequence[VerifyRange]) -> AsyncIterator[Mapping[str, Any]]:
        for _ in ranges:
            yield sides

    async def compare() -> tuple[VerifyRangeResult, VerifyRangeResult]:
        compared = await compare_range(sides, settings, RANGE, CompareSettings(run_id="run", keeps_keys=True))
        [window] = compared.windows
        plain = [replace(difference, key=None, fields=()) for difference in window.differences]
        classes = replace(compared, windows=(replace(window, differences=tuple(plain)),))
        [by_class] = await describe_results([(RANGE, classes)], lambda: settings, open_sides, keeps_keys=True)
        return compared, by_class

    for result in asyncio.run(compare()):
        assert details(result.windows[0].differences) == [
            (1, None, ()),
            (5, "k5", ("value",)),
            (9, "k9", ("value",)),
        ]

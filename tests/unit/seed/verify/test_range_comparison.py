"""Tests the comparison of a range whose reads fail: transient errors fail the task, others leave it undecided."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.transforms import NO_EDITS
from mirrorflow_core.wire.error_codes import error_for
from mirrorflow_seed.verify import range_comparison
from mirrorflow_seed.verify.offset_windows import VerifyRange
from mirrorflow_seed.verify.range_comparison import CompareSettings, VerifyRangeResult, compare_range

RANGE = VerifyRange(
    topic="t",
    partition=0,
    target_topic="e.t",
    source_from=0,
    source_to=10,
    target_from=0,
    target_to=10,
)


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

    naming = SimpleNamespace(header_edits=lambda _: NO_EDITS)
    monkeypatch.setattr(range_comparison, "OffsetRangeReader", FailingReader)
    monkeypatch.setattr(range_comparison, "make_naming", lambda _: naming)
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
        "OUT_OF_ORDER_SEQUENCE_NUMBER" in window.reason,
    )

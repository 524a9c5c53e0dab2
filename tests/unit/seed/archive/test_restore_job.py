"""Tests that a stopped restore starts no tasks, and cancels those that Spark begins after the signal."""

from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_seed.archive import restore_driver
from mirrorflow_seed.archive.restore_driver import PartitionRestorer
from tests.unit.seed.archive.test_archive_manifest import manifest

pytest.importorskip("pyarrow")


class Tasks:
    """Spark's tasks: counts how often they are cancelled."""

    slots = 1
    cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def restorer_of(tasks: Tasks) -> PartitionRestorer:
    restore: Any = SimpleNamespace(
        tasks=tasks,
        folder=SimpleNamespace(address="/archive"),
        manifest=manifest(),
        coordinator=SimpleNamespace(totals=(0, 0, 0.0), next_offsets={}, receive=lambda _: None),
        reporter=SimpleNamespace(running=lambda **_: None),
        bytes_per_second=None,
    )
    wave: Any = None
    return PartitionRestorer(restore, wave, {"orders": "east.orders"}, {})


def test_a_restore_that_is_stopped_before_its_tasks_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while the start offsets are stored: Spark has nothing to cancel yet."""
    started: list[object] = []

    def run_watched(*inputs: object) -> list[object]:
        started.append(inputs)
        return []

    monkeypatch.setattr(restore_driver, "run_watched", run_watched)
    restorer = restorer_of(Tasks())

    restorer.stop()
    restorer.run()

    assert started == []


def test_tasks_that_spark_begins_after_the_signal_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes before Spark knows the job, so the first cancellation finds no task."""
    tasks = Tasks()
    restorer = restorer_of(tasks)

    def run_watched(_tasks: object, _work: object, _groups: object, watch: Any) -> list[object]:
        watch("")
        assert tasks.cancelled == 0
        restorer.stop()
        tasks.cancelled = 0
        watch("")
        if tasks.cancelled:
            raise SystemError("cancelled")
        return []

    monkeypatch.setattr(restore_driver, "run_watched", run_watched)

    restorer.run()

    assert tasks.cancelled == 1

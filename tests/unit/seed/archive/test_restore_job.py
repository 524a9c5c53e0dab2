"""Tests that a stopped restore starts no tasks, and cancels those that Spark begins after the signal."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_seed.archive import partition_restorer
from mirrorflow_seed.archive.partition_restorer import PartitionRestorer
from mirrorflow_seed.archive.restore_driver import RestoreJob
from mirrorflow_seed.spark_tasks import SparkTasks
from mirrorflow_seed.storage_folder import StorageFolder
from tests.unit.seed.archive.test_archive_manifest import manifest

pytest.importorskip("pyarrow")


class Tasks:
    """Spark's tasks: counts how often they are cancelled."""

    slots = 1
    cancelled = 0

    def cancel(self) -> None:
        self.cancelled += 1


def restorer_of(tasks: Tasks) -> PartitionRestorer:
    others: Any = {
        "wave": None,
        "coordinator": SimpleNamespace(totals=(0, 0, 0.0), next_offsets={}, receive=lambda _: None),
        "reporter": SimpleNamespace(running=lambda **_: None),
    }
    return PartitionRestorer(
        cast("SparkTasks", tasks),
        cast("StorageFolder", SimpleNamespace(address="/archive")),
        manifest(),
        names={"orders": "east.orders"},
        next_offsets={},
        bytes_per_second=None,
        **others,
    )


def test_a_restore_that_is_stopped_before_its_tasks_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while the start offsets are stored: Spark has nothing to cancel yet."""
    started: list[object] = []

    def run_watched(*inputs: object) -> list[object]:
        started.append(inputs)
        return []

    monkeypatch.setattr(partition_restorer, "run_watched", run_watched)
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

    monkeypatch.setattr(partition_restorer, "run_watched", run_watched)

    restorer.run()

    assert tasks.cancelled == 1


def test_ctrl_c_ends_the_tasks_that_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waits for the thread of the comparison, which may take hours."""
    has_begun = threading.Event()

    class RunningTasks(Tasks):
        is_idle = False

        def run(self, *_: object) -> list[object]:
            has_begun.set()
            while not self.cancelled:
                is_over.wait(0.01)
            raise SystemError("cancelled")

    tasks, is_over = RunningTasks(), threading.Event()
    monkeypatch.setattr("mirrorflow_seed.spark_tasks.WATCH_S", 0.01)
    job = RestoreJob.__new__(RestoreJob)
    parts: Any = (tasks, manifest(), None, SimpleNamespace(header_fingerprint=None))
    job._tasks, job._manifest, job._files, job._settings = parts

    async def interrupt() -> None:
        comparison = asyncio.create_task(job._compare({"orders": "east.orders"}, {}))
        await asyncio.to_thread(has_begun.wait)
        comparison.cancel()
        await asyncio.wait([comparison])
        assert comparison.cancelled()

    asyncio.run(interrupt())

    assert tasks.cancelled

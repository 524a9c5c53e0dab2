"""Tests how a job shares files with its Spark tasks, limits their rate, detects missing resources and cancels them."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_seed.errors import JobSettingError
from mirrorflow_seed.settings import FlowFiles
from mirrorflow_seed.spark_tasks import (
    EVEN_PERCENT,
    NO_TASK,
    NO_TASK_S,
    IdleTimer,
    rates_of_tasks,
    run_watched,
    share_files,
)


class SessionStub:
    """A classic Spark session of *master* that records the files it receives."""

    def __init__(self, master: str) -> None:
        self.sparkContext = SimpleNamespace(master=master)
        self.files: dict[str, str] = {}

    def addArtifacts(self, path: str, *, file: bool) -> None:  # noqa: N802 Spark's name
        assert file
        self.files[Path(path).name] = Path(path).read_text()


@pytest.fixture
def files(tmp_path: Path) -> FlowFiles:
    worker, source = tmp_path / "worker", tmp_path / "source"
    worker.write_text("bootstrap.servers=a:1\n")
    source.write_text("source.cluster.ssl.key.password=${file:/secrets:key}\n")
    return FlowFiles(worker=str(worker), source=str(source))


def test_files_of_the_flow_are_shared_with_remote_tasks(files: FlowFiles):
    """Each job uses its own file names. Tasks with the same file system need no shared files."""
    remote: Any = SessionStub("spark://a:1")
    first, second = (share_files(remote, files, are_mounted=False) for _ in range(2))
    local: Any = SessionStub("local[2]")

    assert 4 == len(remote.files)
    assert remote.files[first.worker] == "bootstrap.servers=a:1\n"
    assert first.is_shared
    assert first != second
    assert (
        share_files(local, files, are_mounted=False) == share_files(remote, files, are_mounted=True) == files
    )


def test_a_secret_in_plain_text_is_not_sent_through_spark(files: FlowFiles):
    Path(files.source).write_text("source.cluster.ssl.key.password=hunter2\n")
    remote: Any = SessionStub("yarn")
    local: Any = SessionStub("local[*,8]")

    with pytest.raises(JobSettingError, match=r"ssl\.key\.password: in plain text") as refused:
        share_files(remote, files, are_mounted=False)
    assert "hunter2" not in str(refused.value)
    assert not remote.files
    assert share_files(local, files, are_mounted=False) == files


@given(st.integers(1, 10**12), st.lists(st.integers(0, 10**15), min_size=1, max_size=500))
def test_the_rates_of_all_tasks_add_up_to_the_rate_of_the_job(bytes_per_second: int, sizes: list[int]):
    """Each task has at least one byte per second."""
    rates = [rate or 0 for rate in rates_of_tasks(bytes_per_second, sizes)]

    assert sum(rates) <= bytes_per_second + len(sizes)
    assert sum(rates) > bytes_per_second - 2 * len(sizes)
    assert min(rates) >= max(1, bytes_per_second * EVEN_PERCENT // 100 // len(sizes) - 1)
    assert [None] * len(sizes) == rates_of_tasks(None, sizes)


def test_tasks_of_different_sizes_end_at_about_the_same_time():
    sizes = [12_000_000, 2_000_000, *[1_000_000] * 6]

    ends_s = [size / (rate or 1) for size, rate in zip(sizes, rates_of_tasks(1_000_000, sizes), strict=True)]

    assert max(ends_s) < 1.1 * sum(sizes) / 1_000_000


def test_missing_resources_are_reported_after_some_time_without_tasks():
    timer = IdleTimer(100.0)

    assert timer.problem(is_idle=True, now_s=100.0 + NO_TASK_S - 1) == ""
    assert timer.problem(is_idle=True, now_s=100.0 + NO_TASK_S) == NO_TASK
    assert timer.problem(is_idle=False, now_s=130.0) == ""
    assert timer.problem(is_idle=True, now_s=131.0) == ""


class TasksStub:
    """Tasks that run until they are cancelled."""

    is_idle = False

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def run(self, work: Callable[[int], int], inputs: Sequence[int]) -> list[int]:
        assert self.cancelled.wait(30)
        return [work(value) for value in inputs]

    def cancel(self) -> None:
        self.cancelled.set()


def test_an_interrupt_cancels_the_tasks():
    tasks: Any = TasksStub()

    def watch(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_watched(tasks, abs, [1], watch)
    assert tasks.cancelled.is_set()


def test_a_job_returns_the_results_and_raises_the_errors_of_its_tasks():
    tasks: Any = TasksStub()
    tasks.cancel()

    invalid_inputs: Any = ["x"]

    assert run_watched(tasks, abs, [-1, 2], lambda _: None) == [1, 2]
    with pytest.raises(TypeError):
        run_watched(tasks, abs, invalid_inputs, lambda _: None)

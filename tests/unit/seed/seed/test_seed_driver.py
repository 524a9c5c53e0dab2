"""Tests how the driver of a seed handles errors from a cluster."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import BrokerError, FlowTakenError, MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import error_for
from mirrorflow_seed.errors import FlowLostError
from mirrorflow_seed.seed import seed_driver
from mirrorflow_seed.seed.seed_driver import SeedJob
from mirrorflow_seed.seed.seed_plan import SeedLog, SeedTask
from mirrorflow_seed.seed.seed_progress import SeedProgress
from mirrorflow_seed.seed.seed_task_attempt import PartitionOutcome, PartitionResult
from mirrorflow_seed.settings import JobSettings

PARTITIONS = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
END = 100


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A job that has not started, without a pause between attempts."""
    seed_job: Any = SeedJob.__new__(SeedJob)
    seed_job._is_stopped = False
    monkeypatch.setattr(seed_driver, "RETRY_S", 0.0)
    return seed_job


def request_failing_with(errors: list[MirrorFlowError]) -> Any:
    """A request that fails with each of *errors* in turn, and then succeeds."""

    async def request() -> str:
        if errors:
            raise errors.pop(0)
        return "response"

    return request


def test_transient_error_is_retried(job: Any) -> None:
    moved = error_for(6, cluster="west", request="ListOffsets", subject="orders")

    assert "response" == asyncio.run(job._retry_transient(request_failing_with([moved, moved])))


def test_permanent_error_fails_the_job_immediately(job: Any) -> None:
    refused = error_for(17, cluster="west", request="CreateTopics", subject="orders")
    rest: list[MirrorFlowError] = [refused, refused]

    with pytest.raises(BrokerError):
        asyncio.run(job._retry_transient(request_failing_with(rest)))
    assert 1 == len(rest)


def test_a_job_that_lost_the_flow_retries_and_then_fails(job: Any) -> None:
    taken: MirrorFlowError = FlowTakenError(source="east")

    assert "response" == asyncio.run(job._retry_transient(request_failing_with([taken])))
    with pytest.raises(FlowLostError):
        asyncio.run(job._retry_transient(request_failing_with([taken] * seed_driver.TRIES_MAX)))


def test_a_seed_ends_though_the_last_attempt_of_a_complete_range_was_unfinished(job: Any) -> None:
    """An attempt was killed after it had copied the range, and the next one reached no cluster until its time was over."""
    waves: list[list[int]] = []

    async def nothing(*_: object) -> None:
        pass

    async def source_logs(_: object) -> dict[TopicPartition, SeedLog]:
        return dict.fromkeys(PARTITIONS, SeedLog(start=0, end=END))

    async def start_offsets(*_: object, **__: object) -> dict[TopicPartition, int]:
        return {}

    async def run_wave(_: object, tasks: Sequence[SeedTask], **__: object) -> None:
        indexes = sorted(seed_range.index for task in tasks for seed_range in task.ranges)
        waves.append(indexes)
        unreached = len(waves) == 1
        outcome = PartitionOutcome.UNFINISHED if unreached else PartitionOutcome.DONE
        next_offset = None if unreached else END
        job._progress.add_results(
            [PartitionResult(index=index, outcome=outcome, next_offset=next_offset) for index in indexes]
        )
        job._progress.note_offset(0, END)  # as the killed attempt had stored

    flow: Any = SimpleNamespace(
        read_positions=nothing,
        source_logs=source_logs,
        start_offsets=start_offsets,
        store_starts=nothing,
        next_offsets={},
    )
    arrangement: Any = SimpleNamespace(partitions=PARTITIONS)
    job._tasks = SimpleNamespace(slots=1)
    job._bytes_per_second = None
    job._job = JobSettings(extra={})
    job._progress = SeedProgress("1")
    job._run_wave = run_wave

    async def seed() -> None:
        ranges = await job._plan(flow, arrangement, initial=True)
        async with asyncio.timeout(5):
            await job._run_waves(flow, arrangement, ranges, initial=True)

    asyncio.run(seed())

    assert [[0, 1], [1]] == waves

"""Tests how the driver of a seed handles errors from a cluster."""

import asyncio
from typing import Any

import pytest

from mirrorflow_core.errors import BrokerError, FlowTakenError, MirrorFlowError
from mirrorflow_core.wire.error_codes import error_for
from mirrorflow_seed.errors import FlowLostError
from mirrorflow_seed.seed import seed_driver
from mirrorflow_seed.seed.seed_driver import SeedJob


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

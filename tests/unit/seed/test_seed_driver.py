"""Tests how the driver of a seed handles errors of a cluster."""

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
    """A job that has not begun, without a pause between attempts."""
    made: Any = SeedJob.__new__(SeedJob)
    made._is_stopped = False
    monkeypatch.setattr(seed_driver, "RETRY_S", 0.0)
    return made


def answering(errors: list[MirrorFlowError]) -> Any:
    """A request that fails with each of *errors* in turn, and then succeeds."""

    async def question() -> str:
        if errors:
            raise errors.pop(0)
        return "answer"

    return question


def test_transient_error_is_retried(job: Any) -> None:
    moved = error_for(6, cluster="west", request="ListOffsets", subject="orders")

    assert "answer" == asyncio.run(job._retry_transient(answering([moved, moved])))


def test_permanent_error_fails_the_job_at_once(job: Any) -> None:
    refused = error_for(17, cluster="west", request="CreateTopics", subject="orders")
    rest: list[MirrorFlowError] = [refused, refused]

    with pytest.raises(BrokerError):
        asyncio.run(job._retry_transient(answering(rest)))
    assert 1 == len(rest)


def test_job_that_lost_the_flow_waits_for_it_and_then_fails(job: Any) -> None:
    taken: MirrorFlowError = FlowTakenError(source="east")

    assert "answer" == asyncio.run(job._retry_transient(answering([taken])))
    with pytest.raises(FlowLostError):
        asyncio.run(job._retry_transient(answering([taken] * seed_driver.TRIES_MAX)))

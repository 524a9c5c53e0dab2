"""How a source connector retries the periodic jobs of its discovery, and what it reports meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from mirrorflow_core.errors import MirrorFlowError, UnreachableError
from mirrorflow_replicator.connectors import topic_discovery
from mirrorflow_replicator.connectors.topic_discovery import NEVER, PeriodicJob, TopicDiscovery
from tests.unit.connectors.flow_settings import settings

ATTEMPTS = 4


class DiscoveryOfJobs(TopicDiscovery):
    """A discovery without clusters, whose jobs are *runs* in this order."""

    def __init__(self, **runs: Callable[[], Awaitable[None]]) -> None:
        super().__init__(settings(), resolve=cast("Any", None))
        self._runs = runs

    async def connect(self) -> Any:
        return None

    def _jobs(self, *_: object) -> tuple[PeriodicJob, ...]:
        return tuple(PeriodicJob(name, NEVER, cast("Any", run)) for name, run in self._runs.items())


async def fail() -> None:
    problem = "DescribeConfigs was not answered within 60 s"
    raise UnreachableError(cluster="east", addresses="a:1", problem=problem)


def failures_before_pauses(monkeypatch: pytest.MonkeyPatch, discovery: TopicDiscovery) -> list[int]:
    """Returns the failures in a row by which the discovery computes each of its first pauses."""
    failures: list[int] = []

    def count(in_a_row: int, **_: object) -> float:
        failures.append(in_a_row)
        if len(failures) == ATTEMPTS:
            raise asyncio.CancelledError
        return 0.0

    monkeypatch.setattr(topic_discovery, "backoff_s", count)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(discovery.run(cast("Any", None)))
    return failures


def test_each_failure_in_a_row_lengthens_the_pause_before_a_retry(monkeypatch: pytest.MonkeyPatch):
    """The jobs before it succeed each time: they list all topics of both clusters."""

    async def succeed() -> None:
        pass

    discovery = DiscoveryOfJobs(arrange=succeed, sync=fail)

    assert failures_before_pauses(monkeypatch, discovery) == [*range(1, ATTEMPTS + 1)]


def test_a_problem_is_reported_until_the_job_that_has_it_succeeds(monkeypatch: pytest.MonkeyPatch):
    problems: list[MirrorFlowError | None] = []

    async def note_problem() -> None:
        problems.append(discovery.problem)

    discovery = DiscoveryOfJobs(arrange=note_problem, check=note_problem, sync=fail)
    failures_before_pauses(monkeypatch, discovery)

    assert problems[:2] == [None, None]
    assert None not in problems[2:]


def test_a_job_that_succeeds_after_failures_ends_their_count(monkeypatch: pytest.MonkeyPatch):
    results = iter([fail, fail, None])

    async def succeed_third() -> None:
        if (failing := next(results, None)) is not None:
            await failing()

    discovery = DiscoveryOfJobs(sync=succeed_third, other=fail)

    assert failures_before_pauses(monkeypatch, discovery) == [1, 2, 1, 2]
    assert discovery.problem is not None

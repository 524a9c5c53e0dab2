"""Expiration settings are read from all target brokers and updated during a session."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError, UnreachableError
from mirrorflow_core.topics.topic_configs import ConfigEntry
from mirrorflow_kafka.admin import configs
from mirrorflow_replicator.copy import target_settings
from mirrorflow_replicator.copy.target_settings import PRODUCER_KEY, TargetExpiries
from tests.unit.core.copying.stubs import new_session

HOUR_MS = 3_600_000
DOWN = UnreachableError(cluster="west", addresses="broker 3", problem="it is down")
DENIED = NotAuthorizedError(cluster="west", operation="DescribeConfigs", resource="the cluster")


class Target:
    """Brokers that each return a `producer.id.expiration.ms` or an error."""

    alias = "west"

    def __init__(self, *expiration_ms: int | MirrorFlowError) -> None:
        self.by_broker = dict(enumerate(expiration_ms))
        self.metadata = SimpleNamespace(brokers=self.by_broker)

    async def describe(
        self, cluster: "Target", node_id: int, names: list[str], *, timeout_s: float
    ) -> dict[str, ConfigEntry]:
        assert cluster is self
        assert timeout_s <= 5
        value = self.by_broker[node_id]
        if isinstance(value, MirrorFlowError):
            raise value
        return {PRODUCER_KEY: ConfigEntry(name=PRODUCER_KEY, value=str(value))}


class Task:
    """A session that records the values that its committer receives and the reason for its end."""

    def __init__(self, session: CopySession) -> None:
        self.session = session
        self.session.plain_age_limit_ms = 0
        self.ids_s = 0.0
        self.ended = ""

    def set_id_expiration(self, expires_s: float) -> None:
        self.ids_s = expires_s


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setattr(target_settings, "READ_EVERY_S", 0.0)
    return Task(new_session())


def new_expiries(target: Target, task: Any, monkeypatch: pytest.MonkeyPatch) -> TargetExpiries:
    monkeypatch.setattr(configs, "describe_broker_configs", target.describe)
    cluster: Any = target
    return TargetExpiries(cluster, task.session, task)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  nothing signals it
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("responses", "limit_hours"),
    [((4 * HOUR_MS, 2 * HOUR_MS), 1), ((4 * HOUR_MS, DOWN), 2), ((DENIED, DENIED), 12)],
    ids=["the smallest", "one broker fails", "access denied: Kafka's default"],
)
def test_the_smallest_expiration_of_all_brokers_applies(responses, limit_hours, task, monkeypatch):
    asyncio.run(new_expiries(Target(*responses), task, monkeypatch).apply())

    assert task.session.plain_age_limit_ms == limit_hours * HOUR_MS
    assert task.ids_s == target_settings.TRANSACTIONAL_ID_EXPIRATION_MS / 1000


def test_the_last_value_of_an_unreachable_broker_is_kept(task, monkeypatch):
    target = Target(4 * HOUR_MS, 2 * HOUR_MS)
    expiries = new_expiries(target, task, monkeypatch)
    asyncio.run(expiries.apply())
    target.by_broker[1] = DOWN
    asyncio.run(expiries.apply())

    assert task.session.plain_age_limit_ms == HOUR_MS


def test_a_failure_of_all_brokers_is_an_error(task, monkeypatch):
    with pytest.raises(UnreachableError):
        asyncio.run(new_expiries(Target(DOWN, DOWN), task, monkeypatch).apply())


def test_a_session_ends_when_the_producer_expiration_is_lowered(task, monkeypatch):
    """The next session fences again. Leaders then keep the new producer for the whole new period."""
    target = Target(4 * HOUR_MS)
    expiries = new_expiries(target, task, monkeypatch)
    errors: list[MirrorFlowError] = []

    def end(reason: str) -> None:
        task.ended = reason
        raise asyncio.CancelledError

    async def follow() -> None:
        await expiries.apply()
        target.by_broker[0] = 8 * HOUR_MS
        job = asyncio.create_task(expiries.follow(on_error=errors.append, end_session=end))
        await until(lambda: task.session.plain_age_limit_ms == 4 * HOUR_MS)
        target.by_broker[0] = DOWN
        await until(lambda: bool(errors))
        assert not task.ended
        target.by_broker[0] = 2 * HOUR_MS
        await asyncio.gather(job, return_exceptions=True)

    asyncio.run(follow())

    assert task.ended == "producer.id.expiration.ms of west was lowered"
    assert errors == [DOWN] * len(errors)

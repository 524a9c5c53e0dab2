"""A refused batch halves the batch limit at once; the target topic's settings then replace that estimate."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from mirrorflow_core.copying.effects import Effects, ReadBatchLimit
from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.errors import MirrorFlowError, NotAuthorizedError, RecordTooLargeError
from mirrorflow_core.topics.topic_configs import ConfigEntry
from mirrorflow_core.wire.error_codes import MESSAGE_TOO_LARGE
from mirrorflow_core.wire.produce import DEFAULT_BYTES, UNLIMITED
from mirrorflow_kafka.admin import admin
from mirrorflow_replicator.copy import batch_limits
from mirrorflow_replicator.copy.batch_limits import BatchLimits
from tests.unit.core.copying.stubs import begun_copier, new_copier, new_session, put_in_flight, resume

NOW_MS = 0
SEVERAL, ALONE = 8, 1  # records in a batch


class Topics:
    """The settings of target topics. `requests` counts how often they were read."""

    def __init__(self) -> None:
        self.settings = {"max.message.bytes": "20000", "compression.type": "uncompressed"}
        self.error: MirrorFlowError | None = None
        self.requests = 0

    async def describe(self, cluster: object, topics: list[str]) -> dict[str, tuple[ConfigEntry, ...]]:
        self.requests += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return {
            topic: tuple(ConfigEntry(name=name, value=value) for name, value in self.settings.items())
            for topic in topics
        }


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """Target topics whose settings can be read unless the test sets an error."""
    stub = Topics()
    monkeypatch.setattr(admin, "describe_topic_configs", stub.describe)
    return stub


class Task:
    """Batch limits and the jobs that they have spawned."""

    def __init__(self) -> None:
        self.jobs: list[asyncio.Task[None]] = []
        cluster: Any = None
        self.limits = BatchLimits(cluster, apply=self._apply, spawn=self._spawn)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.jobs.append(asyncio.create_task(work))

    def _apply(self, copier: PartitionCopier, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, ReadBatchLimit):
                self.limits.refused(copier, effect.span)

    def refuse(self, copier: PartitionCopier, count: int = SEVERAL) -> None:
        """Refuses a batch of *count* records because of its size."""
        put_in_flight(copier, count)
        self.refuse_next(copier)

    def refuse_next(self, copier: PartitionCopier) -> None:
        """Refuses the oldest batch in flight because of its size."""
        self._apply(copier, copier.refused(MESSAGE_TOO_LARGE, ""))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Runs the jobs until *condition* holds."""
        async with asyncio.timeout(300):
            while not condition():  # noqa: ASYNC110  any condition, not one event
                await asyncio.sleep(0)

    async def settle(self) -> None:
        """Waits for all jobs except the watch, which is the second one."""
        await asyncio.gather(*(job for index, job in enumerate(self.jobs) if index != 1))


def run_scenario(scenario: Callable[[Task], Coroutine[Any, Any, None]]) -> None:
    """Runs *scenario*, then cancels the jobs that it has spawned."""

    async def run() -> None:
        task = Task()
        await scenario(task)
        for job in task.jobs:
            job.cancel()

    asyncio.run(run())


@pytest.mark.usefixtures("topics")
def test_a_refusal_halves_the_limit_at_once_and_then_applies_the_settings() -> None:
    copier = begun_copier(NOW_MS)

    async def scenario(task: Task) -> None:
        task.refuse(copier)
        assert (copier.packer.limit.is_known, copier.packer.limit.max_uncompressed_bytes) == (
            False,
            DEFAULT_BYTES,
        )
        await task.settle()

    run_scenario(scenario)
    limit = copier.packer.limit
    assert (20_000, 20_000, "uncompressed") == (
        limit.max_batch_bytes,
        limit.max_uncompressed_bytes,
        limit.compression_type,
    )


def test_refusals_of_batches_in_flight_after_the_first_are_ignored(topics: Topics) -> None:
    """They were packed with the same limit. The limit is halved once and the settings are read once."""
    copier = begun_copier(NOW_MS)

    async def scenario(task: Task) -> None:
        for _ in range(5):
            put_in_flight(copier, SEVERAL)
        for _ in range(5):
            task.refuse_next(copier)
        assert DEFAULT_BYTES == copier.packer.limit.max_uncompressed_bytes
        await task.settle()

    run_scenario(scenario)
    assert 1 == topics.requests


def test_partitions_of_a_topic_share_a_request(topics: Topics) -> None:
    session = new_session(partitions=20)
    copiers = [begun_copier(NOW_MS, session, number) for number in range(20)]

    async def scenario(task: Task) -> None:
        for copier in copiers:
            task.refuse(copier)
        await task.settle()

    run_scenario(scenario)
    assert 1 == topics.requests
    assert {20_000} == {copier.packer.limit.max_batch_bytes for copier in copiers}


@pytest.mark.usefixtures("topics")
def test_settings_read_after_copying_resumed_resync_the_copier() -> None:
    """In the meantime the copier has packed batches with the estimated limit."""
    copier = begun_copier(NOW_MS)

    async def scenario(task: Task) -> None:
        task.refuse(copier)
        resume(copier, NOW_MS)
        await task.settle()

    run_scenario(scenario)
    assert 2 == copier.resyncs


def test_each_refusal_halves_the_estimate_when_settings_cannot_be_read(topics: Topics) -> None:
    copier = begun_copier(NOW_MS)
    topics.error = NotAuthorizedError(cluster="west", operation="DescribeConfigs", resource="topic")

    async def scenario(task: Task) -> None:
        for _ in range(4):
            resume(copier, NOW_MS)
            assert copier.state is CopierState.COPYING
            task.refuse(copier)
            await task.settle()

    run_scenario(scenario)
    assert DEFAULT_BYTES // 8 == copier.packer.limit.max_uncompressed_bytes


def test_an_unexplained_refusal_of_a_single_record_stops_the_partition(topics: Topics) -> None:
    copier = begun_copier(NOW_MS)
    topics.error = NotAuthorizedError(cluster="west", operation="DescribeConfigs", resource="topic")

    async def scenario(task: Task) -> None:
        task.refuse(copier, ALONE)
        await task.settle()

    run_scenario(scenario)
    assert isinstance(copier.health.error, RecordTooLargeError)
    assert 100 == copier.health.error.offset
    assert copier.packer.limit is UNLIMITED


@pytest.mark.usefixtures("topics")
def test_a_refused_single_record_is_packed_again_with_newly_read_settings() -> None:
    """The packer then measures whether the record fits after compression with the target's codec."""
    copier = begun_copier(NOW_MS)

    async def scenario(task: Task) -> None:
        task.refuse(copier, ALONE)
        await task.settle()

    run_scenario(scenario)
    assert (None, 20_000) == (copier.health.error, copier.packer.limit.max_batch_bytes)


def test_an_estimate_is_kept_while_the_settings_are_unchanged(topics: Topics) -> None:
    """Unchanged settings do not explain the refusal, so the leader may use different ones."""
    copier = begun_copier(NOW_MS)

    async def scenario(task: Task) -> None:
        task.refuse(copier)
        await task.settle()
        resume(copier, NOW_MS)
        task.refuse(copier)
        await task.settle()
        assert (False, 10_000) == (copier.packer.limit.is_known, copier.packer.limit.max_uncompressed_bytes)
        topics.settings["max.message.bytes"] = "5000"
        await task.limits.read_settings(copier)

    run_scenario(scenario)
    assert (True, 5_000) == (copier.packer.limit.is_known, copier.packer.limit.max_batch_bytes)


def test_a_raised_limit_is_detected(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of limited topics are read periodically, but not for a copier that has left."""
    monkeypatch.setattr(batch_limits, "WATCH_S", 0.001)
    copier = begun_copier(NOW_MS)
    left_copier = new_copier(copier.session, 3, "east.left")
    resume(left_copier, NOW_MS)

    async def scenario(task: Task) -> None:
        task.refuse(copier)
        task.refuse(left_copier)
        await task.until(lambda: copier.packer.limit.is_known and left_copier.packer.limit.is_known)
        left_copier.leave()
        topics.settings["max.message.bytes"] = "100000"
        await task.until(lambda: bool(copier.packer.limit.max_batch_bytes == 100_000))

    run_scenario(scenario)
    assert 20_000 == left_copier.packer.limit.max_batch_bytes

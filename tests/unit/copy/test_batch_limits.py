"""Batch limits after refusals: a guess at once, then the limit by the topic's settings; nothing learned is forgotten."""

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
SEVERAL, ALONE = 8, 1  # records of a batch


class Topics:
    """The settings of target topics, and how often they were asked for."""

    def __init__(self) -> None:
        self.settings = {"max.message.bytes": "20000", "compression.type": "uncompressed"}
        self.error: MirrorFlowError | None = None
        self.asked = 0

    async def describe(self, cluster: object, topics: list[str]) -> dict[str, tuple[ConfigEntry, ...]]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return {
            topic: tuple(ConfigEntry(name=name, value=value) for name, value in self.settings.items())
            for topic in topics
        }


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    """Settings that may be read, until the test says otherwise."""
    found = Topics()
    monkeypatch.setattr(admin, "describe_topic_configs", found.describe)
    return found


class Task:
    """The limits, and what they have spawned."""

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
        """The target refuses a batch of *count* records for its size."""
        put_in_flight(copier, count)
        self.refuse_next(copier)

    def refuse_next(self, copier: PartitionCopier) -> None:
        """The target refuses the oldest batch in flight for its size."""
        self._apply(copier, copier.refused(MESSAGE_TOO_LARGE, ""))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the jobs run until then."""
        async with asyncio.timeout(300):
            while not condition():  # noqa: ASYNC110  any condition, not one event
                await asyncio.sleep(0)

    async def settle(self) -> None:
        """Let everything but the watch, which is the second job, come to its end."""
        await asyncio.gather(*(job for index, job in enumerate(self.jobs) if index != 1))


def played(story: Callable[[Task], Coroutine[Any, Any, None]]) -> None:
    """Run *story*; what it has spawned ends with it."""

    async def play() -> None:
        task = Task()
        await story(task)
        for job in task.jobs:
            job.cancel()

    asyncio.run(play())


@pytest.mark.usefixtures("topics")
def test_a_refusal_halves_at_once_and_then_applies_the_settings() -> None:
    copier = begun_copier(NOW_MS)

    async def story(task: Task) -> None:
        task.refuse(copier)
        assert (copier.packer.limit.is_known, copier.packer.limit.max_uncompressed_bytes) == (
            False,
            DEFAULT_BYTES,
        )
        await task.settle()

    played(story)
    limit = copier.packer.limit
    assert (20_000, 20_000, "uncompressed") == (
        limit.max_batch_bytes,
        limit.max_uncompressed_bytes,
        limit.compression_type,
    )


def test_refusals_of_batches_in_flight_after_the_first_are_ignored(topics: Topics) -> None:
    """They were packed by the same limit: one guess, one request."""
    copier = begun_copier(NOW_MS)

    async def story(task: Task) -> None:
        for _ in range(5):
            put_in_flight(copier, SEVERAL)
        for _ in range(5):
            task.refuse_next(copier)
        assert DEFAULT_BYTES == copier.packer.limit.max_uncompressed_bytes
        await task.settle()

    played(story)
    assert 1 == topics.asked


def test_partitions_of_a_topic_share_a_request(topics: Topics) -> None:
    session = new_session(partitions=20)
    copiers = [begun_copier(NOW_MS, session, number) for number in range(20)]

    async def story(task: Task) -> None:
        for copier in copiers:
            task.refuse(copier)
        await task.settle()

    played(story)
    assert 1 == topics.asked
    assert {20_000} == {copier.packer.limit.max_batch_bytes for copier in copiers}


@pytest.mark.usefixtures("topics")
def test_settings_read_after_copying_resumed_resync_the_copier() -> None:
    """The copier has gone on by the guess meanwhile."""
    copier = begun_copier(NOW_MS)

    async def story(task: Task) -> None:
        task.refuse(copier)
        resume(copier, NOW_MS)
        await task.settle()

    played(story)
    assert 2 == copier.resyncs


def test_where_settings_may_not_be_read_each_refusal_halves_the_guess(topics: Topics) -> None:
    copier = begun_copier(NOW_MS)
    topics.error = NotAuthorizedError(cluster="west", operation="DescribeConfigs", resource="topic")

    async def story(task: Task) -> None:
        for _ in range(4):
            resume(copier, NOW_MS)
            assert copier.state is CopierState.COPYING
            task.refuse(copier)
            await task.settle()

    played(story)
    assert DEFAULT_BYTES // 8 == copier.packer.limit.max_uncompressed_bytes


def test_a_record_alone_that_nothing_explains_stops_its_partition(topics: Topics) -> None:
    copier = begun_copier(NOW_MS)
    topics.error = NotAuthorizedError(cluster="west", operation="DescribeConfigs", resource="topic")

    async def story(task: Task) -> None:
        task.refuse(copier, ALONE)
        await task.settle()

    played(story)
    assert isinstance(copier.error, RecordTooLargeError)
    assert 100 == copier.error.offset
    assert copier.packer.limit is UNLIMITED


@pytest.mark.usefixtures("topics")
def test_a_record_alone_is_packed_again_by_settings_that_were_not_known() -> None:
    """The packer then measures whether the target's own codec makes it small."""
    copier = begun_copier(NOW_MS)

    async def story(task: Task) -> None:
        task.refuse(copier, ALONE)
        await task.settle()

    played(story)
    assert (None, 20_000) == (copier.error, copier.packer.limit.max_batch_bytes)


def test_a_guess_is_kept_while_the_settings_have_not_changed(topics: Topics) -> None:
    """They were not the reason: perhaps the leader has others. New ones count again."""
    copier = begun_copier(NOW_MS)

    async def story(task: Task) -> None:
        task.refuse(copier)
        await task.settle()
        resume(copier, NOW_MS)
        task.refuse(copier)
        await task.settle()
        assert (False, 10_000) == (copier.packer.limit.is_known, copier.packer.limit.max_uncompressed_bytes)
        topics.settings["max.message.bytes"] = "5000"
        await task.limits.read_settings(copier)

    played(story)
    assert (True, 5_000) == (copier.packer.limit.is_known, copier.packer.limit.max_batch_bytes)


def test_a_limit_that_is_raised_is_noticed(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of limited topics are read again from time to time; those of a copier that has left are not."""
    monkeypatch.setattr(batch_limits, "WATCH_S", 0.001)
    copier = begun_copier(NOW_MS)
    gone = new_copier(copier.session, 3, "east.gone")
    resume(gone, NOW_MS)

    async def story(task: Task) -> None:
        task.refuse(copier)
        task.refuse(gone)
        await task.until(lambda: copier.packer.limit.is_known and gone.packer.limit.is_known)
        gone.leave()
        topics.settings["max.message.bytes"] = "100000"
        await task.until(lambda: bool(copier.packer.limit.max_batch_bytes == 100_000))

    played(story)
    assert 20_000 == gone.packer.limit.max_batch_bytes

"""A task process handles the worker's messages. Its clusters and its copying are stubs."""

import asyncio
from typing import Any, cast

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import SideReport, TaskReport
from mirrorflow_replicator.connectors.task_messages import Assign, Begin, Finish, Stop, TaskAssignment, encode
from mirrorflow_replicator.worker import task_process
from mirrorflow_replicator.worker.task_process import TaskProcess
from tests.unit.connectors.flow_settings import settings

WAIT_S, POLL_S = 10.0, 0.001
START = Assign(
    assignment=TaskAssignment(partitions=(TopicPartition("orders", 0),), initial=True),
    start=cast("Any", "a session"),
)


def test_a_session_that_ends_before_the_clusters_are_connected_is_reported_as_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    """Only then does the worker send the next session, with the partitions that were found meanwhile."""
    monkeypatch.setattr(task_process, "REPORT_S", POLL_S)
    reports: list[TaskReport] = []

    async def test() -> None:
        reachable, begin_called = asyncio.Event(), asyncio.Event()

        async def connect(*_: object, **__: object) -> tuple[()]:
            await reachable.wait()
            return ()

        async def begin(*_: object) -> None:
            begin_called.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(task_process, "connect_both", connect)
        process = TaskProcess(Begin(settings=settings(), task=0))
        monkeypatch.setattr(process, "_send", reports.append)
        monkeypatch.setattr(process, "_begin_task", begin)
        stream = asyncio.StreamReader()
        serving = asyncio.create_task(process.serve(stream))
        stream.feed_data(encode(START))
        stream.feed_data(encode(Finish()))
        await until(lambda: reports)
        reachable.set()
        await until(lambda: reports[-1].sessions_ended == 1)
        assert not begin_called.is_set()
        stream.feed_data(encode(START))
        await until(begin_called.is_set)
        stream.feed_data(encode(Stop()))
        monkeypatch.setattr(task_process, "STOP_WAIT_S", POLL_S)
        await serving

    asyncio.run(test())


class RefreshedCluster:
    """A cluster that counts how often its metadata is requested; with *is_silent* no broker answers."""

    alias, cluster_id, warnings, reach = "east", "a", (), SideReport()

    def __init__(self, *, is_silent: bool) -> None:
        self.refreshes = 0
        self._is_silent = is_silent

    async def refresh(self, topics: list[str]) -> None:
        self.refreshes += not topics
        if self._is_silent:
            raise UnreachableError(cluster="east", addresses="a:1", problem="refused")


@pytest.mark.parametrize("is_silent", [False, True])
def test_connections_are_opened_before_the_first_assignment(
    monkeypatch: pytest.MonkeyPatch, *, is_silent: bool
):
    """If that fails, the session that needs them reports it."""

    async def test() -> None:
        clusters, begin_called = [RefreshedCluster(is_silent=is_silent) for _ in range(2)], asyncio.Event()

        async def connect(*_: object, **__: object) -> list[RefreshedCluster]:
            return clusters

        async def begin(*_: object) -> None:
            begin_called.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(task_process, "connect_both", connect)
        process = TaskProcess(Begin(settings=settings(), task=0))
        monkeypatch.setattr(process, "_send", lambda _: None)
        monkeypatch.setattr(process, "_begin_task", begin)
        stream = asyncio.StreamReader()
        serving = asyncio.create_task(process.serve(stream))
        await until(lambda: [1, 1] == [cluster.refreshes for cluster in clusters])
        stream.feed_data(encode(START))
        await until(begin_called.is_set)
        stream.feed_data(encode(Stop()))
        monkeypatch.setattr(task_process, "STOP_WAIT_S", POLL_S)
        await serving

    asyncio.run(test())


async def until(condition: Any) -> None:
    for _ in range(round(WAIT_S / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)
    pytest.fail("The condition was not met in time.")

"""A task process handles the worker's messages. Its clusters and its copying are stubs."""

import asyncio
from typing import Any, cast

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import TaskReport
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


async def until(condition: Any) -> None:
    for _ in range(round(WAIT_S / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)
    pytest.fail("The condition was not met in time.")

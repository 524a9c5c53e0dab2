"""A task process handles the worker's messages. Its clusters and its sessions are stubs."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import PartitionPhase, PartitionReport, SideReport, TaskReport
from mirrorflow_core.settings import SchemaWaitSettings
from mirrorflow_core.writer.flow_plan import SessionStart
from mirrorflow_replicator.connectors.task_messages import Assign, Begin, Finish, Stop, TaskAssignment, encode
from mirrorflow_replicator.copy import schema_wait, task_session_factory
from mirrorflow_replicator.copy.task_parts import KnownSchemas, SessionParts, TaskParts
from mirrorflow_replicator.worker import task_process
from mirrorflow_replicator.worker.task_process import TaskProcess
from tests.unit.connectors.flow_settings import settings
from tests.unit.core.copying.stubs import PRODUCERS

WAIT_S, POLL_S = 10.0, 0.001
START = Assign(
    assignment=TaskAssignment(partitions=(TopicPartition("orders", 0),), initial=True),
    start=cast("Any", "a session"),
)


def test_a_session_that_ends_before_the_clusters_are_connected_is_reported_as_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    """Only then does the worker send the next session, with the partitions that were discovered in the meantime."""
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


STARTING = PartitionReport(
    topic="orders", target_topic="east.orders", partition=0, phase=PartitionPhase.STARTING
)


class RefreshedCluster:
    """A cluster that counts how often its metadata is requested. If *is_silent* is true, no broker responds."""

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
    """If connecting fails, the session that needs the connections reports it."""

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


class SessionStub:
    """A session that copies nothing. *parts* are what the process has passed to it."""

    is_fenced = True

    def __init__(self, parts: SessionParts) -> None:
        self.parts = parts
        self.copiers: dict[TopicPartition, object] = {}

    async def assign(self, _: object, *, bytes_per_s: float | None) -> None:
        pass

    async def end(self, *, leaves: bool) -> None:
        pass

    async def stop(self) -> None:
        pass

    def acknowledged(self) -> tuple[()]:
        return ()

    def report(self, *, whole: bool = False) -> TaskReport:
        return TaskReport(task=0, state="RUNNING")


def test_sessions_of_a_process_share_their_knowledge_of_schemas(monkeypatch: pytest.MonkeyPatch):
    """Otherwise records of the next session would wait again for schemas that did not arrive in time."""
    monkeypatch.setattr(task_process, "REPORT_S", POLL_S)
    sessions: list[SessionStub] = []
    reports: list[TaskReport] = []

    async def test() -> None:
        async def connect(*_: object, **__: object) -> list[RefreshedCluster]:
            return [RefreshedCluster(is_silent=False) for _ in range(2)]

        async def start(*_: object, session: SessionParts, **__: object) -> SessionStub:
            sessions.append(SessionStub(session))
            return sessions[-1]

        monkeypatch.setattr(task_process, "connect_both", connect)
        monkeypatch.setattr(task_process, "start_task_session", start)
        process = TaskProcess(Begin(settings=settings(), task=0))
        monkeypatch.setattr(process, "_send", reports.append)
        stream = asyncio.StreamReader()
        serving = asyncio.create_task(process.serve(stream))
        message = replace(START, start=SessionStart(producers=PRODUCERS, points={}, problems={}))
        for ended in range(2):
            stream.feed_data(encode(message))
            await until(lambda: reports and reports[-1].state == "RUNNING")
            stream.feed_data(encode(Finish()))
            await until(lambda ended=ended: reports[-1].sessions_ended == ended + 1)
        stream.feed_data(encode(Stop()))
        await serving

    asyncio.run(test())

    first, second = (session.parts.known_schemas for session in sessions)
    assert first is second


def test_a_session_whose_partitions_cannot_be_connected_ends_when_it_is_to(monkeypatch: pytest.MonkeyPatch):
    """Its partitions may have to move to another process while a cluster does not respond."""
    monkeypatch.setattr(task_process, "REPORT_S", POLL_S)
    monkeypatch.setattr(task_process, "RETRY_MIN_S", POLL_S)
    reports: list[TaskReport] = []

    class UnconnectedSession(SessionStub):
        async def assign(self, _: object, *, bytes_per_s: float | None) -> None:
            raise UnreachableError(cluster="east", addresses="a:1", problem="refused")

        def report(self, *, whole: bool = False) -> TaskReport:
            return replace(super().report(whole=whole), partitions=(STARTING,))

    async def test() -> None:
        async def connect(*_: object, **__: object) -> list[RefreshedCluster]:
            return [RefreshedCluster(is_silent=False) for _ in range(2)]

        async def start(*_: object, session: SessionParts, **__: object) -> SessionStub:
            return UnconnectedSession(session)

        monkeypatch.setattr(task_process, "connect_both", connect)
        monkeypatch.setattr(task_process, "start_task_session", start)
        process = TaskProcess(Begin(settings=settings(), task=0))
        monkeypatch.setattr(process, "_send", reports.append)
        stream = asyncio.StreamReader()
        serving = asyncio.create_task(process.serve(stream))
        message = replace(START, start=SessionStart(producers=PRODUCERS, points={}, problems={}))
        stream.feed_data(encode(message))
        await until(lambda: reports and reports[-1].reason == "Unreachable")
        assert ("FAILED", (STARTING,)) == (reports[-1].state, reports[-1].partitions)
        stream.feed_data(encode(Finish()))
        await until(lambda: reports[-1].sessions_ended == 1)
        stream.feed_data(encode(Stop()))
        await serving

    asyncio.run(test())


def test_a_start_that_its_session_has_used_begins_no_second_session(monkeypatch: pytest.MonkeyPatch):
    """The session ends while its partitions cannot be connected. A second one would write under the same sequences and epochs."""
    monkeypatch.setattr(task_process, "RETRY_MIN_S", POLL_S)
    monkeypatch.setattr(task_process, "RETRY_MAX_S", POLL_S)
    sessions: list[SessionStub] = []

    async def test() -> None:
        may_end, tried_again = asyncio.Event(), asyncio.Event()

        class EndingSession(SessionStub):
            async def assign(self, _: object, *, bytes_per_s: float | None) -> None:
                self.parts.end("a response was lost")
                raise UnreachableError(cluster="east", addresses="a:1", problem="refused")

            async def end(self, *, leaves: bool) -> None:
                await may_end.wait()

        async def start(*_: object, session: SessionParts, **__: object) -> SessionStub:
            sessions.append(EndingSession(session))
            return sessions[-1]

        class Changing(asyncio.Lock):
            async def acquire(self) -> Literal[True]:
                if self.locked():
                    tried_again.set()
                return await super().acquire()

        monkeypatch.setattr(task_process, "start_task_session", start)
        process = TaskProcess(Begin(settings=settings(), task=0))
        process._changing = Changing()
        message = replace(START, start=SessionStart(producers=PRODUCERS, points={}, problems={}))
        clusters: Any = (None, None)
        assigning = asyncio.create_task(process._assign(clusters, message))
        await tried_again.wait()
        may_end.set()
        await until(lambda: assigning.done() or len(sessions) > 1)
        assigning.cancel()

    asyncio.run(test())

    assert len(sessions) == 1


def test_a_session_waits_for_schemas_with_the_knowledge_of_its_process(monkeypatch: pytest.MonkeyPatch):
    given: list[tuple[object, TaskParts]] = []

    class StartedSession:
        def __init__(self, _settings: object, _task: int, parts: TaskParts) -> None:
            given.append((parts.schemas, parts))

        async def start(self) -> None:
            pass

    wait = SchemaWaitSettings(topics=("orders",), longest_s=1.0, schemas=cast("Any", None))
    known = KnownSchemas()
    monkeypatch.setattr(task_session_factory, "TaskSession", StartedSession)
    monkeypatch.setattr(schema_wait, "SchemaWait", lambda *arguments: arguments)
    parts = cast("Any", SimpleNamespace(known_schemas=known))
    clusters = cast("Any", (None, None))

    asyncio.run(
        task_session_factory.start_task_session(
            replace(settings(), schema_wait=wait, syncs=None),
            clusters,
            cast("Any", None),
            resolve=cast("Any", None),
            task=0,
            session=parts,
        )
    )

    ((schemas, built),) = given
    assert schemas == (wait, known, built.errors)
    assert cast("Any", schemas)[1] is known


async def until(condition: Any) -> None:
    for _ in range(round(WAIT_S / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)
    pytest.fail("The condition was not met in time.")

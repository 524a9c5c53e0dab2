"""A task supervisor sends messages to its process, keeps its reports, restarts it and stops it."""

import asyncio
import errno
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from mirrorflow_core.errors import FlowTakenError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import AcknowledgedPosition, PartitionPhase, PartitionReport, TaskReport
from mirrorflow_replicator.connectors import child_process, session_starter, task_supervisor
from mirrorflow_replicator.connectors.child_process import ChildProcess
from mirrorflow_replicator.connectors.report_lines import encode_report
from mirrorflow_replicator.connectors.task_messages import (
    Assign,
    Begin,
    Finish,
    Message,
    SetLogLevel,
    Stop,
    TaskAssignment,
)
from mirrorflow_replicator.connectors.task_supervisor import TaskSupervisor
from mirrorflow_replicator.logs import LOGGERS
from tests.unit.connectors.flow_settings import settings

ORDERS = TaskAssignment(partitions=(TopicPartition("orders", 0), TopicPartition("orders", 1)), initial=True)
FIRST_ORDERS = TaskAssignment(partitions=ORDERS.partitions[:1], initial=True)
ACKNOWLEDGED = (AcknowledgedPosition(topic="orders", partition=0, value="{}"),)
WAIT_S, POLL_S = 10.0, 0.001


class FakeProcess:
    """A task process that records its messages.

    It ends when `end` is called, or on a Stop message if *obeys* is true.
    """

    def __init__(self, *, obeys: bool = True) -> None:
        self.messages: list[Message] = []
        self.pid = 4711
        self.returncode: int | None = None
        self.stdin = self
        self.stdout = asyncio.StreamReader()
        self._obeys = obeys
        self._ended = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.messages.append(pickle.loads(data[4:]))
        if self._obeys and isinstance(self.messages[-1], Stop):
            self.end(0)

    def is_closing(self) -> bool:
        return self.returncode is not None

    def close(self) -> None:
        self.end(0)

    def report(self, *partitions: PartitionReport, **fields: object) -> None:
        report = TaskReport(task=0, state="RUNNING", partitions=partitions)
        self.stdout.feed_data(encode_report(replace(report, **fields)))  # type: ignore[arg-type]

    def end(self, code: int) -> None:
        if self.returncode is None:
            self.returncode = code
            self.stdout.feed_eof()
            self._ended.set()

    def kill(self) -> None:
        self.end(-9)

    async def wait(self) -> int:
        await self._ended.wait()
        return cast("int", self.returncode)

    def of(self, kind: type[Message]) -> list[Message]:
        return [message for message in self.messages if isinstance(message, kind)]


class SupervisedTask:
    """A supervised task.

    It records its processes, and the assignments for which a session was claimed.
    """

    def __init__(self, *, obeys: bool = True) -> None:
        self.processes: list[FakeProcess] = []
        self.claimed_assignments: list[TaskAssignment] = []
        self.reports: list[TaskReport] = []
        self.refusals = 0  # number of the next claims that are refused
        self.claim_bugs = 0  # number of the next claims that fail by a bug
        self.claims_allowed = asyncio.Event()  # claims wait until this event is set
        self.claims_allowed.set()
        self._obeys = obeys
        self.supervisor = TaskSupervisor(
            settings(), 0, on_report=self.reports.append, claim=self._claim, start=self._start
        )

    async def _start(self) -> ChildProcess:
        self.processes.append(FakeProcess(obeys=self._obeys))
        return ChildProcess(cast("asyncio.subprocess.Process", self.processes[-1]))

    async def _claim(self, task: int, wanted: TaskAssignment) -> Assign:
        self.claimed_assignments.append(wanted)
        await self.claims_allowed.wait()
        if self.claim_bugs:
            self.claim_bugs -= 1
            raise KeyError("orders")
        if self.refusals:
            self.refusals -= 1
            raise FlowTakenError(source="east")
        return Assign(assignment=wanted, start=cast("object", f"start {task}"))  # type: ignore[arg-type]

    @property
    def process(self) -> FakeProcess:
        return self.processes[-1]

    @property
    def newest(self) -> TaskReport:
        return self.supervisor.reports.newest

    async def wait_for_sessions(self, count: int) -> None:
        """Waits until the process has received the assignments of *count* sessions."""
        await until(lambda: len(self.process.of(Assign)) == count)

    def partitions(self) -> tuple[PartitionReport, ...]:
        return self.supervisor.report(lambda topic: f"east.{topic}").partitions


async def until(condition: Callable[[], object]) -> None:
    for _ in range(round(WAIT_S / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)
    pytest.fail("The condition was not met within the time limit.")


@asynccontextmanager
async def supervised(*, obeys: bool = True) -> AsyncIterator[SupervisedTask]:
    task = SupervisedTask(obeys=obeys)
    try:
        await until(lambda: task.processes and task.process.of(Begin))
        yield task
    finally:
        await task.supervisor.stop(0)


def partition_report(partition: int, **fields: object) -> PartitionReport:
    report = PartitionReport(
        topic="orders", target_topic="east.orders", partition=partition, phase=PartitionPhase.COPYING
    )
    return replace(report, **fields)  # type: ignore[arg-type]


def run(test: Callable[[SupervisedTask], object], *, obeys: bool = True) -> None:
    async def main() -> None:
        async with supervised(obeys=obeys) as task:
            await test(task)  # type: ignore[misc]

    asyncio.run(main())


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_supervisor, "RESTART_MIN_S", 0.001)
    monkeypatch.setattr(session_starter, "CLAIM_RETRY_MIN_S", 0.001)


def test_assignment_is_sent_with_its_session_start():
    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        await task.wait_for_sessions(1)
        task.supervisor.assign(ORDERS)  # an unchanged assignment

        assert [Begin, Assign] == [type(message) for message in task.process.messages]
        assert task.process.of(Assign) == [Assign(assignment=ORDERS, start="start 0")]  # type: ignore[arg-type]

    run(test)


def test_task_is_unassigned_before_its_first_report():
    async def test(task: SupervisedTask) -> None:
        assert (task.newest.state, task.partitions()) == ("UNASSIGNED", ())

    run(test)


def test_newest_report_of_each_assigned_partition_is_kept():
    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        task.process.report(
            partition_report(0, records=1), partition_report(1, records=1), partition_report(7)
        )
        task.process.report(partition_report(1, records=2), trace="throttled")
        await until(lambda: len(task.reports) == 2)

        assert task.partitions() == (partition_report(0, records=1), partition_report(1, records=2))
        assert (task.newest.state, task.newest.trace) == ("RUNNING", "throttled")
        assert set(task.supervisor.reports.partitions) == set(ORDERS.partitions)

        task.supervisor.assign(FIRST_ORDERS)
        assert task.partitions() == (partition_report(0, records=1),)

    run(test)


def test_next_assignment_is_claimed_after_the_process_has_finished_the_last():
    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        await task.wait_for_sessions(1)
        task.supervisor.assign(FIRST_ORDERS)

        assert [Begin, Assign, Finish] == [type(message) for message in task.process.messages]
        task.process.report(sessions_ended=1, acknowledged=ACKNOWLEDGED)
        await task.wait_for_sessions(2)
        assert task.claimed_assignments == [ORDERS, replace(FIRST_ORDERS, acknowledged=ACKNOWLEDGED)]

    run(test)


def test_fenced_session_is_followed_by_a_new_one():
    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        for number in (1, 2, 3):
            await task.wait_for_sessions(number)
            task.process.report(sessions_ended=number)
        await task.wait_for_sessions(4)

        assert not task.process.of(Finish)

    run(test)


def test_refused_claim_is_repeated_for_the_newest_assignment():
    async def test(task: SupervisedTask) -> None:
        task.refusals = 2
        task.claims_allowed.clear()
        task.supervisor.assign(ORDERS)
        await until(lambda: task.claimed_assignments)
        task.supervisor.assign(FIRST_ORDERS)
        task.claims_allowed.set()
        await task.wait_for_sessions(1)

        assert task.claimed_assignments == [ORDERS, FIRST_ORDERS, FIRST_ORDERS]

    run(test)


def test_session_start_claimed_for_an_older_assignment_is_not_sent():
    async def test(task: SupervisedTask) -> None:
        task.claims_allowed.clear()
        task.supervisor.assign(ORDERS)
        await until(lambda: task.claimed_assignments)
        task.supervisor.assign(FIRST_ORDERS)
        task.claims_allowed.set()
        await task.wait_for_sessions(1)

        assert task.claimed_assignments == [ORDERS, FIRST_ORDERS]
        assert len(task.process.of(Assign)) == 1

    run(test)


def test_partitions_stall_while_claims_are_refused_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session_starter, "STALLED_AFTER_S", 0.005)

    async def test(task: SupervisedTask) -> None:
        task.refusals = 10**6
        task.supervisor.assign(ORDERS)
        task.process.report(partition_report(0, records=5))
        await until(lambda: task.partitions() and task.partitions()[0].reason == "FlowTaken")

        first, second = task.partitions()
        assert (first.records, second.records) == (5, 0)
        assert first.phase is second.phase is PartitionPhase.STARTING
        assert second.target_topic == "east.orders"
        assert first.is_stalled
        task.refusals = 0
        await task.wait_for_sessions(1)
        assert task.partitions() == (partition_report(0, records=5),)

    run(test)


def test_partitions_stall_while_a_claim_is_pending_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(session_starter, "STALLED_AFTER_S", 0.005)

    async def test(task: SupervisedTask) -> None:
        task.claims_allowed.clear()
        task.supervisor.assign(ORDERS)
        await until(task.partitions)

        assert {partition.reason for partition in task.partitions()} == {"StartPending"}
        task.claims_allowed.set()
        await until(lambda: not task.partitions())

    run(test)


def test_process_without_reports_fails_its_task_until_it_reports(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "CHECK_S", 0.005)
    monkeypatch.setattr(task_supervisor, "STALLED_AFTER_S", 0.01)

    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        await task.wait_for_sessions(1)
        task.process.report(partition_report(0, records=5))
        await until(lambda: {partition.reason for partition in task.partitions()} == {"TaskSilent"})

        first, second = task.partitions()
        assert (first.records, second.records) == (5, 0)
        assert first.is_stalled
        assert second.is_stalled
        report = task.supervisor.report(str)
        assert ("FAILED", "TaskSilent") == (report.state, report.reason)
        assert "task 0 (pid 4711) has reported nothing of its partitions" in str(report.trace)
        monkeypatch.setattr(task_supervisor, "STALLED_AFTER_S", 3600.0)
        task.process.report(partition_report(1))
        await until(lambda: task.supervisor.report(str).state == "RUNNING")
        assert task.partitions() == (partition_report(0, records=5), partition_report(1))

    run(test)


def test_process_that_reports_no_partitions_fails_its_task(monkeypatch: pytest.MonkeyPatch):
    """The process has a session start and still reports as unassigned."""
    monkeypatch.setattr(task_supervisor, "CHECK_S", 0.005)
    monkeypatch.setattr(task_supervisor, "STALLED_AFTER_S", 0.01)

    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        await task.wait_for_sessions(1)

        def is_named() -> bool:
            task.process.report(state="UNASSIGNED")
            return {partition.reason for partition in task.partitions()} == {"TaskSilent"}

        await until(is_named)
        task.process.report(partition_report(0), partition_report(1))
        await until(lambda: task.supervisor.report(str).state == "RUNNING")
        assert task.partitions() == (partition_report(0), partition_report(1))

    run(test)


def test_process_that_cannot_be_started_fails_its_task(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "CHECK_S", 0.005)
    monkeypatch.setattr(task_supervisor, "STALLED_AFTER_S", 0.01)

    async def test() -> None:
        async def never_start() -> ChildProcess:
            await asyncio.Event().wait()
            raise AssertionError

        async def refuse_claim(_: int, __: TaskAssignment) -> Assign:
            raise FlowTakenError(source="east")

        supervisor = TaskSupervisor(
            settings(), 0, on_report=lambda _: None, claim=refuse_claim, start=never_start
        )
        supervisor.assign(ORDERS)
        await until(lambda: supervisor.report(str).reason == "TaskSilent")

        report = supervisor.report(str)
        await supervisor.stop(0)
        assert str(report.trace).startswith("The process of task 0 has reported nothing")
        assert [partition.reason for partition in report.partitions] == ["TaskSilent"] * 2

    asyncio.run(test())


def test_spare_process_that_does_not_start_in_time_is_killed(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(child_process, "STARTED_S", 0.01)
    spawned: list[FakeProcess] = []

    async def spawn() -> ChildProcess:
        spawned.append(FakeProcess())
        return ChildProcess(cast("asyncio.subprocess.Process", spawned[-1]))

    monkeypatch.setattr(child_process, "spawn", spawn)

    async def test() -> None:
        warm = child_process.WarmProcess()
        warm.prepare()
        async with asyncio.timeout(WAIT_S):
            process = await warm.take()
            await warm.close()

        assert not process.has_ended
        assert [-9, -9, None] == sorted(
            (process.returncode for process in spawned), key=lambda code: code is None
        )

    asyncio.run(test())


NO_MORE_PROCESSES = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_start_that_the_system_refuses_is_repeated(monkeypatch: pytest.MonkeyPatch):
    """As at a limit of processes, of memory or of open files."""
    monkeypatch.setattr(task_supervisor, "RESTART_MIN_S", 3600.0)

    async def test() -> None:
        starts: list[object] = []

        async def start() -> ChildProcess:
            starts.append(None)
            if len(starts) == 1:
                raise NO_MORE_PROCESSES
            return ChildProcess(cast("asyncio.subprocess.Process", FakeProcess()))

        async def refuse_claim(_: int, __: TaskAssignment) -> Assign:
            raise FlowTakenError(source="east")

        supervisor = TaskSupervisor(settings(), 0, on_report=lambda _: None, claim=refuse_claim, start=start)
        await until(lambda: supervisor.report(str).state == "FAILED")
        report = supervisor.report(str)
        supervisor.restart()
        await until(lambda: len(starts) == 2)
        await supervisor.stop(WAIT_S)

        assert report.reason == "TaskNotStarted"
        assert report.trace is not None
        assert "task 0 cannot be started: Resource temporarily unavailable" in report.trace
        assert "limit" in report.trace

    asyncio.run(test())


def test_spare_process_that_the_system_refuses_is_replaced_when_a_task_needs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    refusals = [NO_MORE_PROCESSES]

    async def spawn() -> ChildProcess:
        if refusals:
            raise refusals.pop()
        process = FakeProcess()
        process.stdout.feed_data(child_process.HELLO)
        return ChildProcess(cast("asyncio.subprocess.Process", process))

    monkeypatch.setattr(child_process, "spawn", spawn)

    async def test() -> None:
        warm = child_process.WarmProcess()
        warm.prepare()
        await warm.ready()
        assert not (await warm.take()).has_ended
        await warm.close()

    asyncio.run(test())
    assert "Resource temporarily unavailable" in caplog.text


def test_spare_process_that_the_system_refuses_can_be_closed(monkeypatch: pytest.MonkeyPatch):
    async def spawn() -> ChildProcess:
        raise NO_MORE_PROCESSES

    monkeypatch.setattr(child_process, "spawn", spawn)

    async def test() -> None:
        warm = child_process.WarmProcess()
        warm.prepare()
        await warm.ready()
        await warm.close()

    asyncio.run(test())


def test_ended_process_is_reported_and_replaced():
    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        await task.wait_for_sessions(1)
        task.process.report(partition_report(0))
        await until(lambda: task.reports)
        task.process.end(70)
        await until(lambda: task.newest.state == "FAILED")

        assert task.newest == TaskReport(task=0, state="FAILED", trace=task.newest.trace, reason="TaskEnded")
        assert "70" in str(task.newest.trace)
        assert task.partitions() == (partition_report(0),)
        await until(lambda: len(task.processes) == 2 and task.process.of(Assign))
        assert [Begin, Assign] == [type(message) for message in task.process.messages]

    run(test)


def test_part_of_a_report_is_dropped_when_its_process_was_killed():
    """A report that is larger than a pipe is written in parts."""

    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        await task.wait_for_sessions(1)
        task.process.report(partition_report(0))
        task.process.stdout.feed_data(encode_report(TaskReport(task=0, state="RUNNING"))[:40])
        task.process.kill()
        await until(lambda: len(task.processes) == 2 and task.process.of(Assign))

        assert ("TaskEnded", 1) == (task.newest.reason, len(task.reports))

    run(test)


@pytest.mark.parametrize("ends_in_buffer", [False, True])
def test_report_that_is_too_long_is_dropped_with_a_warning(
    caplog: pytest.LogCaptureFixture, *, ends_in_buffer: bool
):
    async def main() -> None:
        process = FakeProcess()
        process.stdout = asyncio.StreamReader(limit=1000)
        long = encode_report(TaskReport(task=0, state="RUNNING", trace="x" * 5000))
        if ends_in_buffer:
            process.stdout.feed_data(long)
        reports = ChildProcess(cast("asyncio.subprocess.Process", process)).reports()
        first = asyncio.ensure_future(anext(reports))
        for start in range(0, 0 if ends_in_buffer else len(long), 700):
            process.stdout.feed_data(long[start : start + 700])
            await asyncio.sleep(0)
        process.report(trace="short")

        assert (await first).trace == "short"

    asyncio.run(main())
    assert "more than 32 MiB" in caplog.text


def test_process_with_an_unreadable_report_is_replaced(caplog: pytest.LogCaptureFixture):
    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        await task.wait_for_sessions(1)
        task.process.stdout.feed_data(b"{}\n")
        await until(lambda: len(task.processes) == 2 and task.process.of(Assign))

        assert ("FAILED", "TaskEnded") == (task.newest.state, task.newest.reason)
        assert task.newest.trace is not None
        assert "KeyError" in task.newest.trace
        assert task.processes[0].returncode == -9

    run(test, obeys=False)
    assert "Traceback" in caplog.text


def test_process_whose_claim_fails_by_a_bug_is_replaced(caplog: pytest.LogCaptureFixture):
    async def test(task: SupervisedTask) -> None:
        task.claim_bugs = 1
        task.supervisor.assign(ORDERS)
        await until(lambda: len(task.processes) == 2 and task.process.of(Assign))

        assert task.processes[0].returncode == -9

    run(test)
    assert "KeyError: 'orders'" in caplog.text


def test_restart_replaces_the_process_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "RESTART_MIN_S", 3600.0)

    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        task.supervisor.restart()
        assert task.newest.state == "RESTARTING"
        await until(lambda: len(task.processes) == 2 and task.process.of(Assign))

        assert len(task.processes[0].of(Stop)) == 1

    run(test)


def test_restart_ends_the_delay_after_a_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "RESTART_MIN_S", 3600.0)

    async def test(task: SupervisedTask) -> None:
        task.process.end(1)
        await until(lambda: task.newest.state == "FAILED")
        task.supervisor.restart()
        await until(lambda: len(task.processes) == 2)

    run(test)


def test_no_session_is_claimed_for_an_ended_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "RESTART_MIN_S", 3600.0)

    async def test(task: SupervisedTask) -> None:
        task.process.end(1)
        await until(lambda: task.newest.state == "FAILED")
        task.claims_allowed.clear()
        task.supervisor.assign(ORDERS)
        task.supervisor.restart()
        await until(lambda: len(task.processes) == 2 and task.claimed_assignments)
        task.claims_allowed.set()
        await task.wait_for_sessions(1)

        assert task.claimed_assignments == [ORDERS]

    run(test)


def test_process_that_does_not_stop_for_a_restart_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "RESTART_GRACE_S", 0.01)

    async def test(task: SupervisedTask) -> None:
        task.supervisor.restart()
        await until(lambda: len(task.processes) == 2)

        assert task.processes[0].returncode == -9

    run(test, obeys=False)


def test_stop_ends_the_process_gracefully_without_a_replacement():
    async def test(task: SupervisedTask) -> None:
        task.supervisor.assign(ORDERS)
        await task.supervisor.stop(WAIT_S)

        assert (task.process.returncode, len(task.processes)) == (0, 1)

    run(test)


def test_process_that_does_not_stop_in_time_is_killed():
    async def test(task: SupervisedTask) -> None:
        await task.supervisor.stop(0.01)

        assert (task.process.returncode, len(task.processes)) == (-9, 1)

    run(test, obeys=False)


def test_every_process_receives_the_log_levels():
    async def test(task: SupervisedTask) -> None:
        task.supervisor.set_level("mirrorflow.task", "DEBUG")
        assert task.process.messages[1:] == [SetLogLevel(logger="mirrorflow.task", level="DEBUG")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LOGGERS, "was_set", {"mirrorflow": "WARN"})
            task.process.end(1)
            await until(lambda: len(task.processes) == 2 and len(task.process.messages) == 2)
        assert task.process.messages[1] == SetLogLevel(logger="mirrorflow", level="WARN")

    run(test)

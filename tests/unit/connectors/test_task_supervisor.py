"""One task's process: what it is sent, which reports are kept, and how it is restarted and stopped."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest

from mirrorflow_core.errors import FlowTakenError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import AcknowledgedPosition, PartitionPhase, PartitionReport, TaskReport
from mirrorflow_replicator.connectors import child_process, task_starter, task_supervisor
from mirrorflow_replicator.connectors.child_process import ChildProcess
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
from mirrorflow_replicator.copy.partition_reports import encode_report
from mirrorflow_replicator.logs import LOGGERS
from tests.unit.connectors.flow_settings import settings

ORDERS = TaskAssignment(partitions=(TopicPartition("orders", 0), TopicPartition("orders", 1)), initial=True)
FIRST_ORDERS = TaskAssignment(partitions=ORDERS.partitions[:1], initial=True)
ACKNOWLEDGED = (AcknowledgedPosition(topic="orders", partition=0, value="{}"),)
WAIT_S, POLL_S = 10.0, 0.001


class FakeProcess:
    """A task process that only notes its messages. It ends when `end` is called, or at a Stop if it *obeys*."""

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


class Supervised:
    """A supervised task, its processes so far, and the assignments for which a start was claimed."""

    def __init__(self, *, obeys: bool = True) -> None:
        self.processes: list[FakeProcess] = []
        self.claimed: list[TaskAssignment] = []
        self.reports: list[TaskReport] = []
        self.refusals = 0  # of the next claims
        self.hold = asyncio.Event()  # claims wait for it
        self.hold.set()
        self._obeys = obeys
        self.task = TaskSupervisor(
            settings(), 0, on_report=self.reports.append, claim=self._claim, start=self._start
        )

    async def _start(self) -> ChildProcess:
        self.processes.append(FakeProcess(obeys=self._obeys))
        return ChildProcess(cast("asyncio.subprocess.Process", self.processes[-1]))

    async def _claim(self, task: int, wanted: TaskAssignment) -> Assign:
        self.claimed.append(wanted)
        await self.hold.wait()
        if self.refusals:
            self.refusals -= 1
            raise FlowTakenError(source="east")
        return Assign(assignment=wanted, start=cast("object", f"start {task}"))  # type: ignore[arg-type]

    @property
    def process(self) -> FakeProcess:
        return self.processes[-1]

    @property
    def newest(self) -> TaskReport:
        return self.task.reports.newest

    async def starts(self, count: int) -> None:
        """Waits until the process has been sent *count* starts."""
        await until(lambda: len(self.process.of(Assign)) == count)

    def partitions(self) -> tuple[PartitionReport, ...]:
        return self.task.report(lambda topic: f"east.{topic}").partitions


async def until(condition: Callable[[], object]) -> None:
    for _ in range(round(WAIT_S / POLL_S)):
        if condition():
            return
        await asyncio.sleep(POLL_S)
    pytest.fail("The condition was not met in time.")


@asynccontextmanager
async def supervised(*, obeys: bool = True) -> AsyncIterator[Supervised]:
    found = Supervised(obeys=obeys)
    try:
        await until(lambda: found.processes and found.process.of(Begin))
        yield found
    finally:
        await found.task.stop(0)


def part(partition: int, **fields: object) -> PartitionReport:
    report = PartitionReport(
        topic="orders", target_topic="east.orders", partition=partition, phase=PartitionPhase.COPYING
    )
    return replace(report, **fields)  # type: ignore[arg-type]


def run(test: Callable[[Supervised], object], *, obeys: bool = True) -> None:
    async def main() -> None:
        async with supervised(obeys=obeys) as task:
            await test(task)  # type: ignore[misc]

    asyncio.run(main())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_supervisor, "RESTART_MIN_S", 0.001)
    monkeypatch.setattr(task_starter, "CLAIM_RETRY_MIN_S", 0.001)


def test_an_assignment_is_sent_with_its_start():
    async def test(one: Supervised) -> None:
        one.task.assign(ORDERS)
        await one.starts(1)
        one.task.assign(ORDERS)  # the same again

        assert [Begin, Assign] == [type(message) for message in one.process.messages]
        assert one.process.of(Assign) == [Assign(assignment=ORDERS, start="start 0")]  # type: ignore[arg-type]

    run(test)


def test_a_task_is_unassigned_before_its_first_report():
    async def test(one: Supervised) -> None:
        assert (one.newest.state, one.partitions()) == ("UNASSIGNED", ())

    run(test)


def test_the_newest_report_of_each_assigned_partition_is_kept():
    async def test(one: Supervised) -> None:
        one.task.assign(ORDERS)
        one.process.report(part(0, records=1), part(1, records=1), part(7))
        one.process.report(part(1, records=2), trace="throttled")
        await until(lambda: len(one.reports) == 2)

        assert one.partitions() == (part(0, records=1), part(1, records=2))
        assert (one.newest.state, one.newest.trace) == ("RUNNING", "throttled")
        assert set(one.task.reports.partitions) == set(ORDERS.partitions)

        one.task.assign(FIRST_ORDERS)
        assert one.partitions() == (part(0, records=1),)

    run(test)


def test_another_assignment_is_claimed_after_the_process_has_finished_the_last():
    async def test(one: Supervised) -> None:
        one.task.assign(ORDERS)
        await one.starts(1)
        one.task.assign(FIRST_ORDERS)

        assert [Begin, Assign, Finish] == [type(message) for message in one.process.messages]
        one.process.report(sessions_ended=1, acknowledged=ACKNOWLEDGED)
        await one.starts(2)
        assert one.claimed == [ORDERS, replace(FIRST_ORDERS, acknowledged=ACKNOWLEDGED)]

    run(test)


def test_a_start_that_was_fenced_is_followed_by_another():
    async def test(one: Supervised) -> None:
        one.task.assign(ORDERS)
        for number in (1, 2, 3):
            await one.starts(number)
            one.process.report(sessions_ended=number)
        await one.starts(4)

        assert not one.process.of(Finish)

    run(test)


def test_a_refused_claim_is_repeated_for_the_newest_assignment():
    async def test(one: Supervised) -> None:
        one.refusals = 2
        one.hold.clear()
        one.task.assign(ORDERS)
        await until(lambda: one.claimed)
        one.task.assign(FIRST_ORDERS)
        one.hold.set()
        await one.starts(1)

        assert one.claimed == [ORDERS, FIRST_ORDERS, FIRST_ORDERS]

    run(test)


def test_a_start_claimed_for_an_older_assignment_is_not_sent():
    async def test(one: Supervised) -> None:
        one.hold.clear()
        one.task.assign(ORDERS)
        await until(lambda: one.claimed)
        one.task.assign(FIRST_ORDERS)
        one.hold.set()
        await one.starts(1)

        assert one.claimed == [ORDERS, FIRST_ORDERS]
        assert len(one.process.of(Assign)) == 1

    run(test)


def test_partitions_stall_while_the_start_is_refused_for_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_starter, "STALLED_AFTER_S", 0.005)

    async def test(one: Supervised) -> None:
        one.refusals = 10**6
        one.task.assign(ORDERS)
        one.process.report(part(0, records=5))
        await until(lambda: one.partitions() and one.partitions()[0].reason == "FlowTaken")

        first, second = one.partitions()
        assert (first.records, second.records) == (5, 0)
        assert first.phase is second.phase is PartitionPhase.STARTING
        assert second.target_topic == "east.orders"
        assert first.stalled_since_ms > 0
        one.refusals = 0
        await one.starts(1)
        assert one.partitions() == (part(0, records=5),)

    run(test)


def test_partitions_stall_while_a_claim_takes_long(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_starter, "STALLED_AFTER_S", 0.005)

    async def test(one: Supervised) -> None:
        one.hold.clear()
        one.task.assign(ORDERS)
        await until(one.partitions)

        assert {part.reason for part in one.partitions()} == {"StartPending"}
        one.hold.set()
        await until(lambda: not one.partitions())

    run(test)


def test_a_process_that_neither_reports_nor_ends_is_named_until_it_reports(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "LOOK_S", 0.005)
    monkeypatch.setattr(task_supervisor, "STALLED_AFTER_S", 0.01)

    async def test(one: Supervised) -> None:
        one.task.assign(ORDERS)
        await one.starts(1)
        one.process.report(part(0, records=5))
        await until(lambda: {part.reason for part in one.partitions()} == {"TaskSilent"})

        first, second = one.partitions()
        assert (first.records, second.records) == (5, 0)
        assert first.is_stalled
        assert second.is_stalled
        found = one.task.report(str)
        assert ("FAILED", "TaskSilent") == (found.state, found.reason)
        assert "task 0 (pid 4711) has reported nothing of its partitions" in found.trace
        monkeypatch.setattr(task_supervisor, "STALLED_AFTER_S", 3600.0)
        one.process.report(part(1))
        await until(lambda: one.task.report(str).state == "RUNNING")
        assert one.partitions() == (part(0, records=5), part(1))

    run(test)


def test_a_process_that_reports_none_of_its_partitions_is_named(monkeypatch: pytest.MonkeyPatch):
    """It had its start, and reports as one that waits for it."""
    monkeypatch.setattr(task_supervisor, "LOOK_S", 0.005)
    monkeypatch.setattr(task_supervisor, "STALLED_AFTER_S", 0.01)

    async def test(one: Supervised) -> None:
        one.task.assign(ORDERS)
        await one.starts(1)

        def is_named() -> bool:
            one.process.report(state="UNASSIGNED")
            return {part.reason for part in one.partitions()} == {"TaskSilent"}

        await until(is_named)
        one.process.report(part(0), part(1))
        await until(lambda: one.task.report(str).state == "RUNNING")
        assert one.partitions() == (part(0), part(1))

    run(test)


def test_a_process_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "LOOK_S", 0.005)
    monkeypatch.setattr(task_supervisor, "STALLED_AFTER_S", 0.01)

    async def test() -> None:
        async def never() -> ChildProcess:
            await asyncio.Event().wait()
            raise AssertionError

        async def no_claim(_: int, __: TaskAssignment) -> Assign:
            raise FlowTakenError(source="east")

        task = TaskSupervisor(settings(), 0, on_report=lambda _: None, claim=no_claim, start=never)
        task.assign(ORDERS)
        await until(lambda: task.report(str).reason == "TaskSilent")

        found = task.report(str)
        await task.stop(0)
        assert found.trace.startswith("The process of task 0 has reported nothing")
        assert [one.reason for one in found.partitions] == ["TaskSilent"] * 2

    asyncio.run(test())


def test_a_spare_process_that_does_not_start_in_time_is_killed_and_not_waited_for(
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
            taken = await warm.take()
            await warm.close()

        assert not taken.has_ended
        assert [-9, -9, None] == sorted((one.returncode for one in spawned), key=lambda code: code is None)

    asyncio.run(test())


def test_a_process_that_ends_is_reported_and_replaced():
    async def test(one: Supervised) -> None:
        one.task.assign(ORDERS)
        await one.starts(1)
        one.process.report(part(0))
        await until(lambda: one.reports)
        one.process.end(70)
        await until(lambda: one.newest.state == "FAILED")

        assert one.newest == TaskReport(task=0, state="FAILED", trace=one.newest.trace, reason="TaskEnded")
        assert "70" in one.newest.trace
        assert one.partitions() == (part(0),)
        await until(lambda: len(one.processes) == 2 and one.process.of(Assign))
        assert [Begin, Assign] == [type(message) for message in one.process.messages]

    run(test)


def test_a_restart_ends_the_process_and_starts_the_next_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "RESTART_MIN_S", 3600.0)

    async def test(one: Supervised) -> None:
        one.task.assign(ORDERS)
        one.task.restart()
        assert one.newest.state == "RESTARTING"
        await until(lambda: len(one.processes) == 2 and one.process.of(Assign))

        assert len(one.processes[0].of(Stop)) == 1

    run(test)


def test_a_restart_ends_the_wait_after_a_failure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "RESTART_MIN_S", 3600.0)

    async def test(one: Supervised) -> None:
        one.process.end(1)
        await until(lambda: one.newest.state == "FAILED")
        one.task.restart()
        await until(lambda: len(one.processes) == 2)

    run(test)


def test_no_start_is_claimed_for_a_process_that_has_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "RESTART_MIN_S", 3600.0)

    async def test(one: Supervised) -> None:
        one.process.end(1)
        await until(lambda: one.newest.state == "FAILED")
        one.hold.clear()
        one.task.assign(ORDERS)
        one.task.restart()
        await until(lambda: len(one.processes) == 2 and one.claimed)
        one.hold.set()
        await one.starts(1)

        assert one.claimed == [ORDERS]

    run(test)


def test_a_process_that_does_not_stop_for_a_restart_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_supervisor, "RESTART_GRACE_S", 0.01)

    async def test(one: Supervised) -> None:
        one.task.restart()
        await until(lambda: len(one.processes) == 2)

        assert one.processes[0].returncode == -9

    run(test, obeys=False)


def test_a_stop_ends_the_process_gracefully_and_starts_no_other():
    async def test(one: Supervised) -> None:
        one.task.assign(ORDERS)
        await one.task.stop(WAIT_S)

        assert (one.process.returncode, len(one.processes)) == (0, 1)

    run(test)


def test_a_process_that_does_not_stop_in_time_is_killed():
    async def test(one: Supervised) -> None:
        await one.task.stop(0.01)

        assert (one.process.returncode, len(one.processes)) == (-9, 1)

    run(test, obeys=False)


def test_every_process_gets_the_levels_of_loggers():
    async def test(one: Supervised) -> None:
        one.task.set_level("mirrorflow.task", "DEBUG")
        assert one.process.messages[1:] == [SetLogLevel(logger="mirrorflow.task", level="DEBUG")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LOGGERS, "was_set", {"mirrorflow": "WARN"})
            one.process.end(1)
            await until(lambda: len(one.processes) == 2 and len(one.process.messages) == 2)
        assert one.process.messages[1] == SetLogLevel(logger="mirrorflow", level="WARN")

    run(test)

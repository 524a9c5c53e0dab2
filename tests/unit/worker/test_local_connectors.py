"""A connector slot runs one connector at a time, applies the newest settings and reports an unexpected end."""

import asyncio

import pytest

from mirrorflow_core.connect.worker_records import ConnectorConfig
from mirrorflow_core.connect.worker_state import WorkerConfigs
from mirrorflow_replicator.connectors.connector_host import IdleConnector, create_connector
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.worker.config_decisions import Wanted
from mirrorflow_replicator.worker.local_connectors import ConnectorSlot, LocalConnectors

BOUND_S = 300.0


class RecordingConnector(IdleConnector):
    """A connector that records its start and end in *events*, and ends only when *may_end* is set."""

    def __init__(self, name, wanted, events, may_end):
        super().__init__(name, wanted.properties, state="RUNNING")
        self._number, self._events, self._may_end = wanted.run, events, may_end

    async def run(self):
        self._events.append(("runs", self._number))
        await super().run()

    async def stop(self, grace_s):
        await self._may_end.wait()
        self._events.append(("ended", self._number))


def wanted(run):
    return Wanted(properties={}, run=run)


async def run_slot(use):
    events: list[tuple[str, int]] = []
    unexpected_ends: list[asyncio.Task[None]] = []
    may_end = asyncio.Event()
    slot: ConnectorSlot[Wanted] = ConnectorSlot(
        "a",
        make=lambda name, wanted: RecordingConnector(name, wanted, events, may_end),
        on_unexpected_end=unexpected_ends.append,
        grace_s=1.0,
    )
    async with asyncio.timeout(BOUND_S):
        await use(slot, may_end)
    return events, unexpected_ends


def test_only_the_newest_settings_are_started():
    """Settings that change while the previous connector stops are skipped."""

    async def use(slot, may_end):
        slot.want(wanted(1))
        await slot.settled()
        for run in (2, 3, 4):
            slot.want(wanted(run))
            await asyncio.sleep(0)
            assert not slot.is_settled
        may_end.set()
        await slot.settled()
        await asyncio.sleep(0)

    events, unexpected_ends = asyncio.run(run_slot(use))

    assert ([("runs", 1), ("ended", 1), ("runs", 4)], []) == (events, unexpected_ends)


def test_equal_settings_restart_nothing():
    """Each read of the config topic passes all settings again."""

    async def use(slot, may_end):
        for _ in range(3):
            slot.want(wanted(1))
            await slot.settled()
            await asyncio.sleep(0)
        may_end.set()
        slot.want(None)
        await slot.settled()
        assert slot.hosted is None
        slot.want(wanted(1))
        await slot.settled()
        await asyncio.sleep(0)

    events, unexpected_ends = asyncio.run(run_slot(use))

    assert ([("runs", 1), ("ended", 1), ("runs", 1)], []) == (events, unexpected_ends)


def test_an_unexpected_end_of_a_connector_is_reported():
    """The process ends after it, but not after a connector was stopped."""

    class FailingSlotConnector(IdleConnector):
        async def run(self):
            message = "a bug"
            raise RuntimeError(message)

    async def use():
        unexpected_ends: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        slot: ConnectorSlot[Wanted] = ConnectorSlot(
            "a",
            make=lambda name, wanted: FailingSlotConnector(name, wanted.properties, state="RUNNING"),
            on_unexpected_end=unexpected_ends.put_nowait,
            grace_s=1.0,
        )
        slot.want(wanted(1))
        async with asyncio.timeout(BOUND_S):
            return (await unexpected_ends.get()).exception()

    with pytest.raises(RuntimeError, match="a bug"):
        raise asyncio.run(use())


def test_an_idle_connector_reports_name_class_state_and_tasks():
    """Its properties need not be valid."""
    report = IdleConnector("a", {"connector.class": "x.Y"}, state="PAUSED", tasks=({}, {})).report()

    assert ("a", "x.Y", "PAUSED", ["PAUSED"] * 2) == (
        report.name,
        report.connector_class,
        report.state,
        [task.state for task in report.tasks],
    )


def test_a_connector_whose_python_class_fails_does_not_end_the_others():
    """A configuration over REST is stored before its class is created, so the worker would end at each start."""
    properties = {
        "name": "a",
        "connector.class": "MirrorSourceConnector",
        "source.cluster.alias": "A",
        "source.cluster.bootstrap.servers": "a:1",
        "topic.filter.class": "python:builtins:int",
    }
    configs = WorkerConfigs()
    configs.take(ConnectorConfig(connector="a", properties=properties))

    async def use():
        local = LocalConnectors(
            configs,
            {"bootstrap.servers": "b:1"},
            host=lambda _, settings: create_connector(settings, samples=Samples()),
            grace_s=1.0,
        )
        async with asyncio.timeout(BOUND_S):
            local.arrange()
            await local.settled()
            report = local.report("a")
            await local.stop()
        return report

    report = asyncio.run(use())

    assert "FAILED" == report.state
    assert "topic.filter.class: python:builtins:int cannot be created" in (report.trace or "")

"""Running connectors apply changes of `mirrorflow.state` in their files."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

import pytest

from mirrorflow_core.settings import ConnectorSettings
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.connector_host import IdleConnector
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.worker import herder
from mirrorflow_replicator.worker.herder import FixedHerder, StateFiles

BOUND_S = 300.0
WORKER = "bootstrap.servers=b:9092\n"
FILE = """name=beats
connector.class=MirrorHeartbeatConnector
source.cluster.alias=A
target.cluster.alias=B
"""


def polled_files(texts: list[str]) -> tuple[StateFiles, list[Mapping[str, str]]]:
    """Returns files with these texts after their first poll, and the list of states that later polls apply."""
    applied: list[Mapping[str, str]] = []
    files = StateFiles(lambda: texts, {})
    files.poll(applied.append)
    applied.clear()
    return files, applied


def test_a_changed_state_is_applied_once() -> None:
    texts = [FILE, FILE.replace("beats", "other")]
    files, applied = polled_files(texts)
    texts[1] += "mirrorflow.state=Paused\n"
    files.poll(applied.append)
    files.poll(applied.append)

    assert applied == [{"beats": "running", "other": "paused"}]


def test_an_invalid_file_is_logged_once_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    texts = [FILE]
    files, applied = polled_files(texts)
    texts[0] = f"{FILE}mirrorflow.state=halted\n"
    with caplog.at_level(logging.WARNING):
        files.poll(applied.append)
        files.poll(applied.append)
    assert applied == []
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "The changed files of the connectors are not used"
    ]

    texts[0] = f"{FILE}mirrorflow.state=paused\n"
    files.poll(applied.append)
    assert applied == [{"beats": "paused"}]


def test_a_file_that_is_missing_temporarily_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "connector.properties"
    file.write_text(FILE)
    applied: list[Mapping[str, str]] = []
    files = StateFiles(lambda: [file.read_text()], {})
    file.unlink()
    files.poll(applied.append)
    assert applied == []
    file.write_text(FILE)
    files.poll(applied.append)
    assert applied == [{"beats": "running"}]


SETTINGS = load_standalone(WORKER, [FILE]).connectors[0]


class StateRecordingConnector(IdleConnector):
    """A connector that records its start, stop and end in *events*. It stops only when *may_stop* is set."""

    def __init__(
        self, settings: ConnectorSettings, events: asyncio.Queue[str], may_stop: asyncio.Event
    ) -> None:
        self._state_name = "paused" if settings.is_paused else "running"
        super().__init__(settings.name, settings.properties, state=self._state_name.upper())
        self._events, self._may_stop = events, may_stop

    async def run(self) -> None:
        self._events.put_nowait(f"{self._state_name} starts")
        try:
            await super().run()
        finally:
            self._events.put_nowait(f"{self._state_name} ends")

    async def stop(self, grace_s: float) -> None:
        self._events.put_nowait(f"{self._state_name} stops")
        await self._may_stop.wait()


Steps = Callable[[FixedHerder, asyncio.Queue[str], asyncio.Event], Coroutine[None, None, None]]


def run_steps(monkeypatch: pytest.MonkeyPatch, steps: Steps) -> None:
    """Runs *steps* while the connector is running."""

    async def run() -> None:
        events, may_stop = asyncio.Queue[str](), asyncio.Event()
        monkeypatch.setattr(
            herder,
            "create_connector",
            lambda settings, **_: StateRecordingConnector(settings, events, may_stop),
        )
        connector = FixedHerder([SETTINGS], samples=Samples(), grace_s=1.0)
        running = asyncio.create_task(connector.run())
        async with asyncio.timeout(BOUND_S):
            assert await events.get() == "running starts"
            await steps(connector, events, may_stop)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(run())


def test_a_connector_reports_paused_only_after_it_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(connector: FixedHerder, events: asyncio.Queue[str], may_stop: asyncio.Event) -> None:
        connector.set_states({"beats": "running"})  # this step changes nothing
        connector.set_states({"beats": "paused"})
        assert await events.get() == "running stops"
        assert connector.reports()[0].state == "RUNNING"
        may_stop.set()
        assert [await events.get() for _ in range(2)] == ["running ends", "paused starts"]
        report = connector.reports()[0]
        assert (report.state, report.properties["mirrorflow.state"]) == ("PAUSED", "paused")
        connector.set_states({"beats": "running"})
        assert [await events.get() for _ in range(3)] == ["paused stops", "paused ends", "running starts"]
        report = connector.reports()[0]
        assert (report.state, report.properties) == ("RUNNING", SETTINGS.properties)

    run_steps(monkeypatch, steps)


def test_a_stopping_process_starts_no_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(connector: FixedHerder, events: asyncio.Queue[str], may_stop: asyncio.Event) -> None:
        connector.set_states({"beats": "paused"})
        assert await events.get() == "running stops"
        stopping = asyncio.create_task(connector.stop(1.0))
        may_stop.set()
        await stopping
        assert await events.get() == "running ends"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(events.get(), 0.1)

    run_steps(monkeypatch, steps)


def test_an_error_of_a_connector_ends_the_herder(monkeypatch: pytest.MonkeyPatch) -> None:

    class FailingConnector(IdleConnector):
        async def run(self) -> None:
            raise RuntimeError("a bug")

    broken = FailingConnector("beats", SETTINGS.properties, state="RUNNING")
    monkeypatch.setattr(herder, "create_connector", lambda *_, **__: broken)
    connector = FixedHerder([SETTINGS], samples=Samples(), grace_s=1.0)
    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(connector.run())


def test_connectors_are_paused_by_name() -> None:
    files = [FILE, FILE.replace("beats", "other")]
    herder = FixedHerder(load_standalone(WORKER, files).connectors, samples=Samples(), grace_s=1.0)
    herder.set_states({"other": "paused", "unknown": "paused"})

    assert [False, True] == [settings.is_paused for settings in herder.settings.values()]

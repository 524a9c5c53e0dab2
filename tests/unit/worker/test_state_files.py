"""Connectors follow `mirrorflow.state` in their files while they run."""

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


def followed(texts: list[str]) -> tuple[StateFiles, list[Mapping[str, str]]]:
    """The files with these texts, and what was applied of them; the first look is done."""
    applied: list[Mapping[str, str]] = []
    files = StateFiles(lambda: texts, {})
    files.poll(applied.append)
    applied.clear()
    return files, applied


def test_the_states_of_changed_files_are_applied_once() -> None:
    texts = [FILE, FILE.replace("beats", "other")]
    files, applied = followed(texts)
    texts[1] += "mirrorflow.state=Paused\n"
    files.poll(applied.append)
    files.poll(applied.append)

    assert applied == [{"beats": "running", "other": "paused"}]


def test_a_file_that_cannot_be_used_is_logged_once_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    texts = [FILE]
    files, applied = followed(texts)
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


def test_a_file_that_is_missing_for_a_moment_changes_nothing(tmp_path: Path) -> None:
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


class Recorded(IdleConnector):
    """A form of a connector that notes its life in *events*, and stops only when *may_stop* is set."""

    def __init__(
        self, settings: ConnectorSettings, events: asyncio.Queue[str], may_stop: asyncio.Event
    ) -> None:
        self._form = "paused" if settings.is_paused else "running"
        super().__init__(settings.name, settings.properties, state=self._form.upper())
        self._events, self._may_stop = events, may_stop

    async def run(self) -> None:
        self._events.put_nowait(f"{self._form} starts")
        try:
            await super().run()
        finally:
            self._events.put_nowait(f"{self._form} ends")

    async def stop(self, grace_s: float) -> None:
        self._events.put_nowait(f"{self._form} stops")
        await self._may_stop.wait()


Use = Callable[[FixedHerder, asyncio.Queue[str], asyncio.Event], Coroutine[None, None, None]]


def use(monkeypatch: pytest.MonkeyPatch, steps: Use) -> None:
    """Runs *steps* beside a connector that runs its first form."""

    async def run() -> None:
        events, may_stop = asyncio.Queue[str](), asyncio.Event()
        monkeypatch.setattr(herder, "host", lambda one, **_: Recorded(one, events, may_stop))
        connector = FixedHerder([SETTINGS], samples=Samples(), grace_s=1.0)
        running = asyncio.create_task(connector.run())
        async with asyncio.timeout(BOUND_S):
            assert await events.get() == "running starts"
            await steps(connector, events, may_stop)
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(run())


def test_a_connector_is_running_until_it_has_stopped_and_then_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(connector: FixedHerder, events: asyncio.Queue[str], may_stop: asyncio.Event) -> None:
        connector.set_states({"beats": "running"})  # changes nothing
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

    use(monkeypatch, steps)


def test_nothing_starts_after_the_process_began_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(connector: FixedHerder, events: asyncio.Queue[str], may_stop: asyncio.Event) -> None:
        connector.set_states({"beats": "paused"})
        assert await events.get() == "running stops"
        stopping = asyncio.create_task(connector.stop(1.0))
        may_stop.set()
        await stopping
        assert await events.get() == "running ends"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(events.get(), 0.1)

    use(monkeypatch, steps)


def test_a_form_that_fails_ends_the_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug must not go unnoticed."""

    class Broken(IdleConnector):
        async def run(self) -> None:
            raise RuntimeError("a bug")

    broken = Broken("beats", SETTINGS.properties, state="RUNNING")
    monkeypatch.setattr(herder, "host", lambda *_, **__: broken)
    connector = FixedHerder([SETTINGS], samples=Samples(), grace_s=1.0)
    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(connector.run())


def test_connectors_are_paused_by_name() -> None:
    files = [FILE, FILE.replace("beats", "other")]
    herder = FixedHerder(load_standalone(WORKER, files).connectors, samples=Samples(), grace_s=1.0)
    herder.set_states({"other": "paused", "unknown": "paused"})

    assert [False, True] == [one.is_paused for one in herder.settings.values()]

"""The herder reports warnings of connectors, and starts source connectors first."""

import asyncio
import logging

import pytest

from mirrorflow_core.connect.worker_records import ConnectorConfig
from mirrorflow_core.connect.worker_state import WorkerConfigs
from mirrorflow_core.settings import ConnectorSettings
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.connector_host import IdleConnector, create_connector
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.worker import herder
from mirrorflow_replicator.worker.herder import FixedHerder
from mirrorflow_replicator.worker.local_connectors import LocalConnectors

WORKER = {"bootstrap.servers": "b:9092", "value.converter": "org.apache.kafka.connect.json.JsonConverter"}
HEARTBEATS = {
    "name": "heartbeats",
    "connector.class": "MirrorHeartbeatConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
}


def text(properties: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in properties.items())


def test_connectors_of_files_report_converters_that_are_not_used():
    """REST and progress show these reports."""
    (report,) = FixedHerder(
        load_standalone(text(WORKER), [text(HEARTBEATS)]).connectors, samples=Samples(), grace_s=1.0
    ).reports()

    assert report.warnings[0].startswith("ConverterNotUsed: the worker has value.converter=JsonConverter")


def test_connectors_of_a_distributed_worker_report_converters_that_are_not_used(
    caplog: pytest.LogCaptureFixture,
):
    """The log names them when the connector starts."""

    async def warnings() -> tuple[str, ...]:
        configs = WorkerConfigs()
        configs.take(ConnectorConfig(connector="heartbeats", properties=HEARTBEATS))
        running = LocalConnectors(
            configs,
            WORKER,
            host=lambda _, settings: create_connector(settings, samples=Samples()),
            grace_s=1.0,
        )
        running.arrange()
        await running.settled()
        await running.stop()
        return running.report("heartbeats").warnings

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(warnings())[0].startswith("ConverterNotUsed")
    assert "heartbeats: ConverterNotUsed" in caplog.text


class StartRecorder(IdleConnector):
    """A connector that sets *has_started* when it starts. The test sets *has_reported_all*."""

    has_reported_all = False

    def __init__(self, settings: ConnectorSettings) -> None:
        super().__init__(settings.name, settings.properties, state="RUNNING")
        self.has_started = asyncio.Event()

    async def run(self) -> None:
        self.has_started.set()
        await super().run()


SOURCE = {
    "name": "source",
    "connector.class": "MirrorSourceConnector",
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "a:9092",
}


def herder_of(
    monkeypatch: pytest.MonkeyPatch, *files: dict[str, str]
) -> tuple[FixedHerder, dict[str, StartRecorder]]:
    connectors = load_standalone(text(WORKER), [text(file) for file in files]).connectors
    started = {settings.name: StartRecorder(settings) for settings in connectors}
    monkeypatch.setattr(herder, "create_connector", lambda settings, **_: started[settings.name])
    return FixedHerder(connectors, samples=Samples(), grace_s=1.0), started


def test_other_connectors_start_after_the_source_connector_has_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their first requests would delay the first record."""
    monkeypatch.setattr(herder, "OTHERS_START_AFTER_S", 1e6)

    async def main() -> None:
        fixed, started = herder_of(monkeypatch, HEARTBEATS, SOURCE)
        running = asyncio.create_task(fixed.run())
        async with asyncio.timeout(300):
            await started["source"].has_started.wait()
            assert not started["heartbeats"].has_started.is_set()
            started["source"].has_reported_all = True
            await started["heartbeats"].has_started.wait()
        running.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("files", [(HEARTBEATS, SOURCE), (HEARTBEATS,)])
def test_heartbeats_start_without_a_report_of_the_source_connector(
    monkeypatch: pytest.MonkeyPatch, files: tuple[dict[str, str], ...]
) -> None:
    """They start after a wait if the source is unreachable, and immediately without a source connector."""
    monkeypatch.setattr(herder, "OTHERS_START_AFTER_S", 0.2)

    async def main() -> None:
        fixed, started = herder_of(monkeypatch, *files)
        running = asyncio.create_task(fixed.run())
        async with asyncio.timeout(300):
            await started["heartbeats"].has_started.wait()
        running.cancel()

    asyncio.run(main())

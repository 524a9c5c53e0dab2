"""The connectors of a process as it reports them."""

import asyncio
import logging

import pytest

from mirrorflow_core.connect.worker_records import TargetState
from mirrorflow_replicator.config.worker import load_standalone
from mirrorflow_replicator.http.command_decisions import Wanted
from mirrorflow_replicator.http.samples import Samples
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
    """In REST and progress, which are made from reports."""
    (report,) = FixedHerder(
        load_standalone(text(WORKER), [text(HEARTBEATS)]).connectors, samples=Samples(), grace_s=1.0
    ).reports()

    assert report.warnings[0].startswith("ConverterNotUsed: the worker has value.converter=JsonConverter")


def test_connectors_of_a_distributed_worker_report_converters_that_are_not_used(
    caplog: pytest.LogCaptureFixture,
):
    """The log names them when the connector starts."""

    async def warnings() -> tuple[str, ...]:
        running = LocalConnectors(WORKER, host=lambda *_: None, tasks=lambda _: (), grace_s=1.0)
        running.arrange({"heartbeats": Wanted(properties=HEARTBEATS, target=TargetState.STARTED)})
        await running.settled()
        await running.stop()
        return running.report("heartbeats", HEARTBEATS).warnings

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(warnings())[0].startswith("ConverterNotUsed")
    assert "heartbeats: ConverterNotUsed" in caplog.text

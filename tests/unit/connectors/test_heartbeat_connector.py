"""A heartbeat connector reports unreachable clusters and retries; tests on real brokers cover what it writes."""

import asyncio
import socket
from collections.abc import Callable

from mirrorflow_core.reports import ConnectorReport
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.connector_host import host
from mirrorflow_replicator.connectors.heartbeat_connector import HeartbeatConnector
from mirrorflow_replicator.http.progress import has_started, is_ready, replicating, totals
from tests.unit.http.reports import view

WAIT_S = 300.0
CONNECTOR = """
name=beat
connector.class=MirrorHeartbeatConnector
source.cluster.alias=A
target.cluster.alias=B
source.cluster.bootstrap.servers=127.0.0.1:{port}
mirrorflow.heartbeats.emit.to={sides}
"""


def hosted(port: int, sides: str = "target") -> HeartbeatConnector:
    text = CONNECTOR.format(port=port, sides=sides)
    worker = load_standalone(f"bootstrap.servers=127.0.0.1:{port}\n", [text])
    found = host(worker.connectors[0], samples=view().samples)
    assert isinstance(found, HeartbeatConnector)
    return found


def report_when(heartbeats: HeartbeatConnector, told: Callable[[ConnectorReport], bool]) -> ConnectorReport:
    """The first report, while it runs, of which *told* is true."""

    async def main() -> ConnectorReport:
        running = asyncio.create_task(heartbeats.run())
        try:
            async with asyncio.timeout(WAIT_S):
                while not told(heartbeats.report()):
                    assert not running.done()
                    await asyncio.sleep(0.01)
            return heartbeats.report()
        finally:
            running.cancel()

    return asyncio.run(main())


def silent_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_before_the_first_heartbeat_nothing_is_said_to_run():
    """Connect's state; one task, no partitions, and no age of a heartbeat before one was written."""
    report = hosted(silent_port()).report()

    assert ("UNASSIGNED", "UNASSIGNED") == (report.state, report.tasks[0].state)
    assert (1, 1, ()) == (len(report.tasks), len(report.task_properties), report.tasks[0].partitions)
    assert ((), ()) == (report.heartbeats, report.topics)
    assert not has_started((report,))


def test_unreachable_target_is_reported_and_retried():
    """Attempt after attempt: the process never ends for it."""
    report = report_when(hosted(silent_port()), lambda one: one.tasks[0].errors.get("Unreachable", 0) >= 2)

    assert ("FAILED", "FAILED", "Unreachable") == (report.state, report.tasks[0].state, report.reason)
    assert "Cluster B cannot be reached" in report.trace
    assert not is_ready(report, view(report))
    assert "Stuck" == replicating(report, totals(report, view(report)), view(report)).value


def test_a_source_that_cannot_be_reached_is_a_warning_beside_the_target():
    """Heartbeats on the source are asked for on top; without them the connector does what MM2's does."""
    report = report_when(hosted(silent_port(), "target,source"), lambda one: bool(one.warnings))

    assert report.warnings[0].startswith("No heartbeats to A: Cluster A cannot be reached")


def test_a_source_alone_is_the_connectors_state():
    report = report_when(hosted(silent_port(), "source"), lambda one: one.state == "FAILED")

    assert "Cluster A cannot be reached" in report.trace
    assert () == report.warnings

"""A heartbeat connector reports unreachable clusters and retries; tests on real brokers cover what it writes."""

import asyncio
import socket
from collections.abc import Callable

from mirrorflow_core.reports import ConnectorReport
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.connector_host import create_connector
from mirrorflow_replicator.connectors.heartbeat_connector import HeartbeatConnector
from mirrorflow_replicator.http.replicating_state import has_started, is_ready, replicating, totals
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
    connector = create_connector(worker.connectors[0], samples=view().samples)
    assert isinstance(connector, HeartbeatConnector)
    return connector


def report_until(
    heartbeats: HeartbeatConnector, is_wanted: Callable[[ConnectorReport], bool]
) -> ConnectorReport:
    """Returns the first report of the running connector for which *is_wanted* is true."""

    async def main() -> ConnectorReport:
        running = asyncio.create_task(heartbeats.run())
        try:
            async with asyncio.timeout(WAIT_S):
                while not is_wanted(heartbeats.report()):
                    assert not running.done()
                    await asyncio.sleep(0.01)
            return heartbeats.report()
        finally:
            running.cancel()

    return asyncio.run(main())


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_connector_is_unassigned_before_its_first_heartbeat():
    """It has one task without partitions, and no heartbeats."""
    report = hosted(unused_port()).report()

    assert ("UNASSIGNED", "UNASSIGNED") == (report.state, report.tasks[0].state)
    assert (1, 1, ()) == (len(report.tasks), len(report.task_properties), report.tasks[0].partitions)
    assert ((), ()) == (report.heartbeats, report.topics)
    assert not has_started((report,))


def test_unreachable_target_is_reported_and_retried():
    """The connector keeps running and counts each failed attempt."""
    report = report_until(
        hosted(unused_port()), lambda report: report.tasks[0].errors.get("Unreachable", 0) >= 2
    )

    assert ("FAILED", "FAILED", "Unreachable") == (report.state, report.tasks[0].state, report.reason)
    assert "Cluster B cannot be reached" in str(report.trace)
    assert not is_ready(report, view(report))
    assert "Stuck" == replicating(report, totals(report, view(report)), view(report)).value


def test_unreachable_source_is_a_warning_when_the_target_is_also_configured():
    """Like MM2's connector, it still writes heartbeats to the target."""
    report = report_until(hosted(unused_port(), "target,source"), lambda report: bool(report.warnings))

    assert report.warnings[0].startswith("No heartbeats to A: Cluster A cannot be reached")


def test_unreachable_source_fails_a_connector_that_writes_only_there():
    report = report_until(hosted(unused_port(), "source"), lambda report: report.state == "FAILED")

    assert "Cluster A cannot be reached" in str(report.trace)
    assert () == report.warnings

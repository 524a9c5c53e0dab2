"""A checkpoint connector reports unreachable clusters and retries; tests on real brokers cover what it writes."""

import asyncio
import socket
from collections.abc import Callable

from mirrorflow_core.reports import ConnectorReport
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.checkpoint_connector import CheckpointConnector
from mirrorflow_replicator.connectors.connector_host import host
from mirrorflow_replicator.http.progress import is_ready, replicating, totals
from tests.unit.http.reports import view

WAIT_S = 300.0
CONNECTOR = """
name=points
connector.class=MirrorCheckpointConnector
source.cluster.alias=A
target.cluster.alias=B
source.cluster.bootstrap.servers=127.0.0.1:{port}
{more}
"""


def connectors(more: str = "") -> tuple[object, ...]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # silent from here on
    text = CONNECTOR.format(port=port, more=more)
    worker = load_standalone(f"bootstrap.servers=127.0.0.1:{port}\n", [text])
    return tuple(host(one, samples=view().samples) for one in worker.connectors if one.is_enabled)


def hosted() -> CheckpointConnector:
    (found,) = connectors()
    assert isinstance(found, CheckpointConnector)
    return found


def report_when(checkpoints: CheckpointConnector, told: Callable[[ConnectorReport], bool]) -> ConnectorReport:
    """The first report, while it runs, of which *told* is true."""

    async def main() -> ConnectorReport:
        running = asyncio.create_task(checkpoints.run())
        try:
            async with asyncio.timeout(WAIT_S):
                while not told(checkpoints.report()):
                    assert not running.done()
                    await asyncio.sleep(0.01)
            return checkpoints.report()
        finally:
            running.cancel()

    return asyncio.run(main())


def test_before_the_clusters_were_reached_nothing_is_said_to_run():
    """One task without partitions, and no group count before groups were listed."""
    report = hosted().report()

    assert ("UNASSIGNED", "UNASSIGNED", 1) == (report.state, report.tasks[0].state, len(report.tasks))
    assert (None, (), ()) == (report.groups, report.topics, report.warnings)
    assert not hosted().has_reported_all


def test_unreachable_cluster_is_reported_and_retried():
    """Attempt after attempt: the process never ends for it."""
    report = report_when(hosted(), lambda one: one.tasks[0].errors.get("Unreachable", 0) >= 2)

    assert ("FAILED", "FAILED", "Unreachable") == (report.state, report.tasks[0].state, report.reason)
    assert "Cluster B cannot be reached" in report.trace
    assert not is_ready(report, view(report))
    assert "Stuck" == replicating(report, totals(report, view(report)), view(report)).value


def test_a_connector_that_is_switched_off_is_not_run():
    """`enabled=false`."""
    assert () == connectors("enabled=false")

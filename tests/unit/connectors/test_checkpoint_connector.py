"""A checkpoint connector reports unreachable clusters and retries; tests on real brokers cover what it writes."""

import asyncio
import socket
from collections.abc import Callable
from unittest.mock import AsyncMock, create_autospec

import pytest

from mirrorflow_core.errors import ClusterError, InternalTopicUnavailableError
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.writer.claim import Claim
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors import claim_reader
from mirrorflow_replicator.connectors.checkpoint_connector import CheckpointConnector
from mirrorflow_replicator.connectors.checkpoint_passes import CheckpointPasses
from mirrorflow_replicator.connectors.claim_reader import FlowEndWatch
from mirrorflow_replicator.connectors.connector_host import create_connector
from mirrorflow_replicator.http.replicating_state import is_ready, replicating, totals
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
        port = server.getsockname()[1]  # no process listens there after the `with` statement
    text = CONNECTOR.format(port=port, more=more)
    worker = load_standalone(f"bootstrap.servers=127.0.0.1:{port}\n", [text])
    return tuple(
        create_connector(connector, samples=view().samples)
        for connector in worker.connectors
        if connector.is_enabled
    )


def hosted() -> CheckpointConnector:
    (connector,) = connectors()
    assert isinstance(connector, CheckpointConnector)
    return connector


def report_until(
    checkpoints: CheckpointConnector, is_wanted: Callable[[ConnectorReport], bool]
) -> ConnectorReport:
    """Returns the first report of the running connector for which *is_wanted* is true."""

    async def main() -> ConnectorReport:
        running = asyncio.create_task(checkpoints.run())
        try:
            async with asyncio.timeout(WAIT_S):
                while not is_wanted(checkpoints.report()):
                    assert not running.done()
                    await asyncio.sleep(0.01)
            return checkpoints.report()
        finally:
            running.cancel()

    return asyncio.run(main())


def test_connector_is_unassigned_before_it_reaches_its_clusters():
    """It has one task without partitions, and no number of groups."""
    report = hosted().report()

    assert ("UNASSIGNED", "UNASSIGNED", 1) == (report.state, report.tasks[0].state, len(report.tasks))
    assert (None, (), ()) == (report.groups, report.topics, report.warnings)
    assert not hosted().has_reported_all


def test_unreachable_cluster_is_reported_and_retried():
    """The connector keeps running and counts each failed attempt."""
    report = report_until(hosted(), lambda report: report.tasks[0].errors.get("Unreachable", 0) >= 2)

    assert ("FAILED", "FAILED", "Unreachable") == (report.state, report.tasks[0].state, report.reason)
    assert "Cluster B cannot be reached" in str(report.trace)
    assert not is_ready(report, view(report))
    assert "Stuck" == replicating(report, totals(report, view(report)), view(report)).value


def test_disabled_connector_is_not_run():
    assert () == connectors("enabled=false")


def test_a_flow_that_a_switchover_has_ended_is_neither_translated_nor_written():
    (connector,) = connectors("sync.group.offsets.enabled=true")
    assert isinstance(connector, CheckpointConnector)
    passes = create_autospec(CheckpointPasses, instance=True, warnings=(), followed_by=None)
    passes.refresh.return_value = True
    passes.may_write.return_value = False
    passes.follow.side_effect = ClusterError("the test ends here", cluster="A")

    with pytest.raises(ClusterError):
        asyncio.run(connector._follow(passes))

    passes.translate_groups.assert_not_awaited()
    passes.write_checkpoints.assert_not_awaited()
    passes.sync_groups.assert_not_awaited()


def test_the_end_of_a_flow_is_read_again_once_the_last_response_is_old(monkeypatch: pytest.MonkeyPatch):
    """Each write needs the newest claim. Concurrent writes share one response."""
    claims = iter([None, create_autospec(Claim, ended="sw")])
    monkeypatch.setattr(claim_reader, "read_newest_claim", AsyncMock(side_effect=lambda *_: next(claims)))
    monkeypatch.setattr(claim_reader, "RESPONSE_MAX_AGE_S", 3_600.0)
    end = FlowEndWatch("A", create_autospec(Cluster, instance=True, alias="B"))

    async def ask() -> list[bool]:
        first = await asyncio.gather(*(end.has_ended() for _ in range(5)))
        monkeypatch.setattr(claim_reader, "RESPONSE_MAX_AGE_S", -1.0)
        return [*first, await end.has_ended()]

    assert [*[False] * 5, True] == asyncio.run(ask())
    assert "sw" == end.ended_by


def test_claims_without_a_leader_are_an_error_unless_the_flow_is_known_to_have_ended(
    monkeypatch: pytest.MonkeyPatch,
):
    """The newest claim may be the end of the flow, even if an earlier claim was not."""
    leaderless = InternalTopicUnavailableError(cluster="B", topic="mm2-claims.A.internal", leaderless=0)
    running, ended = create_autospec(Claim, ended=None), create_autospec(Claim, ended="sw")
    outcomes = iter([leaderless, running, leaderless, ended, leaderless])
    monkeypatch.setattr(claim_reader, "read_newest_claim", AsyncMock(side_effect=outcomes))
    monkeypatch.setattr(claim_reader, "RESPONSE_MAX_AGE_S", -1.0)
    end = FlowEndWatch("A", create_autospec(Cluster, instance=True, alias="B"))

    with pytest.raises(InternalTopicUnavailableError):
        asyncio.run(end.has_ended())
    assert not asyncio.run(end.has_ended())
    with pytest.raises(InternalTopicUnavailableError):
        asyncio.run(end.has_ended())

    assert [True, True] == [asyncio.run(end.has_ended()) for _ in range(2)]

"""The reported reachability of clusters, which connectors derive from connections and failures."""

from types import SimpleNamespace

import pytest

from mirrorflow_core.errors import (
    AuthenticationFailedError,
    FileMissingError,
    InvalidSettingError,
    NotAuthorizedError,
    UnreachableError,
    UnresolvedReferenceError,
)
from mirrorflow_core.reports import UNKNOWN_SIDE, SideReport, TaskReport, worst_side
from mirrorflow_core.settings import ConnectorSettings
from mirrorflow_kafka.client.pool import Reachability
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors import (
    checkpoint_connector,
    connector_host,
    heartbeat_connector,
    source_connector,
)
from mirrorflow_replicator.connectors.child_process import spawn
from mirrorflow_replicator.connectors.connector_host import create_connector
from mirrorflow_replicator.connectors.connector_state import ClusterClients, missing_of
from mirrorflow_replicator.connectors.report_lines import decode_report, encode_report
from mirrorflow_replicator.connectors.source_connector import SourceParts
from mirrorflow_replicator.http.partition_rates import Samples
from tests.unit.connectors.flow_settings import settings
from tests.unit.http.reports import partition, task


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def unreachable(cluster: str = "east") -> UnreachableError:
    return UnreachableError(cluster=cluster, addresses="kafka:9092", problem="no broker answers")


def test_cluster_is_unreachable_from_the_first_failure_without_an_open_connection() -> None:
    """It is reachable again with a connection to a broker, but not with one to a bootstrap address."""
    clock, has_open = Clock(), False
    reach = Reachability(is_open=lambda: has_open, clock=clock)
    assert reach.report(None).reason is None
    reach.opened(is_bootstrap=True)
    has_open = True
    clock.now_s = 200
    reach.failed(unreachable())
    assert SideReport(reason="", since_s=100, cluster_id="id") == reach.report("id")

    has_open = False
    reach.failed(unreachable())
    clock.now_s = 300
    reach.failed(unreachable())
    reach.opened(is_bootstrap=True)
    assert SideReport(reason="Unreachable", since_s=200) == reach.report(None)

    reach.opened(is_bootstrap=False)
    assert SideReport(reason="", since_s=300) == reach.report(None)


def test_the_newest_problem_is_reported_and_a_refusal_precedes_a_timeout() -> None:
    """The report keeps the time of the first failure."""
    clock = Clock()
    reach = Reachability(is_open=lambda: False, clock=clock)
    reports = []
    for problem in ("Name or service not known", "no response within 10 s"):
        clock.now_s += 10
        reach.failed(UnreachableError(cluster="east", addresses="kafka:9092", problem=problem))
        reports.append(reach.report(None))
    reach.failed(
        AuthenticationFailedError(cluster="east", address="kafka:9092", mechanism="TLS", problem="no")
    )
    reach.failed(unreachable())

    assert "Name or service not known" in reports[0].message
    assert "no response within 10 s" in reports[1].message
    assert {110.0} == {report.since_s for report in reports}
    assert ("AuthenticationFailed", 110.0) == (reach.report(None).reason, reach.report(None).since_s)
    assert "TLS authentication failed" in reach.report(None).message


def test_failure_before_connecting_is_reported_for_its_cluster() -> None:
    """A missing permission or a timeout does not make a cluster unreachable."""
    clock = Clock()
    sides = ClusterClients("east", "west", clock=clock)
    assert (UNKNOWN_SIDE, UNKNOWN_SIDE) == sides.reports(())
    refused = AuthenticationFailedError(
        cluster="west", address="kafka:9092", mechanism="SCRAM-SHA-512", problem="no"
    )
    sides.note(refused)
    sides.note(NotAuthorizedError(cluster="east", operation="Read", resource="topic orders"))
    sides.note(TimeoutError())
    clock.now_s = 150
    sides.note(refused)

    assert (UNKNOWN_SIDE, SideReport(reason="AuthenticationFailed", since_s=100)) == sides.reports(())


def test_a_side_is_unreachable_if_any_of_its_clients_is() -> None:
    """The report has the earliest time and the cluster id of a connected client."""
    reachable = SideReport(reason="", since_s=1, cluster_id="id")
    unreachable_reports = [SideReport(reason="Unreachable", since_s=since_s) for since_s in (9.0, 5.0)]

    assert UNKNOWN_SIDE == worst_side([UNKNOWN_SIDE])
    assert reachable == worst_side([UNKNOWN_SIDE, reachable])
    assert SideReport(reason="Unreachable", since_s=5, cluster_id="id") == worst_side(
        [reachable, *unreachable_reports]
    )


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (None, None),
        (InvalidSettingError(key="tasks.max", problem="it is -1"), None),
        (
            UnresolvedReferenceError(
                key="sasl.jaas.config", reference="${dir:/secrets/east:password}", problem="no such file"
            ),
            ("/secrets/east", "password"),
        ),
        (
            FileMissingError(key="ssl.truststore.location", path="/secrets/ca/ca.crt"),
            ("/secrets/ca", "ca.crt"),
        ),
    ],
)
def test_missing_reference_is_reported_by_folder_and_file(
    error: InvalidSettingError | None, missing: tuple[str, str] | None
) -> None:
    """The report never has the contents of a file."""
    assert missing == missing_of(error)


def test_encoded_report_keeps_both_sides() -> None:
    report = TaskReport(
        task=1, state="RUNNING", source=SideReport(reason="Unreachable", since_s=3.5), target=UNKNOWN_SIDE
    )

    assert report == decode_report(encode_report(report))


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("Source", "running"),
        ("Source", "paused"),
        ("Heartbeat", "running"),
        ("Heartbeat", "paused"),
        ("Checkpoint", "running"),
    ],
)
def test_start_time_of_a_connector_is_monotonic(
    monkeypatch: pytest.MonkeyPatch, kind: str, state: str
) -> None:
    """The wall clock may be set, so connectors do not use it."""
    for module in (connector_host, source_connector, heartbeat_connector, checkpoint_connector):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    properties = {
        "name": "c",
        "connector.class": f"Mirror{kind}Connector",
        "source.cluster.alias": "east",
        "target.cluster.alias": "west",
        "source.cluster.bootstrap.servers": "a:1",
        "mirrorflow.state": state,
    }
    text = "".join(f"{key}={value}\n" for key, value in properties.items())
    (connector,) = load_standalone("bootstrap.servers=b:1\n", [text]).connectors

    assert create_connector(connector, samples=Samples()).report().started_at_s == 100


def test_rates_of_a_source_connector_use_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(source_connector, "time", SimpleNamespace(monotonic=clock))
    samples = Samples()
    connector = ConnectorSettings(name="c", connector_class="MirrorSourceConnector", properties={})
    parts = SourceParts(connector, settings(), samples=samples, start=spawn)
    for records in (0, 90):
        report = partition(records=records)
        parts._observe(task(report))
        clock.now_s += 10

    assert samples.rate("c", "orders", 0, clock.now_s).records == 4.5

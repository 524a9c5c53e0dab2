"""`mirrorflow check` reports what a target lacks and the resulting guarantee. The flow then has this guarantee."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.compatibility.endpoints import Endpoint
from tests.compatibility.result import Outcome
from tests.compatibility.services import PRODUCERS, SERVICES, TRANSACTIONS
from tests.compatibility.trial import Trial
from tests.harness.kafka.cluster import KafkaCluster

pytestmark = pytest.mark.more
COMMAND_WAIT_S = 240.0
SERVICES_WITHOUT = {
    "AutoMQ, Confluent Cloud, MSK, Redpanda": {"producer states"},
    "MSK Serverless": {"producer states", "ACLs"},
    "Event Hubs Premium": {"producer states", "ACLs", "changing settings"},
    "Event Hubs Standard": {
        "producer states",
        "ACLs",
        "changing settings",
        "transactions",
        "idempotent writes",
    },
    "WarpStream": {"producer states", "changing settings", "leader epochs"},
}
UNUSABLE = {"Event Hubs Standard": "InitProducerId", "WarpStream": "OffsetForLeaderEpoch"}


@contextmanager
def refusing(apis: frozenset[int]) -> Iterator[KafkaCluster]:
    """Provides a target with a topic, behind a proxy that refuses *apis*."""
    with KafkaCluster(name="service", authorizer=True, proxied=True, refused_apis=apis) as cluster:
        cluster.create_topic("existing")
        yield cluster


def check(source: KafkaCluster, bootstrap: str, topic: str) -> dict[str, Any]:
    """Returns the JSON of `mirrorflow check` for a flow to *bootstrap*."""
    addresses = ["--from", source.bootstrap, "--to", bootstrap, "--topics", topic]
    result = subprocess.run(
        [sys.executable, "-m", "mirrorflow_cli", "check", *addresses, "--json"],
        capture_output=True,
        text=True,
        timeout=COMMAND_WAIT_S,
        check=False,
    )
    assert result.stdout, result.stderr
    return dict(json.loads(result.stdout))


def missing(report: dict[str, Any]) -> set[str]:
    return {capability["name"] for capability in report["capabilities"] if not capability["offered"]}


@pytest.mark.parametrize("service", SERVICES)
def test_check_reports_what_a_service_lacks(east: KafkaCluster, service: str) -> None:
    """The guarantee depends on transactions. Without idempotent writes or leader epochs, a flow cannot run."""
    topic = east.create_topic(f"checked-{len(SERVICES[service])}-{sum(SERVICES[service])}")

    with refusing(SERVICES[service]) as target:
        report = check(east, target.proxied_bootstrap, topic)

    assert missing(report) == SERVICES_WITHOUT[service]
    assert report["guarantee"] == (
        "exactly-once" if not SERVICES[service] & TRANSACTIONS else "at-least-once"
    )
    assert report["canRun"] == (service not in UNUSABLE)
    if service in UNUSABLE:
        assert f"does not offer {UNUSABLE[service]}" in report["problems"][0]
    assert any(
        "does not offer DescribeProducers: the log is read instead" in note for note in report["notes"]
    )


def test_check_lists_what_a_broker_offers(east: KafkaCluster, west: KafkaCluster) -> None:
    """Brokers without an authorizer offer everything except ACLs, and a flow is exactly-once."""
    topic = east.create_topic("checked-complete")

    report = check(east, west.bootstrap, topic)

    assert missing(report) == {"ACLs"}
    assert (report["canRun"], report["guarantee"]) == (True, "exactly-once")
    assert f"{west.name} has no authorizer" not in report["problems"]


@pytest.mark.parametrize(
    ("refused", "guarantee"), [(PRODUCERS, "exactly-once"), (PRODUCERS | TRANSACTIONS, "at-least-once")]
)
def test_a_flow_keeps_the_guarantee_that_check_predicts(
    refused: frozenset[int], guarantee: str, tmp_path: Path
) -> None:
    """The flow is killed twice. Records may be repeated only if the guarantee is at-least-once."""
    with KafkaCluster(name="complete", authorizer=True) as source, refusing(refused) as target:
        properties = {"bootstrap.servers": target.proxied_bootstrap}
        result = Trial(
            source=Endpoint(
                name="source",
                alias="source",
                properties=source.java_client("PLAINTEXT"),
                home=source.home,
            ),
            target=Endpoint(name="target", alias="target", properties=properties, home=target.home),
            folder=tmp_path,
        ).run()

    assert {Outcome.PASSED} == {verdict.outcome for verdict in result.verdicts.values()}, result
    assert result.guarantee == guarantee

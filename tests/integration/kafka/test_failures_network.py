"""Clusters are down, become unreachable and return, and networks fail.

The problem is reported with its reason, and copying catches up afterwards.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_replicator.connectors import topic_discovery
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied
from tests.integration.kafka.flows import contents
from tests.integration.kafka.test_connector import running, settings

pytestmark = pytest.mark.faults

REPORT_WAIT_S = 90.0
# Slow enough for a failure during copying, and fast enough for the test.
SLOW_BYTES_PER_S = "4000000"
LONG_WAY_MS = 150  # delay in each direction; listing the source's offsets takes longer than the next refusal

Names = Callable[[], str]
SIDES = ("source", "target")


@pytest.fixture(scope="module")
def source_cluster() -> Iterator[KafkaCluster]:
    """Provides the source, a broker with a proxy."""
    with KafkaCluster(name="here", listeners=("PLAINTEXT",), proxied=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def target_cluster() -> Iterator[KafkaCluster]:
    """Provides the target, a broker with a proxy."""
    with KafkaCluster(name="there", listeners=("PLAINTEXT",), proxied=True) as cluster:
        yield cluster


def flow(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, topic: str, folder: Path, **connector: str
) -> Replicator:
    """Returns a flow for *topic* with its own alias, through both proxies.

    *connector* has underscores instead of dots.
    """
    lines = {
        "source.cluster.alias": topic.upper(),
        "source.cluster.bootstrap.servers": source_cluster.proxied_bootstrap,
        "target.cluster.bootstrap.servers": target_cluster.proxied_bootstrap,
    }
    lines |= {key.replace("_", "."): value for key, value in connector.items()}
    worker = {"bootstrap.servers": target_cluster.proxied_bootstrap}
    return Replicator.standalone(
        source_cluster, target_cluster, topics=topic, folder=folder, connector=lines, worker=worker
    )


def reasons(replicator: Replicator) -> set[str]:
    return {entry["reason"] for entry in replicator.progress()["reasons"]}


def wait_for_reasons(replicator: Replicator) -> set[str]:
    """Waits until the summary has reasons, and returns them."""
    return wait_until("a reason is reported", lambda: reasons(replicator), poll_s=0.2)


def wait_for_reach(replicator: Replicator, *, lost: str | None) -> dict[str, Any]:
    """Waits until the summary reports only the cluster *lost* as unreachable, or none if it is None.

    Returns the summary.
    """
    expected = {side: "Unreachable" if side == lost else "Reachable" for side in SIDES}

    def matching_summary() -> dict[str, Any]:
        summary = replicator.progress()
        return summary if expected == {side: summary[side]["reach"] for side in SIDES} else {}

    return wait_until(f"{lost or 'no cluster'} is reported as lost", matching_summary, poll_s=0.2)


@pytest.mark.parametrize("side", SIDES)
def test_a_cluster_that_is_down_at_the_start_is_reported_and_retried(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_topic: Names, tmp_path: Path, side: str
) -> None:
    """The state, the reason, the address and the log identify it. When it is up, copying begins."""
    topic = source_cluster.create_topic(unique_topic())
    load(source_cluster, topic, 500, keys=True)
    cluster = source_cluster if side == "source" else target_cluster
    cluster.broker(1).stop()

    with flow(source_cluster, target_cluster, topic, tmp_path) as replicator:
        first_reasons = wait_for_reasons(replicator)
        lost = wait_for_reach(replicator, lost=side)[side]
        name = replicator.rest("/connectors")[1][0]
        status = replicator.rest(f"/connectors/{name}/status")[1]["connector"]
        alias = topic.upper() if side == "source" else "there"
        message = f"Cluster {alias} cannot be reached at {cluster.proxied_bootstrap}"
        wait_until("the log reports the cluster", lambda: message in replicator.log_text())
        cluster.broker(1).start()
        replicator.wait_until_caught_up()
        assert reasons(replicator) == set()
        recovered = wait_for_reach(replicator, lost=None)

    assert {source_cluster.cluster_id, target_cluster.cluster_id} == {
        recovered[side]["clusterId"] for side in SIDES
    }
    assert {"Unreachable", ""} == {lost["reason"], lost["clusterId"]}
    assert first_reasons <= {"Unreachable", "ConnectionLost"}
    assert status["state"] == "FAILED"
    assert message in status["trace"]
    assert_copied(source_cluster, topic, target_cluster, f"{topic.upper()}.{topic}", count=500)


def test_a_flow_without_topics_reports_an_unreachable_source(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task sends requests, and the next topic refresh may be ten minutes away."""
    monkeypatch.setattr(topic_discovery, "REACH_CHECK_S", 0.2)
    idle = settings(source_cluster.proxied_bootstrap, target_cluster, "no-such-topic", refresh_topics_s=600.0)

    async def main() -> list[str | None]:
        async with running(idle) as process:
            await process.until(lambda: process.connector.state == "RUNNING")
            source_cluster.proxy(1).cut()
            try:
                await process.until(lambda: process.connector.sides[0].reason)
                reason = process.connector.sides[0].reason
            finally:
                source_cluster.proxy(1).heal()
            await process.until(lambda: process.connector.sides[0].reason == "")
            return [reason, process.connector.state, process.connector.sides[1].reason]

    reason, state, of_target = asyncio.run(main())
    assert reason in {"Unreachable", "ConnectionLost"}
    assert (state, of_target) == ("RUNNING", "")


@pytest.mark.parametrize("side", SIDES)
def test_no_record_is_lost_or_repeated_when_a_broker_is_killed_and_restarted(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_topic: Names, tmp_path: Path, side: str
) -> None:
    """The only broker of either cluster is killed with kill -9 while records are copied.

    Afterwards both topics are equal.
    """
    topic = source_cluster.create_topic(unique_topic(), partitions=3)
    load(source_cluster, topic, 30_000, size_bytes=500, keys=True, codec="lz4", content="random")
    cluster = source_cluster if side == "source" else target_cluster

    with flow(
        source_cluster, target_cluster, topic, tmp_path, mirrorflow_bytes_per_second=SLOW_BYTES_PER_S
    ) as replicator:
        replicator.wait_for_copy(target_cluster, f"{topic.upper()}.{topic}", 2000)
        cluster.broker(1).kill()
        first_reasons = wait_for_reasons(replicator)
        lost = wait_for_reach(replicator, lost=side)[side]
        cluster.broker(1).start()
        load(source_cluster, topic, 1000, keys=True, first=30_000)
        replicator.wait_until_caught_up(partitions=3)
        assert reasons(replicator) == set()
        wait_for_reach(replicator, lost=None)

    assert cluster.cluster_id == lost["clusterId"]
    assert 0 <= lost["sinceSeconds"] < REPORT_WAIT_S
    assert first_reasons <= {"Unreachable", "ConnectionLost"}
    assert_copied(source_cluster, topic, target_cluster, f"{topic.upper()}.{topic}", count=31_000)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("way", ["cut", "blackhole"])
def test_no_record_is_lost_or_repeated_when_connections_break(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: Names,
    tmp_path: Path,
    side: str,
    way: str,
) -> None:
    """Connections are closed repeatedly, or forward no bytes for a while."""
    topic = source_cluster.create_topic(unique_topic(), partitions=2)
    load(source_cluster, topic, 20_000, size_bytes=500, keys=True, content="random")
    route = (source_cluster if side == "source" else target_cluster).proxy(1)

    with flow(
        source_cluster, target_cluster, topic, tmp_path, mirrorflow_bytes_per_second=SLOW_BYTES_PER_S
    ) as replicator:
        for part in (1, 2):
            replicator.wait_for_copy(target_cluster, f"{topic.upper()}.{topic}", part * 5000)
            if way == "cut":
                route.cut()
                wait_for_reasons(replicator)
            else:
                route.blackhole()
                load(source_cluster, topic, 100, keys=True, first=20_000 + 100 * part)
            route.heal()
        replicator.wait_until_caught_up(partitions=2)

    assert_copied(source_cluster, topic, target_cluster, f"{topic.upper()}.{topic}")


@pytest.mark.parametrize("policy", ["alert", "restart"])
def test_a_loss_over_a_slow_network_is_handled_once(
    source_cluster: KafkaCluster,
    target_cluster: KafkaCluster,
    unique_topic: Names,
    tmp_path: Path,
    policy: str,
) -> None:
    """While the cause of the first refused fetch is determined, further fetches are refused. They are no new loss."""
    topic = source_cluster.create_topic(unique_topic())
    load(source_cluster, topic, 1_000)
    source_cluster.proxy(1).delay(LONG_WAY_MS)
    try:
        with flow(
            source_cluster, target_cluster, topic, tmp_path, mirrorflow_source_loss_policy=policy
        ) as replicator:
            replicator.wait_until_caught_up()
            replicator.freeze_between_fetches(source_cluster)
            load(source_cluster, topic, 1_000, first=1_000)
            source_cluster.delete_records(topic, {0: 1_500})
            replicator.thaw()
            replicator.wait_for_copy(target_cluster, f"{topic.upper()}.{topic}", 1_500)
            load(source_cluster, topic, 1_000, first=2_000)
            replicator.wait_until_caught_up()
            losses = replicator.progress()["losses"]
    finally:
        source_cluster.proxy(1).delay(0)

    copied = contents(records(target_cluster, f"{topic.upper()}.{topic}"))
    assert losses == 1
    assert contents(records(source_cluster, topic)) == copied[1_000:]


def test_a_slow_network_is_fully_used_without_resyncs(
    source_cluster: KafkaCluster, target_cluster: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Over a network to the target of 1 MB/s with a latency of 20 ms, everything is copied in bounded memory."""
    topic = source_cluster.create_topic(unique_topic(), partitions=2)
    load(source_cluster, topic, 8000, size_bytes=1000, content="random")
    route = target_cluster.proxy(1)
    route.delay(20)
    route.throttle(1_000_000)

    try:
        with flow(source_cluster, target_cluster, topic, tmp_path) as replicator:
            replicator.wait_until_caught_up(partitions=2)
            refused = replicator.progress()["refusedWrites"]
    finally:
        route.throttle(0)
        route.delay(0)

    assert refused == 0
    assert_copied(source_cluster, topic, target_cluster, f"{topic.upper()}.{topic}", count=8000)

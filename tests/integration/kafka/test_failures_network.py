"""Clusters that are not there, go away and come back, and networks that break: said with the reason, and made up for."""

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

TOLD_WAIT_S = 90.0
# Slow enough for the failure to come in the middle, quick enough for the test.
SLOW_BYTES_PER_S = "4000000"
LONG_WAY_MS = 150  # each way: a look at the source's offsets takes longer than the next refusal

Names = Callable[[], str]
SIDES = ("source", "target")


@pytest.fixture(scope="module")
def here() -> Iterator[KafkaCluster]:
    """The source: a broker behind a proxy."""
    with KafkaCluster(name="here", listeners=("PLAINTEXT",), proxied=True) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def there() -> Iterator[KafkaCluster]:
    """The target: a broker behind a proxy."""
    with KafkaCluster(name="there", listeners=("PLAINTEXT",), proxied=True) as cluster:
        yield cluster


def flow(here: KafkaCluster, there: KafkaCluster, topic: str, folder: Path, **connector: str) -> Replicator:
    """A flow of its own for *topic*, through both proxies; *connector* has _ for dots."""
    lines = {
        "source.cluster.alias": topic.upper(),
        "source.cluster.bootstrap.servers": here.proxied_bootstrap,
        "target.cluster.bootstrap.servers": there.proxied_bootstrap,
    }
    lines |= {key.replace("_", "."): value for key, value in connector.items()}
    worker = {"bootstrap.servers": there.proxied_bootstrap}
    return Replicator.standalone(here, there, topics=topic, folder=folder, connector=lines, worker=worker)


def reasons(replicator: Replicator) -> set[str]:
    return {one["reason"] for one in replicator.progress()["reasons"]}


def said_somewhere(replicator: Replicator) -> set[str]:
    """Reasons of the summary, once there are some."""
    return wait_until("it gives a reason", lambda: reasons(replicator), poll_s=0.2)


def wait_for_reach(replicator: Replicator, *, lost: str | None) -> dict[str, Any]:
    """The summary, once it says of that side alone that it cannot be used, and that the other can; None: that both can."""
    wanted = {side: "Unreachable" if side == lost else "Reachable" for side in SIDES}

    def told() -> dict[str, Any]:
        found = replicator.progress()
        return found if wanted == {side: found[side]["reach"] for side in SIDES} else {}

    return wait_until(f"{lost or 'no cluster'} is reported as lost", told, poll_s=0.2)


@pytest.mark.parametrize("side", SIDES)
def test_a_cluster_that_is_down_at_the_start_is_named_and_waited_for(
    here: KafkaCluster, there: KafkaCluster, unique_topic: Names, tmp_path: Path, side: str
) -> None:
    """State, reason, address and log say which; when it comes up the copy begins."""
    topic = here.create_topic(unique_topic())
    load(here, topic, 500, keys=True)
    cluster = here if side == "source" else there
    cluster.broker(1).stop()

    with flow(here, there, topic, tmp_path) as replicator:
        found = said_somewhere(replicator)
        lost = wait_for_reach(replicator, lost=side)[side]
        name = replicator.rest("/connectors")[1][0]
        status = replicator.rest(f"/connectors/{name}/status")[1]["connector"]
        alias = topic.upper() if side == "source" else "there"
        sentence = f"Cluster {alias} cannot be reached at {cluster.proxied_bootstrap}"
        wait_until("the log names it", lambda: sentence in replicator.log_text())
        cluster.broker(1).start()
        replicator.wait_until_caught_up()
        assert reasons(replicator) == set()
        well = wait_for_reach(replicator, lost=None)

    assert {here.cluster_id, there.cluster_id} == {well[side]["clusterId"] for side in SIDES}
    assert {"Unreachable", ""} == {lost["reason"], lost["clusterId"]}
    assert found <= {"Unreachable", "ConnectionLost"}
    assert status["state"] == "FAILED"
    assert sentence in status["trace"]
    assert_copied(here, topic, there, f"{topic.upper()}.{topic}", count=500)


def test_a_flow_without_topics_notices_that_its_source_is_away(
    here: KafkaCluster, there: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No task asks anybody then, and the next look for topics may be ten minutes away."""
    monkeypatch.setattr(topic_discovery, "REACH_CHECK_S", 0.2)
    idle = settings(here.proxied_bootstrap, there, "no-such-topic", refresh_topics_s=600.0)

    async def main() -> list[str | None]:
        async with running(idle) as found:
            await found.until(lambda: found.connector.state == "RUNNING")
            here.proxy(1).cut()
            try:
                await found.until(lambda: found.connector.sides[0].reason)
                told = found.connector.sides[0].reason
            finally:
                here.proxy(1).heal()
            await found.until(lambda: found.connector.sides[0].reason == "")
            return [told, found.connector.state, found.connector.sides[1].reason]

    told, state, of_target = asyncio.run(main())
    assert told in {"Unreachable", "ConnectionLost"}
    assert (state, of_target) == ("RUNNING", "")


@pytest.mark.parametrize("side", SIDES)
def test_a_broker_that_dies_in_the_middle_and_returns_costs_nothing(
    here: KafkaCluster, there: KafkaCluster, unique_topic: Names, tmp_path: Path, side: str
) -> None:
    """kill -9 of the only broker of either side while records flow; afterwards both sides are equal."""
    topic = here.create_topic(unique_topic(), partitions=3)
    load(here, topic, 30_000, size_bytes=500, keys=True, codec="lz4", content="random")
    cluster = here if side == "source" else there

    with flow(here, there, topic, tmp_path, mirrorflow_bytes_per_second=SLOW_BYTES_PER_S) as replicator:
        replicator.wait_for_copy(there, f"{topic.upper()}.{topic}", 2000)
        cluster.broker(1).kill()
        found = said_somewhere(replicator)
        lost = wait_for_reach(replicator, lost=side)[side]
        cluster.broker(1).start()
        load(here, topic, 1000, keys=True, first=30_000)
        replicator.wait_until_caught_up(partitions=3)
        assert reasons(replicator) == set()
        wait_for_reach(replicator, lost=None)

    assert cluster.cluster_id == lost["clusterId"]
    assert 0 <= lost["sinceSeconds"] < TOLD_WAIT_S
    assert found <= {"Unreachable", "ConnectionLost"}
    assert_copied(here, topic, there, f"{topic.upper()}.{topic}", count=31_000)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("way", ["cut", "blackhole"])
def test_a_network_that_breaks_and_heals_costs_nothing(
    here: KafkaCluster, there: KafkaCluster, unique_topic: Names, tmp_path: Path, side: str, way: str
) -> None:
    """Connections that are closed again and again, or on which nothing passes for a while."""
    topic = here.create_topic(unique_topic(), partitions=2)
    load(here, topic, 20_000, size_bytes=500, keys=True, content="random")
    route = (here if side == "source" else there).proxy(1)

    with flow(here, there, topic, tmp_path, mirrorflow_bytes_per_second=SLOW_BYTES_PER_S) as replicator:
        for part in (1, 2):
            replicator.wait_for_copy(there, f"{topic.upper()}.{topic}", part * 5000)
            if way == "cut":
                route.cut()
                said_somewhere(replicator)
            else:
                route.blackhole()
                load(here, topic, 100, keys=True, first=20_000 + 100 * part)
            route.heal()
        replicator.wait_until_caught_up(partitions=2)

    assert_copied(here, topic, there, f"{topic.upper()}.{topic}")


@pytest.mark.parametrize("policy", ["alert", "restart"])
def test_one_loss_behind_a_long_way_is_dealt_with_once(
    here: KafkaCluster, there: KafkaCluster, unique_topic: Names, tmp_path: Path, policy: str
) -> None:
    """While one refused fetch is looked into the next ones are refused, too: they say nothing new."""
    topic = here.create_topic(unique_topic())
    load(here, topic, 1_000)
    here.proxy(1).delay(LONG_WAY_MS)
    try:
        with flow(here, there, topic, tmp_path, mirrorflow_source_loss_policy=policy) as replicator:
            replicator.wait_until_caught_up()
            replicator.freeze_between_fetches(here)
            load(here, topic, 1_000, first=1_000)
            here.delete_records(topic, {0: 1_500})
            replicator.thaw()
            replicator.wait_for_copy(there, f"{topic.upper()}.{topic}", 1_500)
            load(here, topic, 1_000, first=2_000)
            replicator.wait_until_caught_up()
            losses = replicator.progress()["losses"]
    finally:
        here.proxy(1).delay(0)

    copied = contents(records(there, f"{topic.upper()}.{topic}"))
    assert losses == 1
    assert contents(records(here, topic)) == copied[1_000:]


def test_a_narrow_network_is_filled_and_not_more(
    here: KafkaCluster, there: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Behind a line of 1 MB/s and 20 ms to the target everything arrives, in bounded memory, without a resync."""
    topic = here.create_topic(unique_topic(), partitions=2)
    load(here, topic, 8000, size_bytes=1000, content="random")
    route = there.proxy(1)
    route.delay(20)
    route.throttle(1_000_000)

    try:
        with flow(here, there, topic, tmp_path) as replicator:
            replicator.wait_until_caught_up(partitions=2)
            refused = replicator.progress()["refusedWrites"]
    finally:
        route.throttle(0)
        route.delay(0)

    assert refused == 0
    assert_copied(here, topic, there, f"{topic.upper()}.{topic}", count=8000)

"""The target's `transaction.max.timeout.ms` is below a minute, a flow's default. The flow then requests less."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_cli.commands.check import check_guarantee
from mirrorflow_cli.output import Findings
from mirrorflow_core.settings import OffsetStore
from mirrorflow_kafka.client.cluster import Cluster
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import FOREVER, load
from tests.integration.kafka.distributed import NAME, Site, change, start, wait_for_copies
from tests.integration.kafka.flows import DAY_MS, Flow, call_cluster, now_ms
from tests.integration.kafka.test_flow_ownership import wait_for_trace

pytestmark = pytest.mark.more

SETTING = "transaction.max.timeout.ms"


@pytest.fixture(scope="module", params=[30_000, 5_000, 500])
def limit_ms(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def short(limit_ms: int) -> Iterator[KafkaCluster]:
    with KafkaCluster(name="short", config={SETTING: str(limit_ms)}) as cluster:
        yield cluster


def test_a_short_transaction_limit_repeats_nothing_or_stops_with_a_reason(
    east: KafkaCluster, short: KafkaCluster, limit_ms: int, unique_topic: Callable[[], str], tmp_path: Path
):
    """Old records are copied in transactions.

    A limit below 30 s is a warning, and a limit below one second an error.
    """
    flow = Flow.new(east, short, tmp_path)
    topic = east.create_topic(unique_topic(), config=FOREVER)
    load(east, topic, 2_000, timestamp_ms=now_ms() - 2 * DAY_MS, timestamp_step_ms=1)
    with flow.replicator(topic) as replicator:
        if limit_ms < 1_000:
            assert SETTING in wait_for_trace(replicator)
            return
        replicator.wait_until_caught_up()
        flow.assert_committed(topic)
        progress = str(replicator.progress())

    assert (SETTING in progress) == (limit_ms < 30_000)


def test_check_reports_a_transaction_limit_that_is_too_short(short: KafkaCluster, limit_ms: int):
    findings = Findings(prints=False)
    settings: Any = SimpleNamespace(
        source_alias="east",
        target_alias="short",
        offsets=SimpleNamespace(store=OffsetStore.KAFKA),
        transaction_timeout_ms=60_000,
    )

    async def check(cluster: Cluster) -> bool:
        return await check_guarantee(cluster, settings, findings)

    assert call_cluster(short, check)
    assert (SETTING in str(findings.problems)) == (limit_ms < 1_000)
    assert (SETTING in str(findings.as_json()["notes"])) == (1_000 <= limit_ms < 30_000)


def test_a_group_fences_earlier_tasks_of_a_target_with_short_transactions(
    east: KafkaCluster, short: KafkaCluster, limit_ms: int, unique_topic: Callable[[], str], tmp_path: Path
):
    """The group fences them by the transactional ids of Java's tasks. No record is written with these ids."""
    if limit_ms < 1_000:
        pytest.skip("such a target is refused")
    site = Site(source=east, target=short, folder=tmp_path)
    topic = east.create_topic(unique_topic())
    load(east, topic, 100)
    with site.worker(exactly_once_source_support="enabled") as worker:
        start(worker)
        change(worker, "PUT", f"/connectors/{NAME}/config", site.connector(topic), expect=201)
        wait_for_copies(site, topic, 100)

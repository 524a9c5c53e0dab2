"""MM2's exactly-once settings are changed step by step on a running flow, and each step keeps its guarantee."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.distributed import NAME, Site, change, start, wait_for_copies

pytestmark = pytest.mark.more

STEPS = ("disabled", "preparing", "enabled")
BATCH = 2_000


def wait_for_guarantee(worker: Replicator, topic: str) -> None:
    wait_until(
        "the partition reports exactly-once",
        lambda: worker.partition(topic).get("guarantee") == "exactly-once",
    )


@pytest.mark.parametrize("boundary", ["poll", "interval"])
def test_exactly_once_support_is_enabled_step_by_step_despite_kills(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path, unique_topic: Callable[[], str], boundary: str
) -> None:
    """The values are disabled, preparing and enabled, with a kill at each step.

    Readers of committed records receive each record once.
    """
    site = Site(source=east, target=west, folder=tmp_path)
    topic = unique_topic()
    east.create_topic(topic)
    config = site.connector(topic, transaction_boundary=boundary, exactly_once_support="requested")
    for number, support in enumerate(STEPS, start=1):
        with site.worker(exactly_once_source_support=support) as worker:
            start(worker)
            change(worker, "PUT", f"/connectors/{NAME}/config", config, expect=201 if number == 1 else 200)
            load(east, topic, BATCH // 2)
            worker.kill()
            load(east, topic, BATCH // 2)
            worker.start()
            start(worker)
            wait_for_copies(site, topic, number * BATCH)
            wait_for_guarantee(worker, topic)
            assert worker.stop() == 0

    keys = [record.key for record in records(west, f"{site.alias}.{topic}", isolation="read_committed")]
    assert len(keys) == len(STEPS) * BATCH

"""A seed in the cluster.

Spark's executors fill the target, then the connector continues, and each record is copied once.
"""

from collections.abc import Callable

import pytest

from tests.e2e.story import assert_same, condition_of, wait_for_records
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.stage import WAIT_S, Stage

FLOW = "filled"
TOPIC = "history.all"
PARTITIONS, RECORDS, LATER = 4, 20_000, 1_000


# The first test also starts the node, both clusters and Spark, which takes minutes on a busy machine.
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("seed_image")
def test_the_connector_continues_after_a_seed(stage: Stage, make_flow: Callable[..., str]):
    """`kubectl wait` for Seeded returns, the connector copies later records, and both sides are equal."""
    stage.east.create_topic(TOPIC, partitions=PARTITIONS)
    load(stage.east, TOPIC, RECORDS)
    make_flow(
        FLOW,
        ["history.*"],
        seed={"runId": "1", "executors": {"max": 2, "resources": {"requests": {"cpu": "100m"}}}},
    )

    wait_until(
        "the connector waits",
        lambda: condition_of(stage.resource(FLOW), "Replicating")[1] == "Seeding",
        timeout_s=WAIT_S,
        poll_s=0.2,
    )
    stage.wait_for(FLOW, "Seeded", timeout_s=4 * WAIT_S)
    wait_for_records(stage, f"{FLOW}.{TOPIC}", RECORDS)
    load(stage.east, TOPIC, LATER)
    stage.wait_for(FLOW, "Ready")
    wait_for_records(stage, f"{FLOW}.{TOPIC}", RECORDS + LATER)

    assert_same(stage, FLOW, TOPIC)
    seed = stage.resource(FLOW)["status"]["seed"]
    # The total includes the partition of heartbeats, which has its own records.
    assert (seed["phase"], seed["partitions"]) == (
        "Succeeded",
        {"total": PARTITIONS + 1, "done": PARTITIONS + 1, "lost": 0},
    )
    assert seed["records"] >= RECORDS
    assert seed["cost"]["executorSeconds"] > 0

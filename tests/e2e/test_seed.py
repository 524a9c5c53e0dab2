"""A flow that is seeded in the cluster: Spark's executors fill the target, the connector continues after them, each record arrives once."""

from collections.abc import Callable

import pytest

from tests.e2e.story import assert_same, reason, wait_for_records
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.stage import WAIT_S, Stage

FLOW = "filled"
TOPIC = "history.all"
PARTITIONS, RECORDS, LATER = 4, 20_000, 1_000


# The node, both clusters and the image of Spark start within the first test; on a machine that does much else they take minutes.
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("seed_image")
def test_the_connector_continues_behind_a_seed(stage: Stage, make_flow: Callable[..., str]):
    """`kubectl wait` for Seeded returns; what is written afterwards arrives live; both sides are the same."""
    stage.east.create_topic(TOPIC, partitions=PARTITIONS)
    load(stage.east, TOPIC, RECORDS)
    make_flow(
        FLOW,
        ["history.*"],
        seed={"runId": "1", "executors": {"max": 2, "resources": {"requests": {"cpu": "100m"}}}},
    )

    wait_until(
        "the connector waits",
        lambda: reason(stage.resource(FLOW), "Replicating")[1] == "Seeding",
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
    # With the partition of heartbeats, which has records of its own.
    assert (seed["phase"], seed["partitions"]) == (
        "Succeeded",
        {"total": PARTITIONS + 1, "done": PARTITIONS + 1, "lost": 0},
    )
    assert seed["records"] >= RECORDS
    assert seed["cost"]["executorSeconds"] > 0

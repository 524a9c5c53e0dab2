"""Sources that are written in transactions, under attack: committed, aborted and open ones, copiers killed in between."""

from collections.abc import Callable

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.test_source_truth import transactions

pytestmark = pytest.mark.more

OPEN_RECORDS = 30


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("flushes", ["often", "never"])
def test_a_copier_killed_within_transactions_loses_and_repeats_nothing(
    flow: Flow, unique_topic: Callable[[], str], isolation: str, flushes: str
) -> None:
    """Five kills while transactions are committed and aborted; positions that are fresh, or were never written."""
    topic = flow.source.create_topic(unique_topic())
    interval_ms = {"often": "100", "never": "3600000"}[flushes]
    lines = {"source.consumer.isolation.level": isolation, "offset.flush.interval.ms": interval_ms}
    with transactions(flow.source, topic) as writer, flow.replicator(topic, lines) as replicator:
        for _ in range(5):
            more = replicator.progress()["records"] + 500
            wait_until(
                "more is copied",
                lambda: replicator.progress()["records"] > more,  # noqa: B023  asked before the loop continues
            )
            replicator.kill()
            replicator.start()
        writer.stop()
        replicator.wait_until_caught_up()
        skipped = replicator.progress()["skippedRecords"]
        flow.assert_committed(topic, isolation=isolation)

    assert skipped > 0


def test_nothing_of_an_open_transaction_or_behind_it_is_copied_before_it_ends(
    flow: Flow, unique_topic: Callable[[], str]
) -> None:
    """With read_committed, also after kill -9; then the coordinator aborts it, and the rest follows."""
    topic = flow.source.create_topic(unique_topic())
    lines = {"source.consumer.isolation.level": "read_committed", "offset.flush.interval.ms": "3600000"}
    load(flow.source, topic, 200)
    load(
        flow.source,
        topic,
        OPEN_RECORDS,
        first=200,
        transactional_id=f"open-{topic}",
        transaction_records=OPEN_RECORDS,
        leave_open=True,
        producer={"transaction.timeout.ms": "20000"},
    )
    load(flow.source, topic, 100, first=300)
    with flow.replicator(topic, lines) as replicator:
        replicator.wait_for_copy(flow.target, flow.remote(topic), 200)
        replicator.kill()
        replicator.start()
        replicator.wait_until_caught_up()
        stable = flow.source.end_offsets(topic, isolation="read_committed")[0]
        if stable == 200:
            assert flow.copied(topic) == 200
        wait_until("the rest is copied", lambda: flow.copied(topic) >= 300)
        replicator.kill()
        replicator.start()
        load(flow.source, topic, 50, first=400)
        flow.assert_committed(topic, isolation="read_committed")

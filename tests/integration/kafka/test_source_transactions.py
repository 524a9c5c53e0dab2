"""Sources that are written in transactions, under attack: committed, aborted and open ones, copiers killed in between."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin.log_requests import describe_producers
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow, call_cluster
from tests.integration.kafka.test_source_truth import transactions
from tests.integration.kafka.test_stalls import stalled, stalled_count

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


def test_a_hanging_transaction_of_the_source_is_reported_with_its_producer(
    flow: Flow, unique_topic: Callable[[], str]
) -> None:
    """It would stay open for 15 minutes, and hides 100 other records meanwhile; other topics are copied."""
    stem = unique_topic()
    held, free = (flow.source.create_topic(f"{stem}-{name}") for name in ("held", "free"))
    lines = {"source.consumer.isolation.level": "read_committed"}
    transactional_id = f"hanging-{held}"
    for topic in (held, free):
        load(flow.source, topic, 200)
    with flow.replicator(f"{stem}-.*", lines) as replicator:
        replicator.wait_until_caught_up(partitions=2)
        load(
            flow.source,
            held,
            OPEN_RECORDS,
            transactional_id=transactional_id,
            transaction_records=OPEN_RECORDS,
            leave_open=True,
            producer={"transaction.timeout.ms": str(timedelta(minutes=15) // timedelta(milliseconds=1))},
        )
        load(flow.source, held, 100)
        stalled(replicator, held, "OpenTransaction")
        partition = TopicPartition(held, 0)
        answer = call_cluster(flow.source, lambda source: describe_producers(source, [partition]))[partition]
        (producer,) = (one for one in answer.producers if one.current_txn_start_offset >= 0)
        named = f"producer {producer.producer_id} "
        wait_until("the producer is named", lambda: named in replicator.partition(held)["message"])
        wait_until("none is advancing", lambda: replicator.progress()["replicating"] != "Advancing")
        said, summary = replicator.partition(held), replicator.progress()
        gauge = stalled_count(replicator, "OpenTransaction")
        load(flow.source, free, 50, first=200)
        replicator.wait_for_copy(flow.target, flow.remote(free), 250)
        load(flow.source, held, 10, transactional_id=transactional_id, transaction_records=10)
        replicator.wait_until_caught_up(partitions=2)
        wait_until("the reason is gone", lambda: not replicator.partition(held)["reason"])
        flow.assert_committed(held, isolation="read_committed")

    assert said["lagRecords"] == OPEN_RECORDS + 100
    assert "offset 200" in said["message"]
    assert (summary["replicating"], summary["partitions"]["stalled"]) == ("Stuck", 1)
    assert named in summary["reasons"][0]["example"]
    assert gauge == 1

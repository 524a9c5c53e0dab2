"""Sources are written in committed, aborted and open transactions while copiers are killed."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin.log_requests import describe_producers
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow, call_cluster
from tests.integration.kafka.test_source_truth import transactions
from tests.integration.kafka.test_stalls import stalled_count, wait_until_stalled

pytestmark = pytest.mark.more

OPEN_RECORDS = 30


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("flushes", ["often", "never"])
def test_a_copier_killed_within_transactions_loses_and_repeats_nothing(
    flow: Flow, unique_topic: Callable[[], str], isolation: str, flushes: str
) -> None:
    """There are five kills while transactions commit and abort. Positions are stored often or never."""
    topic = flow.source.create_topic(unique_topic())
    interval_ms = {"often": "100", "never": "3600000"}[flushes]
    lines = {"source.consumer.isolation.level": isolation, "offset.flush.interval.ms": interval_ms}
    with transactions(flow.source, topic) as writer, flow.replicator(topic, lines) as replicator:
        for _ in range(5):
            expected = replicator.progress()["records"] + 500
            wait_until(
                "more records are copied",
                lambda: replicator.progress()["records"] > expected,  # noqa: B023  called before the loop continues
            )
            replicator.kill()
            replicator.start()
        writer.stop()
        replicator.wait_until_caught_up()
        skipped = replicator.progress()["skippedRecords"]
        flow.assert_committed(topic, isolation=isolation)

    assert skipped > 0


def test_an_open_transaction_and_later_records_are_copied_only_after_it_ends(
    flow: Flow, unique_topic: Callable[[], str]
) -> None:
    """This holds with read_committed, also after kill -9.

    Then the coordinator aborts the transaction, and later records are copied.
    """
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
        wait_until("the later records are copied", lambda: flow.copied(topic) >= 300)
        replicator.kill()
        replicator.start()
        load(flow.source, topic, 50, first=400)
        flow.assert_committed(topic, isolation="read_committed")


def test_a_hanging_transaction_of_the_source_is_reported_with_its_producer(
    flow: Flow, unique_topic: Callable[[], str]
) -> None:
    """The transaction would stay open for 15 minutes, and hides 100 other records. Other topics are copied."""
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
        wait_until_stalled(replicator, held, "OpenTransaction")
        partition = TopicPartition(held, 0)
        response = call_cluster(flow.source, lambda source: describe_producers(source, [partition]))[
            partition
        ]
        (producer,) = (
            candidate for candidate in response.producers if candidate.current_txn_start_offset >= 0
        )
        named = f"producer {producer.producer_id} "
        wait_until("the producer is reported", lambda: named in replicator.partition(held)["message"])
        wait_until("no partition is advancing", lambda: replicator.progress()["replicating"] != "Advancing")
        status, summary = replicator.partition(held), replicator.progress()
        gauge = stalled_count(replicator, "OpenTransaction")
        load(flow.source, free, 50, first=200)
        replicator.wait_for_copy(flow.target, flow.remote(free), 250)
        load(flow.source, held, 10, transactional_id=transactional_id, transaction_records=10)
        replicator.wait_until_caught_up(partitions=2)
        wait_until("the reason is cleared", lambda: not replicator.partition(held)["reason"])
        flow.assert_committed(held, isolation="read_committed")

    assert status["lagRecords"] == OPEN_RECORDS + 100
    assert "offset 200" in status["message"]
    assert (summary["replicating"], summary["partitions"]["stalled"]) == ("Stuck", 1)
    assert named in summary["reasons"][0]["example"]
    assert gauge == 1

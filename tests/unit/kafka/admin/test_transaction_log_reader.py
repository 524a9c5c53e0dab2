"""The batches of a log are read from brokers that throttle, lose leadership or send invalid responses."""

import asyncio
from typing import Any

import pytest

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin.transaction_log_reader import (
    LogSpan,
    aborted_transactions,
    read_batches,
    read_log,
    read_starts,
)
from tests.unit.kafka.admin.test_log_reader import (
    NOT_LEADER,
    ORDERS,
    FakeCluster,
    batch_of_two_records,
    fetch_response,
)


def test_the_starts_of_several_logs_are_fetched_with_one_request() -> None:
    """A log that the response contains completely needs no further request."""
    other = TopicPartition("orders", 4)  # the response has nothing for this partition
    cluster: Any = FakeCluster(fetch_response(records=batch_of_two_records()))
    spans = {ORDERS: LogSpan(0, 2), other: LogSpan(0, 2), TopicPartition("orders", 5): LogSpan(7, 7)}

    async def read_both() -> tuple[list[TopicPartition], list[int]]:
        starts = await read_starts(cluster, spans)
        log = await read_log(
            cluster, ORDERS, lambda record: record.value, span=spans[ORDERS], first=starts[ORDERS]
        )
        return [*starts], [len(batch.records) for batch in log]

    assert ([ORDERS], [2]) == asyncio.run(read_both())


@pytest.mark.parametrize(
    "response",
    [fetch_response(error=NOT_LEADER), fetch_response(throttle_ms=3), fetch_response(is_empty=True)],
    ids=["not leader", "throttled", "invalid"],
)
def test_a_start_that_did_not_arrive_is_absent(response: bytearray) -> None:
    cluster: Any = FakeCluster(response)

    assert {} == asyncio.run(read_starts(cluster, {ORDERS: LogSpan(0, 2)}))


def test_batches_of_a_range_that_stays_unserved_are_not_returned() -> None:
    cluster: Any = FakeCluster(
        fetch_response(records=batch_of_two_records(36), high_watermark=38),
        *[fetch_response(high_watermark=38)] * 10_000,
    )

    with pytest.raises(BrokerError, match="OFFSET_NOT_AVAILABLE"):
        asyncio.run(read_batches(cluster, ORDERS, 36, 40, timeout_s=0.01))


def test_aborted_transactions_are_listed_when_their_offset_is_served() -> None:
    """A broker lists none for an offset that it does not serve."""
    cluster: Any = FakeCluster(
        fetch_response(last_stable=38),
        fetch_response(aborted=((7, 20), (8, 39)), records=batch_of_two_records(38)),
    )

    assert {7: 20} == asyncio.run(aborted_transactions(cluster, ORDERS, 38))

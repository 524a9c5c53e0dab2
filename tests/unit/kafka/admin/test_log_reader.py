"""Parts of a log are read from brokers that throttle, lose leadership or send invalid responses."""

import asyncio
from collections import deque
from typing import Any

import pytest

from mirrorflow_core.errors import BrokerError, ConnectionLostError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.fetch import PartitionFetchResponse
from mirrorflow_core.wire.records import Record, encode_split
from mirrorflow_kafka.admin import log_reader
from mirrorflow_kafka.admin.log_reader import (
    ThrottledError,
    batches_between,
    read_once,
    read_through_elections,
)
from tests.unit.core.wire.messages import FetchResponse
from tests.unit.core.wire.old_messages import log_of_wrappers

ORDERS = TopicPartition("orders", 3)
VERSION = 12
NOT_LEADER, OUT_OF_RANGE, OFFSET_NOT_AVAILABLE = 6, 1, 78


def fetch_response(
    *,
    throttle_ms: int = 0,
    error: int = 0,
    is_empty: bool = False,
    records: bytes = b"",
    high_watermark: int = 40,
    last_stable: int | None = None,
    aborted: tuple[tuple[int, int], ...] = (),
) -> bytearray:
    """Returns a response for `ORDERS`. A throttled or *is_empty* response has no partition."""
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData(
        version=VERSION,
        partition_index=ORDERS.partition,
        error_code=error,
        high_watermark=high_watermark,
        last_stable_offset=high_watermark if last_stable is None else last_stable,
        log_start_offset=0,
        aborted_transactions=[
            topic.PartitionData.AbortedTransaction(version=VERSION, producer_id=id_, first_offset=first)
            for id_, first in aborted
        ],
        preferred_read_replica=-1,
        records=records,
    )
    parts = [topic(version=VERSION, topic=ORDERS.topic, partitions=[partition])]
    message = FetchResponse(
        version=VERSION,
        throttle_time_ms=throttle_ms,
        error_code=0,
        session_id=0,
        responses=[] if throttle_ms or is_empty else parts,
    )
    return bytearray(message.encode(version=VERSION))


class FakeCluster:
    """A cluster and connection that returns one of the given responses for each fetch."""

    alias, address, client_id, cluster = "east", "east:9092", "copier", "east"
    versions = {1: (0, VERSION)}  # noqa: RUF012 it is read only

    def __init__(self, *responses: bytearray) -> None:
        self.responses = deque(responses)
        self.throttle_ms = self.muted_ms = self.refreshed = 0

    def leader(self, topic: str, partition: int) -> int:
        return 1

    async def refresh(self, topics: object) -> None:
        self.refreshed += 1

    async def connection(self, node_id: int, *, purpose: str) -> "FakeCluster":
        return self

    def add_throttle_ms(self, throttle_ms: int) -> None:
        self.throttle_ms += throttle_ms

    def throttled(self, throttle_ms: int) -> None:
        self.muted_ms += throttle_ms

    async def send(self, *_: object, **__: object) -> memoryview:
        return memoryview(self.responses.popleft())


def read(cluster: Any, **more: Any) -> PartitionFetchResponse:
    """Calls `read_once` for `ORDERS`."""
    return asyncio.run(read_once(cluster, ORDERS, 5, **more))


def read_with_retries(cluster: Any) -> PartitionFetchResponse:
    """Calls `read_through_elections` for `ORDERS`."""
    return asyncio.run(read_through_elections(cluster, ORDERS, 5))


def batch_of_two_records(offset: int = 0) -> bytes:
    [(data, _)] = encode_split([Record(0, 9, b"k", b"v")] * 2, max_bytes=1 << 20, codec=0)
    data[:8] = offset.to_bytes(8)
    return bytes(data)


def offsets_between(cluster: Any, start: int, end: int, **more: Any) -> list[int]:
    """Returns the first offsets of the batches that `batches_between` yields."""

    async def read_all() -> list[int]:
        return [batch.base_offset async for batch, _ in batches_between(cluster, ORDERS, start, end, **more)]

    return asyncio.run(read_all())


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_batch_that_an_end_cuts_is_yielded_on_both_sides(magic: int) -> None:
    """Its offset is that of its last record, beyond the end; the batch after it begins beyond the end."""

    def read_range(start: int, end: int) -> list[int]:
        data = bytes(log_of_wrappers(start, end=100, magic=magic))
        return offsets_between(FakeCluster(fetch_response(records=data, high_watermark=100)), start, end)

    assert [19, 39, 59] == read_range(0, 50)
    assert [59, 79, 99] == read_range(50, 100)
    assert [19, 39] == read_range(0, 40)


def test_a_damaged_old_batch_is_yielded_where_it_may_hold_records() -> None:
    """The caller reports it; where it begins cannot be read any more."""
    data = log_of_wrappers(0, end=20)
    data[-1] ^= 1

    cluster = FakeCluster(fetch_response(records=bytes(data)))

    assert [19] == offsets_between(cluster, 0, 10)


@pytest.fixture(autouse=True)
def _no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "BACKOFF_MIN_S", 0.0)
    monkeypatch.setattr(log_reader, "BACKOFF_MAX_S", 0.0)
    monkeypatch.setattr(log_reader, "RETRY_MIN_S", 0.0)
    monkeypatch.setattr(log_reader, "RETRY_MAX_S", 0.0)


def test_a_throttled_read_waits_and_counts_the_throttle_time() -> None:
    """A throttled response has no partitions, so the reader sends the request again."""
    cluster = FakeCluster(fetch_response(throttle_ms=3), fetch_response(throttle_ms=4), fetch_response())

    assert 40 == read(cluster).high_watermark
    assert (7, 7) == (cluster.throttle_ms, cluster.muted_ms)


def test_the_error_of_a_throttled_read_names_the_quota_to_raise() -> None:
    cluster = FakeCluster(*[fetch_response(throttle_ms=1)] * 100)

    with pytest.raises(
        ThrottledError, match=r"nothing of orders-3 .*raise consumer_byte_rate of client id copier"
    ) as raised:
        read(cluster, throttled_max_s=0.01)
    assert raised.value.retriable
    assert cluster.responses


def test_a_long_throttle_time_is_spent_in_several_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota may be raised during the wait."""
    monkeypatch.setattr(log_reader, "THROTTLE_WAIT_MAX_S", 0.001)

    assert 40 == read(FakeCluster(fetch_response(throttle_ms=2**31 - 1), fetch_response())).high_watermark


def test_a_response_without_partitions_or_reason_is_an_error() -> None:
    """It is not treated as the end of the log."""
    with pytest.raises(ConnectionLostError, match="no partition and no reason"):
        read(FakeCluster(fetch_response(is_empty=True)))


def test_metadata_is_refreshed_before_a_leader_change_is_raised() -> None:
    cluster = FakeCluster(fetch_response(error=NOT_LEADER))

    with pytest.raises(BrokerError) as raised:
        read(cluster)
    assert (True, 1) == (raised.value.retriable, cluster.refreshed)


def test_a_job_continues_reading_after_an_election() -> None:
    cluster = FakeCluster(
        fetch_response(error=NOT_LEADER),
        fetch_response(throttle_ms=1),
        fetch_response(error=NOT_LEADER),
        fetch_response(),
    )

    assert 40 == read_with_retries(cluster).high_watermark


def test_a_job_does_not_retry_a_permanent_error() -> None:
    cluster = FakeCluster(fetch_response(error=OUT_OF_RANGE), fetch_response())

    with pytest.raises(BrokerError) as raised:
        read_with_retries(cluster)
    assert (OUT_OF_RANGE, 1) == (raised.value.code, len(cluster.responses))


def test_a_range_is_read_to_its_end_from_a_new_leader_that_does_not_serve_it_yet() -> None:
    """A new leader learns the high watermark from its replicas: until then it returns nothing for a fetch above its own one."""
    cluster = FakeCluster(
        fetch_response(records=batch_of_two_records(36), high_watermark=38),
        fetch_response(high_watermark=38),
        fetch_response(high_watermark=38),
        fetch_response(records=batch_of_two_records(38)),
    )

    assert [36, 38] == offsets_between(cluster, 36, 40)


def test_a_leader_that_does_not_serve_a_range_for_long_may_be_a_former_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_reader, "FORMER_LEADER_S", 0.0)
    cluster = FakeCluster(fetch_response(high_watermark=38), fetch_response(records=batch_of_two_records(38)))

    assert [38] == offsets_between(cluster, 38, 40)
    assert 1 == cluster.refreshed


def test_a_range_of_committed_records_is_read_up_to_its_end() -> None:
    cluster = FakeCluster(fetch_response(last_stable=38), fetch_response(records=batch_of_two_records(38)))

    assert [38] == offsets_between(cluster, 38, 40, read_committed=True)


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_range_whose_last_offsets_hold_nothing_ends(*, is_committed: bool) -> None:
    """Compaction can leave offsets without a batch before the end of a log."""
    cluster = FakeCluster(
        fetch_response(records=batch_of_two_records(36)),
        fetch_response(last_stable=40 if is_committed else 36),
    )

    assert [36] == offsets_between(cluster, 36, 40, read_committed=is_committed)


def test_a_range_that_stays_unserved_is_a_retriable_error() -> None:
    cluster = FakeCluster(*[fetch_response(high_watermark=38)] * 10_000)

    with pytest.raises(
        BrokerError, match=r"orders-3 .*serves no offset from 38 on, and the log.* 40"
    ) as raised:
        offsets_between(cluster, 38, 40, unserved_max_s=0.01)
    assert (OFFSET_NOT_AVAILABLE, True) == (raised.value.code, raised.value.retriable)
    assert cluster.responses

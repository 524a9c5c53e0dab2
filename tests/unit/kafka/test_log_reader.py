"""Single stretches of a log, read from a broker that throttles, moves its leaders, or answers nonsense."""

import asyncio
from collections import deque
from typing import Any

import pytest

from mirrorflow_core.errors import BrokerError, ConnectionLostError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.fetch import PartitionFetchResponse
from mirrorflow_kafka.admin import log_reader
from mirrorflow_kafka.admin.log_reader import ThrottledError, read_once, read_through_elections
from tests.unit.core.wire.messages import FetchResponse

ORDERS = TopicPartition("orders", 3)
VERSION = 12
NOT_LEADER, OUT_OF_RANGE = 6, 1


def answer(*, throttle_ms: int = 0, error: int = 0, is_empty: bool = False) -> bytearray:
    """What a broker returns for `ORDERS`; a throttled or *is_empty* answer names no partition."""
    topic = FetchResponse.FetchableTopicResponse
    partition = topic.PartitionData(
        version=VERSION,
        partition_index=ORDERS.partition,
        error_code=error,
        high_watermark=40,
        last_stable_offset=40,
        log_start_offset=0,
        aborted_transactions=None,
        preferred_read_replica=-1,
        records=b"",
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
    """Cluster and connection in one: returns the given answers, one for each fetch."""

    alias, address, client_id, cluster = "east", "east:9092", "copier", "east"
    versions = {1: (0, VERSION)}  # noqa: RUF012 it is read only

    def __init__(self, *answers: bytearray) -> None:
        self.answers = deque(answers)
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
        return memoryview(self.answers.popleft())


def read(cluster: Any, **more: Any) -> PartitionFetchResponse:
    """`read_once` of `ORDERS`."""
    return asyncio.run(read_once(cluster, ORDERS, 5, **more))


def read_patiently(cluster: Any) -> PartitionFetchResponse:
    """`read_through_elections` of `ORDERS`."""
    return asyncio.run(read_through_elections(cluster, ORDERS, 5))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reader, "BACKOFF_MIN_S", 0.0)
    monkeypatch.setattr(log_reader, "BACKOFF_MAX_S", 0.0)


def test_a_throttled_answer_is_waited_for_and_counted() -> None:
    """It has no partitions: the reader asks again and returns what comes then."""
    cluster = FakeCluster(answer(throttle_ms=3), answer(throttle_ms=4), answer())

    assert 40 == read(cluster).high_watermark
    assert (7, 7) == (cluster.throttle_ms, cluster.muted_ms)


def test_a_reader_that_is_only_throttled_says_which_quota_to_raise() -> None:
    cluster = FakeCluster(*[answer(throttle_ms=1)] * 100)

    with pytest.raises(
        ThrottledError, match=r"nothing of orders-3 .*raise consumer_byte_rate of client id copier"
    ) as raised:
        read(cluster, throttled_max_s=0.01)
    assert raised.value.retriable
    assert cluster.answers


def test_a_long_throttle_time_is_waited_for_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quota may be raised meanwhile."""
    monkeypatch.setattr(log_reader, "THROTTLE_WAIT_MAX_S", 0.001)

    assert 40 == read(FakeCluster(answer(throttle_ms=2**31 - 1), answer())).high_watermark


def test_an_answer_without_partitions_and_reason_is_an_error() -> None:
    """Never taken for the end of the log."""
    with pytest.raises(ConnectionLostError, match="no partition and no reason"):
        read(FakeCluster(answer(is_empty=True)))


def test_a_leader_that_has_moved_is_looked_up_before_the_error_is_raised() -> None:
    cluster = FakeCluster(answer(error=NOT_LEADER))

    with pytest.raises(BrokerError) as raised:
        read(cluster)
    assert (True, 1) == (raised.value.retriable, cluster.refreshed)


def test_a_job_reads_on_after_an_election() -> None:
    cluster = FakeCluster(answer(error=NOT_LEADER), answer(throttle_ms=1), answer(error=NOT_LEADER), answer())

    assert 40 == read_patiently(cluster).high_watermark


def test_a_job_does_not_repeat_what_time_does_not_heal() -> None:
    cluster = FakeCluster(answer(error=OUT_OF_RANGE), answer())

    with pytest.raises(BrokerError) as raised:
        read_patiently(cluster)
    assert (OUT_OF_RANGE, 1) == (raised.value.code, len(cluster.answers))

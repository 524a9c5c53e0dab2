"""Records of claims and positions, the marker at which reading them ends, and the clocks of the protocol."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.connect.position_records import PositionKey, encode_key
from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_core.writer.broker_requests import (
    Pause,
    Producer,
    ReadPositions,
    ReadSourceStart,
    ReadWallClock,
    SourceStart,
)
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.transaction_log import LogBatch, Marker
from mirrorflow_core.writer.transactional_ids import WriterIds
from mirrorflow_kafka.admin import admin, transaction_log_reader
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST, ListedOffset
from mirrorflow_kafka.admin.transaction_log_reader import ExpectedMarker, LogCache, LogSpan
from mirrorflow_kafka.writer import protocol_runner
from mirrorflow_kafka.writer.flow_topics import FlowTopics

CONNECTOR = "MirrorSourceConnector"
TOPICS = FlowTopics(
    source_alias="east",
    connector=CONNECTOR,
    offsets="mm2-offsets.east.internal",
    target_topic=lambda topic: f"east.{topic}",
)
POSITION = WriterPosition(
    topic="orders", partition=3, next_source_offset=101, java_offset=100, writer=WriterIds("t", "p")
)
KEY = encode_key(PositionKey(CONNECTOR, "east", "orders", 3))
CLAIM = Claim(flow="f", process="a", source_alias="east", tasks=2, lock_epoch=16, time_ms=1)


def test_a_source_partition_is_mapped_to_its_target_partition():
    assert TOPICS.on_target(TopicPartition("orders", 3)) == ("east.orders", 3)
    assert TOPICS.claims == ("mm2-claims.east.internal", 0)


def test_claims_and_positions_are_decoded_as_encoded():
    assert TOPICS.claim_in(TOPICS.claim_record(CLAIM)) == CLAIM
    partition, record = TOPICS.position_record(POSITION, partitions=1)
    assert (partition, record.key) == ((TOPICS.offsets, 0), KEY)
    assert TOPICS.position_in(record) == POSITION


def test_a_position_of_java_is_used_and_a_deleted_position_restarts_copying():
    java = TOPICS.position_in(Record(0, 0, KEY, b'{"offset":41}'))
    deleted = TOPICS.position_in(Record(0, 0, KEY, None))
    assert java is not None
    assert deleted is not None
    assert (java.next_source_offset, java.writer) == (42, None)
    assert deleted.next_source_offset == -1


def test_records_other_than_claims_and_positions_are_ignored():
    other = encode_key(PositionKey(CONNECTOR, "north", "orders", 3))
    assert TOPICS.position_in(Record(0, 0, other, b'{"offset":41}')) is None
    assert TOPICS.position_in(Record(0, 0, KEY, b"nonsense")) is None
    assert TOPICS.claim_in(Record(0, 0, b"{}", b"nonsense")) is None
    assert TOPICS.claim_in(Record(0, 0, b"{}", None)) is None


def test_only_a_marker_of_the_same_epoch_at_or_after_the_offset_is_expected():
    marker = LogBatch(20, 20, 7, 3, -1, is_transactional=True, marker=Marker.COMMIT)
    expected = ExpectedMarker(producer_id=7, producer_epoch=3, offset=20)
    assert expected.is_in([marker])
    for other in (
        marker._replace(base_offset=19),
        marker._replace(producer_epoch=2),
        marker._replace(producer_id=8),
        marker._replace(marker=None),
    ):
        assert not expected.is_in([other])


def test_pauses_are_measured_with_the_monotonic_clock(monkeypatch: pytest.MonkeyPatch):
    clock = SimpleNamespace(time_ns=lambda: 9_000_000, monotonic_ns=lambda: 5_000_000)
    monkeypatch.setattr(protocol_runner, "time", clock)
    no_cluster = cast("Any", None)
    runner = protocol_runner.ProtocolRunner(no_cluster, no_cluster, TOPICS)

    assert asyncio.run(runner.respond((Pause(0), ReadWallClock()))) == (5, 9)


def test_a_start_from_the_beginning_is_not_the_configured_one(monkeypatch: pytest.MonkeyPatch):
    """As the loss policy says, for a partition that began at the configured start."""
    offsets = {EARLIEST: 4, LATEST: 10}

    async def list_offsets(
        _: object, partitions: set[TopicPartition], timestamp: int, **__: object
    ) -> dict[TopicPartition, ListedOffset]:
        return dict.fromkeys(partitions, ListedOffset(offset=offsets[timestamp], leader_epoch=3))

    monkeypatch.setattr(admin, "list_offsets", list_offsets)
    no_cluster = cast("Any", None)
    runner = protocol_runner.ProtocolRunner(no_cluster, no_cluster, TOPICS, start_at=lambda _: LATEST)
    partition = TopicPartition("orders", 3)
    asked = (ReadSourceStart(partition), ReadSourceStart(partition, from_beginning=True))

    assert asyncio.run(runner.respond(asked)) == (SourceStart(10, -1), SourceStart(4, 3))


@pytest.mark.parametrize("is_available", [True, False], ids=["available", "unavailable"])
def test_the_first_read_of_several_logs_requests_their_offsets_together(
    monkeypatch: pytest.MonkeyPatch, *, is_available: bool
):
    """If a marker is missing or a partition unavailable, the log has its own requests: first end, then start."""
    requests: list[tuple[int, int]] = []
    marker = LogBatch(20, 20, 7, 3, -1, is_transactional=True, marker=Marker.COMMIT)
    batches = iter([[], [marker], [marker]])

    async def offsets_at(_: object, partitions: list[TopicPartition], when: int) -> dict[TopicPartition, int]:
        requests.append((len(partitions), when))
        if len(partitions) > 1 and not is_available:
            raise UnreachableError(cluster="west", addresses="a:1", problem="refused")
        return dict.fromkeys(partitions, 21 if when == LATEST else 0)

    async def log_offsets(*arguments: Any) -> dict[TopicPartition, ListedOffset]:
        return {
            partition: ListedOffset(offset=offset)
            for partition, offset in (await offsets_at(*arguments)).items()
        }

    async def collect(*_: object, **__: object) -> list[LogBatch]:
        return next(batches)

    monkeypatch.setattr(admin, "offsets_at", offsets_at)
    monkeypatch.setattr(admin, "log_offsets", log_offsets)
    monkeypatch.setattr(transaction_log_reader, "_collect", collect)
    logs = [TopicPartition(TOPICS.offsets, number) for number in range(2)]

    async def read() -> list[object]:
        cluster, expected = cast("Any", SimpleNamespace(alias="west")), ExpectedMarker(7, 3, 20)
        spans = await transaction_log_reader.log_spans(cluster, logs)
        return [
            await transaction_log_reader.read_log(
                cluster, log, lambda _: None, marker=expected, span=spans.get(log)
            )
            for log in logs
        ]

    assert [[marker], [marker]] == asyncio.run(read())
    single = [(1, LATEST), (1, EARLIEST)]
    together = [(2, LATEST), (2, EARLIEST)] if is_available else [(2, LATEST), *single]
    assert together + single == requests[: len(together) + len(single)]


@pytest.mark.parametrize(
    "responses",
    [
        [[20, 20], [21, 20], [21, 21]],
        [[20, 20], []],  # a log is not available
        [[21, 21]],
    ],
    ids=["late markers", "unavailable", "markers there"],
)
def test_positions_are_read_when_their_logs_are_long_enough_to_have_the_marker(
    monkeypatch: pytest.MonkeyPatch, responses: list[list[int]]
):
    lock = Producer("lock", 7, 3)
    remaining = list(responses)
    reads: list[LogSpan | None] = []

    async def log_spans(_: object, partitions: list[TopicPartition]) -> dict[TopicPartition, LogSpan]:
        ends = remaining.pop(0)
        return {partition: LogSpan(0, end) for partition, end in zip(partitions, ends, strict=False)}

    async def read_log(*_: object, span: LogSpan | None, **__: object) -> tuple[LogBatch, ...]:
        reads.append(span)
        return ()

    async def read_starts(*_: object) -> dict[object, object]:
        return {}

    async def partition_numbers(*_: object, **__: object) -> tuple[int, ...]:
        return 0, 1

    monkeypatch.setattr(protocol_runner, "log_spans", log_spans)
    monkeypatch.setattr(protocol_runner, "read_log", read_log)
    monkeypatch.setattr(protocol_runner, "read_starts", read_starts)
    monkeypatch.setattr(protocol_runner, "partition_numbers", partition_numbers)
    runner = protocol_runner.ProtocolRunner(cast("Any", None), cast("Any", None), TOPICS)
    monkeypatch.setattr(runner.transactions, "barrier", lambda *_: ExpectedMarker(7, 3, 20))

    asyncio.run(runner.respond((ReadPositions(lock),)))

    assert [] == remaining
    last: list[LogSpan | None] = [LogSpan(0, end) for end in responses[-1]]
    assert reads == (last or [None, None])


def batch(offset: int) -> LogBatch:
    return LogBatch(offset, offset, -1, -1, -1, is_transactional=False)


class CachedLog:
    """A log of one partition, read with a cache. `fetches` has the spans that were fetched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fetches: list[tuple[int, int]] = []
        self.topic_id, self.span = "a", LogSpan(0, 3, 7)
        self._cache = LogCache()
        monkeypatch.setattr(transaction_log_reader, "_collect", self._collect)

    def read(self) -> list[int]:
        metadata = SimpleNamespace(topic_id=lambda _: self.topic_id)
        cluster = cast("Any", SimpleNamespace(alias="west", metadata=metadata))
        batches = transaction_log_reader.read_log(
            cluster, TOPICS.claims, lambda _: None, span=self.span, cache=self._cache
        )
        return [batch.base_offset for batch in asyncio.run(batches)]

    async def _collect(self, *arguments: Any, **_: object) -> tuple[LogBatch, ...]:
        start, end = arguments[2:4]
        self.fetches.append((start, end))
        return tuple(batch(offset) for offset in range(start, end))


def test_reading_a_log_again_continues_where_the_last_read_ended(monkeypatch: pytest.MonkeyPatch):
    log = CachedLog(monkeypatch)
    log.read()
    log.span = LogSpan(0, 5, 7)

    assert [0, 1, 2, 3, 4] == log.read()
    assert [(0, 3), (3, 5)] == log.fetches


@pytest.mark.parametrize(
    ("topic_id", "span"),
    [
        ("b", LogSpan(0, 5, 7)),
        ("a", LogSpan(1, 5, 7)),
        ("a", LogSpan(0, 5, 8)),
        ("a", LogSpan(0, 2, 7)),
        ("a", LogSpan(0, 5, -1)),
        ("", LogSpan(0, 5, 7)),
    ],
    ids=["new topic", "deleted records", "new leader", "truncated", "unknown epoch", "unknown topic"],
)
def test_a_log_that_may_have_lost_records_is_read_from_its_start(
    monkeypatch: pytest.MonkeyPatch, topic_id: str, span: LogSpan
):
    log = CachedLog(monkeypatch)
    log.read()
    log.topic_id, log.span = topic_id, span

    assert [*range(span.start, span.end)] == log.read()

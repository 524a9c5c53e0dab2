"""The records of a flow's claims and positions, the marker that a read of them waits for, and the clocks of the protocol."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.connect.position_records import PositionKey, encode_key
from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_core.writer.broker_requests import Pause, ReadWallClock
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_core.writer.transaction_log import LogBatch, Marker
from mirrorflow_core.writer.transactional_ids import WriterIds
from mirrorflow_kafka.admin import admin, log_reader
from mirrorflow_kafka.admin.log_reader import ExpectedMarker
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
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


def test_a_partition_of_the_source_is_named_as_on_the_target():
    assert TOPICS.on_target(TopicPartition("orders", 3)) == ("east.orders", 3)
    assert TOPICS.claims == ("mm2-claims.east.internal", 0)


def test_claims_and_positions_are_read_as_they_were_written():
    assert TOPICS.claim_in(TOPICS.claim_record(CLAIM)) == CLAIM
    home, record = TOPICS.position_record(POSITION, partitions=1)
    assert (home, record.key) == ((TOPICS.offsets, 0), KEY)
    assert TOPICS.position_in(record) == POSITION


def test_a_position_of_java_is_obeyed_and_a_deleted_one_starts_anew():
    java = TOPICS.position_in(Record(0, 0, KEY, b'{"offset":41}'))
    deleted = TOPICS.position_in(Record(0, 0, KEY, None))
    assert java is not None
    assert deleted is not None
    assert (java.next_source_offset, java.writer) == (42, None)
    assert deleted.next_source_offset == -1


def test_records_that_are_no_claims_or_positions_are_left_out():
    other = encode_key(PositionKey(CONNECTOR, "north", "orders", 3))
    assert TOPICS.position_in(Record(0, 0, other, b'{"offset":41}')) is None
    assert TOPICS.position_in(Record(0, 0, KEY, b"nonsense")) is None
    assert TOPICS.claim_in(Record(0, 0, b"{}", b"nonsense")) is None
    assert TOPICS.claim_in(Record(0, 0, b"{}", None)) is None


def test_only_a_newer_marker_of_the_same_epoch_is_the_expected_one():
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


def test_pauses_are_measured_by_a_clock_that_does_not_step(monkeypatch: pytest.MonkeyPatch):
    clock = SimpleNamespace(time_ns=lambda: 9_000_000, monotonic_ns=lambda: 5_000_000)
    monkeypatch.setattr(protocol_runner, "time", clock)
    no_cluster = cast("Any", None)
    runner = protocol_runner.ProtocolRunner(no_cluster, no_cluster, TOPICS)

    assert asyncio.run(runner.answer((Pause(0), ReadWallClock()))) == (5, 9)


@pytest.mark.parametrize("is_available", [True, False], ids=["available", "not-available"])
def test_the_first_read_of_several_logs_asks_for_their_offsets_together(
    monkeypatch: pytest.MonkeyPatch, *, is_available: bool
):
    """Once its marker is missing, or a partition is not available, a log is asked about alone, its end before its start."""
    asked: list[tuple[int, int]] = []
    marker = LogBatch(20, 20, 7, 3, -1, is_transactional=True, marker=Marker.COMMIT)
    found = iter([[], [marker], [marker]])

    async def offsets_at(_: object, partitions: list[TopicPartition], when: int) -> dict[TopicPartition, int]:
        asked.append((len(partitions), when))
        if len(partitions) > 1 and not is_available:
            raise UnreachableError(cluster="west", addresses="a:1", problem="refused")
        return dict.fromkeys(partitions, 21 if when == LATEST else 0)

    async def collect(*_: object) -> list[LogBatch]:
        return next(found)

    monkeypatch.setattr(admin, "offsets_at", offsets_at)
    monkeypatch.setattr(log_reader, "_collect", collect)
    logs = [TopicPartition(TOPICS.offsets, number) for number in range(2)]

    async def read() -> list[object]:
        cluster, expected = cast("Any", SimpleNamespace(alias="west")), ExpectedMarker(7, 3, 20)
        spans = await log_reader.log_spans(cluster, logs)
        return [
            await log_reader.read_log(cluster, one, lambda _: None, marker=expected, span=spans.get(one))
            for one in logs
        ]

    assert [[marker], [marker]] == asyncio.run(read())
    alone = [(1, LATEST), (1, EARLIEST)]
    together = [(2, LATEST), (2, EARLIEST)] if is_available else [(2, LATEST), *alone]
    assert together + alone == asked[: len(together) + len(alone)]

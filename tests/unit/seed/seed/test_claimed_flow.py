"""What a seed takes as copied: not the records of others, which refuse it, nor what a deleted topic had.

An open transaction in a copy does not count, and is not waited for.
"""

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_core.wire.records import Record, encode_as_logged
from mirrorflow_core.writer.position import WriterPosition
from mirrorflow_kafka.admin import admin, log_reader
from mirrorflow_kafka.admin.log_requests import LATEST
from mirrorflow_kafka.client.metadata import Metadata, TopicMetadata
from mirrorflow_seed.errors import ForeignRecordsError
from mirrorflow_seed.seed.claimed_flow import ClaimedFlow

COPY = TopicPartition("orders", 0)
END = 10
OLD_ID, PRESENT_ID = uuid.UUID(int=1), uuid.UUID(int=2)


def require_no_foreign_records(
    monkeypatch: pytest.MonkeyPatch, *, last_stable: int, record: int | None = None
) -> None:
    """Checks a copy of ten offsets that has at most the *record* below *last_stable*."""

    async def offsets_at(
        _: object, partitions: list[TopicPartition], when: int, *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        end = last_stable if read_committed else END
        return dict.fromkeys(partitions, end if when == LATEST else 0)

    async def read_once(_: object, __: object, offset: int, **___: object) -> PartitionFetchResponse:
        data = bytearray()
        if record is not None and offset <= record:
            data = encode_as_logged([Record(record, 1, b"k", b"v")], codec=0, next_offset=record + 1)
        key = FetchKey(b"orders", 0)
        return PartitionFetchResponse(key, 0, END, last_stable, 0, (), -1, memoryview(data))

    monkeypatch.setattr(admin, "offsets_at", offsets_at)
    monkeypatch.setattr(log_reader, "read_once", read_once)
    monkeypatch.setattr(log_reader, "RETRY_MIN_S", 0.0)
    cluster = cast("Any", SimpleNamespace(alias="west"))
    flow = ClaimedFlow(
        settings=cast("Any", None),
        source=cluster,
        target=cluster,
        hold_log=cast("Any", None),
        group="seed",
        owner=cast("Any", None),
    )
    arrangement = cast("Any", SimpleNamespace(partitions=(COPY,), names={"orders": "orders"}))

    async def check() -> None:
        async with asyncio.timeout(5):
            await flow.require_no_foreign_records(arrangement)

    asyncio.run(check())


def test_an_open_transaction_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    require_no_foreign_records(monkeypatch, last_stable=4)


def test_a_committed_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ForeignRecordsError):
        require_no_foreign_records(monkeypatch, last_stable=4, record=3)


def flow_with_position(
    *, source_id: object = PRESENT_ID, target_id: object = PRESENT_ID, target_topic: str = "orders"
) -> ClaimedFlow:
    """Returns a flow that has read a position with these ids; both topics have PRESENT_ID."""
    position = WriterPosition(
        topic="orders",
        partition=0,
        next_source_offset=END,
        target_topic=target_topic,
        source_topic_id=str(source_id),
        target_topic_id=str(target_id),
    )

    async def positions() -> dict[TopicPartition, WriterPosition]:
        return {COPY: position}

    topics = {"orders": TopicMetadata(name="orders", topic_id=PRESENT_ID)}
    metadata = Metadata(cluster_id=None, controller_id=-1, brokers={}, topics=topics)
    cluster = cast("Any", SimpleNamespace(alias="west", metadata=metadata))
    flow = ClaimedFlow(
        settings=cast("Any", None),
        source=cluster,
        target=cluster,
        hold_log=cast("Any", None),
        group="seed",
        owner=cast("Any", SimpleNamespace(positions=positions)),
    )
    asyncio.run(flow.read_positions())
    return flow


def test_the_position_of_a_deleted_copy_does_not_count() -> None:
    """The present copy is empty, so a seed that took this position as its progress would leave it empty."""
    assert {} == flow_with_position(target_id=OLD_ID).next_offsets


def test_records_of_a_copy_that_was_created_again_may_be_foreign() -> None:
    """The position says what the flow has written to the deleted copy."""
    assert flow_with_position(target_id=OLD_ID).copied == set()


def test_records_of_a_deleted_source_topic_in_the_copy_are_not_foreign() -> None:
    assert flow_with_position(source_id=OLD_ID).copied == {COPY}


def test_the_position_of_a_deleted_source_topic_does_not_count() -> None:
    assert {} == flow_with_position(source_id=OLD_ID).next_offsets


@pytest.mark.parametrize("target_topic", ["orders", "old-name", ""])
def test_a_position_of_the_present_topics_counts(target_topic: str) -> None:
    """So does one from before a change of naming: the flow continues there in another copy."""
    target_id = PRESENT_ID if target_topic == "orders" else OLD_ID

    assert {COPY: END} == flow_with_position(target_id=target_id, target_topic=target_topic).next_offsets


def test_a_position_without_ids_counts() -> None:
    """Java stores no ids."""
    assert {COPY: END} == flow_with_position(source_id="", target_id="").next_offsets

"""A range is read to its end, also from a new leader that does not serve the end yet."""

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.errors import BrokerError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.error_codes import OFFSET_NOT_AVAILABLE
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_core.wire.records import Record, decode, encode_as_logged
from mirrorflow_seed.verify import range_reader
from mirrorflow_seed.verify.range_reader import EMPTY_RESPONSES_MAX, OffsetRange, OffsetRangeReader
from tests.unit.core.wire.old_messages import log_of_wrappers

ORDERS = TopicPartition("orders", 0)
CLUSTER = cast("Any", SimpleNamespace(alias="east", metadata=SimpleNamespace(topics={})))


def response(*records: int, last_stable: int = 40) -> PartitionFetchResponse:
    """A response of a log that ends at 40, with a batch for each of *records*."""
    data = b"".join(
        bytes(encode_as_logged([Record(offset, 1, b"k", b"v")], codec=0, next_offset=offset + 1))
        for offset in records
    )
    key = FetchKey(b"orders", 0)
    return PartitionFetchResponse(key, 0, 40, last_stable, 0, (), -1, memoryview(bytearray(data)))


def read(monkeypatch: pytest.MonkeyPatch, *responses: PartitionFetchResponse) -> list[int]:
    """Reads the committed records from 38 to 40."""
    remaining = deque(responses)

    async def fetch(*_: object, **__: object) -> PartitionFetchResponse:
        return remaining.popleft()

    monkeypatch.setattr(range_reader, "read_through_elections", fetch)
    monkeypatch.setattr(range_reader, "UNSERVED_POLL_S", 0.001)
    monkeypatch.setattr(range_reader, "UNSERVED_MAX_S", 0.01)

    async def read_all() -> list[int]:
        reader = OffsetRangeReader(CLUSTER, ORDERS, OffsetRange(38, 40), read_committed=True)
        offsets: list[int] = []
        while (batches := await reader.more()) is not None:
            offsets += [batch.base_offset for batch in batches]
        return offsets

    return asyncio.run(read_all())


def test_an_end_that_is_not_served_yet_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    unserved = [response(last_stable=39)] * (EMPTY_RESPONSES_MAX + 1)

    assert [38, 39] == read(monkeypatch, response(38, last_stable=39), *unserved, response(39))


def test_an_end_that_stays_unserved_is_a_retriable_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerError, match="serves no offset from 39 on") as raised:
        read(monkeypatch, response(38, last_stable=39), *[response(last_stable=39)] * 100)
    assert (OFFSET_NOT_AVAILABLE, True) == (raised.value.code, raised.value.retriable)


def test_a_served_end_without_records_ends_the_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [38] == read(monkeypatch, response(38), *[response()] * EMPTY_RESPONSES_MAX)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_records_before_and_after_a_cut_are_all_read(monkeypatch: pytest.MonkeyPatch, magic: int) -> None:
    """A wrapper from 40 to 59 that the end of a range cuts belongs to both ranges, and the next wrapper to neither."""

    async def fetch(_cluster: object, _partition: object, offset: int, **_: object) -> PartitionFetchResponse:
        data = log_of_wrappers(offset, end=100, magic=magic)
        return PartitionFetchResponse(FetchKey(b"orders", 0), 0, 100, 100, 0, (), -1, memoryview(data))

    monkeypatch.setattr(range_reader, "read_through_elections", fetch)

    async def read_all(offsets: OffsetRange) -> list[list[int]]:
        reader = OffsetRangeReader(CLUSTER, ORDERS, offsets, read_committed=False, reads_ahead=False)
        read_offsets: list[list[int]] = []
        while (batches := await reader.more()) is not None:
            read_offsets += [[record.offset for record in decode(batch)] for batch in batches]
        return read_offsets

    first, second, third, fourth, fifth = (list(range(start, start + 20)) for start in range(0, 100, 20))

    assert [first, second, third] == asyncio.run(read_all(OffsetRange(0, 50)))
    assert [third, fourth, fifth] == asyncio.run(read_all(OffsetRange(50, 100)))
    assert [third] == asyncio.run(read_all(OffsetRange(40, 41)))
    assert [first, second] == asyncio.run(read_all(OffsetRange(0, 40)))

"""The tail of a partition is read with all its records, and with no others."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.diverged_tail import DivergedTail, TailState
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_replicator.switchover import tail_reader
from mirrorflow_replicator.switchover.tail_reader import tail_batches
from tests.unit.core.wire.old_messages import log_of_wrappers

ORDERS = TopicPartition("orders", 0)
OLD_SIDE = cast("Any", SimpleNamespace(alias="east"))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_records_at_the_ends_of_a_tail_are_read(monkeypatch: pytest.MonkeyPatch, magic: int) -> None:
    """The wrappers from 0 to 19 and from 40 to 59 are cut by the tail from 10 to 50."""

    async def fetch(_cluster: object, _partition: object, offset: int, **_: object) -> PartitionFetchResponse:
        data = log_of_wrappers(offset, end=100, magic=magic)
        return PartitionFetchResponse(FetchKey(b"orders", 0), 0, 100, 100, 0, (), -1, memoryview(data))

    monkeypatch.setattr(tail_reader, "read_through_elections", fetch)
    tail = DivergedTail(partition=ORDERS, state=TailState.CUT, start=10, end=50)

    async def read_all() -> list[tuple[list[int], int]]:
        return [
            ([record.offset for record in batch.records], batch.next_offset)
            async for batch in tail_batches(OLD_SIDE, tail, tail.start)
        ]

    assert asyncio.run(read_all()) == [
        (list(range(10, 20)), 20),
        (list(range(20, 40)), 40),
        (list(range(40, 50)), 50),
    ]

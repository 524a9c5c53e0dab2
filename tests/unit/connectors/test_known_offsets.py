"""Which checkpoints are doubted when what is read of the copies shows that one was created again, or has lost records."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.connect.mirror_records import (
    OffsetSync,
    encode_map,
    encode_map_key,
    encode_offset_sync_key,
    encode_offset_sync_value,
)
from mirrorflow_core.errors import ClusterError, UnreachableError
from mirrorflow_core.offsets.checkpoints import Point
from mirrorflow_core.offsets.offset_map import MapStream, PartitionMap
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets, OffsetReaders
from tests.unit.connectors.test_checkpoint_passes import CONNECTOR

ORDERS, COPY = TopicPartition("orders", 0), TopicPartition("A.orders", 0)


class Log:
    """A topic that returns *records* in one read, which fails behind them with *error*."""

    def __init__(self, *records: Record, error: ClusterError | None = None) -> None:
        self.topic = "topic"
        self._records = records
        self._error = error

    async def read_new(self) -> AsyncIterator[Record]:
        for record in self._records:
            yield record
        if self._error is not None:
            raise self._error


@pytest.fixture
def known() -> KnownOffsets:
    """It has a checkpoint at offset 90 of the copy."""
    (connector,) = load_standalone("bootstrap.servers=127.0.0.1:1\n", [CONNECTOR]).connectors
    assert connector.checkpoint is not None
    cluster = cast("Any", SimpleNamespace(alias="B"))
    known = KnownOffsets(connector.checkpoint, OffsetReaders(cluster, cluster, cluster, cluster))
    known.checkpoints.take("g", {COPY: Point(upstream_offset=90, downstream_offset=90)})
    return known


def sync(upstream: int, downstream: int) -> Record:
    record = OffsetSync(topic="orders", partition=0, upstream_offset=upstream, downstream_offset=downstream)
    return Record(0, 0, encode_offset_sync_key(record), encode_offset_sync_value(record))


def offset_map(target_topic_id: str) -> Record:
    growing = PartitionMap(MapStream(1, "source", target_topic_id), OffsetPair(-1, -1, -1))
    growing.delivered(0, 0, 10, 0)
    kept = growing.kept(OffsetPair(9, 9, 9))
    return Record(0, 0, encode_map_key(ORDERS), encode_map(kept))


@pytest.mark.parametrize(
    ("newest", "is_doubted"),
    [((200, 200), False), ((95, 190), False), ((200, 95), False), ((200, 80), True), ((50, 0), True)],
    ids=[
        "copied on",
        "copied again behind it",
        "lost records behind the checkpoint",
        "lost records",
        "created again",
    ],
)
def test_a_checkpoint_is_doubted_when_syncs_step_back_before_it(
    known: KnownOffsets, newest: tuple[int, int], *, is_doubted: bool
) -> None:
    known._syncs_log = cast("Any", Log(sync(0, 0), sync(100, 100), sync(*newest)))

    asyncio.run(known.read_syncs())

    assert (COPY in known.checkpoints.doubted("g")) == is_doubted


@pytest.mark.parametrize(("topic_id", "is_doubted"), [("target-1", False), ("target-2", True)])
def test_a_checkpoint_is_doubted_when_the_map_is_that_of_another_topic(
    known: KnownOffsets, topic_id: str, *, is_doubted: bool
) -> None:
    for record in (offset_map("target-1"), offset_map(topic_id)):
        known._map_log = cast("Any", Log(record))
        asyncio.run(known.read_new_maps())

    assert (COPY in known.checkpoints.doubted("g")) == is_doubted


def test_maps_that_were_read_before_an_error_count(known: KnownOffsets) -> None:
    """The next read continues behind them, so they would be missing until their partitions are copied on."""
    error = UnreachableError(cluster="B", addresses="b:1", problem="Fetch was not answered within 30 s")
    known._map_log = cast("Any", Log(offset_map("target"), error=error))

    with pytest.raises(UnreachableError):
        asyncio.run(known.read_new_maps())

    assert known.reaches(ORDERS, 10)
    assert known.take_news() == {ORDERS}

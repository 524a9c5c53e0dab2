"""Writing checkpoints: what becomes of those that do not fit into a record."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.offsets.checkpoints import CheckpointStore, Point
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.stores import compacted_topic
from mirrorflow_replicator.connectors.checkpoint_writer import CheckpointWriter
from mirrorflow_replicator.connectors.pass_warnings import PassWarnings

COPY = TopicPartition("A.orders", 0)
TOO_LONG = Point(upstream_offset=7, downstream_offset=7, metadata="x" * (1 << 15))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of records of each write."""
    counts: list[int] = []

    async def append(_cluster: object, _topic: str, records: list[object]) -> None:
        counts.append(len(records))

    monkeypatch.setattr(compacted_topic, "append", append)
    return counts


def test_a_checkpoint_that_does_not_fit_has_a_warning_until_one_of_its_group_fits(written: list[int]) -> None:
    async def may_write() -> bool:
        return True

    warnings, store = PassWarnings(), CheckpointStore()
    known = cast("Any", SimpleNamespace(checkpoints_topic="A.checkpoints.internal", checkpoints=store))
    cluster = cast("Any", SimpleNamespace(alias="B"))
    settings = cast("Any", SimpleNamespace(emit_s=60.0))
    writer = CheckpointWriter(settings, known, (cluster, cluster), warnings, may_write)

    writer.keep("g", {COPY: TOO_LONG})
    writer.keep("h", {COPY: Point(upstream_offset=7, downstream_offset=7)})
    asyncio.run(writer.write())

    (warning,) = warnings.sentences
    assert warning.startswith("Group g has no checkpoint for A.orders-0")
    assert store.written_ms("g", COPY) is None
    assert store.written_ms("h", COPY) is not None

    writer.keep("h", {COPY: Point(upstream_offset=8, downstream_offset=8)})
    asyncio.run(writer.write())
    assert warnings.sentences == (warning,)

    writer.keep("g", {COPY: Point(upstream_offset=8, downstream_offset=8)})
    asyncio.run(writer.write())

    assert not warnings.sentences
    assert store.written_ms("g", COPY) is not None
    assert written == [1, 1, 1]

"""Tests which partitions of both sides a verification compares."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import EARLIEST
from mirrorflow_replicator.config.source_properties import parse_source
from mirrorflow_seed.verify import verify_plan
from mirrorflow_seed.verify.offset_windows import VerifyPlanSettings
from mirrorflow_seed.verify.partition_planner import PartitionLayout
from mirrorflow_seed.verify.range_reader import OffsetRange
from mirrorflow_seed.verify.stored_offsets import StoredFlowOffsets
from mirrorflow_seed.verify.verify_plan import TopicPolicies, partition_layouts

FLOW = {
    "name": "MirrorSourceConnector",
    "source.cluster.alias": "east",
    "target.cluster.alias": "west",
    "source.cluster.bootstrap.servers": "localhost:1",
    "target.cluster.bootstrap.servers": "localhost:2",
    "topics": "orders",
}
EMPTY = TopicPartition("east.orders", 2)


class MemoryCluster:
    """One topic; *grown_to*: the partitions that it has when its topics are listed again."""

    def __init__(self, topic: str, partitions: int, *, grown_to: int | None = None) -> None:
        self._topic, self._sizes = topic, [partitions, grown_to or partitions]
        self.metadata: Any = SimpleNamespace(topics=self._topics(partitions), topic_id=lambda _: "")

    async def refresh(self, _: object) -> None:
        pass

    async def list_topics(self) -> Mapping[str, Any]:
        size = self._sizes[0] if len(self._sizes) == 1 else self._sizes.pop(0)
        return self._topics(size)

    def _topics(self, partitions: int) -> dict[str, Any]:
        return {self._topic: SimpleNamespace(error=0, partitions=dict.fromkeys(range(partitions)))}


def layouts(
    monkeypatch: pytest.MonkeyPatch, source: MemoryCluster, target: MemoryCluster, **changes: Any
) -> list[PartitionLayout]:
    """Each partition has ten records, except EMPTY."""

    async def list_topics(cluster: MemoryCluster) -> Mapping[str, Any]:
        return await cluster.list_topics()

    async def offsets_at(
        _: MemoryCluster, partitions: Iterable[TopicPartition], time: int, **__: object
    ) -> dict[TopicPartition, int]:
        return {partition: 0 if time == EARLIEST or partition == EMPTY else 10 for partition in partitions}

    async def stored(*_: object) -> StoredFlowOffsets:
        return StoredFlowOffsets()

    async def policies(*_: object) -> TopicPolicies:
        return TopicPolicies()

    monkeypatch.setattr(admin, "list_topics", list_topics)
    monkeypatch.setattr(admin, "offsets_at", offsets_at)
    monkeypatch.setattr(verify_plan, "read_stored_offsets", stored)
    monkeypatch.setattr(verify_plan, "_topic_policies", policies)
    of_source: Any = source
    of_target: Any = target
    settings = parse_source(FLOW, {"bootstrap.servers": "localhost:2"})
    plan_settings = VerifyPlanSettings(run_id="run", **changes)
    return asyncio.run(partition_layouts(of_source, of_target, settings, plan_settings, []))


def copies(planned: Sequence[PartitionLayout]) -> list[int]:
    return [layout.target.partition for layout in planned]


def test_records_in_a_partition_that_the_source_lacks_are_compared_with_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    """The copy was grown by someone else, who wrote to it. A partition without records is no difference."""
    planned = layouts(monkeypatch, MemoryCluster("orders", 2), MemoryCluster("east.orders", 4))

    assert [0, 1, 3] == copies(planned)
    assert (TopicPartition("orders", 3), OffsetRange(0, 0), OffsetRange(0, 10)) == (
        planned[-1].source,
        planned[-1].source_offsets,
        planned[-1].target_offsets,
    )
    assert not planned[-1].is_compacted


def test_a_partition_that_is_created_on_both_sides_meanwhile_is_not_compared(monkeypatch: pytest.MonkeyPatch):
    planned = layouts(monkeypatch, MemoryCluster("orders", 2, grown_to=4), MemoryCluster("east.orders", 4))

    assert [0, 1] == copies(planned)


def test_partitions_created_after_an_archive_ends_are_not_compared_with_it(monkeypatch: pytest.MonkeyPatch):
    planned = layouts(
        monkeypatch,
        MemoryCluster("orders", 2),
        MemoryCluster("east.orders", 4),
        target_may_be_ahead=True,
    )

    assert [0, 1] == copies(planned)

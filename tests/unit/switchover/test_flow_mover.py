"""Ends a flow of which a partition cannot be fenced."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_replicator.switchover import flow_mover
from mirrorflow_replicator.switchover.flow_end import WaitingPartitions
from mirrorflow_replicator.switchover.flow_mover import FlowMover


class Flows:
    """The settings of a pair, and its clusters, which are only passed on."""

    forward = forward_groups = target = None


def test_an_end_that_waits_for_a_partition_fails_so_that_the_switchover_can_be_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
):
    """Writes are refused meanwhile, and a rollback is not begun before the call has returned."""
    waiting = {TopicPartition("orders", partition): _leaderless(partition) for partition in (1, 0)}

    async def end_flow(*_: Any, on_waiting: Callable[[WaitingPartitions], None]) -> None:
        while True:
            on_waiting(waiting)

    monkeypatch.setattr(flow_mover, "end_flow", end_flow)
    parts: Any = Flows
    with pytest.raises(UnreachableError) as raised:
        asyncio.run(FlowMover(parts, parts, parts).end("to-west"))
    assert raised.value is waiting[TopicPartition("orders", 0)]


def _leaderless(partition: int) -> UnreachableError:
    return UnreachableError(
        cluster="west", addresses="west:9092", problem=f"orders-{partition} has no leader"
    )

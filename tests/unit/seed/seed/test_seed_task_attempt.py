"""Tests when an attempt of a seed task gives its slot back: also one that does not yield ends once it makes no progress."""

import asyncio
from typing import Any

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_seed.seed import seed_task_attempt
from mirrorflow_seed.seed.seed_plan import SeedRange, SeedTask
from mirrorflow_seed.seed.seed_task_attempt import (
    START_S,
    AttemptDeadline,
    PartitionOutcome,
    SeedTaskAttempt,
    WaveSettings,
)
from mirrorflow_seed.settings import FlowFiles
from tests.unit.connectors.flow_settings import settings

COPYING_S = 300.0


async def refuse(*_: Any) -> Any:
    raise UnreachableError(cluster="east", addresses="east:9092", problem="no route")


@pytest.mark.parametrize("yields", [True, False])
def test_an_attempt_whose_node_reaches_no_broker_ends(monkeypatch: pytest.MonkeyPatch, *, yields: bool):
    monkeypatch.setattr(seed_task_attempt, "START_S", 0.1)
    seed_range = SeedRange(index=0, topic="a", partition=0, start=0, end=10, bytes=10)
    files = FlowFiles(worker="", source="")
    wave = WaveSettings(files=files, group="job", initial=True, seconds=0.1, url=None)
    seed_task = SeedTask(ranges=(seed_range,), yields=yields)

    result = asyncio.run(SeedTaskAttempt(seed_task, wave, settings(), connect=refuse).run())

    assert [partition_result.outcome for partition_result in result.partition_results] == [
        PartitionOutcome.UNFINISHED
    ]
    assert "no route" in (result.partition_results[0].message or "")


def test_an_attempt_that_does_not_yield_keeps_its_slot_while_any_of_its_ranges_grows():
    deadline = AttemptDeadline(COPYING_S, yields=False, began_s=0.0)
    deadline.begin_copying(1.0)
    for step in range(1, 100):
        deadline.observe({0: 5, 1: 1_000 + step}, step * COPYING_S / 2)
        assert not deadline.is_over(step * COPYING_S / 2)

    deadline.observe({0: 5, 1: 1_099}, 99 * COPYING_S / 2 + COPYING_S)

    assert not deadline.is_over(99 * COPYING_S / 2 + COPYING_S)
    assert deadline.is_over(99 * COPYING_S / 2 + COPYING_S + 1)


def test_an_attempt_that_yields_ends_although_it_copies():
    deadline = AttemptDeadline(COPYING_S, yields=True, began_s=0.0)
    deadline.begin_copying(1.0)
    deadline.observe({0: 5}, 2.0)
    deadline.observe({0: 6}, 3.0)

    assert not deadline.is_over(1.0 + COPYING_S)
    assert deadline.is_over(2.0 + COPYING_S)


def test_offsets_that_are_read_again_after_an_error_are_no_progress():
    deadline = AttemptDeadline(COPYING_S, yields=False, began_s=0.0)
    for now_s, offset in ((1.0, 5), (2.0, 3), (200.0, 5)):
        deadline.observe({0: offset}, now_s)

    assert deadline.is_over(START_S + COPYING_S + 1)

"""Worlds that are small enough to be explored whole: one partition, two copiers, four batches, two disturbances.

Messages take the same time each, so that only the points decide: `python -m tests.model --explore --scenario NAME`.
"""

from dataclasses import replace
from typing import Any

from tests.model.disturbances import (
    CUT,
    CUT_AFTER,
    ELECT,
    Disturbance,
    freeze,
    freeze_machine,
    hold,
    kill,
    lack_replicas,
    late,
    slow_markers,
)
from tests.model.loop import NEVER_S
from tests.model.options import Options
from tests.model.scenarios import copied, first, scenario
from tests.model.source import OLD_S
from tests.model.world import World

KB_BATCH: Any = {"in_batches_of": 2, "size_bytes": 2100}
SMALL = Options(jitter_s=0.0, flush_interval_s=1.0, bytes_per_second=20_000, fetch_bytes=9_000)
FORGETFUL = replace(SMALL, broker_configs={"producer.id.expiration.ms": "8000"}, expiry_check_s=1.0)
FAULTS = (
    CUT,
    CUT_AFTER,
    late(2.0),
    freeze(6.0),
    kill(arrives_after_s=NEVER_S),
    kill(arrives_after_s=2.0),
    ELECT,
    lack_replicas(0.5),
)
SETTLED_S = 3.0


async def small(
    world: World, faults: tuple[Disturbance, ...], *, at_most: int, ages_s: tuple[float, ...]
) -> None:
    """Batches of *ages_s* are copied by one copier, beside which another one is started."""
    at = first(world)
    for age_s in ages_s:
        world.producer.append(at, 2, age_s=age_s, **KB_BATCH)
    world.disturbances.begin(faults, at_most=at_most, weight=0.05, on_topics_only=True)
    world.start()
    await world.sleep(0.8)
    world.start()
    await world.until(lambda: copied(world), timeout_s=20.0)
    await world.sleep(SETTLED_S)


@scenario(SMALL)
async def small_and_fresh(world: World) -> None:
    """Four fresh batches, two copiers, at most two faults of any kind."""
    await small(world, FAULTS, at_most=2, ages_s=(0.0,) * 4)


@scenario(SMALL)
async def small_and_old(world: World) -> None:
    """Four old batches: all of them go inside the shared transaction."""
    await small(world, (*FAULTS, slow_markers(1.0)), at_most=2, ages_s=(OLD_S,) * 4)


@scenario(SMALL, points=(1,))
async def small_and_ageing(world: World) -> None:
    """Two old batches, then two fresh ones."""
    await small(world, (*FAULTS, slow_markers(1.0)), at_most=2, ages_s=(OLD_S, OLD_S, 0.0, 0.0))


@scenario(FORGETFUL, points=(7,))
async def small_and_forgotten(world: World) -> None:
    """Leaders forget after eight seconds; machines sleep for longer with bytes in their buffers."""
    faults = (CUT_AFTER, hold(12.0), freeze_machine(12.0), kill(arrives_after_s=12.0))
    await small(world, faults, at_most=2, ages_s=(0.0,) * 4)
    await world.sleep(12.0)

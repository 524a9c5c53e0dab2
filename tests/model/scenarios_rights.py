"""Old records, and what the ACL for the flow's transactional id is needed for."""

from typing import Any

from tests.model.disturbances import CUT, Disturbance, hold, kill
from tests.model.loop import NEVER_S
from tests.model.options import Options
from tests.model.scenarios import copied, first, scenario
from tests.model.source import OLD_S
from tests.model.world import World

KB_BATCH: Any = {"in_batches_of": 5, "size_bytes": 900}
SLOW: Any = {"bytes_per_second": 60_000, "fetch_bytes": 10_000}
STOPPED_BETWEEN = (CUT, kill(), kill(arrives_after_s=NEVER_S))


async def single_writer(world: World, faults: tuple[Disturbance, ...]) -> None:
    """One copier of old records, which brokers forget every second."""
    at = first(world)
    world.producer.append(at, 200, age_s=OLD_S, **KB_BATCH)
    world.disturbances.begin(faults, at_most=3, weight=0.05)
    world.start()
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(Options(transactional_ids=False, expiry_check_s=1.0, **SLOW))
async def single_writer_of_old_records(world: World) -> None:
    """Killed and cut off; what it had sent arrives at once, or never."""
    await single_writer(world, STOPPED_BETWEEN)


@scenario(Options(transactional_ids=False, expiry_check_s=1.0, **SLOW))
async def single_writer_of_old_records_and_late_bytes(world: World) -> None:
    """What a killed copier had sent arrives when brokers have just forgotten the flow."""
    world.is_unprotected = True
    await single_writer(world, (kill(arrives_after_s=3.0), kill(arrives_after_s=5.0)))


@scenario(Options(transactional_ids=False, expiry_check_s=1.0, **SLOW))
async def two_writers_of_old_records(world: World) -> None:
    """Two copiers at once, whose requests are slow now and then."""
    world.is_unprotected = True
    at = first(world)
    world.producer.append(at, 200, age_s=OLD_S, **KB_BATCH)
    world.disturbances.begin((CUT, hold(3.0), kill(arrives_after_s=3.0)), at_most=3, weight=0.05)
    world.start()
    await world.sleep(world.draws.uniform(0.0, 2.0))
    world.start()
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(Options(**SLOW))
async def settings_change_over_a_slow_network(world: World) -> None:
    """With the ACL: what the old copier writes between the last commit and the new epoch is aborted, and copied again."""
    at = first(world)
    world.producer.append(at, 300, age_s=OLD_S, **KB_BATCH)
    old = world.start()
    await world.sleep(world.draws.uniform(1.0, 3.0))
    world.disturbances.begin((hold(0.3),), at_most=2, weight=0.5, apis={"InitProducerId"})
    world.start(settings=world.settings(read_committed=True))
    await world.sleep(world.draws.uniform(0.5, 3.0))
    await world.stop(old)
    await world.until(lambda: copied(world), timeout_s=60)

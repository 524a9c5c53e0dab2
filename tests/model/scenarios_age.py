"""Old and fresh records: the change from one to the other, and settings that change while old ones are copied."""

from typing import Any

from tests.model.disturbances import kill
from tests.model.options import Options
from tests.model.scenarios import copied, scenario
from tests.model.source import OLD_S
from tests.model.world import World

KB_BATCH: Any = {"in_batches_of": 5, "size_bytes": 900}  # too large to be put together
SLOW: Any = {"bytes_per_second": 60_000, "fetch_bytes": 10_000}  # several commits while a partition is copied


@scenario(Options(partitions=2, **SLOW), points=(1,))
async def change_of_age(world: World) -> None:
    """Two copiers share the transaction; each comes from old to fresh records at a time of its own; nothing fails."""
    for at in world.partitions:
        old = world.draws.randint(4, 16) * 10
        world.producer.append(at, old, age_s=OLD_S, **KB_BATCH)
        world.producer.append(at, 120, **KB_BATCH)
    for at in world.partitions:
        copier = world.start([at])
        await world.until(lambda copier=copier: copier.task is not None)  # type: ignore[misc]  # one of a pod's tasks
    await world.until(lambda: copied(world), timeout_s=60)


@scenario(Options(**SLOW), points=(1,))
async def change_of_age_with_a_kill(world: World) -> None:
    """One copier, killed in the middle; what it has sent arrives when its successor is at work."""
    at = world.partitions[0]
    world.producer.append(at, world.draws.randint(2, 10) * 10, age_s=OLD_S, **KB_BATCH)
    world.producer.append(at, 120, **KB_BATCH)
    kills = [kill(arrives_after_s=seconds) for seconds in (0.0, 0.6, 0.8, 1.5)]
    world.disturbances.begin(kills, at_most=1, weight=0.05, apis={"Produce"})
    world.start()
    await world.until(lambda: copied(world), timeout_s=60)


@scenario(Options(**SLOW), points=(11,))
async def settings_change_while_old_records_are_copied(world: World) -> None:
    """A rolling change of the isolation level: the new copier aborts what the old one has in its transaction."""
    at = world.partitions[0]
    world.producer.append(at, 300, age_s=OLD_S, **KB_BATCH)
    old = world.start()
    await world.sleep(world.draws.uniform(1.0, 3.0))
    world.start(settings=world.settings(read_committed=True))
    await world.sleep(world.draws.uniform(0.5, 3.0))
    await world.stop(old)
    await world.until(lambda: copied(world), timeout_s=60)

"""Topics that are deleted, made anew, emptied by retention or written by others, under each loss policy."""

import random
from typing import Any

from mirrorflow_core.settings import LossPolicy
from tests.model.disturbances import CUT, CUT_AFTER, ELECT_UNCLEANLY, freeze, kill
from tests.model.loop import NEVER_S
from tests.model.options import Options
from tests.model.scenarios import copied, first, scenario
from tests.model.source import DAY_S, HOUR_S
from tests.model.world import World

KB_BATCH: Any = {"in_batches_of": 5, "size_bytes": 900}
CLIENTS = (CUT, CUT_AFTER, freeze(6.0), kill(), kill(arrives_after_s=NEVER_S), kill(arrives_after_s=2.0))


def any_policy(draws: random.Random) -> Options:
    """One of the three loss policies; positions often or seldom."""
    return Options(
        on_loss=draws.choice([*LossPolicy]),
        flush_interval_s=draws.choice((0.5, 5.0)),
        target_brokers=draws.choice((1, 2)),
        bytes_per_second=60_000,
        fetch_bytes=10_000,
    )


@scenario(any_policy)
async def source_deletes_what_was_not_copied(world: World) -> None:
    """Retention is faster than a copier that was away."""
    at = first(world)
    world.producer.append(at, 60, **KB_BATCH)
    copier = world.start()
    least = world.draws.randint(0, 59)
    await world.until(lambda: world.target_end(at) >= least, every_s=0.005)
    world.kill(copier, arrives_after_s=world.draws.choice((0.0, NEVER_S)))
    world.producer.append(at, 60, **KB_BATCH)
    world.producer.delete_before(at, world.draws.randint(1, 110))
    await world.sleep(1.0)
    world.restart(copier)
    await world.until(lambda: copied(world), timeout_s=10.0)


@scenario(any_policy)
async def target_topic_is_made_anew(world: World) -> None:
    """The copy is deleted while it is written, and created again."""
    at = first(world)
    world.producer.append(at, 60, **KB_BATCH)
    world.start()
    least = world.draws.randint(0, 59)
    await world.until(lambda: world.target_end(at) >= least, every_s=0.005)
    world.remake_target()
    await world.sleep(3.0)
    world.producer.append(at, 30, **KB_BATCH)
    await world.until(lambda: copied(world), timeout_s=30.0)


@scenario(any_policy)
async def source_topic_is_made_anew(world: World) -> None:
    """Another topic of the same name: nothing of it may be taken for the old one's."""
    at = first(world)
    world.producer.append(at, 60, **KB_BATCH)
    copier = world.start()
    least = world.draws.randint(0, 60)
    await world.until(lambda: world.target_end(at) >= least, every_s=0.005)
    if world.draws.random() < 0.5:
        world.kill(copier)
        world.remake_source()
        world.restart(copier)
    else:
        world.remake_source()
    world.producer.append(at, 90, **KB_BATCH)
    await world.until(lambda: copied(world), timeout_s=30.0)


@scenario(any_policy)
async def others_write_where_the_target_lost_its_tail(world: World) -> None:
    """An unclean election, and strangers' records at the offsets of ours, before any copier looks again."""
    at = first(world)
    world.producer.append(at, 100, **KB_BATCH)
    world.after(world.draws.uniform(0.7, 2.5), lambda: world.write_over_lost_tail(at))
    world.disturbances.begin(CLIENTS, at_most=2, weight=0.03)
    world.start()
    await world.sleep(4.0)
    world.producer.append(at, 60, **KB_BATCH)
    await world.sleep(8.0)


@scenario(any_policy)
async def target_is_emptied_by_retention(world: World) -> None:
    """DeleteRecords, or retention, takes the copies away; brokers restart and remember no producer."""
    at = first(world)
    world.producer.append(at, 60, **KB_BATCH)
    copier = world.start()
    await world.until(lambda: copied(world))
    await world.sleep(world.draws.uniform(0.0, 6.0))
    if world.draws.random() < 0.5:
        world.kill(copier)
    world.allowed_reasons.add("Undecided")  # no position, no memory, and no log
    world.empty_target(at, is_restarted=world.draws.random() < 0.7)
    world.jump(world.draws.choice((1.0, 2 * HOUR_S, 2 * DAY_S)))
    if copier.is_dead:
        world.restart(copier)
    world.producer.append(at, 60, **KB_BATCH)
    await world.until(lambda: copied(world), timeout_s=30.0)


@scenario(any_policy, points=(9,))
async def strangers_of_lower_epochs(world: World) -> None:
    """Producers with the flow's id and a lower epoch, with its next number or another, while anything happens to clients."""
    at, draws = first(world), world.draws
    world.producer.append(at, 60, **KB_BATCH)
    world.disturbances.begin(CLIENTS, at_most=1, weight=0.02)
    world.start()
    await world.until(lambda: bool(world.copy_of(at).producers.producers))
    for _ in range(draws.randint(1, 4)):
        await world.sleep(draws.uniform(0.0, 0.7))
        world.try_stranger(
            at, records=draws.randint(1, 8), epoch=draws.choice((-1, -16)), ahead=draws.choice((0, 0, 5, -3))
        )
    await world.sleep(3.0)
    world.producer.append(at, 30, **KB_BATCH)
    await world.until(lambda: copied(world), timeout_s=10.0)


@scenario(any_policy)
async def target_loses_its_tail_under_any_policy(world: World) -> None:
    """Unclean elections in the middle of a copy."""
    at = first(world)
    world.producer.append(at, 100, **KB_BATCH)
    world.disturbances.begin((*CLIENTS, ELECT_UNCLEANLY, ELECT_UNCLEANLY), at_most=3, weight=0.03)
    world.start()
    await world.sleep(4.0)
    world.producer.append(at, 60, **KB_BATCH)
    await world.sleep(8.0)

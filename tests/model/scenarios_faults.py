"""What has to hold whatever happens: copiers that die, freeze and come twice, connections and leaders that fail."""

import random
from dataclasses import replace
from typing import Any

from tests.model.disturbances import (
    CUT,
    CUT_AFTER,
    ELECT,
    ELECT_UNCLEANLY,
    FAIL_OVER,
    HAND_OVER,
    depose,
    freeze,
    freeze_machine,
    hold,
    kill,
    lack_replicas,
    late,
    slow_markers,
    stall_replication,
)
from tests.model.loop import NEVER_S
from tests.model.options import Options
from tests.model.producer_state import KAFKA_3_5, KAFKA_3_9, KAFKA_4
from tests.model.scenarios import copied, first, scenario
from tests.model.source import DAY_S, OLD_S
from tests.model.world import World

KB_BATCH: Any = {"in_batches_of": 5, "size_bytes": 900}
CLIENTS = (
    CUT,
    CUT_AFTER,
    late(0.7),
    late(4.0),
    hold(0.3),
    hold(3.0),
    freeze(1.5),
    freeze(6.0),
    freeze(20.0),
    freeze_machine(6.0),
    kill(),
    kill(arrives_after_s=NEVER_S),
    kill(arrives_after_s=1.0),
    kill(arrives_after_s=3.0, restarts_after_s=2.0, child=False),
)
BROKERS = (
    ELECT,
    HAND_OVER,
    depose(3.0),
    depose(15.0),
    lack_replicas(1.0),
    stall_replication(2.0),
    stall_replication(12.0),
)
COORDINATORS = (slow_markers(0.3), slow_markers(3.0), FAIL_OVER)
RULES = (KAFKA_3_5, KAFKA_3_9, KAFKA_4)


def any_broker(draws: random.Random) -> Options:
    """Brokers of any version, one or two of them; positions often or seldom."""
    return Options(
        rules=draws.choice(RULES),
        target_brokers=draws.choice((1, 2)),
        flush_interval_s=draws.choice((0.5, 5.0, 3600.0)),
        bytes_per_second=60_000,
        fetch_bytes=draws.choice((10_000, 30_000)),
    )


@scenario(lambda draws: Options(rules=draws.choice(RULES)))
async def nothing_happens(world: World) -> None:
    """One copier, fresh records, no fault."""
    at = first(world)
    world.producer.append(at, 40)
    world.start()
    await world.until(lambda: copied(world))
    world.producer.append(at, 40, **KB_BATCH)
    await world.until(lambda: copied(world))


@scenario(any_broker)
async def one_copier_and_any_fault(world: World) -> None:
    """Fresh records; the copier, its connections and the leader fail."""
    at = first(world)
    world.producer.append(at, 100, **KB_BATCH)
    world.disturbances.begin((*CLIENTS, *BROKERS), at_most=3, weight=0.03)
    world.start()
    await world.sleep(4.0)
    world.producer.append(at, 60, **KB_BATCH)
    await world.sleep(12.0)


@scenario(any_broker)
async def two_copiers_and_any_fault(world: World) -> None:
    """Two processes on one partition, started by accident or by a rollout."""
    at = first(world)
    world.producer.append(at, 100, **KB_BATCH)
    world.disturbances.begin((*CLIENTS, *BROKERS), at_most=3, weight=0.03)
    world.start()
    await world.sleep(world.draws.uniform(0.0, 2.0))
    world.start()
    await world.sleep(4.0)
    world.producer.append(at, 60, **KB_BATCH)
    await world.sleep(12.0)


@scenario(any_broker)
async def replicas_come_late(world: World) -> None:
    """A new partition whose ISR is too small for the first batches: one of the later ones must not become the first."""
    at = first(world)
    world.producer.append(at, 60, **KB_BATCH)
    for leader in world.target_leaders():
        leader.lacks_replicas = True
    world.disturbances.begin((lack_replicas(0.002), hold(0.3)), at_most=4, weight=0.2, apis={"Produce"})
    world.start()
    await world.sleep(world.draws.uniform(0.5, 2.5))
    for leader in world.target_leaders():
        leader.lacks_replicas = False
    await world.until(lambda: copied(world), timeout_s=20.0)


@scenario(any_broker)
async def leader_forgets_between_two_lives(world: World) -> None:
    """No copier runs for two days, so the leader forgets the flow; positions are as old as they happen to be."""
    at = first(world)
    world.producer.append(at, 60, **KB_BATCH)
    copier = world.start()
    least = world.draws.randint(1, 59)
    await world.until(lambda: world.target_end(at) >= least, every_s=0.005)
    world.kill(copier, arrives_after_s=world.draws.choice((0.0, NEVER_S)))
    world.jump(2 * DAY_S)
    world.restart(copier, child=False)
    world.producer.append(at, 20, **KB_BATCH)
    await world.until(lambda: copied(world), timeout_s=20.0)


@scenario(any_broker)
async def old_records_and_any_fault(world: World) -> None:
    """All records are old, so each is written inside the shared transaction."""
    at = first(world)
    world.producer.append(at, 100, age_s=OLD_S, **KB_BATCH)
    world.disturbances.begin((*CLIENTS, *BROKERS, *COORDINATORS), at_most=3, weight=0.03)
    world.start()
    await world.sleep(world.draws.uniform(0.0, 2.0))
    if world.draws.random() < 0.5:
        world.start()
    await world.sleep(4.0)
    world.producer.append(at, 60, age_s=OLD_S, **KB_BATCH)
    await world.sleep(12.0)


def committed(draws: random.Random) -> Options:
    """The same, read_committed."""
    return replace(any_broker(draws), read_committed=True)


@scenario(committed)
async def source_with_transactions_and_any_fault(world: World) -> None:
    """The source has committed and aborted transactions of two producers; read_committed leaves the aborted ones out."""
    world.disturbances.begin((*CLIENTS, *BROKERS), at_most=3, weight=0.03)
    write_transactions(world, 8)
    world.start()
    await world.sleep(4.0)
    write_transactions(world, 5)
    await world.sleep(12.0)


def write_transactions(world: World, count: int) -> None:
    """Transactions that lie within each other, and records that are in none."""
    at, draws = first(world), world.draws
    open_ones: set[int] = set()
    for _ in range(count):
        producer_id = draws.choice((7001, 7002))
        world.producer.append(at, draws.randint(1, 12), producer_id=producer_id, **KB_BATCH)
        open_ones.add(producer_id)
        if draws.random() < 0.3:
            world.producer.append(at, draws.randint(1, 12), **KB_BATCH)
        if draws.random() < 0.6:
            ended = draws.choice(sorted(open_ones))
            open_ones.discard(ended)
            world.producer.end(at, ended, commit=draws.random() < 0.6)
    for producer_id in sorted(open_ones):
        world.producer.end(at, producer_id, commit=draws.random() < 0.6)


@scenario(any_broker)
async def target_loses_its_tail(world: World) -> None:
    """An unclean election of the target in the middle of a copy."""
    at = first(world)
    world.producer.append(at, 100, **KB_BATCH)
    world.disturbances.begin((*CLIENTS, ELECT_UNCLEANLY), at_most=2, weight=0.03)
    world.start()
    await world.sleep(4.0)
    world.producer.append(at, 60, **KB_BATCH)
    await world.sleep(12.0)

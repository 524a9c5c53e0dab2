"""Every dimension at once: what `make chaos` draws on real brokers, in worlds of seconds."""

import random

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import LossPolicy
from tests.model.copier import Copier
from tests.model.options import Options
from tests.model.scenarios import copied, scenario
from tests.model.scenarios_faults import BROKERS, CLIENTS, COORDINATORS, RULES
from tests.model.source import HOUR_S, OLD_S
from tests.model.world import World

TRANSACTIONAL = 7001  # a producer id of the source
AGES = ("fresh", "old", "mixed", "changing")
COMPACT = {"cleanup.policy": "compact"}
STAMPED = {"message.timestamp.type": "LogAppendTime"}


def anything_at_all(draws: random.Random) -> Options:
    """Brokers, topics, policies and rights as they come."""
    is_compacted = draws.random() < 0.3
    target = dict(COMPACT) if is_compacted else {}
    target |= STAMPED if draws.random() < 0.2 else {}
    target |= {"compression.type": draws.choice(("producer", "producer", "uncompressed", "zstd", "gzip"))}
    return Options(
        partitions=draws.choice((1, 1, 2, 3)),
        target_brokers=draws.choice((1, 2)),
        rules=draws.choice(RULES),
        transactional_ids=draws.random() < 0.8,
        source_configs=COMPACT if is_compacted else {},
        target_configs=target,
        read_committed=draws.random() < 0.3,
        on_loss=draws.choice([*LossPolicy]),
        flush_interval_s=draws.choice((0.5, 5.0, 3600.0)),
        bytes_per_second=60_000,
        fetch_bytes=draws.choice((10_000, 30_000)),
    )


@scenario(anything_at_all, points=(1, 3, 4, 5, 6, 11, 12))
async def anything(world: World) -> None:
    """Any records, any settings, any faults, one to three copiers, and now and then new settings or another source."""
    draws = world.draws
    age = draws.choice(AGES)
    write(world, age)
    world.disturbances.begin((*CLIENTS, *BROKERS, *COORDINATORS), at_most=draws.randint(0, 4), weight=0.03)
    copiers = start(world)
    if not world.options.transactional_ids and age != "fresh":
        world.is_unprotected = True  # two at once may come about by a kill and its restart
    await world.sleep(draws.uniform(0.5, 3.0))
    await happen(world, copiers)
    write(world, "fresh" if age == "changing" else age)
    await world.sleep(draws.uniform(3.0, 12.0))
    await world.until(lambda: copied(world), timeout_s=5.0)


def start(world: World) -> list[Copier]:
    """One task for all partitions, one for each, or two that copy the same by accident."""
    how = world.draws.choice(("one", "each", "twice"))
    if how == "each":
        return [world.start([at]) for at in world.partitions]
    return [world.start() for _ in range(2 if how == "twice" else 1)]


def write(world: World, age: str) -> None:
    """Some records of that age to each partition, of the source's own codec, with or without keys and transactions."""
    draws = world.draws
    is_compacted = bool(world.options.source_configs)
    for at in world.partitions:
        for _ in range(draws.randint(1, 4)):
            age_s = {"old": OLD_S, "fresh": 0.0}.get(age, draws.choice((0.0, 2 * HOUR_S, OLD_S)))
            producer_id = draws.choice((-1, -1, TRANSACTIONAL))
            world.producer.append(
                at,
                draws.randint(5, 40),
                age_s=age_s,
                in_batches_of=draws.choice((1, 5, 20)),
                size_bytes=draws.choice((20, 900)),
                codec=draws.choice((0, 0, 4)),
                keys=draws.choice((3, 1000)) if is_compacted else 0,
                producer_id=producer_id,
            )
            if producer_id >= 0:
                world.producer.end(at, producer_id, commit=draws.random() < 0.7)


async def happen(world: World, copiers: list[Copier]) -> None:
    """Something that people, brokers or time do, or nothing."""
    at, draws = world.draws.choice(world.partitions), world.draws
    what = draws.choice(
        ("nothing", "nothing", "settings", "stop", "truncation", "retention", "cleaners", "hours")
    )
    if what == "settings":
        world.start(settings=world.settings(read_committed=not world.options.read_committed))
        world.allowed_reasons |= {"Fenced", "StreamChanged"}
        await world.sleep(draws.uniform(0.5, 4.0))
        for copier in copiers:
            await world.stop(copier)
    elif what == "stop":
        await world.stop(copiers[0])
        await world.sleep(draws.uniform(0.0, 5.0))
        world.restart(copiers[0], child=False)
    elif what == "truncation":
        change_source(world, at)
    elif what == "retention":
        world.producer.delete_before(at, draws.randint(0, world.producer.end_of(at)))
    elif what == "cleaners" and world.options.source_configs:
        world.producer.compact(at)
        world.clean_target(at)
    elif what == "hours":
        world.jump(draws.choice((0.5, 13.0, 30.0)) * HOUR_S)


def change_source(world: World, at: TopicPartition) -> None:
    """An unclean election at the source."""
    end = world.producer.leader(at).log.end
    world.producer.truncate(at, world.draws.randint(0, end))
    cut = world.producer.leader(at).producers.producers.get(TRANSACTIONAL)
    if cut is not None and cut.txn_first_offset is not None:
        # Its marker is gone. A transaction that hangs would keep readers of committed records from what follows; one that ends
        # otherwise than before would take back what they have read.
        left = [one for one in world.producer.history[at] if one.offset == cut.txn_first_offset]
        world.producer.end(at, TRANSACTIONAL, commit=not any(one.is_aborted for one in left))
    world.producer.append(at, world.draws.randint(1, 40), keys=1000)

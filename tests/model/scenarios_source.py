"""Copiers that die before a position is written, and sources and targets that are others when the next one comes."""

from typing import Any

from mirrorflow_core.settings import LossPolicy
from tests.model.loop import NEVER_S
from tests.model.options import Options
from tests.model.scenarios import Scripted, copied, first, scenario
from tests.model.source import OLD_S
from tests.model.world import World

KB_BATCH: Any = {"in_batches_of": 5, "size_bytes": 900}
SLOW: Any = {"bytes_per_second": 60_000, "fetch_bytes": 10_000}
RARELY_S = 3600.0  # between positions: none is written before the copier dies
# What is read waits here, too: as it comes it would all be in flight.
FEW_IN_FLIGHT: Any = {
    "constants": {
        "mirrorflow_kafka.client.broker_writer.IN_FLIGHT_BYTES_MIN": 20_000,
        "mirrorflow_kafka.client.broker_writer.IN_FLIGHT_BYTES_MAX": 20_000,
    }
}
FEW_AT_A_TIME: Any = {"constants": {"mirrorflow_replicator.copy.resume.source_scan.WINDOW_RECORDS": 20}}
COMPACT = {"cleanup.policy": "compact"}
STAMPED = {"message.timestamp.type": "LogAppendTime"}


async def killed_in_the_middle(world: World, *, records: int, keys: int = 0, **settings: Any) -> Scripted:
    """A first copy that is killed after some of *records*, which have not all been acknowledged."""
    at = first(world)
    world.producer.append(at, records, keys=keys, **KB_BATCH, **settings)
    copier = world.start()
    least = world.draws.randint(1, max(1, records - 20))
    await world.until(lambda: world.target_end(at) >= least, every_s=0.005)
    world.kill(copier, arrives_after_s=world.draws.choice((0.0, NEVER_S)))
    return Scripted(at, copier)


@scenario(
    lambda draws: Options(
        flush_interval_s=RARELY_S,
        source_configs=COMPACT,
        target_configs=draws.choice(({}, COMPACT)),
        **FEW_AT_A_TIME,
        **SLOW,
    ),
    points=(3,),
)
async def killed_in_a_long_first_copy(world: World) -> None:
    """More records since the last position than are compared at a time; newer ones may take the place of all of these."""
    at, draws = first(world), world.draws
    keys, age_s = draws.choice((10, 60, 150)), draws.choice((0.0, 0.0, OLD_S))
    world.producer.append(at, 100, keys=30, key_prefix=b"before", age_s=age_s, **KB_BATCH)
    world.producer.append(at, 80, keys=keys, age_s=age_s, **KB_BATCH)
    world.producer.compact(at)  # so that offsets of copies cannot be counted
    world.producer.append(at, 70, keys=keys, age_s=age_s, **KB_BATCH)
    copier = world.start()
    least = draws.randint(60, 100)
    await world.until(lambda: world.target_end(at) >= least, every_s=0.005)
    world.kill(copier)
    world.producer.append(at, draws.choice((0, 40, 90)), keys=draws.choice((keys, 1000)), **KB_BATCH)
    if draws.random() < 0.8:
        world.producer.compact(at)
    if draws.random() < 0.3:
        world.clean_target(at)
    await world.sleep(1.0)
    world.restart(copier)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(
    Options(flush_interval_s=RARELY_S, source_configs=COMPACT, target_configs=COMPACT, **SLOW), points=(3,)
)
async def compacted_target_is_cleaned_before_the_restart(world: World) -> None:
    """The cleaner of the target takes records that its source still has, or has no more."""
    at, copier = await killed_in_the_middle(world, records=120, keys=12)
    await world.sleep(1.0)
    world.clean_target(at)
    if world.draws.random() < 0.5:
        world.producer.compact(at)
    world.restart(copier)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(lambda draws: Options(on_loss=draws.choice([*LossPolicy]), flush_interval_s=1.0), points=(4,))
async def source_is_rewritten_while_no_copier_runs(world: World) -> None:
    """An unclean election at the source truncates records that were copied; others are written in their place."""
    at = first(world)
    world.producer.append(at, 100, **KB_BATCH)
    copier = world.start()
    await world.until(lambda: copied(world))
    await world.sleep(world.draws.uniform(0.0, 2.0))
    is_killed = world.draws.random() < 0.5
    if is_killed:
        world.kill(copier)
    else:
        await world.stop(copier)
    world.producer.append(at, world.draws.choice((0, 10)), **KB_BATCH)
    world.producer.truncate(at, world.draws.randint(20, 99))
    world.producer.append(at, 120, **KB_BATCH)
    await world.sleep(1.0)
    world.restart(copier, child=is_killed)
    await world.until(lambda: copied(world), timeout_s=10)


@scenario(lambda draws: Options(on_loss=draws.choice([*LossPolicy])), points=(4,))
async def source_is_rewritten_while_the_copier_is_frozen(world: World) -> None:
    """The same behind the back of a process that was stopped by a signal."""
    at = first(world)
    world.producer.append(at, 100, **KB_BATCH)
    copier = world.start()
    await world.until(lambda: copied(world))
    world.freeze(copier, 60.0)
    await world.sleep(1.0)
    world.producer.truncate(at, world.draws.randint(20, 99))
    world.producer.append(at, 120, **KB_BATCH)
    await world.sleep(60.0)
    await world.until(lambda: copied(world), timeout_s=10)


@scenario(lambda draws: Options(on_loss=draws.choice([*LossPolicy]), **FEW_IN_FLIGHT), points=(4,))
async def source_is_rewritten_while_it_is_read(world: World) -> None:
    """The same while records are read and not written yet: those that the source still has are not lost."""
    at = first(world)
    world.producer.append(at, 50, **KB_BATCH)
    copier = world.start()
    await world.until(lambda: copied(world))
    for link in world.network.of_process(copier):
        if link.cluster is world.target:
            link.hold(1.0)
    world.producer.append(at, 400, **KB_BATCH)
    await world.sleep(world.draws.uniform(0.0, 1.2))
    world.producer.truncate(at, world.draws.randint(20, 449))
    world.producer.append(at, 500, **KB_BATCH)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(
    lambda draws: Options(
        on_loss=draws.choice((LossPolicy.FAIL, LossPolicy.ALERT, LossPolicy.ALERT, LossPolicy.RESTART)),
        flush_interval_s=draws.choice((1.0, RARELY_S)),
        **SLOW,
    ),
    points=(4,),
)
async def source_has_a_log_of_an_earlier_epoch_again(world: World) -> None:
    """A replica comes back that missed the last election: it holds records of its epoch that were never copied."""
    at, draws = first(world), world.draws
    world.producer.append(at, 60, **KB_BATCH)
    copier = world.start()
    await world.until(lambda: copied(world))
    await world.stop(copier)  # its position is in the epoch that comes back
    world.producer.append(at, draws.choice((5, 30, 120)), **KB_BATCH)
    replica = world.producer.replica(at)
    world.producer.truncate(at, 60)
    world.producer.append(at, 80, **KB_BATCH)
    copier = world.restart(copier, child=False)
    least = draws.randint(61, 140)
    await world.until(lambda: world.target_end(at) >= least, every_s=0.005)
    how = draws.choice(("killed", "killed", "stopped", "frozen"))
    if how == "killed":
        world.kill(copier)
    elif how == "stopped":
        await world.stop(copier)
    else:
        world.freeze(copier, 30.0)
    await world.sleep(1.0)
    world.producer.elect_replica(at, replica)
    if draws.random() < 0.5:
        world.producer.append(at, 100, **KB_BATCH)
    if how == "frozen":
        await world.sleep(30.0)
    else:
        world.restart(copier, child=how == "killed")
    await world.sleep(draws.uniform(0.0, 2.0))
    world.producer.append(at, 50, **KB_BATCH)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(
    lambda draws: Options(
        flush_interval_s=RARELY_S,
        source_configs=COMPACT,
        target_configs=draws.choice(({}, COMPACT)),
        read_committed=draws.random() < 0.5,
        **SLOW,
    ),
    points=(3,),
)
async def compacted_source_keeps_empty_batches(world: World) -> None:
    """Compaction leaves the header of a producer's last batch where all its records went (RETAIN_EMPTY): no offset is missing."""
    at, draws = first(world), world.draws
    world.producer.append(at, 10, keys=1000, **KB_BATCH)
    world.producer.append(at, 5, keys=5, key_prefix=b"again", producer_id=7001, **KB_BATCH)
    world.producer.end(at, 7001, commit=True)
    world.producer.append(at, 5, keys=5, key_prefix=b"again", **KB_BATCH)
    world.producer.append(at, 90, keys=draws.choice((20, 1000)), **KB_BATCH)
    copier = world.start()
    least = draws.randint(20, 100)
    await world.until(lambda: world.target_end(at) >= least, every_s=0.005)
    world.kill(copier)
    world.producer.compact(at, draws.randint(21, 50))
    if draws.random() < 0.5:
        world.clean_target(at)
    await world.sleep(1.0)
    world.restart(copier)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(
    lambda draws: Options(flush_interval_s=draws.choice((0.5, RARELY_S)), source_configs=COMPACT, **SLOW),
    points=(3,),
)
async def source_is_cleaned_while_a_restart_reads_it(world: World) -> None:
    """Records are counted, and compaction takes them before they are compared."""
    at, draws = first(world), world.draws
    world.producer.append(at, 150, keys=draws.choice((10, 60, 140)), **KB_BATCH)
    copier = world.start()
    least = draws.randint(20, 140)
    await world.until(lambda: world.target_end(at) >= least, every_s=0.005)
    world.kill(copier)
    await world.sleep(1.0)
    world.restart(copier)
    await world.sleep(draws.uniform(0.36, 0.42))  # that is when it reads the logs
    world.producer.compact(at)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(
    lambda draws: Options(
        flush_interval_s=draws.choice((0.5, RARELY_S)),
        source_configs=COMPACT,
        target_configs=draws.choice(({}, COMPACT, STAMPED)),
        read_committed=draws.random() < 0.3,
        on_loss=draws.choice([*LossPolicy]),
        bytes_per_second=60_000,
    ),
    points=(3,),
)
async def compacted_source_is_read_by_two_copiers(world: World) -> None:
    """What a copier has sent is late; compaction takes some of it, and the next copier has other records under those numbers."""
    at, draws = first(world), world.draws
    settings: Any = {"in_batches_of": draws.choice((1, 3)), "size_bytes": 200}
    settings |= {"age_s": draws.choice((0.0, 0.0, OLD_S)), "keys": draws.choice((5, 30))}

    async def write(batches: int) -> None:
        for _ in range(batches):
            world.producer.append(at, settings["in_batches_of"], **settings)
            await world.sleep(0.002)

    await write(5)
    copier = world.start(predecessor_gone=True)
    await world.until(lambda: copied(world))
    for _ in range(4):
        late_s = draws.uniform(0.4, 0.56)  # the next copier begins to write in between
        for link in world.network.of_process(copier):
            if link.cluster is world.target:
                link.hold(late_s)
        await write(draws.choice((10, 30)))
        await world.sleep(0.05)
        world.producer.compact(at)
        if draws.random() < 0.5:
            world.kill(copier, arrives_after_s=late_s - 0.07)
        copier = world.start(predecessor_gone=True)
        await world.sleep(draws.uniform(0.4, 1.0))
    await write(10)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(
    Options(
        flush_interval_s=RARELY_S,
        source_configs=COMPACT,
        target_configs=STAMPED,
        **SLOW,
    ),
    points=(5,),
)
async def target_stamps_records_of_a_source_with_gaps(world: World) -> None:
    """LogAppendTime replaces the timestamps by which copies would be recognised; the source has gaps."""
    at = first(world)
    world.producer.append(at, 100, keys=30, **KB_BATCH)
    world.producer.compact(at)
    at, copier = await killed_in_the_middle(world, records=100, keys=90)
    await world.sleep(1.0)
    world.restart(copier)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(Options(flush_interval_s=RARELY_S, target_configs=STAMPED, **SLOW), points=(5,))
async def target_stamps_records(world: World) -> None:
    """Each answer names another time than the batch had, as the answer about a stranger's batch does."""
    _, copier = await killed_in_the_middle(world, records=100)
    await world.sleep(1.0)
    world.restart(copier)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(Options(flush_interval_s=RARELY_S, source_configs=COMPACT, **SLOW), points=(12,))
async def compacted_source_has_twins(world: World) -> None:
    """Equal records of one time: which of them was copied cannot be told by what they hold."""
    at = first(world)
    now_ms, draws = world.wall_ms, world.draws
    records = [
        (now_ms, b"k%d" % draws.randrange(3), b"%d" % draws.randrange(2) + b"." * 900) for _ in range(100)
    ]
    world.producer.append_these(at, records, in_batches_of=5)
    copier = world.start()
    least = draws.randint(1, 90)
    await world.until(lambda: world.target_end(at) >= least, every_s=0.005)
    world.kill(copier)
    world.producer.compact(at)
    await world.sleep(1.0)
    world.restart(copier)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(Options(flush_interval_s=RARELY_S, source_configs=COMPACT, **SLOW), points=(12,))
async def cleanup_policy_becomes_delete_before_the_restart(world: World) -> None:
    """The source was compacted since the last position, and does not look so any more."""
    at, copier = await killed_in_the_middle(world, records=150, keys=100)
    world.producer.compact(at)
    world.source.topics[at.topic].configs["cleanup.policy"] = "delete"
    await world.sleep(1.0)
    world.restart(copier)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(
    Options(
        source_configs={"compression.type": "producer"},
        target_configs={"compression.type": "uncompressed", "max.message.bytes": "3000"},
    ),
    points=(2,),
)
async def target_recompresses(world: World) -> None:
    """Batches that are small enough as they come are too large when the target has decompressed them."""
    at = first(world)
    for _ in range(4):
        world.producer.append(at, 10, in_batches_of=10, size_bytes=900, codec=4)
    world.start()
    await world.until(lambda: copied(world), timeout_s=30)

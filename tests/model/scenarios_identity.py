"""The identity of a flow: forgotten by leaders and coordinators, taken by strangers, changed by new settings."""

from typing import Any

from mirrorflow_core.settings import LossPolicy
from tests.model.disturbances import freeze_machine, hold, kill
from tests.model.options import Options
from tests.model.scenarios import copied, first, scenario
from tests.model.source import DAY_S, HOUR_S
from tests.model.world import World

KB_BATCH: Any = {"in_batches_of": 5, "size_bytes": 900}
SLOW: Any = {"bytes_per_second": 60_000, "fetch_bytes": 10_000}
FORGETFUL: Any = {"broker_configs": {"producer.id.expiration.ms": "8000"}, "expiry_check_s": 1.0}
HOURLY = {"producer.id.expiration.ms": "3600000"}


@scenario(Options(transactional_ids=False, **SLOW), points=(6,))
async def settings_roll_without_a_transactional_id(world: World) -> None:
    """The new pod is ready before the old one leaves; nothing can fence the old one."""
    at = first(world)
    world.producer.append(at, 300, **KB_BATCH)
    old = world.start()
    await world.until(lambda: world.target_end(at) > 20)
    world.start(settings=world.settings(read_committed=True))
    await world.sleep(world.draws.uniform(0.5, 4.0))
    await world.stop(old)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(Options(**FORGETFUL, **SLOW), points=(7,))
async def forgotten_identity_and_late_bytes(world: World) -> None:
    """A machine sleeps with bytes in its buffers; another copier continues, falls silent, and is forgotten; then they arrive."""
    at = first(world)
    world.producer.append(at, 60, **KB_BATCH)
    await one_machine_sleeps(world, (15.0, 25.0, 40.0))


@scenario(Options(expiry_check_s=30.0, **SLOW), points=(7,))
async def expiration_is_lowered_at_run_time(world: World) -> None:
    """The target's brokers forget after an hour what they remembered for a day; the backlog is two hours old.

    They look for what to forget after the flow has noticed, and before the late bytes arrive.
    """
    at = first(world)
    world.producer.append(at, 120, age_s=2 * HOUR_S, **KB_BATCH)
    world.after(world.draws.uniform(0.5, 2.0), lambda: world.target.configs.update(HOURLY))
    await one_machine_sleeps(world, (20.0, 40.0, 50.0))


async def one_machine_sleeps(world: World, seconds: tuple[float, ...]) -> None:
    """The first copier's, with a produce request that has not arrived; another one is started meanwhile."""
    world.disturbances.begin(
        [freeze_machine(one) for one in seconds], at_most=1, weight=0.2, apis={"Produce"}
    )
    copier = world.start()
    await world.until(lambda: copier.is_frozen, timeout_s=10.0)
    await world.sleep(0.5)
    world.start()
    await world.sleep(max(seconds) + 5.0)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(Options(**SLOW), points=(8,))
async def transactional_id_expires_before_the_settings_change(world: World) -> None:
    """The coordinator gives the next generation another producer id, so the epoch of the old one is never raised."""
    at = first(world)
    world.producer.append(at, 60, **KB_BATCH)
    slept = world.start()
    await world.until(lambda: world.target_end(at) >= world.draws.randint(5, 60), every_s=0.005)
    world.freeze(slept, 8 * DAY_S + world.draws.choice((30.0, world.draws.uniform(0.3, 4.0))))
    world.jump(8 * DAY_S)
    world.allowed_reasons |= {"Fenced", "StreamChanged"}
    world.start(settings=world.settings(read_committed=True))
    await world.sleep(25.0)
    world.producer.append(at, 60, **KB_BATCH)
    await world.sleep(10.0)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(Options(**SLOW), points=(8,))
async def settings_roll_after_the_transactional_id_has_expired(world: World) -> None:
    """No copier ran for more than a week; then the old settings run again, and the new pod is ready before that one leaves."""
    at = first(world)
    world.producer.append(at, 20, **KB_BATCH)
    idle = world.start()
    await world.until(lambda: copied(world))
    await world.stop(idle)
    world.jump(8 * DAY_S)
    world.producer.append(at, 300, **KB_BATCH)
    old = world.restart(idle, child=False)
    await world.until(lambda: world.target_end(at) > 40)
    world.allowed_reasons |= {"Fenced", "StreamChanged"}
    world.start(settings=world.settings(read_committed=True))
    await world.sleep(world.draws.uniform(0.5, 4.0))
    await world.stop(old)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(Options(), points=(9,))
async def stranger_takes_our_number(world: World) -> None:
    """A client that moved over from another cluster has the flow's producer id, its epoch, and its next number."""
    at = first(world)
    world.producer.append(at, 20)
    world.start()
    await world.until(lambda: copied(world))
    await world.sleep(world.draws.uniform(0.0, 3.0))
    world.stranger(at, records=world.draws.randint(1, 3))
    world.producer.append(at, 20)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(lambda draws: Options(on_loss=draws.choice([*LossPolicy])), points=(9,))
async def stranger_takes_our_number_from_a_backlog(world: World) -> None:
    """As many records as our next batch has, which is taken for the stranger's, and more of ours behind it; or a kill."""
    at, draws = first(world), world.draws
    world.producer.append(at, 20)
    copier = world.start()
    await world.until(lambda: copied(world))
    how = draws.choice(("continues", "killed before", "killed", "cut"))
    # Where an answer is lost, a batch that has the same time as ours, and as many records, passes for it.
    await write_behind_a_stranger(world, later_s=(0.05,) if how == "cut" else (0.0, 0.05))
    if how == "killed before":
        await world.sleep(draws.uniform(0.0, 0.02))
    elif how == "cut":
        await world.sleep(draws.uniform(0.0, 0.02))
        for link in world.network.of_process(copier):
            link.cut(arrives_after_s=draws.choice((0.0, 0.01)))
    elif how == "killed":
        await world.sleep(draws.uniform(0.02, 7.0))
    if how.startswith("killed"):
        world.kill(copier)
        await world.sleep(1.0)
        world.restart(copier)
    await world.until(lambda: copied(world), timeout_s=30)


@scenario(lambda draws: Options(flush_interval_s=draws.choice((1.0, 5.0))), points=(9,))
async def stranger_takes_our_number_and_the_policy_is_changed(world: World) -> None:
    """The partition stops; its user sets another loss policy, as the message advises."""
    at, draws = first(world), world.draws
    world.producer.append(at, 20)
    copier = world.start()
    await world.until(lambda: copied(world))
    await write_behind_a_stranger(world)
    await world.sleep(draws.uniform(0.5, 8.0))
    if draws.random() < 0.5:
        await world.stop(copier)
    else:
        world.kill(copier)
    policy = draws.choice((LossPolicy.ALERT, LossPolicy.RESTART))
    world.start(settings=world.settings(on_source_loss=policy))
    await world.sleep(10.0)
    await world.until(lambda: copied(world), timeout_s=30)


async def write_behind_a_stranger(world: World, *, later_s: tuple[float, ...] = (0.0, 0.05)) -> None:
    """A stranger's batch, and records of ours, a few batches of which have as many records, and are sent before an answer."""
    at, draws = first(world), world.draws
    await world.sleep(draws.uniform(0.0, 7.0))
    count = draws.randint(1, 3)
    world.stranger(at, records=count)
    await world.sleep(draws.choice(later_s))  # within one millisecond, or not
    for _ in range(draws.choice((1, 6))):
        world.producer.append(at, count, in_batches_of=count, size_bytes=draws.choice((20, 5000)))


@scenario(Options(**SLOW))
async def settings_roll_with_a_transactional_id(world: World) -> None:
    """The new pod fences the old one, and continues where it ended."""
    at = first(world)
    world.producer.append(at, 200, **KB_BATCH)
    old = world.start()
    least = world.draws.randint(1, 150)
    await world.until(lambda: world.target_end(at) > least)
    world.disturbances.begin((hold(0.3), freeze_machine(6.0), kill(), kill(arrives_after_s=2.0)), at_most=1)
    world.start(settings=world.settings(read_committed=True))
    await world.sleep(world.draws.uniform(0.5, 4.0))
    await world.stop(old)
    await world.until(lambda: copied(world), timeout_s=30)

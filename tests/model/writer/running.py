"""Runs one world to its end and judges it."""

from dataclasses import dataclass, field

from tests.model.chooser import Chooser, Enumerated, Seeded
from tests.model.writer import faults as kinds
from tests.model.writer.faults import Fault
from tests.model.writer.judge import judge
from tests.model.writer.process import Ender, Process
from tests.model.writer.world import Options, World

FAULT_RATE = 0.012
_SETTLE_STEPS = 20_000


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A world and its possible faults."""

    name: str
    faults: tuple[Fault, ...]
    options: Options = field(default_factory=Options)
    faults_max: int = 8
    tasks: int = 2
    first_sleeps: bool = False  # the first process sleeps during its takeover
    is_quiet: bool = False  # no fault requires fencing or recovery of a writer
    is_idle: bool = False  # a process dies only when its positions cover all that it has copied


@dataclass(frozen=True)
class Outcome:
    """The result of a run."""

    scenario: str
    broken: list[str]
    choices: list[int]
    way_counts: list[int]
    events: list[str]
    steps: int

    @property
    def is_good(self) -> bool:
        return not self.broken


def run(scenario: Scenario, *, seed: int | None = None, choices: tuple[int, ...] = ()) -> Outcome:
    """Runs *scenario* with a seed or with a list of choices."""
    chooser: Chooser = Enumerated(choices) if seed is None else Seeded(seed)
    world = World(chooser, scenario.options)
    world.faults_left = scenario.faults_max
    first = Process(world, "O", tasks=scenario.tasks)
    if scenario.first_sleeps:
        first.sleep_after(world.random.randint(10, 50))
    broken: list[str] = []
    try:
        _run_with_faults(world, scenario)
        _settle(world)
        _finish(world)
    except (_StuckError, AssertionError) as error:  # an assertion of the product is a rule, too
        broken.append(str(error))
    broken += judge(world)
    if scenario.is_quiet:
        broken += [
            f"{process.name} recovered without a reason" for process in world.processes if process.recoveries
        ]
        broken += [
            f"{process.name} was fenced without a reason" for process in world.processes if process.was_fenced
        ]
    if scenario.is_idle:
        broken += [
            f"{process.name} could not determine the copied offset"
            for process in world.processes
            if process.trimmed
        ]
        waited = [process.name for process in world.processes if process.has_waited_for_connections]
        broken += [f"{name} could not fence the last writer" for name in waited]
    return Outcome(scenario.name, broken, chooser.choices, chooser.way_counts, world.events, world.steps)


class _StuckError(Exception):
    """The world still has work to do after the limit of steps."""


def _run_with_faults(world: World, scenario: Scenario) -> None:
    for _ in range(scenario.options.steps_max):
        if world.faults_left > 0:
            way = world.chooser.choose(1 + len(scenario.faults), FAULT_RATE)
            if way:
                world.faults_left -= 1
                fault = scenario.faults[way - 1]
                world.events.append(f"{world.steps} {fault.__name__}")
                fault(world)
        is_patient = world.faults_left > 0 and isinstance(world.chooser, Seeded)
        if world.steps % 16 == 0 and not is_patient and _is_caught_up(world):
            return
        if not world.step():
            return


def _settle(world: World) -> None:
    """Ends all faults and stops the processes in order."""
    world.faults_left = 0
    world.is_settling = True
    world.denied.clear()
    for source in world.sources.values():
        source.is_online = True
    for partition, leader in world.leaders.items():
        kinds.bring_back(world, partition)
        leader.lacks_replicas = leader.loses_replicas = False
        leader.replicates = True
        leader.replicate()
    for process in world.processes:
        process.is_stopping, process.frozen_until = True, 0
    if any(isinstance(process, Ender) for process in world.processes):
        Ender(world, "clearer", only_clears=True)
    _run(
        world,
        lambda: all(process.is_dead or process.is_over for process in world.processes),
        "a process does not stop",
    )


def _finish(world: World) -> None:
    """Starts a last process, which takes the flow and copies the rest."""
    last = Process(
        world, "last", tasks=world.random.choice((1, 2)) if world.chooser.way_counts is not None else 1
    )
    _run(world, lambda: _is_caught_up(world) or bool(last.problems), "a partition is not copied to its end")
    last.is_stopping = True
    _run(world, lambda: last.is_over, "the last process does not stop")
    while any(actor.name.startswith("marker") for actor in world.actors) and world.step():
        pass


def _run(world: World, until: object, failure: str) -> None:
    assert callable(until)
    for step in range(_SETTLE_STEPS):
        if step % 16 == 0 and until():
            return
        if not world.step():
            break
    if not until():
        raise _StuckError(failure)


def _is_caught_up(world: World) -> bool:
    return world.is_copied_except(())

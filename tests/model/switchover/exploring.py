"""Explores a world breadth first: every reachable state, by every event and every step of every run."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from mirrorflow_core.switchover import guards, state_machine
from mirrorflow_core.switchover.guards import is_overtaken, unfinished_of
from mirrorflow_core.switchover.record import SwitchoverRecord, newest_record
from mirrorflow_core.switchover.states import PROMOTED, ROLLED_BACK, SwitchoverState
from tests.model.switchover.events import (
    CRASH,
    FAILURES,
    GIVE_UP,
    GIVE_UP_BESIDE,
    Event,
    after_trouble,
    events,
)
from tests.model.switchover.invariants import (
    broken_by_action,
    broken_by_event,
    broken_by_plan,
    broken_by_refusal,
    broken_in,
)
from tests.model.switchover.shell import (
    carry_out,
    is_unordered,
    observe,
    observe_alone,
    parts,
    visible,
    without_target,
)
from tests.model.switchover.world import (
    LONG_MS,
    Kept,
    Run,
    World,
    all_records,
    kept,
    kept_record,
    known_records,
    newest,
    stored_state,
)

_NOTHING = kept(())
_WITHOUT_SOURCE = {SwitchoverState.REVERSING, SwitchoverState.DEGRADED}
STATES_MAX = 2_000_000


@dataclass
class Explored:
    """The result of an exploration. A violation has the events that lead to it."""

    states: int = 0
    transitions: int = 0
    final_states: frozenset[SwitchoverState] = frozenset()
    violations: list[tuple[str, list[str]]] = field(default_factory=list)


class _Violated(Exception):  # noqa: N818 - the end of a search, not an error
    """An invariant is violated by the last event."""


def explore(initial: World) -> Explored:
    """Explores every state that *initial* leads to, and stops at the first violation."""
    _next_step.cache_clear()  # the function may have been replaced
    numbers = {initial: 0}
    worlds = [initial]
    came_from: list[tuple[int, str]] = [(-1, "")]
    predecessors: list[list[int]] = [[]]
    waiting = deque([0])
    explored = Explored()

    def path(number: int) -> list[str]:
        names = []
        while number >= 0:
            number, name = came_from[number]
            names.append(name)
        return names[-2::-1]

    while waiting:
        number = waiting.popleft()
        try:
            for name, world in successors(worlds[number]):
                explored.transitions += 1
                following = numbers.get(world)
                if following is None:
                    following = numbers[world] = len(worlds)
                    assert following < STATES_MAX
                    worlds.append(world)
                    came_from.append((number, name))
                    predecessors.append([])
                    waiting.append(following)
                    if broken := next(broken_in(world), ""):
                        explored.violations.append((broken, path(following)))
                        return explored
                predecessors[following].append(number)
        except _Violated as violated:
            broken, name = violated.args
            explored.violations.append((broken, [*path(number), name]))
            return explored
    explored.states = len(worlds)
    explored.final_states = frozenset(state for world in worlds for state in _final_states(world))
    _check_liveness(explored, worlds, predecessors, path)
    return explored


def successors(world: World) -> Iterator[Event]:
    """Yields each event and step that is possible now, with the resulting world. Raises _Violated."""
    for name, after in events(world):
        if broken := next(broken_by_event(world, name, after), ""):
            raise _Violated(broken, name)
        yield name, after
    yield from _starts(world)
    for run in world.runs:
        rest = tuple(other for other in world.runs if other is not run)
        if world.is_source_lost and not _can_begin(world, run.record.value):
            yield f"{run.name} is stopped by its user, as it waits for the source", world._replace(runs=rest)
        if GIVE_UP in world.troubles and _is_target_gone(world) and not run.gives_up_target:
            yield f"{run.name} is stopped by its user, as it waits for the target", world._replace(runs=rest)
        if CRASH in world.troubles:
            yield f"{run.name} crashes", after_trouble(world, CRASH, runs=rest)
        is_possible = run.gives_up_target or not _is_target_gone(world)
        if not run.has_begun and not (is_possible and _can_begin(world, run.record.value)):
            yield f"{run.name} cannot take the lock of a lost cluster", world._replace(runs=rest)
        elif not run.has_begun:
            begun = run._replace(has_begun=True)
            yield f"{run.name} takes the lock", world._replace(runs=(*rest, begun), lock=run.name)
        elif world.lock != run.name:
            yield f"{run.name} finds that it has lost the lock", world._replace(runs=rest)
        elif run.pending.value:
            yield _acted(world, run, rest)
            if is_unordered(run.pending.value):
                first, second, *others = run.pending.value
                yield _acted(world, run._replace(pending=kept((second, first, *others))), rest)
        else:
            yield _stepped(world, run, rest)


def _is_target_gone(world: World) -> bool:
    return world.is_target_lost and not world.is_target_up


def _can_begin(world: World, record: SwitchoverRecord) -> bool:
    """Returns whether a process can take the lock on both clusters.

    A planned switchover therefore waits for a lost source, unless the target has promoted.
    """
    is_promoted = any(
        kept.value.id == record.id and kept.value.state in PROMOTED for kept in world.target_journal
    )
    return world.is_source_up or not world.is_source_lost or record.is_unplanned or is_promoted


def _starts(world: World) -> Iterator[Event]:
    """A user requests a switchover, or a switchover that no process carries out is resumed."""
    if world.to_start:
        yield "start", _started(world._replace(to_start=world.to_start[1:]), world.to_start[0].value)
    unfinished = unfinished_of(known_records(world))
    if (
        not world.runs
        and unfinished is not None
        and not unfinished.is_at_rest
        and _can_begin(world, unfinished)
        and not _is_target_gone(world)
    ):
        yield "resume", _started(world, unfinished)
    give_up = GIVE_UP_BESIDE if world.runs else GIVE_UP
    if give_up in world.troubles and not world.is_target_up and world.is_source_up:
        unfinished = unfinished_of(record.value for record in world.source_journal)
        if unfinished is not None and guards.is_unpromoted(unfinished):
            given_up = after_trouble(world, give_up)
            yield "rollback without the target", _started(given_up, unfinished, gives_up_target=True)


def _started(world: World, record: SwitchoverRecord, *, gives_up_target: bool = False) -> World:
    """A process starts with the newest record that it reads.

    Before it has the lock, another process may write a newer one.
    """
    known = [other for other in known_records(world) if other.id == record.id]
    begun = kept_record(newest_record([record, *known]) or record)
    run = Run(f"run {world.runs_started}", begun, _NOTHING, gives_up_target=gives_up_target)
    return world._replace(runs=(*world.runs, run), runs_started=world.runs_started + 1)


def _acted(world: World, run: Run, rest: tuple[Run, ...]) -> Event:
    part, *pending = run.pending.value
    waiting = run._replace(pending=kept(tuple(pending)))
    if run.gives_up_target:
        after = carry_out(without_target(world), part)._replace(is_target_up=world.is_target_up)
    else:
        after = carry_out(world, part)
    name = f"{run.name}: {type(part.action).__name__} {part.number}"
    if broken := next(broken_by_action(world, run, part, after), ""):
        raise _Violated(broken, name)
    if broken := next(broken_by_event(world, name, after), ""):
        raise _Violated(broken, name)
    return name, after._replace(runs=(*rest, waiting))


def _stepped(world: World, run: Run, rest: tuple[Run, ...]) -> Event:
    """The run reads the clusters, in two parts if that takes a while, and calls the product for its next step."""
    if world.reads_slowly and run.first_part is None:
        reading = run._replace(first_part=kept(visible(world)))
        return f"{run.name}: reads the first part", world._replace(runs=(*rest, reading))
    first_part = visible(world) if run.first_part is None else run.first_part.value
    record, actions = _next_step(
        first_part, visible(world), run.name, run.record, gives_up_target=run.gives_up_target
    )
    name = f"{run.name}: step to {record.value.state.value}"
    is_whole = not run.gives_up_target
    if actions is None and record is run.record and is_whole and _is_under_way(world, record.value):
        raise _Violated("liveness: a run leaves what no other run carries out", name)
    if broken := next(broken_by_refusal(world, record.value), ""):
        raise _Violated(broken, name)
    if actions is not None and (broken := next(broken_by_plan(first_part, run.record.value, actions), "")):
        raise _Violated(broken, name)
    stepped = None if actions is None else run._replace(record=record, pending=actions, first_part=None)
    return name, world._replace(runs=rest if stepped is None else (*rest, stepped))


def _is_under_way(world: World, record: SwitchoverRecord) -> bool:
    return not record.is_at_rest and record == unfinished_of(known_records(world))


@cache
def _next_step(
    first_part: World, world: World, name: str, record: Kept, *, gives_up_target: bool
) -> tuple[Kept, Kept | None]:
    """Calls the product's function, and returns the record and the actions, or None if the process has completed."""
    if record.value.is_unplanned:
        observed = observe_alone(first_part, world, name, record.value)
    else:
        observed = observe(first_part, world, name, gives_up_target=gives_up_target)
    step = state_machine.step(record.value, observed, world.limits_passed * LONG_MS)
    is_over = step.is_superseded or step.is_paused or (step.record.is_at_rest and not step.actions)
    return kept_record(step.record), None if is_over else parts(step.actions)


def _final_states(world: World) -> set[SwitchoverState]:
    return {record.value.state for record in world.target_journal if record.value.is_at_rest}


def _check_liveness(explored: Explored, worlds: list[World], predecessors: list[list[int]], path) -> None:
    """Checks that an end can be reached from each state, and the wanted end if no failure prevents it."""
    for ends, failures, sentence in (
        (_is_over, frozenset(), "no final state can be reached"),
        (_has_succeeded, FAILURES, "the switchover cannot succeed any more, without a failure"),
    ):
        alive = [ends(world) for world in worlds]
        waiting = [number for number, is_alive in enumerate(alive) if is_alive]
        while waiting:
            for before in predecessors[waiting.pop()]:
                if not alive[before]:
                    alive[before] = True
                    waiting.append(before)
        for number, world in enumerate(worlds):
            if not alive[number] and not failures & world.happened:
                explored.violations.append((f"liveness: {sentence}", path(number)))
                return


def _is_over(world: World) -> bool:
    """Returns whether each switchover has ended. While the target is lost, returns whether applications can write or
    have moved.

    A run that has begun to store the promotion cannot know whether the target has it, and neither can a later run.
    """
    if world.is_target_lost and not world.is_target_up:
        is_promoted = any(run.record.value.state in PROMOTED for run in world.runs)
        on_source = newest(world.source_journal)
        may_be_promoted = not world.runs and on_source is not None and not guards.is_unpromoted(on_source)
        return not world.source_fence or is_promoted or may_be_promoted or stored_state(world) in PROMOTED
    records = all_records(world)
    if world.is_source_lost and not world.is_source_up:
        # The reverse flow and a rollback wait for the source. A user can request an unplanned switchover until it has
        # begun or has promoted.
        unplanned = [run.record.value for run in world.runs if run.record.value.is_unplanned]
        unplanned += [record for record in records if record.is_unplanned]
        has_begun = any(record.state not in ROLLED_BACK | {SwitchoverState.REFUSED} for record in unplanned)
        may_ask = (
            not has_begun and not world.to_start and stored_state(world) is not SwitchoverState.PROMOTING
        )
        return stored_state(world) in _WITHOUT_SOURCE or may_ask
    may_turn = world.to_return and stored_state(world) is SwitchoverState.DONE
    is_awaited = world.runs or world.to_start or may_turn
    return not is_awaited and all(record.is_at_rest or is_overtaken(record, records) for record in records)


def _has_succeeded(world: World) -> bool:
    """Returns whether the user has the requested result, only needs to request it again, or cannot have it in this
    world.
    """
    cannot_succeed = world.has_failed_check or world.has_refused_request or world.hangs
    if cannot_succeed or world.is_target_lost or world.is_source_lost:
        return True
    last = newest_record(all_records(world))
    if last is None or last.to != world.target_name:
        # The process died before it had stored what the user requested.
        return CRASH in world.happened and not world.runs and not world.to_start
    if last.is_unplanned and not last.accepts_loss:
        return True
    return last.state in {SwitchoverState.DONE, SwitchoverState.REHEARSED, SwitchoverState.DEGRADED}

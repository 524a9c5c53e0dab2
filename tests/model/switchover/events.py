"""All events that can happen next in the world, except the steps of runs of the operator.

Faults and mistakes (`World.troubles`) are counted, and each happens at most as often as the scenario allows. Three of
them do not happen at times at which no process could detect them: between the last check and the promotion, a super
user does not write and the fence is not removed by hand, and after the verification no foreign record is written to a
copy.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mirrorflow_core.switchover.states import FENCED, PROMOTED, SwitchoverState
from mirrorflow_core.writer import flow_start
from mirrorflow_core.writer.claim import Claim
from tests.model.switchover.world import (
    LONG_MS,
    MARKERS,
    PARTITIONS,
    Copier,
    Flow,
    World,
    last_stable,
    newest,
    stored_state,
    turned,
)

Event = tuple[str, World]

CRASH, LIMIT, ROLLBACK = "crash", "limit", "rollback"
BYPASS, FOREIGN, UNFENCE, REVERT = "bypass", "foreign", "unfence", "revert"
SOURCE_DOWN, TARGET_DOWN, TAKEOVER, SLEEP = "source down", "target down", "takeover", "sleep"
REVERSE_COPY = "reverse copy of "
EARLY = "reverse flow is started early"
GIVE_UP, GIVE_UP_BESIDE = "the target is given up", "the target is given up beside a process that works"
TOO_SOON = "reverse flow is started before the clusters are reconciled"
# Not these, because a switchover must succeed despite them.
FAILURES = frozenset({LIMIT, ROLLBACK, BYPASS, FOREIGN, UNFENCE, EARLY, GIVE_UP, GIVE_UP_BESIDE})


_CLAIM = Claim(flow="flow", process="process", source_alias="alias", tasks=1, lock_epoch=1, time_ms=0)


def events(world: World) -> Iterator[Event]:
    """Yields the name of each event that can happen now, with the world after it."""
    yield from _producers_write(world)
    yield from _transaction_ends(world)
    yield from _group_reads(world)
    yield from _flow_copies(world)
    yield from _reverse_flow_copies(world)
    if world.to_return and stored_state(world) is SwitchoverState.DONE and not world.runs:
        yield "turn", turned(world)
    yield from _time_passes(world)
    yield from _troubles(world)


def after_trouble(world: World, trouble: str, **changes: Any) -> World:
    """Returns the world with *changes* after *trouble*."""
    troubles = list(world.troubles)
    troubles.remove(trouble)
    happened = world.happened | {trouble}
    return world._replace(troubles=tuple(troubles), happened=happened, **changes)


# -- applications


def _append(logs: tuple[tuple[str, ...], ...], partition: int, *entries: str) -> tuple[tuple[str, ...], ...]:
    return (*logs[:partition], (*logs[partition], *entries), *logs[partition + 1 :])


def _producers_write(world: World) -> Iterator[Event]:
    """A producer writes to the member that it knows, unless a fence is enforced there.

    After a restart, it uses the endpoint.
    """
    for number, producer in enumerate(world.producers):
        if producer.member != world.endpoint:
            yield f"restart producer {number}", _with_producer(world, number, member=world.endpoint)
        if not producer.to_write:
            continue
        written = _with_producer(world, number, to_write=producer.to_write - 1)
        is_accepted = world.source_fence <= number or not world.is_enforced
        if producer.member == world.source_name and world.is_source_up and is_accepted:
            entry = "t0" if number else f"{producer.member} {producer.to_write}"
            logs = _append(world.source, number, entry)
            yield f"write {entry}", written._replace(source=logs, is_quiet=False)
        if producer.member == world.target_name and world.is_target_up and world.target_fence <= number:
            entry = f"{producer.member} {producer.to_write}"
            yield f"write {entry}", written._replace(target=_append(world.target, number, entry))


def _with_producer(world: World, number: int, **changes: Any) -> World:
    producers = list(world.producers)
    producers[number] = producers[number]._replace(**changes)
    return world._replace(producers=tuple(producers))


def _transaction_ends(world: World) -> Iterator[Event]:
    """An open transaction can end despite a fence, because the fence refuses records but no markers."""
    log = world.source[1]
    if world.is_source_up and last_stable(log) < len(log) and not world.hangs:
        for marker in sorted(MARKERS):
            logs = _append(world.source, 1, marker)
            yield marker, world._replace(source=logs, is_quiet=False)


def _group_reads(world: World) -> Iterator[Event]:
    """A consumer of the group reads the first partition and commits, until its user stops it.

    Checkpoints are written while the flow runs.
    """
    is_due = world.has_checkpoints and world.checkpoint < min(world.group_source, world.copied[0])
    if is_due and world.is_source_up and world.is_target_up and not world.flow.ended_by:
        yield "checkpoint", world._replace(checkpoint=world.group_source)
    if not world.has_members:
        return
    if world.is_source_up and world.group_source < len(world.source[0]):
        yield "consume", world._replace(group_source=world.group_source + 1)
    yield "stop consumers", world._replace(has_members=False)


# -- flows


def _flow_copies(world: World) -> Iterator[Event]:
    """A copier reads and writes, is suspended between both, or detects that it was fenced and returns as a newcomer."""
    if not world.is_target_up:
        return
    is_owned = any(copier.epoch == world.flow.epoch for copier in world.copiers)
    for number, copier in enumerate(world.copiers):
        if copier.fetched is not None:
            yield f"copier {number} wakes up and writes", _written(world, number, copier.fetched)
        elif copier.epoch and world.is_source_up:
            for partition, offset in enumerate(world.copied):
                if offset < len(world.source[partition]):
                    yield f"copier {number} copies {partition}", _written(world, number, (partition, offset))
                    if SLEEP in world.troubles:
                        sleeping = copier._replace(fetched=(partition, offset))
                        yield (
                            f"copier {number} reads {partition} and sleeps",
                            after_trouble(_with_copier(world, number, sleeping), SLEEP),
                        )
        elif not copier.epoch and not world.flow.ended_by and not is_owned:
            yield f"copier {number} takes the flow", _taken(world, number)
        elif not copier.epoch and not world.flow.ended_by and TAKEOVER in world.troubles:
            yield f"copier {number} takes the flow over", after_trouble(_taken(world, number), TAKEOVER)


def _taken(world: World, number: int) -> World:
    """A newcomer increases the epoch, and its markers fence earlier copiers. It does not take a flow that has ended."""
    epoch = world.flow.epoch + 1
    return _with_copier(world, number, Copier(epoch=epoch))._replace(
        flow=Flow(epoch=epoch, marked_epoch=epoch)
    )


def _with_copier(world: World, number: int, copier: Copier) -> World:
    return world._replace(copiers=(*world.copiers[:number], copier, *world.copiers[number + 1 :]))


def _written(world: World, number: int, fetched: tuple[int, int]) -> World:
    """Leaders refuse a copier whose epoch is older than that of the newest marker."""
    copier = world.copiers[number]
    if copier.epoch < world.flow.marked_epoch:
        return _with_copier(world, number, Copier())
    partition, offset = fetched
    copied = (*world.copied[:partition], offset + 1, *world.copied[partition + 1 :])
    written = _with_copier(world, number, copier._replace(fetched=None))._replace(copied=copied)
    entry = world.source[partition][offset]
    return written if entry in MARKERS else written._replace(target=_append(world.target, partition, entry))


def _reverse_flow_copies(world: World) -> Iterator[Event]:
    """The reverse flow, whose user the fence does not deny, copies records written since it started, and emits
    heartbeats.

    A process that is started too early copies from the beginning, unless the flow is held or must wait for a
    switchover.
    """
    reverse = world.reverse
    may_run = (reverse.started_by or reverse.has_process) and not reverse.held_by
    if not may_run or not world.is_source_up or not world.is_target_up:
        return
    own, opposite = _claim(started=reverse.started_by), _claim(ended=world.flow.ended_by)
    if not reverse.is_copying and flow_start.awaited_switchover(own, opposite):
        return
    if not reverse.is_copying:
        yield "reverse heartbeat", world._replace(reverse=reverse._replace(is_copying=True))
    for partition, offset in enumerate(reverse.next):
        entries = world.target[partition][offset:]
        # Records that were already copied back would be copied to the target, and back again, without end.
        if entries and (reverse.started_by or world.source[partition].count(entries[0]) < 2):
            following = (*reverse.next[:partition], offset + 1, *reverse.next[partition + 1 :])
            yield (
                f"{REVERSE_COPY}{entries[0]}",
                world._replace(
                    source=_append(world.source, partition, entries[0]),
                    reverse=reverse._replace(next=following, is_copying=True),
                    is_quiet=False,
                ),
            )


def _claim(*, started: str = "", ended: str = "") -> Claim:
    """Returns the newest claim of a flow; "" as in the state of the world: no switchover."""
    return replace(_CLAIM, started=started or None, ended=ended or None)


# -- time and troubles


def _time_passes(world: World) -> Iterator[Event]:
    # The time begins when the fence is complete. It counts once the command has announced that it waits for the ends.
    if not world.is_quiet and stored_state(world) in {SwitchoverState.FENCING, SwitchoverState.QUIESCING}:
        is_enforced = world.source_fence == PARTITIONS
        yield "the ends stay unchanged", world._replace(is_quiet=True, is_enforced=is_enforced)
    if not world.is_source_up and not world.is_source_lost:
        yield "source up", world._replace(is_source_up=True)
    if not world.is_target_up and not world.is_target_lost:
        yield "target up", world._replace(is_target_up=True)


def _troubles(world: World) -> Iterator[Event]:
    state = stored_state(world)
    for trouble in sorted(set(world.troubles)):
        changes: dict[str, Any] | None = None
        if trouble == LIMIT and _may_pass_limit(world):
            changes = {"limits_passed": world.limits_passed + 1}
        elif trouble == ROLLBACK and not world.is_rollback_requested:
            changes = {"is_rollback_requested": True}
        elif trouble == SOURCE_DOWN and world.is_source_up:
            changes = {"is_source_up": False}
        elif trouble == TARGET_DOWN and world.is_target_up:
            changes = {"is_target_up": False}
        elif trouble == BYPASS and world.is_source_up and state is not SwitchoverState.FORWARD_ENDED:
            changes = {"source": _append(world.source, 0, "x"), "is_quiet": False}
        elif (
            trouble == FOREIGN
            and world.is_target_up
            and not world.target_fence
            and _is_before_verification(state)
        ):
            changes = {"target": _append(world.target, 0, "f")}
        elif trouble == UNFENCE and world.source_fence and state in FENCED - {SwitchoverState.FORWARD_ENDED}:
            changes = {"source_fence": 0, "is_quiet": False, "is_enforced": False}
        elif _may_start_back(world, trouble):
            changes = {"reverse": world.reverse._replace(has_process=True)}
        elif trouble == REVERT and state is SwitchoverState.DONE:
            changes = {"endpoint": world.source_name}  # the endpoint of a Git repository is applied again
        if changes is not None:
            yield trouble, after_trouble(world, trouble, **changes)


def _may_start_back(world: World, trouble: str) -> bool:
    """Returns whether a user starts the reverse flow before a switchover does."""
    is_its_time = trouble == EARLY or (trouble == TOO_SOON and world.flow.ended_by != "")
    return is_its_time and not world.reverse.started_by


def _is_before_verification(state: SwitchoverState | None) -> bool:
    """Returns whether the verification finds foreign records that are written into a copy in this state."""
    return state not in PROMOTED | {
        SwitchoverState.VERIFYING,
        SwitchoverState.GROUPS_FINAL,
        SwitchoverState.FORWARD_ENDED,
    }


def _may_pass_limit(world: World) -> bool:
    """Returns whether a limit runs that has not expired."""
    record = newest((*world.source_journal, *world.target_journal))
    if record is None or record.state not in FENCED | {SwitchoverState.CHECKING}:
        return False
    return world.limits_passed * LONG_MS - (record.fenced_ms or record.entered_ms) < LONG_MS

"""What must hold in every reachable state, and for each action. The numbers I1 to I8 are those of decision 029."""

from collections.abc import Iterator

from mirrorflow_core.switchover.actions import (
    ClearEnd,
    EndFlow,
    FenceCluster,
    FinishGroups,
    LiftFence,
    StartReverse,
    SwitchEndpoint,
    TryFence,
    VerifySeal,
    WriteRecord,
)
from mirrorflow_core.switchover.observation import SwitchoverSide
from mirrorflow_core.switchover.record import SwitchoverRecord, newest_record
from mirrorflow_core.switchover.states import FENCED, PROMOTED, ROLLED_BACK, SwitchoverState, SwitchoverType
from tests.model.switchover.events import BYPASS, UNFENCE
from tests.model.switchover.shell import Part
from tests.model.switchover.world import (
    PARTITIONS,
    Run,
    World,
    all_records,
    data,
    last_stable,
    stored_state,
)

_S = SwitchoverState
# I7: the states in which the journal must be before an action is carried out.
ANNOUNCED = {
    TryFence: {_S.CHECKING},
    VerifySeal: {_S.VERIFYING, _S.FORWARD_ENDED},
    FinishGroups: {_S.GROUPS_FINAL, _S.FORWARD_ENDED},
    EndFlow: {_S.FORWARD_ENDED},
    ClearEnd: {_S.FENCING, _S.ROLLING_BACK},
    SwitchEndpoint: {_S.PROMOTING},
    StartReverse: {_S.REVERSING},
}


def broken_in(world: World) -> Iterator[str]:
    """Yields the invariants that *world* violates."""
    is_led_to_target = world.endpoint == world.target_name
    if world.source_fence < PARTITIONS and is_led_to_target and world.target_fence < PARTITIONS:
        yield "I1: applications can write to both sides"
    if is_led_to_target and stored_state(world) not in PROMOTED:
        yield "I6: clients were led to the target without a promotion"
    if world.group_target > min(world.group_source, len(world.target[0])):
        yield "I4: the group skips records at the target"
    if world.reverse.started_by and world.promoted_ends is not None:
        source_ends, target_ends = world.promoted_ends
        for partition, following in enumerate(world.reverse.next):
            written = world.target[partition][target_ends[partition] : following]
            copied_back = world.source[partition][source_ends[partition] :]
            is_behind = following < target_ends[partition]
            if is_behind or tuple(entry for entry in copied_back if entry != "x") != written:
                yield "I5: the reverse flow does not copy what was written since, and nothing else"
    records = all_records(world)
    if sum(not record.is_final for record in records) > 1:
        yield "I8: two switchovers of a pair are under way"
    if len({record.epoch for record in records}) < len(records):
        yield "I8: two switchovers of a pair have one epoch"


def broken_by_event(before: World, name: str, after: World) -> Iterator[str]:
    """Yields the invariants that the event *name* violates, which leads from *before* to *after*."""
    if name.startswith("copier") and stored_state(before) in PROMOTED and after.target != before.target:
        yield "I2: the forward flow has written after it had ended"
    if after.group_target < before.group_target and after.source_name == before.source_name:
        yield "I4: the group moves back"


def broken_by_action(before: World, run: Run, part: Part, after: World) -> Iterator[str]:
    """Yields the invariants that *run* violates by carrying *part* out."""
    record: SwitchoverRecord = run.record.value
    if record.runner != run.name and not record.is_final:
        yield "I7: a run continues what another one has begun, without a word"
    if isinstance(part.action, WriteRecord):
        if after != before:
            yield from _broken_by_record(before, part.action.record, after)
        return
    journals = [before.target_journal] * (record.state not in ROLLED_BACK)
    journals += [before.source_journal] * (record.state not in PROMOTED)
    if any(record not in [other.value for other in journal] for journal in journals):
        yield f"I7: {type(part.action).__name__} without an intent in the journals"
    match part.action:
        case FenceCluster(side):
            is_legal = side is SwitchoverSide.SOURCE and record.state in {
                _S.FENCING,
                _S.PROMOTING,
                _S.REVERSING,
            }
        case LiftFence(side):
            is_source = side is SwitchoverSide.SOURCE
            is_legal = record.state is (_S.ROLLING_BACK if is_source else _S.PROMOTING)
        case action:
            is_legal = record.state in ANNOUNCED[type(action)]
    if not is_legal:
        yield f"I7: {part.action} in state {record.state.value}"


def _broken_by_record(before: World, record: SwitchoverRecord, world: World) -> Iterator[str]:
    """Yields what is wrong with the world at the moment in which *record* is stored on the first cluster."""
    known = all_records(before)
    if record in known:
        return  # a copy of what the other cluster has
    old = newest_record(known)
    is_resumed = old is not None and old.id == record.id and old.runner != record.runner
    if (
        is_resumed
        and old is not None
        and old.state in FENCED
        and record.state not in {_S.FENCING, _S.ROLLING_BACK}
    ):
        yield f"I7: a run that was interrupted in {old.state.value} continues in {record.state.value}"
    if old is not None and old.id != record.id and not old.is_final:
        yield "I8: a switchover begins before the one before has ended"
    if any(other.id == record.id and other.is_final for other in known):
        yield "I6: a switchover that has ended begins again"
    if old is not None and old.id == record.id and old.state in PROMOTED and record.state not in PROMOTED:
        yield "I6: a switchover goes back after the point of no return"
    if old is not None and old.id != record.id and old.state is _S.DONE and old.to == record.to:
        yield "I6: a switchover moves applications to the active member"
    if record.state is _S.FENCING and (before.has_failed_check or not before.is_canary_tried):
        yield "writes are refused before all checks have passed"
    if "behind the fence" in record.reason and not {BYPASS, UNFENCE} & world.happened:
        yield f"misreport: {record.reason}"
    match record.state:
        case _S.PROMOTING if old is not None and old.state is not _S.PROMOTING:
            yield from _broken_by_promoting(record, world)
        case _S.DONE:
            yield from _broken_by_done(record, world)
        case _S.LIFTED | _S.REHEARSED | _S.REFUSED:
            yield from _broken_by_giving_up(record, world)


def _broken_by_promoting(record: SwitchoverRecord, world: World) -> Iterator[str]:
    assert record.seal is not None
    if record.type is SwitchoverType.REHEARSAL:
        yield "I6: a rehearsal promotes"
    ends = list(record.seal.ends.values())
    for source, target, end in zip(world.source, world.target, ends, strict=True):
        if data(source[:end]) != target:
            yield f"I3: the source has {data(source[:end])} up to its seal, the target {target}"
        if source[end:]:
            yield f"I3: {source[end:]} was acknowledged after the seal"
        if last_stable(source) < len(source):
            yield "I3: a transaction is open, whose records can still be committed or aborted"
    if world.source_fence < PARTITIONS:
        yield "I1: the source is not fenced at promoting"
    if world.group_target != world.group_source or world.has_members:
        yield "I4: the group reads records again"


def _broken_by_done(record: SwitchoverRecord, world: World) -> Iterator[str]:
    if world.endpoint != record.to or world.target_fence:
        yield "misreport: done, but applications cannot write to the target"
    if world.source_fence < PARTITIONS:
        yield "misreport: done, but the source is not fenced"
    if world.flow.ended_by != record.id or world.flow.marked_epoch != world.flow.epoch:
        yield "misreport: done, but the forward flow can write"
    if world.reverse.started_by != record.id or not world.reverse.is_copying:
        yield "misreport: done, but the reverse flow does not copy"


def _broken_by_giving_up(record: SwitchoverRecord, world: World) -> Iterator[str]:
    """Nothing has changed, and the reason says why."""
    if world.source_fence or world.flow.ended_by == record.id or world.endpoint != record.source:
        yield f"misreport: {record.state.value}, but not everything is as before"
    if (record.state is _S.REHEARSED) == bool(record.reason):
        yield f"misreport: {record.state.value} with the reason {record.reason!r}"

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
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.states import FENCED, PROMOTED, SwitchoverState, SwitchoverType
from tests.model.switchover.events import BYPASS, UNFENCE
from tests.model.switchover.shell import Part
from tests.model.switchover.world import (
    EAST,
    PARTITIONS,
    WEST,
    Run,
    World,
    data,
    last_stable,
    newest,
    stored_state,
)

_S = SwitchoverState
# I7: the states in which the journal must be before an action is carried out.
ANNOUNCED = {
    TryFence: {_S.CHECKING},
    VerifySeal: {_S.VERIFYING},
    FinishGroups: {_S.GROUPS_FINAL, _S.FORWARD_ENDED},
    EndFlow: {_S.FORWARD_ENDED},
    ClearEnd: {_S.FENCING, _S.ROLLING_BACK},
    SwitchEndpoint: {_S.PROMOTING},
    StartReverse: {_S.REVERSING},
}


def broken_in(world: World) -> Iterator[str]:
    """Yields the invariants that *world* violates."""
    state = stored_state(world)
    is_east_open = world.source_fence < PARTITIONS
    if is_east_open and world.endpoint == WEST and world.target_fence < PARTITIONS:
        yield "I1: applications can write to both sides"
    if world.endpoint == WEST and state not in PROMOTED:
        yield "I6: clients were led to the target without a promotion"
    if world.group_target > min(world.group_source, len(world.target[0])):
        yield "I4: the group skips records at the target"
    forward = {"a0", "a1", "t0", "x", "f"}
    for partition, log in enumerate(world.target):
        first = world.reverse.next[partition]
        is_app = [entry not in forward for entry in log]
        if world.reverse.started_by and (not all(is_app[first:])):
            yield "I5: the reverse flow copies records that came by the forward flow"
        copied_back = [entry for entry in world.source[partition] if entry.startswith("w")]
        if world.reverse.started_by and copied_back != [
            entry for entry in log[:first] if entry.startswith("w")
        ]:
            yield "I5: the reverse flow skips or repeats records that were written since"
    for journal in (world.source_journal, world.target_journal):
        if sum(not record.value.is_final for record in journal) > 1:
            yield "I8: two switchovers of a pair are under way"
        if len({record.value.epoch for record in journal}) < len(journal):
            yield "I8: two switchovers of a pair have one epoch"


def broken_by_event(before: World, after: World) -> Iterator[str]:
    """Yields the invariants that the step from *before* to *after* violates."""
    if stored_state(before) in PROMOTED and any(
        entry in {"a0", "a1", "t0", "x"}
        for old, new in zip(before.target, after.target, strict=True)
        for entry in new[len(old) :]
    ):
        yield "I2: the forward flow has written after it had ended"
    if after.group_target < before.group_target:
        yield "I4: the group moves back"


def broken_by_action(before: World, run: Run, part: Part, after: World) -> Iterator[str]:
    """Yields the invariants that *run* violates by carrying *part* out."""
    record: SwitchoverRecord = run.record.value
    if record.runner != run.name and not record.is_final:
        yield "I7: a run continues what another one has begun, without a word"
    if isinstance(part.action, WriteRecord):
        if part.number == 0 and after != before:
            yield from _broken_by_record(before, part.action.record, after)
        return
    journals = [before.target_journal] + [before.source_journal] * (record.state not in PROMOTED)
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
    """Yields what is wrong with the world at the moment in which *record* is stored on the target."""
    old = newest(before.target_journal)
    is_resumed = old is not None and old.id == record.id and old.runner != record.runner
    if is_resumed and old is not None and old.state in FENCED and record.state is not _S.FENCING:
        yield f"I7: a run that was interrupted in {old.state.value} continues in {record.state.value}"
    if old is not None and old.id != record.id and not old.is_final:
        yield "I8: a switchover begins before the one before has ended"
    if any(other.value.id == record.id and other.value.is_final for other in before.target_journal):
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
    if world.endpoint != WEST or world.target_fence:
        yield "misreport: done, but applications cannot write to the target"
    if world.source_fence < PARTITIONS:
        yield "misreport: done, but the source is not fenced"
    if world.flow.ended_by != record.id or world.flow.marked_epoch != world.flow.epoch:
        yield "misreport: done, but the forward flow can write"
    if world.reverse.started_by != record.id or not world.reverse.is_copying:
        yield "misreport: done, but the reverse flow does not copy"


def _broken_by_giving_up(record: SwitchoverRecord, world: World) -> Iterator[str]:
    """Nothing has changed, and the reason says why."""
    if world.source_fence or world.flow.ended_by == record.id or world.endpoint != EAST:
        yield f"misreport: {record.state.value}, but not everything is as before"
    if (record.state is _S.REHEARSED) == bool(record.reason):
        yield f"misreport: {record.state.value} with the reason {record.reason!r}"

"""The invariants of every reachable state and of each action. The numbers I1 to I8 are those of decision 029."""

from collections.abc import Iterator

from mirrorflow_core.switchover.actions import (
    ClampGroups,
    ClearEnd,
    EndFlow,
    FenceCluster,
    FinishGroups,
    HoldReverse,
    LiftFence,
    ReleaseReverse,
    StartReverse,
    SwitchEndpoint,
    TryFence,
    TryToFence,
    VerifySeal,
    WriteRecord,
)
from mirrorflow_core.switchover.guards import is_overtaken
from mirrorflow_core.switchover.observation import SwitchoverSide
from mirrorflow_core.switchover.record import SwitchoverRecord, newest_record
from mirrorflow_core.switchover.states import (
    FENCED,
    MOVED,
    PROMOTED,
    ROLLED_BACK,
    SwitchoverState,
    SwitchoverType,
)
from tests.model.switchover.events import BYPASS, EARLY, REVERSE_COPY, UNFENCE
from tests.model.switchover.shell import Part, carry_out
from tests.model.switchover.world import (
    PARTITIONS,
    Kept,
    Run,
    World,
    all_records,
    data,
    last_stable,
    newest,
    stored_state,
)

_S = SwitchoverState
# The states in which the reverse flow is held or started. In FENCING, it may be started right before it is held.
_HOLDING = (FENCED | PROMOTED) - {_S.FENCING}
# The states in which the reverse flow waits until the clusters are reconciled, unless it ran before.
_ALONE = PROMOTED | {_S.GROUPS_CLAMPED}
# I7: the states that the journal must have before an action is carried out.
ANNOUNCED = {
    TryFence: {_S.CHECKING},
    VerifySeal: {_S.VERIFYING, _S.FORWARD_ENDED},
    FinishGroups: {_S.GROUPS_FINAL, _S.FORWARD_ENDED},
    EndFlow: {_S.FORWARD_ENDED},
    ClearEnd: {_S.FENCING, _S.ROLLING_BACK},
    SwitchEndpoint: {_S.PROMOTING},
    ReleaseReverse: {_S.ROLLING_BACK},
    StartReverse: {_S.REVERSING},
}
ANNOUNCED_ALONE = {
    TryToFence: {_S.FORWARD_ENDED, _S.PROMOTING},
    EndFlow: {_S.FORWARD_ENDED, _S.GROUPS_CLAMPED},
    ClearEnd: {_S.FORWARD_ENDED, _S.GROUPS_CLAMPED, _S.ROLLING_BACK},
    ClampGroups: {_S.GROUPS_CLAMPED},
    SwitchEndpoint: {_S.PROMOTING},
}


def broken_in(world: World) -> Iterator[str]:
    """Yields the invariants that *world* violates."""
    is_led_to_target = world.endpoint == world.target_name
    records = all_records(world)
    is_alone = any(record.is_unplanned and record.state in PROMOTED for record in records)
    if (
        world.source_fence < PARTITIONS
        and is_led_to_target
        and world.target_fence < PARTITIONS
        and not is_alone
    ):
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
    if sum(not record.is_final and not is_overtaken(record, records) for record in records) > 1:
        yield "I8: two switchovers of a pair are under way"
    if len({record.epoch for record in records}) < len(records):
        yield "I8: two switchovers of a pair have one epoch"


def broken_by_event(before: World, name: str, after: World) -> Iterator[str]:
    """Yields the invariants that the event *name*, which leads from *before* to *after*, violates."""
    if name.startswith("copier") and stored_state(before) in PROMOTED and after.target != before.target:
        yield "I2: the forward flow has written after it had ended"
    if name.startswith(REVERSE_COPY) and _is_holding(before) and _comes_from_source(before, after):
        yield "I5: a record is copied back that came by the forward flow"
    if after.group_target < before.group_target and after.source_name == before.source_name:
        yield "I4: the group moves back"


def _is_holding(world: World) -> bool:
    """Returns whether the newest switchover holds the reverse flow, has started it, or lacks a start after a lost
    source.
    """
    record = newest((*world.source_journal, *world.target_journal))
    if record is None:
        return False
    if record.is_unplanned:
        return record.state in _ALONE and not world.reverse.is_copying
    return record.type is SwitchoverType.PLANNED and record.state in _HOLDING


def _comes_from_source(before: World, after: World) -> bool:
    """Returns whether the record that the reverse flow has copied was in the target before applications could write
    there.
    """
    if before.promoted_ends is None:
        return True
    _, target_ends = before.promoted_ends
    read = zip(before.reverse.next, after.reverse.next, target_ends, strict=True)
    return any(offset != following and offset < end for offset, following, end in read)


def broken_by_action(before: World, run: Run, part: Part, after: World) -> Iterator[str]:
    """Yields the invariants that *run* violates by carrying out *part*."""
    record: SwitchoverRecord = run.record.value
    if record.runner != run.name and not record.is_final:
        yield "I7: a run continues what another one has begun, without a word"
    if isinstance(part.action, WriteRecord):
        if after != before:
            yield from _broken_by_record(before, part.action.record, after)
        return
    journals = [before.target_journal] * (record.state not in ROLLED_BACK or record.is_unplanned)
    journals += [before.source_journal] * (record.state not in PROMOTED and not record.is_unplanned)
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
        case HoldReverse():
            is_legal = record.type is SwitchoverType.PLANNED and record.state is _S.FENCING
        case action:
            announced = ANNOUNCED_ALONE if record.is_unplanned else ANNOUNCED
            is_legal = record.state in announced.get(type(action), ())
    if not is_legal:
        yield f"I7: {part.action} in state {record.state.value}"


def broken_by_refusal(world: World, record: SwitchoverRecord) -> Iterator[str]:
    """Yields what is wrong if *record* is refused before it has begun because another switchover is under way."""
    records = all_records(world)
    under_way = [other for other in records if not other.is_final and not is_overtaken(other, records)]
    is_first_refused = record.is_unplanned and record.state is _S.REFUSED and not record.epoch
    if is_first_refused and all(_may_begin_after(other, record) for other in under_way) and under_way:
        yield "liveness: an unplanned switchover is refused because of one that may not end without the source"


def broken_by_plan(observed: World, before: SwitchoverRecord, actions: Kept) -> Iterator[str]:
    """Yields what is wrong with *actions*, which were decided in the world *observed* for the record *before*."""
    world = observed
    for part in actions.value:
        is_open = world.is_source_up and world.source_fence < PARTITIONS and not world.refuses_fence
        match part.action:
            case SwitchEndpoint() if is_open:
                yield "I1: clients are led to the target while the source answers and is not fenced"
            case WriteRecord(record) if is_open and before.state is _S.FORWARD_ENDED:
                if record.state is _S.GROUPS_CLAMPED:
                    yield "I1: the source answers, and was given no time to be fenced"
        world = carry_out(world, part)


def _broken_by_record(before: World, record: SwitchoverRecord, world: World) -> Iterator[str]:
    """Yields what is wrong with the world when *record* is stored on the first cluster."""
    known = all_records(before)
    if record in known:
        return  # a copy of the other cluster's entries
    old = newest_record(known)
    is_resumed = (
        old is not None and old.id == record.id and old.runner != record.runner and not old.is_unplanned
    )
    if (
        is_resumed
        and old is not None
        and old.state in FENCED
        and record.state not in {_S.FENCING, _S.ROLLING_BACK}
    ):
        yield f"I7: a run that was interrupted in {old.state.value} continues in {record.state.value}"
    if old is not None and old.id != record.id and not old.is_final and not _may_begin_after(old, record):
        yield "I8: a switchover begins before the one before has ended"
    if any(other.id == record.id and other.is_final for other in known):
        yield "I6: a switchover that has ended begins again"
    if old is not None and old.id == record.id and old.state in PROMOTED and record.state not in PROMOTED:
        yield "I6: a switchover goes back after the point of no return"
    if old is not None and old.id != record.id and old.state in MOVED and old.to == record.to:
        yield "I6: a switchover moves applications to the active member"
    if record.type is SwitchoverType.RESTORE and not _is_restorable(record, known):
        yield "a restore begins, and no unplanned switchover has left the member"
    if record.state is _S.FENCING and (before.has_failed_check or not before.is_canary_tried):
        yield "writes are refused before all checks have passed"
    # A rehearsal does not hold the reverse flow, and reports its records like those of any other producer.
    writers = {BYPASS, UNFENCE} | ({EARLY} if record.type is SwitchoverType.REHEARSAL else set())
    if "behind the fence" in record.reason and not writers & world.happened:
        yield f"misreport: {record.reason}"
    has_begun = record.is_unplanned and record.state not in {_S.ASSESSING, _S.REFUSED}
    if has_begun and (record.loss is None or not record.accepts_loss):
        yield "a loss that is not accepted"
    match record.state:
        case _S.PROMOTING if old is not None and old.state is not _S.PROMOTING:
            broken = _broken_by_promoting_alone if record.is_unplanned else _broken_by_promoting
            yield from broken(record, world)
        case _S.DONE:
            yield from _broken_by_done(record, world)
        case _S.DEGRADED:
            yield from _broken_by_degraded(record, world)
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
        if len(set(data(source))) < len(data(source)):
            yield "I5: the source has a record that was copied back"
        if last_stable(source) < len(source):
            yield "I3: a transaction is open, whose records can still be committed or aborted"
    if world.source_fence < PARTITIONS:
        yield "I1: the source is not fenced at promoting"
    if world.group_target != world.group_source or world.has_members:
        yield "I4: the group reads records again"


def _is_restorable(record: SwitchoverRecord, known: list[SwitchoverRecord]) -> bool:
    """Returns whether the last switchover that has moved applications was unplanned, and moved them away from the
    member in *record*.
    """
    last = newest_record(other for other in known if other.state in MOVED and other.id != record.id)
    return last is not None and last.is_unplanned and last.source == record.to


def _may_begin_after(old: SwitchoverRecord, record: SwitchoverRecord) -> bool:
    """Returns whether an unplanned switchover may begin without waiting for one that cannot end without the source."""
    is_stuck = not old.is_unplanned or old.state is _S.ROLLING_BACK
    return record.is_unplanned and is_stuck and old.state not in PROMOTED


def _broken_by_promoting_alone(record: SwitchoverRecord, world: World) -> Iterator[str]:
    """Yields unless the target has exactly the entries before the cuts, and the record reports no more than that as
    lost.
    """
    assert record.known_loss is not None
    cuts = [(cut.copied, cut.target_end) for cut in record.cuts]
    if cuts != [(copied, len(log)) for copied, log in zip(world.copied, world.target, strict=True)]:
        yield f"I3: the cuts are {cuts}"
    if [start.offset for start in record.reverse_starts] != [len(log) for log in world.target]:
        yield "I5: the reverse flow does not start where the copies end"
    for source, target, copied in zip(world.source, world.target, world.copied, strict=True):
        if data(source[:copied]) != target:
            yield f"I3: the source has {data(source[:copied])} before the cut, the target {target}"
    if record.known_loss.lost_offsets > sum(map(len, world.source)) - sum(world.copied):
        yield "misreport: less is lost than the record says"
    if world.flow.ended_by != record.id or world.flow.marked_epoch != world.flow.epoch:
        yield "I2: the forward flow can write at promoting"
    if world.group_target < min(world.checkpoint, len(world.target[0])):
        yield "I4: the group reads again what its checkpoint has behind it"


def _broken_by_degraded(record: SwitchoverRecord, world: World) -> Iterator[str]:
    if world.endpoint != record.to or world.target_fence:
        yield "misreport: degraded, but applications cannot write to the target"
    if world.source_fence < PARTITIONS and not record.reason:
        yield "misreport: degraded, and nothing says that the source is open"
    if not record.cuts or not record.reverse_starts:
        yield "misreport: degraded, but the record does not say where the copies ended"


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
    """Yields unless nothing has changed and the reason explains why. Changes of an overtaken run do not count."""
    others = [other for other in all_records(world) if other.id != record.id and not other.is_final]
    if world.reverse.held_by == record.id:
        yield f"misreport: {record.state.value}, but the reverse flow is held"
    is_fenced = world.source_fence and not (others and record.state is _S.REFUSED)
    if is_fenced or world.flow.ended_by == record.id or world.endpoint != record.source:
        yield f"misreport: {record.state.value}, but not everything is as before"
    if (record.state is _S.REHEARSED) == bool(record.reason):
        yield f"misreport: {record.state.value} with the reason {record.reason!r}"

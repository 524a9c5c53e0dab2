"""Decides the next step of a switchover: one pure function of its record, of what the clusters report, and of the time.

    shell:  observe ──> step ──> write the record, carry out the actions ──> observe ...

Each step either announces (it returns `WriteRecord` and nothing else), or acts on what is announced (the observation shows the
record in the journal), or waits. So whatever may have been done is written down before. A process that resumes gives the
newest record that it reads, and derives the rest from what the clusters report; where writes were refused, it begins
again with the fence, and what was sealed and verified behind the old one no longer counts.

What each state needs besides both journals: ACCEPTED `endpoint`; CHECKING `checks`; FENCING `flow_end`, `reverse` and the source's fence;
QUIESCING to FORWARD_ENDED the source's fence, ends and last writes; QUIESCING and DRAINING `copied`; VERIFYING `verification`,
and `groups` once that is there; GROUPS_FINAL `groups`; FORWARD_ENDED `flow_end`, and once the flow has ended all of these and the
target's ends; PROMOTING `endpoint`, the fences of both and the source's ends; REVERSING the source's fence and ends and `reverse`;
ROLLING_BACK `flow_end`, `reverse` and the source's fence.

A planned one is rolled back without the target, up to the end of the flow, if its user gives that up.
An unplanned switchover reads and writes the target's journal alone. ASSESSING needs `loss`; FORWARD_ENDED `flow_end`,
`can_fence_source` and the source's fence; GROUPS_CLAMPED `flow_end`, `cuts`, `clamp` and the target's ends; PROMOTING `endpoint`,
`can_fence_source` and the fences of both. Where the source does not respond, its fence is None.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from mirrorflow_core.switchover import guards
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
    SwitchoverAction,
    TryFence,
    TryToFence,
    VerifySeal,
    WriteRecord,
)
from mirrorflow_core.switchover.observation import ReadinessCheck, SwitchoverObservation, SwitchoverSide
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.seal import Seal
from mirrorflow_core.switchover.states import ENDING, FENCED, SwitchoverState, SwitchoverType

_S = SwitchoverState
# Nothing is done in them that has to be announced, unless they wait. Where one observation shows that they need not, they are announced
# together with the state after them: each announcement takes transactions on both clusters, and writes are refused meanwhile.
_PASSED_AT_ONCE: Final = frozenset({_S.SEALED, _S.DRAINING, _S.GROUPS_FINAL})
_Work = Callable[[SwitchoverRecord, SwitchoverObservation, int], "SwitchoverStep"]


@dataclass(frozen=True, slots=True)
class SwitchoverStep:
    """What is to be done now. The shell passes *record* to the next step.

    *waits_for* says in a sentence what the switchover waits for, and how long at most; "" if it continues at once.
    """

    record: SwitchoverRecord
    actions: tuple[SwitchoverAction, ...] = ()
    waits_for: str = ""
    is_superseded: bool = False  # another process carries it out; this one ends without a further action
    is_paused: bool = False  # all is done that needs no target; a later process does the rest


def step(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Returns the next step of *record*; *now_ms* is the wall clock, in ms since 1970."""
    if record.state is _S.REFUSED and not record.epoch:
        return SwitchoverStep(record)  # it was never admitted, so the journal has nothing of it
    if record.state is _S.ACCEPTED:
        return _admit(record, observation, now_ms)
    if guards.is_superseded(record, observation):
        return SwitchoverStep(record, is_superseded=True)
    if guards.is_interrupted(record, observation) and not record.is_at_rest:
        if not guards.may_take_over(record, observation):
            return SwitchoverStep(record, waits_for=f"Waits until {_journals(record)} can be read.")
        return _announce(_resumed(record, observation.runner, now_ms))
    if _can_roll_back(record) and (reason := _why_to_roll_back(record, observation, now_ms)):
        return _roll_back(record, reason, now_ms)
    if not guards.is_stored(record, observation):
        return _announce(record)
    if record.is_at_rest:
        return SwitchoverStep(record)
    decided = _work(record)(record, observation, now_ms)
    while decided.record is not record and decided.record.state in _PASSED_AT_ONCE:
        following = _work(decided.record)(decided.record, observation, now_ms)
        if following.record is decided.record:
            break
        decided = following
    if record.state in FENCED and not record.is_unplanned and decided.record is record:
        left = _whole_seconds(record.fenced_ms + record.limits.refused_ms - now_ms)
        return replace(decided, waits_for=f"{decided.waits_for} Rolled back in {left} otherwise.")
    return decided


# -- who carries it out


def _admit(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Gives the switchover the next epoch of its pair, unless another one is under way or it makes no sense."""
    if not guards.has_journals(record, observation):
        return SwitchoverStep(record, waits_for=f"Waits until {_journals(record)} can be read.")
    if begun := guards.own_record(record, observation):
        return SwitchoverStep(begun)
    if observation.endpoint is None:
        return SwitchoverStep(record, waits_for="Waits until the endpoint can be read.")
    if reason := guards.why_not_admitted(record, observation):
        return SwitchoverStep(record.moved_to(_S.REFUSED, now_ms, reason=reason))
    newest = guards.newest_known(observation)
    epoch = 1 if newest is None else newest.epoch + 1
    if not record.is_unplanned:
        return _announce(record.moved_to(_S.CHECKING, now_ms, epoch=epoch, runner=observation.runner))
    # A switchover of which only the lost source knows has the next epoch at most: nothing is done before both journals have it.
    return _announce(record.moved_to(_S.ASSESSING, now_ms, epoch=epoch + 1, runner=observation.runner))


def _resumed(record: SwitchoverRecord, runner: str, now_ms: int) -> SwitchoverRecord:
    """Returns the record as *runner* continues it: never forward from a fence that another process has seen.

    An unplanned switchover establishes everything anew before it promotes, so it continues where it was.
    """
    if record.state not in FENCED or record.is_unplanned:
        return record.revised(runner=runner)
    return _fencing(record, now_ms, runner=runner)


def _fencing(record: SwitchoverRecord, now_ms: int, runner: str) -> SwitchoverRecord:
    """Returns the record at the beginning of a new attempt to fence the source."""
    return record.moved_to(
        _S.FENCING,
        now_ms,
        runner=runner,
        attempt=record.attempt + 1,
        # The clock of the process that was interrupted may have been ahead of this one.
        fenced_ms=min(record.fenced_ms or now_ms, now_ms),
        seal=None,
    )


def _announce(record: SwitchoverRecord) -> SwitchoverStep:
    """Writes the record; nothing is done before the journals have it."""
    verb = "has" if record.is_unplanned else "have"
    waits_for = f"Waits until {_journals(record)} {verb} the state {record.state.value}."
    return SwitchoverStep(record, (WriteRecord(record),), waits_for)


def _journals(record: SwitchoverRecord) -> str:
    return f"the journal of {record.to}" if record.is_unplanned else "the journals of both clusters"


def _can_roll_back(record: SwitchoverRecord) -> bool:
    return record.state in (ENDING if record.is_unplanned else FENCED)


# -- before anything changes


def _check(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    left_ms = record.entered_ms + record.limits.checking_ms - now_ms
    missing = guards.missing_checks(observation)
    names = guards.some(check.value for check in missing)
    reasons = guards.failed_checks(observation)
    if observation.rollback_requested:
        reasons = ["The switchover was cancelled before it changed anything."]
    elif missing and not reasons and left_ms <= 0:
        reasons = [f"No result within {_seconds(record.limits.checking_ms)} of the checks {names}."]
    if reasons:
        return _announce(record.moved_to(_S.REFUSED, now_ms, reason=" ".join(reasons)))
    if missing:
        actions = (TryFence(),) if ReadinessCheck.FENCE in missing else ()
        waits_for = (
            f"Waits for the checks {names}; refused in {_whole_seconds(left_ms)} without their results."
        )
        return SwitchoverStep(record, actions, waits_for)
    return _announce(_fencing(record, now_ms, record.runner))


# -- while writes are refused


def _why_to_roll_back(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> str:
    """Returns why a switchover that has not promoted yet is rolled back; "": it is not."""
    if observation.rollback_requested:
        return "A rollback was requested."
    if record.is_unplanned:
        return ""  # nothing is gained by going back to a source that is lost; only its user can decide that
    if reason := guards.why_source_changed(record, observation):
        return reason
    if guards.is_past_limit(record, now_ms):
        limit, unfinished = (
            _seconds(record.limits.refused_ms),
            _work(record)(record, observation, now_ms),
        )
        waits_for = unfinished.waits_for if unfinished.record is record else ""
        return (
            f"Writes were refused for {limit}, the limit, in state {record.state.value}. {waits_for}".rstrip()
        )
    return ""


def _roll_back(record: SwitchoverRecord, reason: str, now_ms: int) -> SwitchoverStep:
    return _announce(record.moved_to(_S.ROLLING_BACK, now_ms, reason=reason))


def _advance(record: SwitchoverRecord, state: SwitchoverState, now_ms: int, **changes: Any) -> SwitchoverStep:
    return _announce(record.moved_to(state, now_ms, **changes))


def _fence(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Holds the flow back, then sets the fence; the end of the flow that an interrupted attempt has set is removed, so that it copies the rest.

    The fence lets the flow back pass, so it is held before, while writes are still accepted.
    """
    actions: list[SwitchoverAction] = []
    if guards.needs_reverse_held(record) and not guards.is_reverse_held(observation):
        if guards.is_reverse_running(observation):
            reason = (
                f"The flow from {record.to} to {record.source} was started, and copies records back; stop it."
            )
            return _roll_back(record, reason, now_ms)
        actions.append(HoldReverse(record.id))
    if not guards.is_fenced(observation.source):
        actions.append(FenceCluster(SwitchoverSide.SOURCE))
    if not guards.may_run(record, observation):
        actions.append(ClearEnd(record.id))
    if not actions:
        return _advance(record, _S.QUIESCING, now_ms)
    waits_for = f"Waits until the flow from {record.to} to {record.source} is held, and the brokers of {record.source} list the fence."
    return SwitchoverStep(record, tuple(actions), waits_for)


def _quiesce(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    ends = observation.source.ends
    if not ends or observation.copied is None or not guards.is_fenced(observation.source):
        return SwitchoverStep(
            record, waits_for=f"Waits until the ends and the fence of {record.source} can be read."
        )
    if guards.has_open_transaction(observation.source):
        open_partitions = guards.some(
            partition for partition, end in sorted(ends.items()) if end.last_stable < end.end
        )
        return SwitchoverStep(
            record, waits_for=f"Waits for open transactions on {record.source} to end: {open_partitions}."
        )
    if not guards.is_quiet(observation.source, record.limits.quiet_ms):
        quiet = _seconds(record.limits.quiet_ms)
        return SwitchoverStep(
            record, waits_for=f"Waits until the ends on {record.source} have not changed for {quiet}."
        )
    seal = guards.sealed(record, observation)
    if seal is None:
        return SwitchoverStep(
            record,
            waits_for=f"Waits until the newest records on {record.source} are read, for the digests of the seal.",
        )
    return _advance(record, _S.SEALED, now_ms, seal=seal)


def _sealed(record: SwitchoverRecord, _observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Both journals have the seal now."""
    return _advance(record, _S.DRAINING, now_ms)


def _drain(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    seal = _seal(record)
    if guards.is_copied(seal, observation):
        return _advance(record, _S.VERIFYING, now_ms)
    return SwitchoverStep(record, waits_for=_waits_for_copy(seal, observation))


def _verify(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    return _compare(record, observation, now_ms) or _advance(record, _S.GROUPS_FINAL, now_ms)


def _compare(
    record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int
) -> SwitchoverStep | None:
    """Returns what is to be done before both sides are known to be equal up to the seal; None: they are."""
    seal = _seal(record)
    if not guards.is_verified(seal, observation):
        waits_for = f"Waits for the comparison of {record.source} and {record.to} up to the seal."
        return SwitchoverStep(record, (VerifySeal(seal),), waits_for)
    if guards.has_differences(observation):
        differences = observation.verification.differences if observation.verification else ()
        return _roll_back(record, f"The clusters differ: {guards.some(differences)}", now_ms)
    return None


def _finish_groups(
    record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int
) -> SwitchoverStep:
    if waits_for := _waits_for_groups(record, observation):
        return SwitchoverStep(record, (FinishGroups(),), waits_for)
    return _advance(record, _S.FORWARD_ENDED, now_ms)


def _end_forward(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Ends the flow, and promotes if all that was established in the states before still holds in this one observation."""
    seal, starts = _seal(record), guards.reverse_starts(observation)
    if not guards.is_ended(record, observation):
        waits_for = f"Waits until the flow to {record.to} has ended: its claim, and its markers in every log."
        return SwitchoverStep(record, (EndFlow(record.id),), waits_for)
    if waits_for := _waits_for_groups(record, observation):
        return SwitchoverStep(record, (FinishGroups(),), waits_for)
    if not guards.is_copied(seal, observation):
        return SwitchoverStep(record, waits_for=_waits_for_copy(seal, observation))
    if unequal := _compare(record, observation, now_ms):
        return unequal
    if not starts or not guards.is_fenced(observation.source) or observation.source.ends is None:
        return SwitchoverStep(
            record, waits_for="Waits until the ends of both clusters and the fence can be read again."
        )
    if record.type is SwitchoverType.REHEARSAL:
        return _roll_back(record, "", now_ms)
    return _advance(record, _S.PROMOTING, now_ms, reverse_starts=starts)


def _waits_for_copy(seal: Seal, observation: SwitchoverObservation) -> str:
    uncopied = guards.uncopied(seal, observation)
    if uncopied is None:
        return "Waits until the positions of the forward flow can be read."
    lag = sum(uncopied.values())
    return f"Waits for the copy of {lag} offsets up to the seal, in {guards.some(sorted(uncopied))}."


def _waits_for_groups(record: SwitchoverRecord, observation: SwitchoverObservation) -> str:
    """Returns what groups are waited for; "": the last pass is complete."""
    if guards.has_active_groups(record, observation):
        groups = guards.some(observation.groups.active) if observation.groups else ""
        return f"Waits until the consumers of these groups are stopped at {record.source}: {groups or 'unknown'}."
    if guards.has_groups_behind(observation):
        groups = guards.some(observation.groups.behind) if observation.groups else ""
        return f"Waits for the offsets of these groups on {record.to}: {groups or 'unknown'}."
    return ""


# -- when the source is lost


def _assess(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Shows what is known to be lost, and continues only if its user has accepted that; nothing has changed before."""
    if observation.rollback_requested:
        return _advance(
            record, _S.REFUSED, now_ms, reason="The switchover was cancelled before it changed anything."
        )
    if observation.loss is None:
        return SwitchoverStep(
            record, waits_for=f"Waits until {record.to} shows how far the flow has copied each partition."
        )
    if reason := guards.why_loss_is_refused(record, observation.loss):
        return _advance(record, _S.REFUSED, now_ms, loss=observation.loss, reason=reason)
    return _advance(record, _S.FORWARD_ENDED, now_ms, loss=observation.loss)


def _end_lost(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Ends the flow, which needs the target alone. A source that answers is fenced first, for a limited time."""
    ending = _ending(record, observation)
    if guards.is_fence_awaited(record, observation, now_ms):
        waits_for = (
            f"{record.source} answers. Waits at most {_seconds(guards.FENCE_TRIED_MS)} until it is fenced."
        )
        return SwitchoverStep(record, (TryToFence(), *ending), waits_for)
    if ending:
        waits_for = f"Waits until the flow to {record.to} has ended: its claim, and its markers in every log."
        return SwitchoverStep(record, ending, waits_for)
    return _advance(record, _S.GROUPS_CLAMPED, now_ms)


def _ending(record: SwitchoverRecord, observation: SwitchoverObservation) -> tuple[SwitchoverAction, ...]:
    """Returns what ends the flow; (): it has ended. An end of a switchover that this one has overtaken is replaced."""
    if guards.is_ended(record, observation):
        return ()
    overtaken = guards.overtaken_end(observation)
    return (*([ClearEnd(overtaken)] if overtaken else []), EndFlow(record.id))


def _clamp(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Places the groups, and promotes if the flow has still ended in this one observation, which has the cuts."""
    if ending := _ending(record, observation):
        return SwitchoverStep(record, ending, f"Waits until the flow to {record.to} has ended again.")
    if not guards.are_groups_clamped(observation):
        waits_for = (
            f"Waits until the offsets of groups on {record.to} are committed from their last checkpoints."
        )
        return SwitchoverStep(record, (ClampGroups(),), waits_for)
    starts = guards.reverse_starts(observation)
    if observation.cuts is None or not starts:
        return SwitchoverStep(
            record, waits_for=f"Waits until the ends of the copies on {record.to} can be read."
        )
    return _advance(record, _S.PROMOTING, now_ms, cuts=observation.cuts, reverse_starts=starts)


def _promote_alone(
    record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int
) -> SwitchoverStep:
    """Opens the target and leads clients to it; a source that answers is fenced before, as far as possible."""
    moves: list[SwitchoverAction] = []
    if not guards.is_unfenced(observation.target):
        moves.append(LiftFence(SwitchoverSide.TARGET))
    if not guards.is_led_to(record.to, observation):
        moves.append(SwitchEndpoint(record.to))
    if not moves:
        return _advance(record, _S.DEGRADED, now_ms, reason=guards.why_source_is_open(record, observation))
    fence = (TryToFence(),) if guards.may_fence(observation) else ()
    waits_for = f"Waits until clients are led to {record.to} and may write there."
    return SwitchoverStep(record, (*fence, *moves), waits_for)


# -- after the point of no return


def _promote(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Opens the target and leads clients to it."""
    if guards.is_fence_broken(observation.source):
        return _fence_again(record)
    actions: list[SwitchoverAction] = []
    if not guards.is_unfenced(observation.target):
        actions.append(LiftFence(SwitchoverSide.TARGET))
    if not guards.is_led_to(record.to, observation):
        actions.append(SwitchEndpoint(record.to))
    if not actions:
        return _advance(record, _S.REVERSING, now_ms, reason=guards.why_ends_differ(record, observation))
    return SwitchoverStep(
        record, tuple(actions), f"Waits until clients are led to {record.to} and may write there."
    )


def _reverse(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Starts the flow back; the source stays fenced for applications."""
    if guards.is_fence_broken(observation.source):
        return _fence_again(record)
    waits_for = f"Waits for the first record of the flow from {record.to} to {record.source}."
    if not guards.is_reverse_started(record, observation):
        return SwitchoverStep(record, (StartReverse(record.id, record.reverse_starts),), waits_for)
    if observation.reverse is None or not observation.reverse.is_copying:
        return SwitchoverStep(record, waits_for=waits_for)
    return _advance(record, _S.DONE, now_ms)


def _fence_again(record: SwitchoverRecord) -> SwitchoverStep:
    waits_for = f"The fence on {record.source} was removed by someone else. Waits until it is there again."
    return SwitchoverStep(record, (FenceCluster(SwitchoverSide.SOURCE),), waits_for)


def _restore(record: SwitchoverRecord, observation: SwitchoverObservation, now_ms: int) -> SwitchoverStep:
    """Lets applications write to the source, and the flow copy again, as before the switchover."""
    actions: list[SwitchoverAction] = []
    if not guards.is_unfenced(observation.source):
        actions.append(LiftFence(SwitchoverSide.SOURCE))
    if guards.needs_reverse_held(record) and not guards.is_reverse_released(record, observation):
        actions.append(ReleaseReverse(record.id))
    if observation.gives_up_target and not actions:
        waits_for = f"Writes are accepted on {record.source}. Waits until {record.to} responds, where the flow may have ended."
        return SwitchoverStep(record, waits_for=waits_for, is_paused=True)
    if not observation.gives_up_target and not guards.may_run(record, observation):
        actions.append(ClearEnd(record.id))
    if not actions:
        is_rehearsed = record.type is SwitchoverType.REHEARSAL and not record.reason
        return _advance(record, _S.REHEARSED if is_rehearsed else _S.LIFTED, now_ms)
    waits_for = f"Waits until writes are accepted on {record.source} and the flows of the pair are as before."
    return SwitchoverStep(record, tuple(actions), waits_for)


def _seal(record: SwitchoverRecord) -> Seal:
    assert record.seal is not None, record.state
    return record.seal


def _seconds(duration_ms: int) -> str:
    return f"{duration_ms / 1000:g} s"


def _whole_seconds(left_ms: int) -> str:
    return f"{max(0, math.ceil(left_ms / 1000))} s"


def _work(record: SwitchoverRecord) -> _Work:
    return (_UNPLANNED_WORK if record.is_unplanned else _WORK)[record.state]


_WORK: Final[Mapping[SwitchoverState, _Work]] = MappingProxyType(
    {
        _S.CHECKING: _check,
        _S.FENCING: _fence,
        _S.QUIESCING: _quiesce,
        _S.SEALED: _sealed,
        _S.DRAINING: _drain,
        _S.VERIFYING: _verify,
        _S.GROUPS_FINAL: _finish_groups,
        _S.FORWARD_ENDED: _end_forward,
        _S.PROMOTING: _promote,
        _S.REVERSING: _reverse,
        _S.ROLLING_BACK: _restore,
    }
)
_UNPLANNED_WORK: Final[Mapping[SwitchoverState, _Work]] = MappingProxyType(
    {
        _S.ASSESSING: _assess,
        _S.FORWARD_ENDED: _end_lost,
        _S.GROUPS_CLAMPED: _clamp,
        _S.PROMOTING: _promote_alone,
        _S.ROLLING_BACK: _restore,
    }
)

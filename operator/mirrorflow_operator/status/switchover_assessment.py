"""Decides what is to be done for each Switchover of a pair, and computes its status. Pure.

One is begun once: its end is recorded in its status, and in the journal on both clusters. While it has not ended its Job
exists, and is created again if someone has deleted it: the process in it asks the journal what has been done already.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from mirrorflow_operator.api.pair_status import RefusedWrites, SwitchoverStatus
from mirrorflow_operator.api.status import ConditionStatus
from mirrorflow_operator.api.timestamps import timestamp
from mirrorflow_operator.plan.switchover_objects import object_name_of, request_of, switchover_id
from mirrorflow_operator.status.conditions import bounded
from mirrorflow_operator.status.pair_conditions import (
    PairFinding,
    SwitchoverConditionType,
    SwitchoverReason,
    conditions_of,
)
from mirrorflow_operator.status.pair_observation import (
    BEGIN_WITHIN_S,
    ENDED,
    OVERTAKEN,
    PROMOTED,
    REFUSED,
    ObservedSwitchoverJob,
    PairObservation,
    SwitchoverResource,
)
from mirrorflow_operator.status.switchover_reports import SwitchoverReport

_NOT_BEGUN = frozenset({None, "Accepted", "Checking", "Assessing"})
_GIVEN_UP = frozenset({REFUSED, "Lifted"})


class JobStep(Enum):
    """What the operator does for a Switchover in this pass."""

    NOTHING = "Nothing"  # it has ended, is refused, or waits
    CREATE_JOB = "CreateJob"
    FOLLOW_JOB = "FollowJob"
    REPLACE_JOB = "ReplaceJob"  # its report was lost; another process reads the journal
    END_JOB = "EndJob"  # an unplanned switchover is carried out in its place


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverDecision:
    """A step, and why it is no other one: *refusal* and *overtaken* are final, *waits_for* is not. None: it is carried out."""

    step: JobStep = JobStep.NOTHING
    refusal: str | None = None
    overtaken: str | None = None
    waits_for: str | None = None


def decisions(observation: PairObservation, why_not: str | None) -> dict[str, SwitchoverDecision]:
    """Returns the decision for each Switchover by name. *why_not*: why the pair cannot be switched over now; None if it can."""
    return {
        switchover.name: _decision(switchover, observation, why_not) for switchover in observation.switchovers
    }


def _decision(
    switchover: SwitchoverResource, observation: PairObservation, why_not: str | None
) -> SwitchoverDecision:
    if switchover.has_ended:
        return _reread(switchover, observation, why_not)
    job, wanted = observation.jobs.get(switchover.name), switchover.switchover
    if job is not None and wanted is not None and job.request != request_of(wanted):
        return SwitchoverDecision(
            refusal=f"metadata.name: a Switchover of this name was {job.request} before; create one with another name."
        )
    if overtaker := _overtaker(switchover, observation, why_not):
        return _overtaken(overtaker, job)
    if job is not None:
        is_lost = job.is_complete and (job.report is None or job.report.state not in ENDED)
        return SwitchoverDecision(step=JobStep.REPLACE_JOB if is_lost else JobStep.FOLLOW_JOB)
    if wanted is None:
        return SwitchoverDecision(refusal=" ".join(map(str, switchover.errors)))
    is_begun = switchover.status.state is not None
    if not is_begun and switchover.is_deleting:
        return SwitchoverDecision(refusal="It was deleted before it began.")
    if not is_begun and (other := _under_way(switchover, observation)) is not None:
        return SwitchoverDecision(
            refusal=f"spec.pair: Switchover {other} of {switchover.pair} has not ended; wait until it has, and create another one."
        )
    pair = None if observation.pair is None else observation.pair.pair
    if pair is None or why_not is not None:
        problem = why_not or f"spec.pair: there is no MirrorPair {switchover.pair} in this namespace."
        if not is_begun and observation.now_s - switchover.created_s > BEGIN_WITHIN_S:
            return SwitchoverDecision(
                refusal=f"It could not begin within {BEGIN_WITHIN_S / 60:g} minutes: {problem} Create another Switchover."
            )
        return SwitchoverDecision(waits_for=problem)
    if wanted.spec.to not in pair.spec.members:
        members = " or ".join(pair.spec.members)
        return SwitchoverDecision(
            refusal=f"spec.to: {wanted.spec.to} is no member of {switchover.pair}; create a Switchover to {members}."
        )
    if not is_begun and observation.now_s - switchover.created_s > BEGIN_WITHIN_S:
        waited_for = switchover.status.waits_for
        why = f": {waited_for}" if waited_for else ", because the operator did not run."
        return SwitchoverDecision(
            refusal=f"It could not begin within {BEGIN_WITHIN_S / 60:g} minutes{why} Create another Switchover."
        )
    if not is_begun and (stopping := _process_of_overtaken(switchover, observation)) is not None:
        return SwitchoverDecision(waits_for=f"Waits until the Job of Switchover {stopping} is deleted.")
    return SwitchoverDecision(step=JobStep.CREATE_JOB)


def not_carried_out(decision: SwitchoverDecision, problem: str) -> SwitchoverDecision:
    """Returns *decision* after a request for it has failed with *problem*; a later pass decides again."""
    waits_for = decision.waits_for or f"Its objects could not be written: {problem.rstrip('.')}."
    return replace(decision, step=JobStep.NOTHING, waits_for=waits_for)


def _reread(
    switchover: SwitchoverResource, observation: PairObservation, why_not: str | None
) -> SwitchoverDecision:
    """Returns the step for a switchover that has ended: a degraded one whose Job its user has deleted gets another one.

    The process in it reads the journal, and reports once the clusters are reconciled.
    """
    pair, wanted = observation.pair, switchover.switchover
    if (
        switchover.is_final
        or switchover.name in observation.jobs
        or wanted is None
        or pair is None
        or pair.pair is None
        or why_not is not None
        or wanted.spec.to not in pair.pair.spec.members
    ):
        return SwitchoverDecision()
    return SwitchoverDecision(step=JobStep.CREATE_JOB)


def _overtaken(overtaker: SwitchoverResource, job: ObservedSwitchoverJob | None) -> SwitchoverDecision:
    """Returns what becomes of a switchover in whose place *overtaker* is carried out: its process ends, as both hold one lock."""
    if overtaker.status.state in PROMOTED:
        return SwitchoverDecision(
            overtaken=f"The unplanned Switchover {overtaker.name} was carried out in its place."
        )
    return SwitchoverDecision(
        step=JobStep.NOTHING if job is None else JobStep.END_JOB,
        waits_for=f"The unplanned Switchover {overtaker.name} is carried out in its place; it continues if that is refused or rolled back.",
    )


def _overtaker(
    switchover: SwitchoverResource, observation: PairObservation, why_not: str | None
) -> SwitchoverResource | None:
    """Returns the unplanned switchover in whose favour *switchover* is not carried out; None if there is none."""
    return next(
        (
            other
            for other in observation.switchovers
            if _may_overtake(other, switchover) and _is_carried_out(other, observation, why_not)
        ),
        None,
    )


def _may_overtake(unplanned: SwitchoverResource, switchover: SwitchoverResource) -> bool:
    """Whether *unplanned* may begin although *switchover* has not ended, which it cannot without the source (`guards.may_overtake`)."""
    wanted, other = unplanned.switchover, switchover.switchover
    if wanted is None or other is None or not unplanned.is_unplanned or wanted.spec.to != other.spec.to:
        return False
    is_stuck = not switchover.is_unplanned or switchover.status.state == "RollingBack"
    return is_stuck and switchover.status.state not in PROMOTED and switchover.seniority < unplanned.seniority


def _is_carried_out(unplanned: SwitchoverResource, observation: PairObservation, why_not: str | None) -> bool:
    """Whether *unplanned* has begun, or can begin now, and was not given up."""
    if unplanned.status.state is not None:
        return unplanned.status.state not in _GIVEN_UP
    pair = None if observation.pair is None else observation.pair.pair
    is_in_time = observation.now_s - unplanned.created_s <= BEGIN_WITHIN_S
    is_member = (
        pair is not None
        and unplanned.switchover is not None
        and unplanned.switchover.spec.to in pair.spec.members
    )
    return unplanned.name in observation.jobs or (is_in_time and is_member and why_not is None)


def _process_of_overtaken(switchover: SwitchoverResource, observation: PairObservation) -> str | None:
    """Returns the name of a switchover that *switchover* overtakes and whose Job is not deleted yet; None if there is none."""
    return next(
        (
            other.name
            for other in observation.switchovers
            if not other.has_ended and other.name in observation.jobs and _may_overtake(switchover, other)
        ),
        None,
    )


def _under_way(switchover: SwitchoverResource, observation: PairObservation) -> str | None:
    """Returns the name of another switchover of the pair that goes first; None if there is none."""
    others = [other for other in observation.switchovers if other.name != switchover.name]
    known = {other.name for other in others}
    # A Switchover that was deleted is carried out all the same.
    deleted = [job.switchover for job in observation.jobs.values() if not job.is_complete]
    names = [name for name in deleted if name not in known | {switchover.name}]
    names += [
        other.name
        for other in others
        if not other.has_ended
        and not _may_overtake(switchover, other)
        and (
            other.name in observation.jobs
            or other.status.state is not None
            or other.seniority < switchover.seniority
        )
    ]
    return min(names, default=None)


def switchover_status(
    switchover: SwitchoverResource, decision: SwitchoverDecision, observation: PairObservation
) -> SwitchoverStatus:
    """Returns the status; what an earlier pass has recorded stays where nothing newer is known."""
    before, now_s = switchover.status, observation.now_s
    update: dict[str, object] = {
        "observed_generation": switchover.generation,
        "id": switchover_id(switchover.pair, switchover.name),
    }
    given_up = decision.overtaken if decision.refusal is None else decision.refusal
    job = None if given_up is not None else observation.jobs.get(switchover.name)
    report = None if job is None else _usable_report(job, before)
    if job is not None or decision.step is JobStep.CREATE_JOB:
        update["job"] = object_name_of(switchover.name)
    if not switchover.is_final:
        if given_up is not None:
            update |= {
                "state": OVERTAKEN if decision.refusal is None else REFUSED,
                "since": timestamp(now_s),
                "waits_for": "",
                "reason": bounded(given_up),
            }
        elif report is not None and report.state and decision.waits_for is None:
            update |= _reported(report, before)
        elif not switchover.has_ended:
            update["waits_for"] = bounded(_waits_for(decision, job, report))
    after = before.model_copy(update=update)
    if after.state in ENDED and after.completion_time is None:
        after = after.model_copy(update={"completion_time": after.since or timestamp(now_s)})
    findings = _findings(switchover, after, decision, job)
    conditions = conditions_of(findings, before.conditions, generation=switchover.generation, now_s=now_s)
    return after.model_copy(update={"conditions": conditions})


def _usable_report(job: ObservedSwitchoverJob, before: SwitchoverStatus) -> SwitchoverReport | None:
    report = job.report
    if report is None:
        return None
    # A process that could not read the journal does not know what has been done.
    is_blind = report.state == REFUSED and report.since is None and before.state not in _NOT_BEGUN
    return None if is_blind else report


def _reported(report: SwitchoverReport, before: SwitchoverStatus) -> dict[str, object]:
    refused = None
    if report.fenced is not None:
        refused = RefusedWrites(since=report.fenced, milliseconds=report.writes_refused_ms)
    return {
        "state": report.state,
        "since": report.since or before.since,
        "waits_for": "" if report.state in ENDED else report.waits_for,
        "reason": report.reason,
        "source": report.source or before.source,
        "writes_refused": refused or before.writes_refused,
        "seal": report.seal or before.seal,
        "loss": report.loss or before.loss,
        "states": report.states or before.states,
        "canary": report.canary or before.canary,
        "notes": report.notes or before.notes,
    }


def _waits_for(
    decision: SwitchoverDecision, job: ObservedSwitchoverJob | None, report: SwitchoverReport | None
) -> str:
    if decision.waits_for is not None:
        return decision.waits_for
    if report is not None and report.waits_for:
        return report.waits_for
    return "Waits for its Job to start." if job is None or job.problem is None else job.problem


def _findings(
    switchover: SwitchoverResource,
    status: SwitchoverStatus,
    decision: SwitchoverDecision,
    job: ObservedSwitchoverJob | None,
) -> Iterator[PairFinding]:
    succeeded = _succeeded(switchover, status, decision, job)
    yield succeeded
    yield _writes_refused(status)
    is_ended = status.state in ENDED
    yield PairFinding(
        kind=SwitchoverConditionType.RECONCILING,
        status=ConditionStatus.FALSE if is_ended else ConditionStatus.TRUE,
        reason=SwitchoverReason.ENDED if is_ended else succeeded.reason,
        message="" if is_ended else succeeded.message,
    )
    is_stalled = succeeded.status is ConditionStatus.FALSE
    yield PairFinding(
        kind=SwitchoverConditionType.STALLED,
        status=ConditionStatus.TRUE if is_stalled else ConditionStatus.FALSE,
        reason=succeeded.reason if is_stalled else SwitchoverReason.NOT_STALLED,
        message=succeeded.message if is_stalled else "",
    )


def _succeeded(
    switchover: SwitchoverResource,
    status: SwitchoverStatus,
    decision: SwitchoverDecision,
    job: ObservedSwitchoverJob | None,
) -> PairFinding:
    kind, to = SwitchoverConditionType.SUCCEEDED, ""
    if switchover.switchover is not None:
        to = switchover.switchover.spec.to
    match status.state:
        case "Done":
            return PairFinding(
                kind=kind,
                status=ConditionStatus.TRUE,
                reason=SwitchoverReason.MOVED,
                message=f"{to} has become the active member of {switchover.pair}. {status.reason}".rstrip(),
            )
        case "Degraded":
            return PairFinding(
                kind=kind,
                status=ConditionStatus.TRUE,
                reason=SwitchoverReason.DEGRADED,
                message=f"{to} has become the active member of {switchover.pair}, without {status.source}. {_loss(status)}"
                f"Reconcile both before {status.source} is used again. {status.reason}".rstrip(),
            )
        case "Overtaken":
            return PairFinding(
                kind=kind,
                status=ConditionStatus.FALSE,
                reason=SwitchoverReason.OVERTAKEN,
                message=status.reason,
            )
        case "Rehearsed":
            return _rehearsed(status)
        case "Refused":
            return PairFinding(
                kind=kind,
                status=ConditionStatus.FALSE,
                reason=SwitchoverReason.REFUSED,
                message=f"It was refused, and nothing was changed. {status.reason}".rstrip(),
            )
        case "Lifted":
            return PairFinding(
                kind=kind,
                status=ConditionStatus.FALSE,
                reason=SwitchoverReason.ROLLED_BACK,
                message=f"It was rolled back, and applications may write as before. {status.reason}".rstrip(),
            )
    reason = SwitchoverReason.UNDER_WAY if status.state else SwitchoverReason.STARTING
    if decision.waits_for is not None:
        reason = SwitchoverReason.WAITING
    elif job is not None and job.problem is not None:
        reason = SwitchoverReason.JOB_NOT_RUNNING
    return PairFinding(kind=kind, status=ConditionStatus.UNKNOWN, reason=reason, message=status.waits_for)


def _rehearsed(status: SwitchoverStatus) -> PairFinding:
    """Returns how a rehearsal that was carried out to its end has ended: it has failed if its canary has."""
    kind, message = SwitchoverConditionType.SUCCEEDED, "Everything was done up to the promotion, and undone."
    if status.canary is None or status.canary.passed:
        return PairFinding(
            kind=kind, status=ConditionStatus.TRUE, reason=SwitchoverReason.REHEARSED, message=message
        )
    return PairFinding(
        kind=kind,
        status=ConditionStatus.FALSE,
        reason=SwitchoverReason.CANARY_FAILED,
        message=f"{message} Its canary has failed. {status.canary.message}".rstrip(),
    )


def _loss(status: SwitchoverStatus) -> str:
    """Returns what is known to be lost, as a sentence with a space after it; "" where nothing is known."""
    loss = status.loss
    if loss is None:
        return ""
    topics = ", ".join(f"{topic.topic}: {topic.lost_offsets_at_least}" for topic in loss.topics)
    until = f" Nothing is known of {status.source} since {loss.known_until}." if loss.known_until else ""
    if not loss.lost_offsets_at_least:
        return f"No offset is known to be lost.{until} "
    return f"At least {loss.lost_offsets_at_least} offsets are lost ({topics}).{until} "


def _writes_refused(status: SwitchoverStatus) -> PairFinding:
    kind, refused = SwitchoverConditionType.WRITES_REFUSED, status.writes_refused
    if refused is not None and refused.milliseconds is None and status.state not in ENDED:
        return PairFinding(
            kind=kind,
            status=ConditionStatus.TRUE,
            reason=SwitchoverReason.FENCED,
            message=f"Applications cannot write since {refused.since}.",
        )
    return PairFinding(kind=kind, status=ConditionStatus.FALSE, reason=SwitchoverReason.WRITES_ACCEPTED)

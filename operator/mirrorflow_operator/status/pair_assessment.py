"""Computes the status of a MirrorPair: which member is active, and whether it could be switched over now. Pure.

The active member is what the journal of the pair says, as the Jobs of Switchovers have reported it. Before the first switchover it is
the member whose flow is not Stopped. Nothing here talks to Kafka: figures are those of the active member's flow.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.switchover.last_verification import why_not_verified
from mirrorflow_operator.api.mirror_pair import MirrorPair, pair_problems
from mirrorflow_operator.api.pair_status import (
    NewestSwitchover,
    PairStatus,
    PredictedSwitchover,
    RefusedWrites,
    SwitchoverStatus,
)
from mirrorflow_operator.api.spec import State
from mirrorflow_operator.api.status import ConditionStatus
from mirrorflow_operator.api.timestamps import parse_timestamp
from mirrorflow_operator.errors import FieldError
from mirrorflow_operator.plan.switchover_objects import switchover_id
from mirrorflow_operator.status.conditions import ConditionType
from mirrorflow_operator.status.observation import Resource
from mirrorflow_operator.status.pair_conditions import (
    PairConditionType,
    PairFinding,
    PairReason,
    conditions_of,
)
from mirrorflow_operator.status.pair_observation import (
    DEGRADED,
    ENDED,
    FINAL,
    PROMOTED,
    REFUSED,
    ObservedSwitchoverJob,
    PairFlowProgress,
    PairObservation,
    PairResource,
)
from mirrorflow_operator.status.switchover_reports import SwitchoverReport
from mirrorflow_operator.status.verification import last_verification

# Without any lag: the fence, the ends that must not change, the comparison and the last pass of groups.
REFUSED_AT_LEAST_S: Final = 2.0
_READY: Final = PairConditionType.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveMember:
    """Who is active, and which flow runs although its spec says Stopped; with the values of `PairStatus`, where "" is none."""

    active: str = ""
    promoted_by: str = ""
    epoch: int = 0
    runs: str = ""


def problems_of(pair: PairResource, flows: Mapping[str, Resource]) -> tuple[FieldError, ...]:
    """Returns why *pair* cannot be used; none if it can. *flows*: those that it names and that exist."""
    if pair.pair is None:
        return pair.errors
    invalid = tuple(
        FieldError(
            path=f"spec.members.{alias}.flow",
            message=f"MirrorFlow {member.flow} is invalid",
            action=f"correct it: kubectl describe mirrorflow {member.flow}",
        )
        for alias, member in pair.pair.spec.members.items()
        if member.flow in flows and flows[member.flow].flow is None
    )
    known = {name: resource.flow for name, resource in flows.items() if resource.flow is not None}
    return invalid or tuple(
        pair_problems(pair.pair, known, where="the namespace", cure="create it in the namespace of the pair")
    )


def why_not_switched(observation: PairObservation) -> str | None:
    """Returns why no Job can be planned now; None if one can."""
    if observation.pair is None:
        return None
    if problems := problems_of(observation.pair, observation.flows):
        return " ".join(map(str, problems))
    unseen = [
        name for name, flow in observation.flows.items() if not (flow.status.flow_id and flow.status.version)
    ]
    return f"MirrorFlow {unseen[0]} has no status yet." if unseen else None


def active_member(observation: PairObservation) -> ActiveMember:
    """Returns the active member by the newest report, by the status, or by the specs of the flows.

    Reports of one epoch may have been read before and after a promotion. The later promotion counts, and a process that reports its own
    has the better evidence than one that reports another's.
    """
    resource = observation.pair
    if resource is None:
        return ActiveMember()
    before = resource.status
    known = ActiveMember(
        active=before.active if before.epoch else "",
        promoted_by=before.promoted_by,
        epoch=before.epoch,
        runs=before.runs,
    )
    promoted_s = _promotion_times(observation)

    def rank(report: SwitchoverReport) -> tuple[int, float, bool]:
        return report.epoch, promoted_s.get(report.promoted_by, 0.0), report.promoted_by == report.id

    reports = [job.report for job in observation.jobs.values() if job.report is not None]
    for report in sorted(reports, key=lambda report: (*rank(report), report.id)):
        if report.active not in resource.flows or report.epoch < known.epoch:
            continue
        is_other = report.promoted_by != known.promoted_by
        if is_other and rank(report) <= (known.epoch, promoted_s.get(known.promoted_by, 0.0), False):
            continue
        flow = resource.flows[report.active]
        copies_back = report.may_copy_back and report.promoted_by == report.id
        is_same = known.active == report.active
        known = ActiveMember(
            active=report.active,
            promoted_by=report.promoted_by,
            epoch=report.epoch,
            runs=flow if copies_back else known.runs if is_same else "",
        )
    return known if known.active else ActiveMember(active=_active_by_spec(resource.flows, observation.flows))


def _promotion_times(observation: PairObservation) -> dict[str, float]:
    """Returns when switchovers have promoted, by id, as far as a report or a status still has it; in seconds since 1970."""
    times = dict[str, float]()
    newest = None if observation.pair is None else observation.pair.status.switchover
    if newest is not None and newest.state in PROMOTED:
        # Without its states, the time at which it ended: the pair's next switchover had not begun by then.
        times[switchover_id(observation.key.name, newest.name)] = (
            parse_timestamp(newest.completion_time or "") or 0.0
        )
    histories = [(switchover.status.id, switchover.status.states) for switchover in observation.switchovers]
    histories += [
        (job.report.id, job.report.states) for job in observation.jobs.values() if job.report is not None
    ]
    for name, states in histories:
        for entry in states:
            if entry.state == "Promoting":
                times[name] = parse_timestamp(entry.entered) or 0.0
    return times


def jobs_left_over(observation: PairObservation) -> tuple[ObservedSwitchoverJob, ...]:
    """Returns the ended Jobs of deleted Switchovers."""
    known = {switchover.name for switchover in observation.switchovers}
    return tuple(job for job in observation.jobs.values() if job.is_complete and job.switchover not in known)


def is_unread(job: ObservedSwitchoverJob, pair: PairResource) -> bool:
    """Whether nothing is known of how *job* has ended: its report is lost, and the status of *pair* has no end of its switchover."""
    newest = pair.status.switchover
    is_recorded = newest is not None and newest.name == job.switchover and newest.state in FINAL
    return job.report is None and not is_recorded


def _active_by_spec(named: Mapping[str, str], flows: Mapping[str, Resource]) -> str:
    """Returns the member whose flow is not Stopped; "" if that is none or both. *named*: the flow of each member."""
    running = [
        alias
        for alias, flow in named.items()
        if (resource := flows.get(flow)) is not None
        and resource.flow is not None
        and resource.flow.spec.state is not State.STOPPED
    ]
    return running[0] if len(running) == 1 else ""


def pair_status(observation: PairObservation, statuses: Mapping[str, SwitchoverStatus]) -> PairStatus | None:
    """Returns the status of the pair; None if there is no pair. *statuses*: of its Switchovers, by name, as of this pass."""
    resource = observation.pair
    if resource is None:
        return None
    before, member = resource.status, active_member(observation)
    problems = problems_of(resource, observation.flows)
    newest = _newest(observation, member, statuses)
    progress = _progress(resource, member.active, observation)
    findings = (
        _ready(resource, member, problems, newest, progress, observation, statuses),
        _accepted(resource, problems),
    )
    ready = findings[0]
    phase = {
        ConditionStatus.TRUE: "Ready",
        ConditionStatus.FALSE: "NotReady",
        ConditionStatus.UNKNOWN: "Unknown",
    }[ready.status]
    return PairStatus(
        observed_generation=resource.generation,
        conditions=conditions_of(
            findings, before.conditions, generation=resource.generation, now_s=observation.now_s
        ),
        active=member.active,
        promoted_by=member.promoted_by,
        epoch=member.epoch,
        runs=member.runs,
        phase="SwitchingOver" if ready.reason is PairReason.SWITCHING_OVER else phase,
        predicted=_predicted(progress),
        switchover=newest,
    )


def _newest(
    observation: PairObservation, member: ActiveMember, statuses: Mapping[str, SwitchoverStatus]
) -> NewestSwitchover | None:
    """Returns the switchover that is under way, or else the newest one that has begun: a request meanwhile is refused.

    One that was deleted is it until another one begins after its end: its Job carries it out all the same. While the clusters wait to be
    reconciled after it, no other one is: each is refused.
    """
    begun = [
        switchover
        for switchover in observation.switchovers
        if switchover.switchover is not None and statuses[switchover.name].state is not None
    ]
    newest = max(
        begun,
        key=lambda switchover: (statuses[switchover.name].state not in ENDED, switchover.seniority),
        default=None,
    )
    deleted = _deleted_switchover(observation, statuses)
    if newest is None or newest.switchover is None:
        return deleted
    status = statuses[newest.name]
    if deleted is not None:
        job = observation.jobs.get(deleted.name)
        ended_s = parse_timestamp(deleted.completion_time or "")
        is_under_way = job is not None and not job.is_complete
        is_later = ended_s is not None and newest.created_s < ended_s
        is_degraded = status.state == REFUSED and _is_degraded(deleted, member, observation)
        if is_under_way or is_later or is_degraded:
            return deleted
    return NewestSwitchover(
        name=newest.name,
        type=newest.switchover.spec.type,
        to=newest.switchover.spec.to,
        state=status.state or "",
        writes_refused=status.writes_refused,
        completion_time=status.completion_time,
    )


def _deleted_switchover(
    observation: PairObservation, statuses: Mapping[str, SwitchoverStatus]
) -> NewestSwitchover | None:
    """Returns the switchover of the pair's status if its Switchover was deleted, with what its Job has reported since."""
    known = None if observation.pair is None else observation.pair.status.switchover
    if known is None or (known.name in statuses and statuses[known.name].state is not None):
        return None
    job = observation.jobs.get(known.name)
    report = None if job is None else job.report
    if report is None or not report.state or report.since is None:
        return known  # without a time, the process has not read the journal
    refused = known.writes_refused
    if report.fenced is not None:
        refused = RefusedWrites(since=report.fenced, milliseconds=report.writes_refused_ms)
    return known.model_copy(
        update={
            "state": report.state,
            "writes_refused": refused,
            "completion_time": report.since if report.state in ENDED else None,
        }
    )


def _is_degraded(newest: NewestSwitchover, member: ActiveMember, observation: PairObservation) -> bool:
    """Whether *newest* has promoted the active member, and the clusters are not reconciled since."""
    is_promoter = switchover_id(observation.key.name, newest.name) == member.promoted_by
    return newest.state == DEGRADED and is_promoter


def _progress(pair: PairResource, active: str, observation: PairObservation) -> PairFlowProgress | None:
    if pair.pair is None or not active:
        return None
    return observation.progress.get(pair.pair.spec.members[active].flow)


def _predicted(progress: PairFlowProgress | None) -> PredictedSwitchover | None:
    if progress is None:
        return None
    lag_s = progress.lag_s
    return PredictedSwitchover(
        lag_seconds=None if lag_s is None else math.ceil(lag_s),
        writes_refused_seconds=None if lag_s is None else math.ceil(lag_s + REFUSED_AT_LEAST_S),
        groups=progress.groups,
        groups_failing=progress.groups_failing,
        records_read_again=progress.read_again_records,
        checkpoint_age_seconds=None
        if progress.checkpoint_age_s is None
        else math.ceil(progress.checkpoint_age_s),
    )


def _accepted(pair: PairResource, problems: Iterable[FieldError]) -> PairFinding:
    kind, sentences = PairConditionType.ACCEPTED, " ".join(map(str, problems))
    if not sentences:
        return PairFinding(
            kind=kind,
            status=ConditionStatus.TRUE,
            reason=PairReason.ACCEPTED,
            message=" ".join(("The flows mirror each other.", *map(str, pair.newer_fields))),
        )
    reason = PairReason.INVALID_SPEC if pair.pair is None else PairReason.FLOWS_DO_NOT_MIRROR
    return PairFinding(kind=kind, status=ConditionStatus.FALSE, reason=reason, message=sentences)


def _ready(
    resource: PairResource,
    member: ActiveMember,
    problems: Iterable[FieldError],
    newest: NewestSwitchover | None,
    progress: PairFlowProgress | None,
    observation: PairObservation,
    statuses: Mapping[str, SwitchoverStatus],
) -> PairFinding:
    refused = _accepted(resource, problems)
    if refused.status is ConditionStatus.FALSE or resource.pair is None:
        return PairFinding(kind=_READY, status=refused.status, reason=refused.reason, message=refused.message)
    if lost := _lost_report(resource, observation):
        return lost
    if newest is not None and newest.state not in ENDED:
        return _not_ready(
            PairReason.SWITCHING_OVER, f"Switchover {newest.name} to {newest.to} is in state {newest.state}."
        )
    spec = resource.pair.spec
    if not member.active:
        return _active_unknown(
            "Both flows run, or none; set spec.state of the flow back to Stopped, and of the other one to Running."
        )
    if degraded := _degraded(member, newest, observation, statuses):
        return degraded
    flow = observation.flows[spec.members[member.active].flow]
    if problem := _flow_problem(flow):
        return problem
    if progress is None or progress.lag_s is None:
        return PairFinding(
            kind=_READY,
            status=ConditionStatus.UNKNOWN,
            reason=PairReason.LAG_UNKNOWN,
            message=f"The pods of {flow.name} have not reported the lag of all partitions yet.",
        )
    if progress.lag_s > spec.readiness.max_lag_seconds:
        return _not_ready(
            PairReason.LAG_TOO_HIGH,
            f"The lag of {flow.name} is above {spec.readiness.max_lag_seconds} s; wait, or raise spec.readiness.maxLagSeconds.",
        )
    if why := _why_not_verified(resource.pair, flow, observation.now_s):
        return _not_ready(PairReason.NOT_VERIFIED, why)
    (to,) = (alias for alias in spec.members if alias != member.active)
    failing = (
        f" The offsets of {progress.groups_failing} groups do not follow now."
        if progress.groups_failing
        else ""
    )
    return PairFinding(
        kind=_READY,
        status=ConditionStatus.TRUE,
        reason=PairReason.CAN_SWITCH,
        message=f"Applications could be moved from {member.active} to {to}.{failing}",
    )


def _lost_report(resource: PairResource, observation: PairObservation) -> PairFinding | None:
    job = next((job for job in jobs_left_over(observation) if is_unread(job, resource)), None)
    if job is None:
        return None
    return _active_unknown(
        f"Switchover {job.switchover} was deleted, and its Job {job.name} has ended, but its report is lost: applications may "
        "have moved. Create that Switchover again with the same spec: its process reads the journal, and reports.",
    )


def _degraded(
    member: ActiveMember,
    newest: NewestSwitchover | None,
    observation: PairObservation,
    statuses: Mapping[str, SwitchoverStatus],
) -> PairFinding | None:
    """Returns that the clusters are not reconciled after an unplanned switchover; None if they are, or there was none."""
    name = next(
        (
            name
            for name, status in statuses.items()
            if status.state == DEGRADED and status.id == member.promoted_by
        ),
        None,
    )
    cure = "delete the Switchover's Job"
    if name is None and newest is not None and _is_degraded(newest, member, observation):
        name, cure = newest.name, f"create Switchover {newest.name} again with the same spec"
    if name is None:
        return None
    return _not_ready(
        PairReason.NOT_RECONCILED,
        f"Switchover {name} has made {member.active} the active member without the other one, which may have records that never "
        f"crossed; reconcile it with mirrorflow diverged, then {cure}.",
    )


def _flow_problem(flow: Resource) -> PairFinding | None:
    conditions = {condition.type: condition for condition in flow.status.conditions}
    verified = conditions.get(ConditionType.VERIFIED.value)
    if verified is not None and verified.status is ConditionStatus.FALSE:
        return _not_ready(PairReason.DIFFERENCES_FOUND, f"{flow.name}: {verified.message}")
    ready = conditions.get(ConditionType.READY.value)
    if ready is None or ready.status is not ConditionStatus.TRUE:
        why = "it has no status yet" if ready is None else ready.message or ready.reason
        return _not_ready(PairReason.FLOW_NOT_READY, f"{flow.name}: {why}")
    return None


def _why_not_verified(pair: MirrorPair, flow: Resource, now_s: float) -> str:
    """Returns why the last verification of the active member's *flow* does not allow a switchover; "" if it does, or need not."""
    within_s = pair.spec.readiness.verified_within_seconds
    return why_not_verified(
        flow.name,
        last_verification(flow.status),
        within_ms=None if within_s is None else within_s * 1_000,
        now_ms=int(now_s * 1_000),
        source="the status of the flow has no such verdict",
    )


def _active_unknown(message: str) -> PairFinding:
    return PairFinding(
        kind=_READY, status=ConditionStatus.UNKNOWN, reason=PairReason.ACTIVE_UNKNOWN, message=message
    )


def _not_ready(reason: PairReason, message: str) -> PairFinding:
    return PairFinding(kind=_READY, status=ConditionStatus.FALSE, reason=reason, message=message)

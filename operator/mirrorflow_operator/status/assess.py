"""Computes a flow's status from an observation, and what to remember for the next pass. Pure and total.

    current findings (workloads, pods, spec, replication, runs) ──> Ready, Reconciling, Stalled
        ──> hysteresis ──> status

Equal observations give equal statuses, and an unchanged flow gets the status it already has, so the passing
of time alone causes no write.

Conditions settle: a new finding replaces the reported condition only after it held for some time.

    reported True     -> anything else   after it has not been True for the set time without a break
    reported False    -> True            after it has been True for the set time
    reported False    -> Unknown         after it has been Unknown for the set time
    reported Unknown  -> anything        at once; so is any change that a person decided

So a condition ignores changes that are shorter than that. The start of each finding is kept in an
AssessmentMemory; an operator that has lost it counts from now, which delays a change but reports nothing
wrong. `lastTransitionTime` changes only with `status`.

A new spec is judged by its own pods: their first finding replaces the reported condition at once. Until then the
condition describes earlier pods, so it keeps the generation of their spec, and Reconciling is True.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import (
    ArchiveStatus,
    Condition,
    ConditionStatus,
    ConnectorStatus,
    ConnectorStatuses,
    Lag,
    Phase,
    RunStatus,
    Status,
    VerifyStatus,
)
from mirrorflow_operator.api.timestamps import parse_timestamp
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.status.archiving import (
    archive_overdue_in_s,
    archive_status,
    archived,
    restore_status,
    restored,
)
from mirrorflow_operator.status.conditions import (
    IMMEDIATE,
    ConditionType,
    Finding,
    Reason,
    condition_of,
    yes,
)
from mirrorflow_operator.status.observation import (
    AssessmentMemory,
    Observation,
    Since,
    is_rolling,
    new_pods,
)
from mirrorflow_operator.status.pod_failures import Workload, connector_status, workload_of
from mirrorflow_operator.status.pod_reports import (
    Checkpoints,
    Reading,
    SchemasProgress,
    SideReachability,
    SideSummary,
)
from mirrorflow_operator.status.reachability import UNREACHABLE_AFTER_S, cluster_ids, reachable
from mirrorflow_operator.status.replication import (
    checkpoints_fresh,
    lag,
    lag_bucket,
    replicating,
    schemas_in_sync,
    stale_after_s,
    topics_selected,
)
from mirrorflow_operator.status.spark_jobs import seed_status, seeded
from mirrorflow_operator.status.summary_conditions import accepted, degraded, ready, reconciling, stalled
from mirrorflow_operator.status.verification import overdue_in_s, verified, verify_status

# The end of such a reason shows at once, too, instead of after a minute.
_IMMEDIATE: Final = frozenset(reason.value for reason in IMMEDIATE)
_REACHABILITY: Final = frozenset({ConditionType.SOURCE_REACHABLE, ConditionType.TARGET_REACHABLE})
_RUNS: Final = frozenset(
    {ConditionType.SEEDED, ConditionType.VERIFIED, ConditionType.ARCHIVED, ConditionType.RESTORED}
)
_FROM_PODS: Final = frozenset(ConditionType) - {*_RUNS, ConditionType.RECONCILING, ConditionType.STALLED}
_NONE: Final = ConnectorStatus()
# Reachability settles this many times faster than Ready.
_REACHABILITY_SOONER: Final = 6.0
_UNJUDGED: Final = yes(
    ConditionType.RECONCILING,
    Reason.SPEC_CHANGED,
    "No pod has reported yet how it works with the present spec.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The settled condition and what to remember for it.

    `again_after_s`: seconds until it may change without a new finding. `causes`: those of the finding behind
    the condition; empty while an earlier condition is kept.
    """

    condition: Condition
    since: Since
    causes: frozenset[str] = frozenset()
    again_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The finding of one condition, and whether it is about the present spec rather than about earlier pods."""

    finding: Finding
    is_of_this_spec: bool = True


def settle(judgement: Judgement, reported: Condition | None, observation: Observation) -> Settled:
    """Returns the condition for *judgement*, where the status has *reported*."""
    finding = judgement.finding
    now_s, generation = observation.now_s, observation.resource.generation
    since = _since(finding, observation.memory.since, now_s)
    is_of_earlier_spec = reported is not None and reported.observed_generation < generation
    if is_of_earlier_spec and reported is not None and not judgement.is_of_this_spec:
        generation = reported.observed_generation
    is_immediate = (
        finding.reason in IMMEDIATE
        or (reported is not None and reported.reason in _IMMEDIATE)
        or (is_of_earlier_spec and judgement.is_of_this_spec)
    )
    if (
        reported is not None
        and reported.status not in {ConditionStatus.UNKNOWN, finding.status}
        and not is_immediate
    ):
        left_s = _left_s(finding, reported, since, observation)
        if left_s > 0:
            kept = reported.model_copy(update={"observed_generation": generation})
            return Settled(condition=kept, since=since, again_after_s=left_s)
    condition = condition_of(finding, reported, generation=generation, now_s=now_s)
    return Settled(condition=condition, since=since, causes=finding.causes)


def _since(finding: Finding, before: Mapping[str, Since], now_s: float) -> Since:
    known = before.get(finding.kind.value)
    status = finding.status.value
    is_true = finding.status is ConditionStatus.TRUE
    if known is None:
        return Since(status=status, since_s=now_s, untrue_since_s=None if is_true else now_s)
    # A clock that was set back must not prolong a wait without limit.
    untrue_s = (
        None if is_true else min(now_s, now_s if known.untrue_since_s is None else known.untrue_since_s)
    )
    since_s = min(known.since_s, now_s) if known.status == status else now_s
    return Since(status=status, since_s=since_s, untrue_since_s=untrue_s)


def _left_s(finding: Finding, reported: Condition, since: Since, observation: Observation) -> float:
    began_s = since.since_s
    if reported.status is ConditionStatus.TRUE and since.untrue_since_s is not None:
        began_s = since.untrue_since_s
    return _wait_s(finding, observation.settle_s) - (observation.now_s - began_s)


def _wait_s(finding: Finding, settle_s: float) -> float:
    """Returns how long *finding* must hold before the condition changes."""
    if finding.kind in _RUNS:
        return 0.0  # the result of a finished run does not flap
    if finding.kind is ConditionType.READY or finding.status is ConditionStatus.UNKNOWN:
        return settle_s
    if finding.kind in _REACHABILITY:
        return settle_s / _REACHABILITY_SOONER
    # The replicator itself waits half a minute before it reports Stuck.
    is_replicating = finding.kind is ConditionType.REPLICATING and finding.status is ConditionStatus.TRUE
    return settle_s if is_replicating else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The complete `status`, and the `memory` for the flow's next observation.

    `again_after_s`: seconds until the next assessment if no event comes earlier; None: only after an event.
    `causes`: the replicator's reasons behind each condition, by condition type
    (`conditions.new_problems`).
    """

    status: Status
    memory: AssessmentMemory
    causes: Mapping[str, frozenset[str]]
    again_after_s: float | None = None


def assess(observation: Observation) -> Assessment:
    """Returns the status and memory that follow from *observation*."""
    resource = observation.resource
    flow = observation.admission.flow or resource.flow
    workloads = [
        workload_of(observed, flow=flow, now_s=observation.now_s) for observed in observation.connectors
    ]
    reported_conditions = {condition.type: condition for condition in resource.status.conditions}
    seed, verify = seed_status(observation, flow), verify_status(observation, flow)
    archive, restore = archive_status(observation, flow), restore_status(observation, flow)
    runs = [
        finding
        for finding in (
            seeded(observation, flow, seed),
            verified(observation, flow, verify),
            archived(observation, flow, archive),
            restored(observation, flow, restore),
        )
        if finding
    ]
    settled = [
        settle(judgement, reported_conditions.get(judgement.finding.kind.value), observation)
        for judgement in _with_unjudged(
            list(_judgements(observation, flow, workloads, runs)), reported_conditions, observation
        )
    ]
    waits = [judgement.again_after_s for judgement in settled if judgement.again_after_s is not None]
    waits.extend(_overdue(observation, flow, verify, archive))
    conditions = tuple(judgement.condition for judgement in settled)
    status = resource.status.model_copy(
        update={
            "observed_generation": resource.generation,
            "conditions": conditions,
            "version": observation.admission.version or resource.status.version,
            "flow_id": observation.admission.flow_id or resource.status.flow_id,
            "cluster_ids": cluster_ids(observation),
            "lag": _lag(observation, conditions),
            "connectors": _connectors(workloads, flow, observation),
            "seed": seed,
            "verify": verify,
            "archive": archive,
            "restore": restore,
            "restart": _restart(observation, flow, workloads),
        }
    )
    memory = AssessmentMemory(since={judgement.condition.type: judgement.since for judgement in settled})
    causes = {judgement.condition.type: judgement.causes for judgement in settled}
    return Assessment(status=status, memory=memory, causes=causes, again_after_s=min(waits, default=None))


def _judgements(
    observation: Observation, flow: MirrorFlow | None, workloads: Sequence[Workload], runs: Sequence[Finding]
) -> Iterator[Judgement]:
    """Yields the judgement of each condition: by pods of the present spec, else by all pods that run."""
    of_all = {finding.kind: finding for finding in _findings(observation, flow, workloads, runs)}
    if not observation.is_applied:
        for kind, finding in of_all.items():
            yield Judgement(
                finding=finding, is_of_this_spec=kind not in _FROM_PODS or _is_refusal(finding, observation)
            )
        return
    new = replace(observation, new_pods_only=True)
    has_others = any(len(new_pods(connector)) < len(connector.pods) for connector in observation.connectors)
    of_new = (
        {finding.kind: finding for finding in _findings(new, flow, workloads, runs)} if has_others else of_all
    )
    for kind, finding in of_new.items():
        is_known = finding.status is not ConditionStatus.UNKNOWN
        if kind is ConditionType.ACCEPTED and finding.status is not of_all[kind].status:
            # What earlier pods refused may be refused again: their successors have to report first.
            is_known = all(new.summaries(observed) for observed in observation.connectors)
        if kind not in _FROM_PODS or is_known:
            yield Judgement(finding=finding)
        else:
            yield Judgement(finding=of_all[kind], is_of_this_spec=False)


def _with_unjudged(
    judgements: Sequence[Judgement], reported: Mapping[str, Condition], observation: Observation
) -> Iterator[Judgement]:
    """Yields *judgements*, with Reconciling as True while Ready still describes pods of an earlier spec."""
    by_kind = {judgement.finding.kind: judgement for judgement in judgements}
    before = reported.get(ConditionType.READY.value)
    is_unjudged = (
        before is not None
        and before.observed_generation < observation.resource.generation
        and not by_kind[ConditionType.READY].is_of_this_spec
        and by_kind[ConditionType.STALLED].finding.status is not ConditionStatus.TRUE
    )
    for judgement in judgements:
        is_settled = (
            judgement.finding.kind is ConditionType.RECONCILING
            and judgement.finding.status is ConditionStatus.FALSE
        )
        yield Judgement(finding=_UNJUDGED) if is_unjudged and is_settled else judgement


def _is_refusal(finding: Finding, observation: Observation) -> bool:
    """Whether *finding* is about a spec that is not applied, and not about the pods that run meanwhile."""
    if finding.kind is ConditionType.ACCEPTED and finding.status is ConditionStatus.TRUE:
        return True
    refusal = observation.admission.refusal
    is_of_objects = finding.reason in {Reason.OBJECTS_REFUSED, Reason.NAME_CONFLICT}
    return is_of_objects or (refusal is not None and finding.reason is refusal.reason)


def _findings(
    observation: Observation, flow: MirrorFlow | None, workloads: Sequence[Workload], runs: Sequence[Finding]
) -> Iterator[Finding]:
    """Yields the current findings, before hysteresis, in the order of `ConditionType`."""
    state = State.RUNNING if flow is None else flow.spec.state
    source, target = ("", "") if flow is None else (flow.spec.source.alias, flow.spec.target.alias)
    findings = {
        ConditionType.ACCEPTED: accepted(observation, workloads),
        ConditionType.SOURCE_REACHABLE: reachable(observation, ConditionType.SOURCE_REACHABLE, source),
        ConditionType.TARGET_REACHABLE: reachable(observation, ConditionType.TARGET_REACHABLE, target),
        ConditionType.TOPICS_SELECTED: topics_selected(observation),
        ConditionType.REPLICATING: replicating(observation, state),
    }
    checkpoints = checkpoints_fresh(observation, state)
    if checkpoints is not None:
        findings[ConditionType.CHECKPOINTS_FRESH] = checkpoints
    schemas = schemas_in_sync(observation, state)
    if schemas is not None:
        findings[ConditionType.SCHEMAS_IN_SYNC] = schemas
    findings[ConditionType.DEGRADED] = degraded(observation)
    findings |= {finding.kind: finding for finding in runs}
    findings[ConditionType.READY] = ready(findings, state, workloads, observation)
    findings[ConditionType.STALLED] = stalled(
        findings[ConditionType.ACCEPTED], workloads, is_deleting=bool(observation.resource.held_by)
    )
    findings[ConditionType.RECONCILING] = reconciling(
        observation, workloads, findings[ConditionType.STALLED], findings[ConditionType.REPLICATING]
    )
    yield from (findings[kind] for kind in ConditionType if kind in findings)


def _lag(observation: Observation, conditions: Sequence[Condition]) -> Lag | None:
    """Returns the current lag; the last known one while no pod reports and Replicating is still True."""
    current = lag(observation)
    if current is not None or observation.summaries(observation.connector(ConnectorKind.SOURCE)):
        return current
    replicates = next(
        condition for condition in conditions if condition.type == ConditionType.REPLICATING.value
    )
    is_held = replicates.status.value == "True"
    return observation.resource.status.lag if is_held else None


def _connectors(
    workloads: Sequence[Workload], flow: MirrorFlow | None, observation: Observation
) -> ConnectorStatuses | None:
    if not workloads:
        return None
    statuses = {workload.observed.kind.value: connector_status(workload, flow) for workload in workloads}
    absent = {refused.part for refused in observation.refused if refused.is_absent}
    for part in absent & statuses.keys():
        if part is not None and statuses[part].phase is Phase.PENDING:
            statuses[part] = statuses[part].model_copy(update={"phase": Phase.FAILED})
    if observation.runs.replaces_source and statuses.get("source", _NONE).phase is Phase.STOPPED:
        statuses["source"] = statuses["source"].model_copy(update={"phase": Phase.PENDING})
    return ConnectorStatuses(**statuses)


def _overdue(
    observation: Observation,
    flow: MirrorFlow | None,
    verify: VerifyStatus | None,
    archive: ArchiveStatus | None,
) -> Iterator[float]:
    """Yields the seconds until the verification or the archive becomes overdue, if it is not yet, and until its next time has passed."""
    if flow is not None and flow.spec.verify is not None:
        left_s = overdue_in_s(observation, flow.spec.verify, verify)
        if left_s:
            yield left_s
    if flow is not None and flow.spec.archive is not None:
        left_s = archive_overdue_in_s(observation, flow.spec.archive, archive)
        if left_s:
            yield left_s
        next_s = None if archive is None else parse_timestamp(archive.next_time or "")
        if next_s is not None and next_s > observation.now_s:
            yield next_s - observation.now_s


def _restart(
    observation: Observation, flow: MirrorFlow | None, workloads: Sequence[Workload]
) -> RunStatus | None:
    run_id = "" if flow is None else flow.spec.restart.run_id
    if not run_id:
        return observation.resource.status.restart
    is_done = not any(is_rolling(workload.observed) for workload in workloads)
    return RunStatus(run_id=run_id, phase="Succeeded" if is_done else "Running")


def reading_digest(reading: Reading) -> Hashable:
    """Returns the digest of *reading*; equal for readings that lead to the same assessment.

    It reduces figures to the comparisons that the assessment makes, with the same limits, so a figure that moves
    within its bucket causes no pass.
    """
    summary = reading.summary
    if reading.report is not None:
        return reading.report  # a job is finite, and the status shows its figures
    if summary is None:
        return reading.failure
    checkpoints, stale_s = summary.checkpoints, stale_after_s(summary.checkpoints)
    figures = replace(
        summary,
        uptime_s=0.0,
        partitions_stopped=min(summary.partitions_stopped, 1),
        partitions_stalled=min(summary.partitions_stalled, 1),
        lag_records=min(summary.lag_records, 1),
        lags_unknown=min(summary.lags_unknown, 1),
        lag_s=None,
        records_per_s=0.0,
        reasons=tuple(sorted(summary.reasons, key=lambda row: (row.reason, row.number, row.example or ""))),
        source=_digest_of_side(summary.source),
        target=_digest_of_side(summary.target),
        checkpoints=None if checkpoints is None else _digest_of_checkpoints(checkpoints, stale_s),
        schemas=None if summary.schemas is None else _digest_of_schemas(summary.schemas),
    )
    ages = summary.is_young, summary.uptime_s > stale_s
    return figures, lag_bucket(summary), summary.records_per_s > 0, ages


def _digest_of_side(side: SideSummary) -> SideSummary:
    if side.reach is not SideReachability.UNREACHABLE or side.since_s is None:
        return replace(side, since_s=None)
    return replace(side, since_s=None if side.since_s >= UNREACHABLE_AFTER_S else 0.0)


def _digest_of_checkpoints(checkpoints: Checkpoints, stale_s: float) -> Checkpoints:
    age_s = None if checkpoints.age_s is None else float(checkpoints.age_s > stale_s)
    return replace(checkpoints, groups=0, failing=min(checkpoints.failing, 1), age_s=age_s)


def _digest_of_schemas(schemas: SchemasProgress) -> SchemasProgress:
    age_s = None if schemas.age_s is None else float(schemas.age_s > stale_after_s(schemas))
    return replace(schemas, missing=0, conflicts=min(schemas.conflicts, 1), age_s=age_s, interval_s=None)

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
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import (
    Condition,
    ConditionStatus,
    ConnectorStatus,
    ConnectorStatuses,
    Lag,
    Phase,
    RunStatus,
    Status,
    VerifyStatus,
    timestamp,
)
from mirrorflow_operator.status import pod_progress
from mirrorflow_operator.status.conditions import DECIDED, ConditionType, Finding, bounded
from mirrorflow_operator.status.observation import AssessmentMemory, Observation, Since
from mirrorflow_operator.status.ready import accepted, degraded, ready, reconciling, stalled
from mirrorflow_operator.status.replication import checkpoints_fresh, replicating
from mirrorflow_operator.status.spark_jobs import seed_status, seeded
from mirrorflow_operator.status.verification import overdue_in_s, verified, verify_status
from mirrorflow_operator.status.workloads import Workload, connector_status, is_rolling, workload_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a new finding must hold before the condition changes, in seconds."""

    to_true_s: float = 0.0
    to_false_s: float = 0.0
    to_unknown_s: float = 0.0


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


def settle(
    finding: Finding,
    told: Condition | None,
    memory: AssessmentMemory,
    patience: Patience,
    *,
    generation: int,
    now_s: float,
    at_once: bool = False,
) -> Settled:
    """Returns the condition for *finding*, where the status has *told*; *at_once* skips every wait."""
    since = _since(finding, memory.since, now_s)
    if told is None or told.status is ConditionStatus.UNKNOWN or told.status is finding.status or at_once:
        return _applied(finding, told, since, generation, now_s)
    left_s = _left_s(finding, told, since, patience, now_s)
    if left_s <= 0:
        return _applied(finding, told, since, generation, now_s)
    return Settled(
        condition=told.model_copy(update={"observed_generation": generation}),
        since=since,
        again_after_s=left_s,
    )


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


def _left_s(finding: Finding, told: Condition, since: Since, patience: Patience, now_s: float) -> float:
    if finding.status is ConditionStatus.TRUE:
        return patience.to_true_s - (now_s - since.since_s)
    wait_s = patience.to_false_s if finding.status is ConditionStatus.FALSE else patience.to_unknown_s
    if told.status is ConditionStatus.TRUE and since.untrue_since_s is not None:
        return wait_s - (now_s - since.untrue_since_s)
    return wait_s - (now_s - since.since_s)


def _applied(
    finding: Finding, told: Condition | None, since: Since, generation: int, now_s: float
) -> Settled:
    condition = _condition(finding, told, generation, now_s)
    return Settled(condition=condition, since=since, causes=finding.causes)


def _condition(finding: Finding, told: Condition | None, generation: int, now_s: float) -> Condition:
    is_same = told is not None and told.status is finding.status
    return Condition(
        type=finding.kind.value,
        status=finding.status,
        observed_generation=generation,
        last_transition_time=told.last_transition_time if is_same and told is not None else timestamp(now_s),
        reason=finding.reason.value,
        message=bounded(finding.message),
    )


# Reasons that a person decided: their end shows at once, too, instead of after a minute.
_DECIDED: Final = frozenset(reason.value for reason in DECIDED)
_REACHED: Final = frozenset({ConditionType.SOURCE_REACHABLE, ConditionType.TARGET_REACHABLE})
_RUNS: Final = frozenset({ConditionType.SEEDED, ConditionType.VERIFIED})
_NONE: Final = ConnectorStatus()
# Reachability settles this many times faster than Ready.
_REACHED_SOONER: Final = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The complete `status`, and the `memory` for the flow's next observation.

    `again_after_s`: seconds until the next assessment if no event comes earlier; None: only after an event.
    `causes`: the replicator's reasons behind each condition, by condition type (`ready.new_troubles`).
    """

    status: Status
    memory: AssessmentMemory
    causes: Mapping[str, frozenset[str]]
    again_after_s: float | None = None


def assess(observation: Observation) -> Assessment:
    """Returns the status and memory that follow from *observation*."""
    resource = observation.resource
    flow = observation.admission.flow or resource.flow
    workloads = [workload_of(seen, flow=flow, now_s=observation.now_s) for seen in observation.connectors]
    told_before = {condition.type: condition for condition in resource.status.conditions}
    seed, verify = seed_status(observation, flow), verify_status(observation, flow)
    runs = [one for one in (seeded(observation, flow, seed), verified(observation, flow, verify)) if one]
    settled = [
        _settled(finding, told_before.get(finding.kind.value), observation)
        for finding in _findings(observation, flow, workloads, runs)
    ]
    waits = [one.again_after_s for one in settled if one.again_after_s is not None]
    waits.extend(_overdue(observation, flow, verify))
    conditions = tuple(one.condition for one in settled)
    status = resource.status.model_copy(
        update={
            "observed_generation": resource.generation,
            "conditions": conditions,
            "version": observation.admission.version or resource.status.version,
            "flow_id": observation.admission.flow_id or resource.status.flow_id,
            "cluster_ids": pod_progress.cluster_ids(observation),
            "lag": _lag(observation, conditions),
            "connectors": _connectors(workloads, flow, observation),
            "seed": seed,
            "verify": verify,
            "restart": _restart(observation, flow, workloads),
        }
    )
    memory = AssessmentMemory(since={one.condition.type: one.since for one in settled})
    causes = {one.condition.type: one.causes for one in settled}
    return Assessment(status=status, memory=memory, causes=causes, again_after_s=min(waits, default=None))


def _findings(
    observation: Observation,
    flow: MirrorFlow | None,
    workloads: Sequence[Workload],
    runs: Sequence[Finding],
) -> Iterator[Finding]:
    """Yields the current findings, before hysteresis, in the order of `ConditionType`."""
    state = State.RUNNING if flow is None else flow.spec.state
    source, target = ("", "") if flow is None else (flow.spec.source.alias, flow.spec.target.alias)
    found = {
        ConditionType.ACCEPTED: accepted(observation, workloads),
        ConditionType.SOURCE_REACHABLE: pod_progress.reachable(
            observation, ConditionType.SOURCE_REACHABLE, source
        ),
        ConditionType.TARGET_REACHABLE: pod_progress.reachable(
            observation, ConditionType.TARGET_REACHABLE, target
        ),
        ConditionType.TOPICS_SELECTED: pod_progress.topics_selected(observation),
        ConditionType.REPLICATING: replicating(observation, state),
    }
    checkpoints = checkpoints_fresh(observation, state)
    if checkpoints is not None:
        found[ConditionType.CHECKPOINTS_FRESH] = checkpoints
    found[ConditionType.DEGRADED] = degraded(observation, flow)
    found |= {finding.kind: finding for finding in runs}
    found[ConditionType.READY] = ready(found, state, workloads, observation)
    found[ConditionType.STALLED] = stalled(found[ConditionType.ACCEPTED], workloads)
    found[ConditionType.RECONCILING] = reconciling(
        observation, workloads, found[ConditionType.STALLED], found[ConditionType.REPLICATING]
    )
    yield from (found[kind] for kind in ConditionType if kind in found)


def _settled(finding: Finding, before: Condition | None, observation: Observation) -> Settled:
    was_decided = before is not None and before.reason in _DECIDED
    return settle(
        finding,
        before,
        observation.memory,
        _patience(finding.kind, observation.settle_s),
        generation=observation.resource.generation,
        now_s=observation.now_s,
        at_once=was_decided or finding.reason in DECIDED,
    )


def _patience(kind: ConditionType, settle_s: float) -> Patience:
    if kind is ConditionType.READY:
        return Patience(to_true_s=settle_s, to_false_s=settle_s, to_unknown_s=settle_s)
    if kind in _REACHED:
        soon_s = settle_s / _REACHED_SOONER
        return Patience(to_true_s=soon_s, to_false_s=soon_s, to_unknown_s=settle_s)
    if kind in _RUNS:
        return Patience()  # the result of a finished run does not flap
    if kind is ConditionType.REPLICATING:
        # The replicator itself waits half a minute before it reports Stuck.
        return Patience(to_true_s=settle_s, to_unknown_s=settle_s)
    return Patience(to_unknown_s=settle_s)


def _lag(observation: Observation, conditions: Sequence[Condition]) -> Lag | None:
    """Returns the current lag; the last known one while no pod reports one and Replicating is still True."""
    found = pod_progress.lag(observation)
    if found is not None:
        return found
    replicates = next(one for one in conditions if one.type == ConditionType.REPLICATING.value)
    is_held = replicates.status.value == "True"
    return observation.resource.status.lag if is_held else None


def _connectors(
    workloads: Sequence[Workload], flow: MirrorFlow | None, observation: Observation
) -> ConnectorStatuses | None:
    if not workloads:
        return None
    found = {one.seen.kind.value: connector_status(one, flow) for one in workloads}
    if observation.runs.holds_connector and found.get("source", _NONE).phase is Phase.STOPPED:
        found["source"] = found["source"].model_copy(update={"phase": Phase.PENDING})
    return ConnectorStatuses(**found)


def _overdue(
    observation: Observation, flow: MirrorFlow | None, verify: VerifyStatus | None
) -> Iterator[float]:
    """Yields the seconds until the verification becomes overdue, if it is not yet."""
    if flow is not None and flow.spec.verify is not None:
        left_s = overdue_in_s(observation, flow.spec.verify, verify)
        if left_s:
            yield left_s


def _restart(
    observation: Observation, flow: MirrorFlow | None, workloads: Sequence[Workload]
) -> RunStatus | None:
    run_id = "" if flow is None else flow.spec.restart.run_id
    if not run_id:
        return observation.resource.status.restart
    is_done = not any(is_rolling(one.seen) for one in workloads)
    return RunStatus(run_id=run_id, phase="Succeeded" if is_done else "Running")

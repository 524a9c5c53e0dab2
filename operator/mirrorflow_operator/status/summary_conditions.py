"""Decides the conditions Accepted and Degraded, and the summary conditions Ready, Reconciling and Stalled. Pure.

Ready reports the first problem of all conditions. Reconciling and Stalled are conditions of kstatus, on which
Flux, Helm and other tools wait.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mirrorflow_operator.api.spec import State
from mirrorflow_operator.api.status import ConditionStatus
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan.names import PAUSE_ANNOTATION
from mirrorflow_operator.status.conditions import FINAL, ConditionType, Finding, Reason, no, unknown, yes
from mirrorflow_operator.status.observation import Observation, RefusedObject, is_overdue, is_rolling
from mirrorflow_operator.status.pod_failures import Workload, workload_name
from mirrorflow_operator.status.pod_reports import MissingReference, Summary
from mirrorflow_operator.status.reachability import changed_cluster

_ACCEPTED: Final = ConditionType.ACCEPTED
_REFUSALS: Final = {
    "FlowExists": (
        Reason.FLOW_EXISTS,
        "another flow copies a source with this alias to this target; stop it and name its id in spec.takeOverFrom, or change an alias",
    ),
    "ClusterChanged": (
        Reason.CLUSTER_CHANGED,
        "another cluster answers at an address of the flow; if this is intended, create a flow with another alias",
    ),
    "SameCluster": (
        Reason.LOOP_FOUND,
        "source and target are one cluster, so copies would be copied again; correct an address, or use naming policy Prefix",
    ),
    "InvalidSettings": (Reason.SETTINGS_REFUSED, "a setting is invalid"),
    "RefusedSettings": (Reason.SETTINGS_REFUSED, "a setting needs a Java process"),
}
# Reasons that keep new pods from starting; running pods continue to replicate with the previous spec.
_POD_REASONS: Final = frozenset({Reason.SECRET_MISSING, Reason.SETTINGS_REFUSED})
_ENDING: Final = frozenset({Reason.PAUSING, Reason.STOPPING})
_UNREACHABLE: Final = {
    ConditionType.SOURCE_REACHABLE: Reason.SOURCE_UNREACHABLE,
    ConditionType.TARGET_REACHABLE: Reason.TARGET_UNREACHABLE,
}
_PAUSED: Final = f"The annotation {PAUSE_ANNOTATION} is true: the operator changes nothing of this flow until it is removed."


def accepted(observation: Observation, workloads: Sequence[Workload]) -> Finding:
    """Returns Accepted, False for the first problem; problems of the spec precede those that pods report."""
    refusal = observation.admission.refusal
    if refusal is not None:
        return no(_ACCEPTED, refusal.reason, refusal.message)
    if any(refused.is_final for refused in observation.refused):
        return replace(objects_refused(observation, _ACCEPTED), status=ConditionStatus.FALSE)
    for problem in (workload.problem for workload in workloads):
        if problem is not None and problem.reason in {Reason.SECRET_MISSING, Reason.SETTINGS_REFUSED}:
            return no(_ACCEPTED, problem.reason, problem.message)
    reported = next(_reported_refusals(observation), None)
    changed = changed_cluster(observation)
    if reported is None and changed is not None:
        side, before, now = changed
        return no(
            _ACCEPTED,
            Reason.CLUSTER_CHANGED,
            f"Cluster {before} was the {side} of this spec, and {now} now answers at its address; if this is intended, create a flow"
            " with another alias, or set spec.restart.runId to continue with it.",
        )
    return reported or (
        yes(_ACCEPTED, Reason.ACCEPTED, "The spec is valid and conflicts with no other flow.")
    )


def _reported_refusals(observation: Observation) -> Iterator[Finding]:
    for observed in observation.connectors:
        for summary in observation.summaries(observed):
            if summary.missing is not None:
                yield no(_ACCEPTED, Reason.SECRET_MISSING, _reference_missing(summary.missing))
            for refusal in (
                reason_count.reason for reason_count in summary.reasons if reason_count.reason in _REFUSALS
            ):
                reason, sentence = _REFUSALS[refusal]
                where = workload_name(observation.resource.name, observed)
                yield no(_ACCEPTED, reason, f"{refusal}: {sentence}. See kubectl logs {where}.")


def _reference_missing(missing: MissingReference) -> str:
    kind = "Secret" if missing.is_secret else "ConfigMap"
    key = f"key {missing.key} of {kind} {missing.name}" if missing.key else f"{kind} {missing.name}"
    return f"The pod lacks {key}; add it, and the connector continues without a restart."


def ready(
    findings: Mapping[ConditionType, Finding],
    state: State,
    workloads: Sequence[Workload],
    observation: Observation,
) -> Finding:
    """Returns Ready: True while the flow replicates and nothing else is wrong."""
    problem = next(_problems(findings, state, workloads, observation), None)
    if problem is not None:
        return problem.as_type(ConditionType.READY)
    replicating = findings[ConditionType.REPLICATING]
    if replicating.status is ConditionStatus.UNKNOWN:
        return replicating.as_type(ConditionType.READY)
    return yes(ConditionType.READY, Reason.REPLICATING, "Records are copied, or there are none to copy.")


def _problems(
    findings: Mapping[ConditionType, Finding],
    state: State,
    workloads: Sequence[Workload],
    observation: Observation,
) -> Iterator[Finding]:
    accepted, replicating = findings[ConditionType.ACCEPTED], findings[ConditionType.REPLICATING]
    works = replicating.status is ConditionStatus.TRUE
    keeps_version = accepted.reason is Reason.UNKNOWN_VERSION and observation.admission.flow is not None
    if accepted.status is ConditionStatus.FALSE and not (
        keeps_version or (works and accepted.reason in _POD_REASONS)
    ):
        yield accepted
    if state is not State.RUNNING:
        yield replicating
    if observation.refused and (not works or any(refused.is_absent for refused in observation.refused)):
        yield objects_refused(observation, ConditionType.READY)
    for workload in workloads:
        if workload.problem is not None and not workload.serves:
            yield no(ConditionType.READY, workload.problem.reason, workload.problem.message)
        if _is_scaled_away(workload) and not observation.runs.replaces_source:
            message = "spec.connectors.source.replicas is 0: nothing is copied."
            yield no(ConditionType.READY, Reason.SCALED_TO_ZERO, message)
    for kind, reason in _UNREACHABLE.items():
        if findings[kind].status is ConditionStatus.FALSE:
            yield no(ConditionType.READY, reason, findings[kind].message)
    if replicating.status is ConditionStatus.FALSE:
        yield replicating
    if findings[ConditionType.TOPICS_SELECTED].status is ConditionStatus.FALSE:
        yield findings[ConditionType.TOPICS_SELECTED]
    checkpoints = findings.get(ConditionType.CHECKPOINTS_FRESH)
    if (
        checkpoints is not None
        and checkpoints.status is ConditionStatus.FALSE
        and checkpoints.reason is Reason.STALE
    ):
        yield no(ConditionType.READY, Reason.CHECKPOINTS_STALE, checkpoints.message)


def _is_scaled_away(workload: Workload) -> bool:
    deployment = workload.observed.deployment
    return (
        workload.observed.kind is ConnectorKind.SOURCE and deployment is not None and deployment.wanted == 0
    )


def reconciling(
    observation: Observation, workloads: Sequence[Workload], stalled: Finding, replicating: Finding
) -> Finding:
    """Returns Reconciling: True until the cluster matches the spec; kstatus checks it before Stalled."""
    kind = ConditionType.RECONCILING
    held_by = observation.resource.held_by
    if held_by:
        message = (
            f"The flow is being deleted, and {', '.join(held_by)} holds it: its pods continue until that finalizer is removed,"
            " and changes of the spec have no effect."
        )
        return yes(kind, Reason.DELETING, message)
    if stalled.status is ConditionStatus.TRUE:
        return no(kind, stalled.reason, "The flow cannot continue without a change; see Stalled.")
    if observation.resource.is_reconciliation_paused:
        return yes(kind, Reason.RECONCILIATION_PAUSED, _PAUSED)
    if observation.refused:
        return replace(objects_refused(observation, kind), status=ConditionStatus.TRUE)
    if observation.runs.replaces_source and observation.runs.restore:
        return yes(kind, Reason.RESTORING, "A restore fills the target.")
    if observation.runs.replaces_source:
        return yes(kind, Reason.SEEDING, "A seed fills the target.")
    rolling = [workload for workload in workloads if is_rolling(workload.observed)]
    if not rolling and replicating.reason in _ENDING:
        return replace(replicating.as_type(kind), status=ConditionStatus.TRUE)
    if not rolling:
        return no(kind, Reason.ROLLED_OUT, "The workloads match the spec.")
    connectors = " and ".join(workload.observed.kind.value for workload in rolling)
    problem = next((rollout.problem for rollout in rolling if rollout.problem is not None), None)
    if problem is not None:
        return yes(kind, problem.reason, problem.message)
    return yes(kind, Reason.ROLLING_OUT, f"Pods of {connectors} are being started or replaced.")


def stalled(accepted: Finding, workloads: Sequence[Workload], *, is_deleting: bool = False) -> Finding:
    """Returns Stalled: whether the flow needs a user's action to continue."""
    kind = ConditionType.STALLED
    if is_deleting:
        return no(kind, Reason.NOT_STALLED, "The flow is being deleted; see Reconciling.")
    if accepted.status is ConditionStatus.FALSE and accepted.reason in FINAL:
        return yes(kind, accepted.reason, accepted.message)
    for workload in workloads:
        if is_overdue(workload.observed):
            connector = workload.observed.kind.value
            why = f" {workload.problem.message}" if workload.problem is not None else ""
            message = f"New pods of the {connector} connector do not become ready.{why}"
            return yes(kind, Reason.DEADLINE_EXCEEDED, message)
    return no(kind, Reason.NOT_STALLED, "No action is needed.")


def objects_refused(observation: Observation, kind: ConditionType) -> Finding:
    """Returns *kind* as False because of refused objects, with the first one of each connector; final ones first."""
    first: dict[str | None, RefusedObject] = {}
    for refused in sorted(
        observation.refused, key=lambda refused: (not refused.is_final, not refused.is_taken)
    ):
        first.setdefault(refused.part, refused)
    sentences = [_refused(refused) for refused in first.values()]
    left = len(observation.refused) - len(first)
    more = f" ({left} more)" if left else ""
    is_taken = next(iter(first.values())).is_taken
    reason = Reason.NAME_CONFLICT if is_taken else Reason.OBJECTS_REFUSED
    return no(kind, reason, " ".join(sentences) + more)


def _refused(refused: RefusedObject) -> str:
    if refused.is_taken or refused.is_kind_missing:
        return refused.message
    return f"The API server refuses {refused.name}: {refused.message.rstrip('.')}."


def degraded(observation: Observation) -> Finding:
    """Returns Degraded: True if the spec or a connector has warnings.

    Examples are a field of a newer operator, and ACLs, topics or settings that cannot be written.
    """
    ignored = [f"{newer_field}" for newer_field in observation.resource.newer_fields]
    by_kind = {observed.kind: observation.summaries(observed) for observed in observation.connectors}
    sentences = ignored + [_warnings(kind, summaries) for kind, summaries in by_kind.items() if summaries]
    if any(sentences):
        return yes(ConditionType.DEGRADED, Reason.WARNINGS, " ".join(filter(None, sentences)))
    if sentences:
        return no(ConditionType.DEGRADED, Reason.NO_WARNINGS, "No connector has a warning.")
    return unknown(ConditionType.DEGRADED, Reason.NOT_ASKED, "No connector has reported its warnings yet.")


def _warnings(kind: ConnectorKind, summaries: Sequence[Summary]) -> str:
    """Returns the warnings of the pod that has the most; "" without any."""
    worst = max(summaries, key=lambda summary: summary.warnings)
    if not worst.warnings:
        return ""
    more = " ..." if worst.warnings > len(worst.first_warnings) else ""
    return f"The {kind.value} connector warns ({worst.warnings}): {' '.join(worst.first_warnings)}{more}"

"""An observation -> the status to write, and what to remember until the next one. Pure and total.

    found now (workloads, told, accepted, replication, runs) ──> Ready, Reconciling, Stalled ──> settled ──> status

The same observation gives the same status, and an unchanged one the status it was given, so time alone writes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorflow_operator.api.quantity import whole
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import (
    Condition,
    ConnectorStatus,
    ConnectorStatuses,
    Lag,
    Phase,
    RunStatus,
    Status,
    VerifyStatus,
)
from mirrorflow_operator.assess import told
from mirrorflow_operator.assess.accepted import accepted
from mirrorflow_operator.assess.findings import Finding
from mirrorflow_operator.assess.observation import Memory, Observation
from mirrorflow_operator.assess.ready import ready, reconciling, stalled
from mirrorflow_operator.assess.reasons import DECIDED, Kind
from mirrorflow_operator.assess.replication import checkpoints_fresh, replicating
from mirrorflow_operator.assess.scaling import LOOK_S, Load, Scaling, scaling, tempo_of
from mirrorflow_operator.assess.seeding import seed_status, seeded
from mirrorflow_operator.assess.settling import Patience, Settled, settle
from mirrorflow_operator.assess.verification import overdue_in_s, verified, verify_status
from mirrorflow_operator.assess.workloads import Workload, connector_status, is_rolling, workload_of
from mirrorflow_operator.plan.names import connector_word
from mirrorflow_operator.plan.plan import ConnectorKind

# Decided, and not any more: nobody has to wait a minute to see that it was meant.
_DECIDED: Final = frozenset(reason.value for reason in DECIDED)
_REACHED: Final = frozenset({Kind.SOURCE_REACHABLE, Kind.TARGET_REACHABLE})
_RUNS: Final = frozenset({Kind.SEEDED, Kind.VERIFIED})
_NONE: Final = ConnectorStatus()
# A cluster is told to be back, or gone, sooner than a flow to be Ready again.
_REACHED_SOONER: Final = 6.0
# A number of pods that was decided now is applied by the next pass, which begins with what this one remembers.
AT_ONCE_S: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """`status` is the whole of it; `memory` belongs into the flow's next observation.

    `again_after_s`: when to assess again though nothing may have happened by then; None: when something happens.
    """

    status: Status
    memory: Memory
    again_after_s: float | None = None


def assess(observation: Observation) -> Assessment:
    """What *observation* means."""
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
    scaled = _scaling(observation, flow, workloads)
    if scaled is not None:
        before = observation.memory.scaling
        is_new = before is None or before.replicas != scaled.replicas
        waits.append(AT_ONCE_S if is_new else LOOK_S * tempo_of(observation.calm_s))
    conditions = tuple(one.condition for one in settled)
    status = resource.status.model_copy(
        update={
            "observed_generation": resource.generation,
            "conditions": conditions,
            "version": observation.admission.version or resource.status.version,
            "cluster_ids": told.cluster_ids(observation),
            "lag": _lag(observation, conditions),
            "connectors": _connectors(workloads, flow, scaled, observation),
            "seed": seed,
            "verify": verify,
            "restart": _restart(observation, flow, workloads),
        }
    )
    memory = Memory(since={one.condition.type: one.since for one in settled}, scaling=scaled)
    return Assessment(status=status, memory=memory, again_after_s=min(waits, default=None))


def _findings(
    observation: Observation,
    flow: MirrorFlow | None,
    workloads: Sequence[Workload],
    runs: Sequence[Finding],
) -> Iterator[Finding]:
    """What holds now, in the order of `Kind`."""
    state = State.RUNNING if flow is None else flow.spec.state
    source, target = ("", "") if flow is None else (flow.spec.source.alias, flow.spec.target.alias)
    found = {
        Kind.ACCEPTED: accepted(observation, workloads),
        Kind.SOURCE_REACHABLE: told.reachable(observation, Kind.SOURCE_REACHABLE, source),
        Kind.TARGET_REACHABLE: told.reachable(observation, Kind.TARGET_REACHABLE, target),
        Kind.REPLICATING: replicating(observation, state),
    }
    checkpoints = checkpoints_fresh(observation, state)
    if checkpoints is not None:
        found[Kind.CHECKPOINTS_FRESH] = checkpoints
    found |= {finding.kind: finding for finding in runs}
    found[Kind.READY] = ready(found, state, workloads, observation)
    found[Kind.STALLED] = stalled(found[Kind.ACCEPTED], workloads)
    found[Kind.RECONCILING] = reconciling(
        observation, workloads, found[Kind.STALLED], found[Kind.REPLICATING]
    )
    yield from (found[kind] for kind in Kind if kind in found)


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


def _patience(kind: Kind, settle_s: float) -> Patience:
    if kind is Kind.READY:
        return Patience(to_true_s=settle_s, to_false_s=settle_s, to_unknown_s=settle_s)
    if kind in _REACHED:
        soon_s = settle_s / _REACHED_SOONER
        return Patience(to_true_s=soon_s, to_false_s=soon_s, to_unknown_s=settle_s)
    if kind in _RUNS:
        return Patience()  # what has ended has ended
    if kind is Kind.REPLICATING:
        # The replicator has waited half a minute before it says that it is stuck.
        return Patience(to_true_s=settle_s, to_unknown_s=settle_s)
    return Patience(to_unknown_s=settle_s)


def _lag(observation: Observation, conditions: Sequence[Condition]) -> Lag | None:
    """As told now; as told before while nobody can be asked and nobody has given up yet."""
    found = told.lag(observation)
    if found is not None:
        return found
    replicates = next(one for one in conditions if one.type == Kind.REPLICATING.value)
    is_held = replicates.status.value == "True"
    return observation.resource.status.lag if is_held else None


def _scaling(
    observation: Observation, flow: MirrorFlow | None, workloads: Sequence[Workload]
) -> Scaling | None:
    source = next((one.seen for one in workloads if one.seen.kind is ConnectorKind.SOURCE), None)
    is_whole = (
        source is not None
        and source.deployment is not None
        and source.deployment.ready >= source.deployment.wanted
        and not is_rolling(source)
    )
    limit = None if flow is None else flow.spec.limits.bytes_per_second
    lag_s = told.lag_to_share_s(observation, None if limit is None else whole(limit))
    load = Load(lag_s=lag_s, is_whole=is_whole)
    return scaling(
        flow,
        observation.memory.scaling,
        observation.resource.status,
        load,
        observation.now_s,
        tempo=tempo_of(observation.calm_s),
    )


def _connectors(
    workloads: Sequence[Workload],
    flow: MirrorFlow | None,
    scaled: Scaling | None,
    observation: Observation,
) -> ConnectorStatuses | None:
    if not workloads:
        return None
    chosen = {} if scaled is None else {ConnectorKind.SOURCE: scaled.replicas}
    found = {
        connector_word(one.seen.kind): connector_status(one, flow, chosen.get(one.seen.kind))
        for one in workloads
    }
    if observation.runs.holds_connector and found.get("source", _NONE).phase is Phase.STOPPED:
        found["source"] = found["source"].model_copy(update={"phase": Phase.PENDING})
    return ConnectorStatuses(**found)


def _overdue(
    observation: Observation, flow: MirrorFlow | None, verify: VerifyStatus | None
) -> Iterator[float]:
    """When a verification that is not overdue yet will be."""
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

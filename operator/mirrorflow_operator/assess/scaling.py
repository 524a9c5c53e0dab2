"""Decides how many pods the source connector has under `autoscale`, from its lag and with hysteresis. Pure.

    lag above lagSecondsMax for a minute, and not about to fall below it   ──> half as many more, at least one
    lag below a quarter of lagSecondsMax for ten minutes                   ──> one less
    a lag in between, an unknown lag, pods that are still starting         ──> unchanged

A small lag does not prove that fewer pods suffice; only a step down shows it. So each step down that had to
be reverted doubles the wait before the next one, and a load that needs one pod more for some minutes does not
move pods all day. The decision is stored in the status, so that another operator continues from it; the
operator never writes the spec.

The times above are the defaults. The operator's setting for the calm before a step down (`tempo_of`) scales
all of them in proportion.
"""

from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_operator.api.connectors import Autoscale, Connector
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.settings import CALM_S

UP_AFTER_S: Final = 60.0  # two polls: a burst that one poll saw is not enough
SETTLE_S: Final = 120.0  # a new pod starts, takes over its tasks and copies what has piled up meanwhile
CATCH_UP_S: Final = 600.0  # a lag that will be gone by then needs no more pods
PATIENCE_MAX: Final = 12.0  # times CALM_S: two hours
LOW_PART: Final = 0.25  # of lagSecondsMax; a lag between this and the maximum changes nothing
LOOK_S: Final = 30.0  # the default poll interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The decided number of pods, and since when the lag calls for another one; times are wall clock."""

    replicas: int
    changed_s: float | None = None
    lowered: bool = False  # the last change was a step down
    patience: float = 1.0  # before the next one, times CALM_S
    high_since_s: float | None = None
    high_lag_s: float = 0.0  # the lag at high_since_s
    low_since_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The observed load: the lag of the pod furthest behind (None: unknown); whether all pods are ready."""

    lag_s: float | None
    is_whole: bool


def replicas_of(flow: MirrorFlow, before: Scaling | None, status: Status) -> dict[ConnectorKind, int]:
    """Returns the autoscaled pod numbers as last decided: from memory, else the status, else the minimum."""
    connector = flow.spec.connectors.source
    if connector.autoscale is None:
        return {}
    return {ConnectorKind.SOURCE: _begun(connector, connector.autoscale, before, status).replicas}


def tempo_of(calm_s: float) -> float:
    """Returns the factor for every time of this module where a step down waits for *calm_s* of low lag."""
    return calm_s / CALM_S


def scaling(
    flow: MirrorFlow | None,
    before: Scaling | None,
    status: Status,
    load: Load,
    now_s: float,
    *,
    tempo: float = 1.0,
) -> Scaling | None:
    """Returns the current decision; None where the spec sets the number of pods."""
    if flow is None or flow.spec.connectors.source.autoscale is None:
        return None
    connector, scale = flow.spec.connectors.source, flow.spec.connectors.source.autoscale
    begun = _begun(connector, scale, before, status)
    if flow.spec.state is not State.RUNNING:
        return _quiet(begun)
    return decide(begun, load, scale, most=_most(connector, scale), now_s=now_s, tempo=tempo)


def decide(
    before: Scaling, load: Load, scale: Autoscale, *, most: int, now_s: float, tempo: float = 1.0
) -> Scaling:
    """Returns the decision after one more observation.

    *most*: the largest useful number of pods; *tempo*: the factor of `tempo_of`.
    """
    before = _not_from_the_future(before, now_s)
    if load.lag_s is None or not load.is_whole:
        return _quiet(before)
    if load.lag_s > scale.lag_seconds_max:
        quiet = replace(before, low_since_s=None)
        return _high(quiet, load.lag_s, scale, most=most, now_s=now_s, tempo=tempo)
    if load.lag_s < LOW_PART * scale.lag_seconds_max:
        return _low(replace(before, high_since_s=None), scale, now_s=now_s, tempo=tempo)
    return _quiet(before)


def _high(
    before: Scaling, lag_s: float, scale: Autoscale, *, most: int, now_s: float, tempo: float
) -> Scaling:
    since_s = before.high_since_s
    if since_s is None:
        return replace(before, high_since_s=now_s, high_lag_s=lag_s)
    if now_s - since_s < UP_AFTER_S * tempo:
        return before
    fell_per_s = (before.high_lag_s - lag_s) / (now_s - since_s)
    is_catching_up = fell_per_s > 0 and (lag_s - scale.lag_seconds_max) / fell_per_s <= CATCH_UP_S * tempo
    if is_catching_up:
        return replace(before, high_since_s=now_s, high_lag_s=lag_s)
    if before.replicas >= most or not _has_settled(before, SETTLE_S * tempo, now_s):
        return before
    patience = min(2 * before.patience, PATIENCE_MAX) if before.lowered else before.patience
    more = max(1, before.replicas // 2)
    return Scaling(replicas=min(before.replicas + more, most), changed_s=now_s, patience=patience)


def _low(before: Scaling, scale: Autoscale, *, now_s: float, tempo: float) -> Scaling:
    since_s = before.low_since_s
    if since_s is None:
        return replace(before, low_since_s=now_s)
    calm_s = CALM_S * tempo * before.patience
    is_calm = now_s - since_s >= calm_s and _has_settled(before, calm_s, now_s)
    if before.replicas <= scale.min_replicas or not is_calm:
        return before
    return Scaling(replicas=before.replicas - 1, changed_s=now_s, lowered=True, patience=before.patience)


def _has_settled(before: Scaling, after_s: float, now_s: float) -> bool:
    return before.changed_s is None or now_s - before.changed_s >= after_s


def _quiet(before: Scaling) -> Scaling:
    return replace(before, high_since_s=None, low_since_s=None)


def _not_from_the_future(before: Scaling, now_s: float) -> Scaling:
    """Resets future times: a clock that was set back prolongs a wait but does not cause a decision."""
    moments = (before.changed_s, before.high_since_s, before.low_since_s)
    if all(moment is None or moment <= now_s for moment in moments):
        return before
    return replace(_quiet(before), changed_s=None if before.changed_s is None else now_s)


def _begun(connector: Connector, scale: Autoscale, before: Scaling | None, status: Status) -> Scaling:
    if before is None:
        source = None if status.connectors is None else status.connectors.source
        told = None if source is None else source.wanted_replicas
        before = Scaling(replicas=scale.min_replicas if told is None else told)
    replicas = max(scale.min_replicas, min(before.replicas, _most(connector, scale)))
    return before if replicas == before.replicas else replace(before, replicas=replicas)


def _most(connector: Connector, scale: Autoscale) -> int:
    """Returns the maximum number of pods, limited to the number of tasks: a pod without a task is idle."""
    return max(scale.min_replicas, min(scale.max_replicas, connector.tasks))

"""The summaries of a flow's pods taken together: which are fresh, which clusters answer, what the worst of them says. Pure."""

from collections.abc import Iterator
from typing import Final

from mirrorflow_operator.api.status import ClusterIds, Lag
from mirrorflow_operator.assess.ending import has_pods_of_before
from mirrorflow_operator.assess.findings import Finding, no, unknown, yes
from mirrorflow_operator.assess.observation import ConnectorSeen, Observation
from mirrorflow_operator.assess.progress import Reach, Reading, Replicating, SideSummary, Summary, Unread
from mirrorflow_operator.assess.reasons import Kind, Reason
from mirrorflow_operator.plan.plan import ConnectorKind

# A broker that restarts is away for less; a cluster that is away for longer is news.
UNREACHABLE_AFTER_S: Final = 10.0
# What fails right after the start mostly waits for another connector's topic, or for a broker's second answer; and what was
# told to have failed has to go well for a minute before anybody hears of it.
YOUNG_S: Final = 30.0
# Of the flow's limit: each task has its part of it, and none copies all the time.
AT_LIMIT: Final = 0.8
_SIDES: Final = {Kind.SOURCE_REACHABLE: "source", Kind.TARGET_REACHABLE: "target"}
_ACTIONS: Final = {
    Reason.UNREACHABLE: "no broker answers; check bootstrapServers, the network and the listener",
    Reason.AUTHENTICATION_FAILED: "it refuses the credentials; check authentication and tls, and the Secrets they name",
    Reason.NOT_AUTHORIZED: "an ACL is missing; `mirrorflow acls` prints what the flow needs",
    Reason.UNSUPPORTED_BROKER: "its brokers are too old for what is asked",
}
_MOVING: Final = frozenset({Replicating.ADVANCING, Replicating.IDLE})
_BUCKETS: Final = (
    (1.0, Lag.UNDER_A_SECOND),
    (10.0, Lag.UNDER_TEN_SECONDS),
    (60.0, Lag.UNDER_A_MINUTE),
    (600.0, Lag.UNDER_TEN_MINUTES),
)


def connector(observation: Observation, kind: ConnectorKind) -> ConnectorSeen | None:
    """The connector of that kind, if it is there."""
    return next((one for one in observation.connectors if one.kind is kind), None)


def readings(observation: Observation, seen: ConnectorSeen | None) -> list[Reading]:
    """What was read of the pods of *seen*, as long as it may still be so."""
    return [
        pod.reading
        for pod in (() if seen is None else seen.pods)
        if pod.reading is not None and observation.now_s - pod.reading.read_at_s <= observation.fresh_s
    ]


def summaries(observation: Observation, seen: ConnectorSeen | None) -> list[Summary]:
    """The summaries among these."""
    return [reading.summary for reading in readings(observation, seen) if reading.summary is not None]


def unread(observation: Observation, seen: ConnectorSeen | None) -> Unread | None:
    """Why nothing could be read, of the pod that was asked last."""
    failed = [one for one in readings(observation, seen) if one.unread is not None]
    return max(failed, key=lambda one: one.read_at_s).unread if failed else None


def is_young(summary: Summary) -> bool:
    """Whether the connector has just started, so that what fails may still be on its way."""
    return summary.uptime_s < YOUNG_S


def reachable(observation: Observation, kind: Kind, alias: str) -> Finding:
    """Whether the connectors reach that cluster: one that does not is enough to say so."""
    sides = list(_sides(observation, kind))
    lost = [
        side
        for side in sides
        if side.reach is Reach.UNREACHABLE and (side.since_s is None or side.since_s >= UNREACHABLE_AFTER_S)
    ]
    if lost:
        worst = max(lost, key=lambda side: side.since_s or 0.0)
        reason = next((one for one in _ACTIONS if one.value == worst.reason), Reason.UNREACHABLE)
        return no(kind, reason, f"Cluster {alias} cannot be used: {_ACTIONS[reason]}.")
    if any(side.reach is not Reach.UNKNOWN for side in sides):
        return yes(kind, Reason.REACHABLE, f"Cluster {alias} answers.")
    return unknown(kind, Reason.NOT_ASKED, f"No connector has told whether cluster {alias} answers.")


def _sides(observation: Observation, kind: Kind) -> Iterator[SideSummary]:
    for seen in observation.connectors:
        yield from _sides_of(observation, seen, kind)


def _sides_of(observation: Observation, seen: ConnectorSeen, kind: Kind) -> Iterator[SideSummary]:
    for summary in summaries(observation, seen):
        yield summary.source if _SIDES[kind] == "source" else summary.target


def cluster_ids(observation: Observation) -> ClusterIds | None:
    """As the pods told them first under this spec; with another spec it may be others, and is told anew."""
    before = _ids_of_this_spec(observation)
    source, target = (next(iter(_ids(observation, kind)), "") for kind in _SIDES)
    found = ClusterIds(source=before.source or source, target=before.target or target)
    return found if found.source or found.target else None


def changed_cluster(observation: Observation) -> tuple[str, str, str] | None:
    """Source or target, the id that it had under this spec, and the other that a pod tells now; None: there is no such."""
    before = _ids_of_this_spec(observation)
    for kind, known in ((Kind.SOURCE_REACHABLE, before.source), (Kind.TARGET_REACHABLE, before.target)):
        other = next((one for one in _ids(observation, kind) if known and one != known), "")
        if other:
            return _SIDES[kind], known, other
    return None


def _ids_of_this_spec(observation: Observation) -> ClusterIds:
    status = observation.resource.status
    is_of_this_spec = status.observed_generation == observation.resource.generation
    return (status.cluster_ids if is_of_this_spec else None) or ClusterIds()


def _ids(observation: Observation, kind: Kind) -> Iterator[str]:
    """What pods of this spec tell: those of before may well name other clusters."""
    if observation.refusal:
        return  # whether the objects are those of this spec is not known
    for seen in observation.connectors:
        if not has_pods_of_before(seen):
            yield from (side.cluster_id for side in _sides_of(observation, seen, kind) if side.cluster_id)


def lag(observation: Observation) -> Lag | None:
    """How far the target is behind, of the worst pod; None where no pod knows."""
    found = [bucket(one) for one in summaries(observation, connector(observation, ConnectorKind.SOURCE))]
    known = [one for one in found if one is not None]
    return max(known, key=list(Lag).index) if known else None


def lag_to_share_s(observation: Observation, limit_bytes_per_s: int | None) -> float | None:
    """The lag of the source connector's pod that is furthest behind; None where it is not known, or more pods would not lessen it.

    A quota, the flow's own limit or a partition that has stopped holds up ten pods as it holds up one.
    """
    found = summaries(observation, connector(observation, ConnectorKind.SOURCE))
    if (
        limit_bytes_per_s is not None
        and sum(one.bytes_per_s for one in found) >= AT_LIMIT * limit_bytes_per_s
    ):
        return None
    at_work = [one for one in found if one.partitions]
    lags = [0.0 if one.lag_records == 0 else one.lag_s for one in at_work if one.replicating in _MOVING]
    known = [one for one in lags if one is not None]
    return max(known) if known and len(known) == len(at_work) else None


def bucket(summary: Summary) -> Lag | None:
    """How far behind this pod is, roughly; None where it does not know."""
    # Nothing known to be missing is not the same as nothing missing.
    if summary.lag_records == 0:
        return None if summary.replicating in {Replicating.WAITING, Replicating.UNKNOWN} else Lag.NONE
    if summary.lag_s is None:
        return None
    lag_s = summary.lag_s
    return next((found for limit_s, found in _BUCKETS if lag_s < limit_s), Lag.MORE)

"""Aggregates the progress of a flow's pods: fresh readings, reachable clusters, cluster ids and lag. Pure."""

from collections.abc import Iterator
from typing import Final

from mirrorflow_operator.api.status import ClusterIds, Lag
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.status.conditions import ConditionType, Finding, Reason, no, unknown, yes
from mirrorflow_operator.status.observation import ConnectorSeen, Observation, has_outdated_pods
from mirrorflow_operator.status.progress import (
    Reading,
    Replicating,
    SideReachability,
    SideSummary,
    Summary,
    Unread,
)

# A restarting broker is unreachable for less time; a longer outage of a cluster is reported.
UNREACHABLE_AFTER_S: Final = 10.0
# An error right after the start is mostly transient: another connector has yet to create a topic, or a broker
# answers at the second attempt. And a reported failure disappears only after a minute without it.
YOUNG_S: Final = 30.0
_SIDES: Final = {ConditionType.SOURCE_REACHABLE: "source", ConditionType.TARGET_REACHABLE: "target"}
_ACTIONS: Final = {
    Reason.UNREACHABLE: "no broker answers; check bootstrapServers, the network and the listener",
    Reason.AUTHENTICATION_FAILED: "it refuses the credentials; check authentication, tls and the Secrets that they name",
    Reason.NOT_AUTHORIZED: "an ACL is missing; `mirrorflow acls` prints what the flow needs",
    Reason.UNSUPPORTED_BROKER: "its brokers are too old for a feature that the flow uses",
}
_BUCKETS: Final = (
    (1.0, Lag.UNDER_A_SECOND),
    (10.0, Lag.UNDER_TEN_SECONDS),
    (60.0, Lag.UNDER_A_MINUTE),
    (600.0, Lag.UNDER_TEN_MINUTES),
)


def connector(observation: Observation, kind: ConnectorKind) -> ConnectorSeen | None:
    return next((one for one in observation.connectors if one.kind is kind), None)


def readings(observation: Observation, seen: ConnectorSeen | None) -> list[Reading]:
    """Returns the readings of the pods of *seen* that are not older than `fresh_s`."""
    return [
        pod.reading
        for pod in (() if seen is None else seen.pods)
        if pod.reading is not None and observation.now_s - pod.reading.read_at_s <= observation.fresh_s
    ]


def summaries(observation: Observation, seen: ConnectorSeen | None) -> list[Summary]:
    """Returns the summaries among the fresh readings of *seen*."""
    return [reading.summary for reading in readings(observation, seen) if reading.summary is not None]


def unread(observation: Observation, seen: ConnectorSeen | None) -> Unread | None:
    """Returns why the most recent of the failed polls failed; None if none did."""
    failed = [one for one in readings(observation, seen) if one.unread is not None]
    return max(failed, key=lambda one: one.read_at_s).unread if failed else None


def is_young(summary: Summary) -> bool:
    """Whether the connector started less than YOUNG_S ago, so its errors may be transient."""
    return summary.uptime_s < YOUNG_S


def reachable(observation: Observation, kind: ConditionType, alias: str) -> Finding:
    """Returns the reachability condition of that cluster: False if one connector does not reach it."""
    sides = [side for seen in observation.connectors for side in _sides_of(observation, seen, kind)]
    lost = [
        side
        for side in sides
        if side.reach is SideReachability.UNREACHABLE
        and (side.since_s is None or side.since_s >= UNREACHABLE_AFTER_S)
    ]
    if lost:
        worst = max(lost, key=lambda side: side.since_s or 0.0)
        reason = next((one for one in _ACTIONS if one.value == worst.reason), Reason.UNREACHABLE)
        return no(kind, reason, f"Cluster {alias} cannot be used: {_ACTIONS[reason]}.")
    if any(side.reach is not SideReachability.UNKNOWN for side in sides):
        return yes(kind, Reason.REACHABLE, f"Cluster {alias} answers.")
    return unknown(kind, Reason.NOT_ASKED, f"No connector has reported yet whether cluster {alias} answers.")


def topics_selected(observation: Observation) -> Finding:
    """Returns TopicsSelected: whether the source has a topic for the flow to copy, other than heartbeats."""
    kind = ConditionType.TOPICS_SELECTED
    found = summaries(observation, connector(observation, ConnectorKind.SOURCE))
    nothing = [
        one for summary in found for one in summary.reasons if one.reason == Reason.NOTHING_MATCHES.value
    ]
    if nothing:
        said = (
            nothing[0].example
            or "spec.topics selects no topic of the source, or the flow may not describe the topics."
        )
        return no(kind, Reason.NOTHING_MATCHES, f"{said} `mirrorflow check` lists what spec.topics selects.")
    if any(summary.partitions for summary in found):
        return yes(kind, Reason.SELECTED, "The source has topics that the flow copies.")
    return unknown(kind, Reason.NOT_ASKED, "No connector has reported yet which topics it copies.")


def _sides_of(observation: Observation, seen: ConnectorSeen, kind: ConditionType) -> Iterator[SideSummary]:
    for summary in summaries(observation, seen):
        yield summary.source if _SIDES[kind] == "source" else summary.target


def cluster_ids(observation: Observation) -> ClusterIds | None:
    """Returns the cluster ids that pods reported first under this spec; a new spec may name others."""
    before = _ids_of_this_spec(observation)
    source, target = (next(iter(_ids(observation, kind)), "") for kind in _SIDES)
    found = ClusterIds(source=before.source or source, target=before.target or target)
    return found if found.source or found.target else None


def changed_cluster(observation: Observation) -> tuple[str, str, str] | None:
    """Returns `(side, old id, new id)` where a pod reports another cluster under the same spec, else None."""
    before = _ids_of_this_spec(observation)
    for kind, known in (
        (ConditionType.SOURCE_REACHABLE, before.source),
        (ConditionType.TARGET_REACHABLE, before.target),
    ):
        other = next((one for one in _ids(observation, kind) if known and one != known), "")
        if other:
            return _SIDES[kind], known, other
    return None


def _ids_of_this_spec(observation: Observation) -> ClusterIds:
    status = observation.resource.status
    is_of_this_spec = status.observed_generation == observation.resource.generation
    return (status.cluster_ids if is_of_this_spec else None) or ClusterIds()


def _ids(observation: Observation, kind: ConditionType) -> Iterator[str]:
    """Yields the ids that pods of this spec report; pods of an earlier spec may use other clusters."""
    if observation.refusal:
        return  # a write was refused, so the pods may be of an earlier spec
    for seen in observation.connectors:
        if not has_outdated_pods(seen):
            yield from (side.cluster_id for side in _sides_of(observation, seen, kind) if side.cluster_id)


def lag(observation: Observation) -> Lag | None:
    """Returns the lag bucket of the pod that is furthest behind; None where no pod knows its lag."""
    found = [bucket(one) for one in summaries(observation, connector(observation, ConnectorKind.SOURCE))]
    known = [one for one in found if one is not None]
    return max(known, key=list(Lag).index) if known else None


def bucket(summary: Summary) -> Lag | None:
    """Returns this pod's lag bucket; None where the pod does not know its lag."""
    # A lag of 0 counts only where it is known for every partition.
    if summary.lag_records == 0:
        is_known = summary.replicating not in {Replicating.WAITING, Replicating.UNKNOWN}
        return Lag.NONE if is_known and not summary.lags_unknown else None
    if summary.lag_s is None:
        return None
    lag_s = summary.lag_s
    return next((found for limit_s, found in _BUCKETS if lag_s < limit_s), Lag.MORE)

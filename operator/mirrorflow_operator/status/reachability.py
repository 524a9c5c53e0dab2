"""Decides whether a flow's clusters are reachable, and which clusters they are, from what its pods report. Pure."""

from collections.abc import Iterator
from typing import Final

from mirrorflow_operator.api.status import ClusterIds
from mirrorflow_operator.status.conditions import ConditionType, Finding, Reason, no, unknown, yes
from mirrorflow_operator.status.observation import Observation, ObservedConnector, has_outdated_pods
from mirrorflow_operator.status.pod_reports import SideReachability, SideSummary

# A restarting broker is unreachable for less time; a longer outage of a cluster is reported.
UNREACHABLE_AFTER_S: Final = 10.0
_SIDES: Final = {ConditionType.SOURCE_REACHABLE: "source", ConditionType.TARGET_REACHABLE: "target"}
# For replicators that do not report their error's message.
_PROBLEMS: Final = {
    Reason.UNREACHABLE: "no broker answers; check bootstrapServers, the network and the listener",
    Reason.AUTHENTICATION_FAILED: "it refuses the credentials; check authentication, tls and the Secrets that they name",
    Reason.NOT_AUTHORIZED: "an ACL is missing; `mirrorflow acls` prints what the flow needs",
    Reason.UNSUPPORTED_BROKER: "its brokers are too old for a feature that the flow uses",
}


def reachable(observation: Observation, kind: ConditionType, alias: str) -> Finding:
    """Returns the reachability condition of that cluster: False if one connector does not reach it."""
    sides = [side for observed in observation.connectors for side in _sides_of(observation, observed, kind)]
    lost = [
        side
        for side in sides
        if side.reach is SideReachability.UNREACHABLE
        and (side.since_s is None or side.since_s >= UNREACHABLE_AFTER_S)
    ]
    if lost:
        worst = max(lost, key=lambda side: side.since_s or 0.0)
        reason = next((reason for reason in _PROBLEMS if reason.value == worst.reason), Reason.UNREACHABLE)
        return no(kind, reason, worst.message or f"Cluster {alias} cannot be used: {_PROBLEMS[reason]}.")
    if any(side.reach is SideReachability.REACHABLE for side in sides):
        return yes(kind, Reason.REACHABLE, f"Cluster {alias} answers.")
    if any(side.reach is SideReachability.UNREACHABLE for side in sides):
        return unknown(kind, Reason.NOT_ASKED, f"No connector has reached cluster {alias} yet.")
    return unknown(kind, Reason.NOT_ASKED, f"No connector has reported yet whether cluster {alias} answers.")


def _sides_of(
    observation: Observation, observed: ObservedConnector, kind: ConditionType
) -> Iterator[SideSummary]:
    for summary in observation.summaries(observed):
        yield summary.source if _SIDES[kind] == "source" else summary.target


def cluster_ids(observation: Observation) -> ClusterIds | None:
    """Returns the cluster ids that pods reported first under this spec; a new spec may name others."""
    before = _ids_of_this_spec(observation)
    source, target = (next(iter(_ids(observation, kind)), "") for kind in _SIDES)
    ids = ClusterIds(source=before.source or source, target=before.target or target)
    return ids if ids.source or ids.target else None


def changed_cluster(observation: Observation) -> tuple[str, str, str] | None:
    """Returns `(side, old id, new id)` where a pod reports another cluster under the same spec, else None."""
    before = _ids_of_this_spec(observation)
    for kind, known in (
        (ConditionType.SOURCE_REACHABLE, before.source),
        (ConditionType.TARGET_REACHABLE, before.target),
    ):
        other = next(
            (cluster_id for cluster_id in _ids(observation, kind) if known and cluster_id != known), None
        )
        if other is not None:
            return _SIDES[kind], known, other
    return None


def _ids_of_this_spec(observation: Observation) -> ClusterIds:
    status = observation.resource.status
    is_of_this_spec = status.observed_generation == observation.resource.generation
    return (status.cluster_ids if is_of_this_spec else None) or ClusterIds()


def _ids(observation: Observation, kind: ConditionType) -> Iterator[str]:
    """Yields the ids that pods of this spec report; pods of an earlier spec may use other clusters."""
    if observation.refused:
        return  # a write was refused, so the pods may be of an earlier spec
    for observed in observation.connectors:
        if not has_outdated_pods(observed):
            yield from (
                side.cluster_id
                for side in _sides_of(observation, observed, kind)
                if side.cluster_id is not None
            )

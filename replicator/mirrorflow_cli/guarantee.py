"""Checks who owns the flow, and which guarantee it will have (docs/exactly-once.md), without changing anything."""

from dataclasses import replace

from mirrorflow_cli.findings import Findings
from mirrorflow_core.errors import ClusterChangedError, FlowExistsError, NotAuthorizedError
from mirrorflow_core.naming.flow_id import runs_elsewhere
from mirrorflow_core.reports import Guarantee
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.transaction_log import decided_records
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.fencing import why_unfenced
from mirrorflow_kafka.writer.log_batches import read_log
from mirrorflow_replicator.connectors.flow_owner import refuse_changed_clusters
from mirrorflow_replicator.copy.task_parts import flow_topics


async def check_guarantee(target: Cluster, settings: SourceSettings, findings: Findings) -> bool:
    """Reports the guarantee, and why it is not exactly-once where it is not.

    Returns whether the flow can have an owner. Raises ClusterError.
    """
    alias = settings.target_alias
    why = await why_unfenced(target, settings.source_alias, settings.offsets.store)
    if why:
        findings.note(
            f"{alias} gives {Guarantee.AT_LEAST_ONCE.value}, because {why}: after a crash, records behind the last stored "
            f"position are copied again. `mirrorflow acls` prints the ACLs that {Guarantee.EXACTLY_ONCE.value} needs."
        )
    else:
        findings.fact(f"{alias} gives {Guarantee.EXACTLY_ONCE.value} to readers of committed records")
    return not why


async def check_flow_owner(
    target: Cluster, settings: SourceSettings, source_cluster_id: str, findings: Findings
) -> None:
    """Reports another flow or cluster that owns the source alias on *target*. Raises ClusterError.

    *source_cluster_id* is "" if the source did not answer, and is not compared then.
    """
    claim = await _newest_claim(target, settings)
    if claim is None:
        return
    source, owner = settings.source_alias, claim.flow
    if runs_elsewhere(settings.flow, owner):
        findings.note(
            f"{settings.target_alias} receives {source} from flow {owner}, which a Kubernetes cluster runs."
        )
    elif owner in settings.takes_over:
        findings.note(f"This flow takes {source} over from flow {owner}: stop that one first.")
    elif owner != settings.flow:
        error = FlowExistsError(
            source=source, target=settings.target_alias, owner=owner, claimant=settings.flow
        )
        findings.problem(str(error))
    now = replace(claim, source_cluster_id=source_cluster_id, target_cluster_id=target.cluster_id)
    try:
        refuse_changed_clusters(claim, now, settings)
    except ClusterChangedError as error:
        findings.problem(str(error))


async def _newest_claim(target: Cluster, settings: SourceSettings) -> Claim | None:
    """Returns the claim of the flow's last owner; None if there is none or it may not be read."""
    topics = flow_topics(settings)
    try:
        await target.refresh([topics.claims.topic])
        if target.leader(*topics.claims) is None:
            return None
        log = await read_log(target, topics.claims, topics.claim_in)
    except NotAuthorizedError:
        return None  # `permissions` reports the missing permission.
    claims = decided_records(log, Claim).committed
    return claims[-1] if claims else None

"""Checks whether the source is the target itself, who owns the flow, and what it would wait for; changes nothing.

No transactional id is used: that would fence the flow's owner.
"""

from collections.abc import Collection
from dataclasses import replace

from mirrorflow_cli.output import Findings
from mirrorflow_core.errors import ClusterChangedError, FlowEndedError, FlowExistsError, NotAuthorizedError
from mirrorflow_core.replication_policy import runs_elsewhere
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.same_cluster import same_cluster_refusal, same_cluster_warning
from mirrorflow_core.writer.claim import Claim
from mirrorflow_core.writer.flow_start import awaited_switchover
from mirrorflow_core.writer.transaction_log import decided_records
from mirrorflow_kafka.admin.transaction_log_reader import read_log
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.connectors.flow_takeover import refuse_changed_clusters
from mirrorflow_replicator.copy.task_parts import flow_topics


def check_same_cluster(
    target: Cluster,
    settings: SourceSettings,
    source_cluster_id: str | None,
    topics: Collection[str],
    findings: Findings,
) -> None:
    """Reports that the source, with these *topics*, is the *target* itself; *source_cluster_id* is None if it did not answer."""
    if source_cluster_id is None or source_cluster_id != target.cluster_id:
        return
    aliases = {"source_alias": settings.source_alias, "target_alias": settings.target_alias}
    refusal = same_cluster_refusal(
        make_selection(settings), **aliases, cluster_id=source_cluster_id, topics=topics
    )
    if refusal is not None:
        findings.problem(str(refusal))
    else:
        findings.note(same_cluster_warning(**aliases, cluster_id=source_cluster_id))


async def check_flow_owner(
    target: Cluster,
    settings: SourceSettings,
    source_cluster_id: str | None,
    opposite: Claim | None,
    findings: Findings,
) -> None:
    """Reports another flow or cluster that owns the source alias on *target*, and what the flow would wait for. Raises ClusterError.

    *source_cluster_id* is None if the source did not answer, and is not compared then. *opposite*: the newest claim of the flow in the
    opposite direction, if topics keep their names.
    """
    claim = await _newest_claim(target, settings)
    if switchover := awaited_switchover(claim, opposite, target_cluster_id=target.cluster_id):
        source, to = settings.source_alias, settings.target_alias
        findings.note(str(FlowEndedError(source=source, target=to, switchover=switchover, is_opposite=True)))
    if claim is None or not (claim.has_run or claim.ended is not None):
        return  # at most a switchover that was rolled back has held it
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
    if claim.ended is not None:
        findings.note(
            str(FlowEndedError(source=source, target=settings.target_alias, switchover=claim.ended))
        )
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
        return None  # `check_permissions` reports the missing permission.
    claims = decided_records(log, Claim).committed
    return claims[-1] if claims else None

"""Checks which guarantee will hold on a target, and why (docs/exactly-once.md), without changing anything.

Sequence numbers alone protect recent records. Old records need a transaction with the flow's transactional
id; without it they are copied exactly once only while a single writer runs.
"""

from dataclasses import replace

from mirrorflow_cli.findings import Findings
from mirrorflow_core.errors import IdentityError, NotAuthorizedError
from mirrorflow_core.exactly_once.identity import Identity, identity_topic, transactional_id
from mirrorflow_core.naming.flow_id import runs_elsewhere
from mirrorflow_core.reports import Guarantee
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog, check_owner
from mirrorflow_replicator.copy.copier_context import LATE_BYTES_MS
from mirrorflow_replicator.copy.expiration_monitor import read_expiries
from mirrorflow_replicator.copy.resume.identity_resolution import claim_of

# APIs that a transaction of the flow needs: api key -> name.
TRANSACTION_APIS = {24: "AddPartitionsToTxn", 26: "EndTxn"}
HOUR_MS = 3_600_000


async def check_guarantee(
    target: Cluster, settings: SourceSettings, findings: Findings, *, may_write: bool
) -> None:
    """Reports the guarantee.

    *may_write*: whether the flow's user may write with the flow's transactional id. Raises ClusterError.
    """
    name = transactional_id(settings.source_alias)
    decided = await _decided(target, settings)
    why = await _why_not(target, name, decided, may_write=may_write)
    if not why:
        findings.fact(
            f"{settings.target_alias} gives {Guarantee.EXACTLY_ONCE.value}, for old records too, in transactions of {name}"
        )
        return
    forgotten_ms, _ = await read_expiries(target)
    half_ms = forgotten_ms // 2
    which = "all records" if half_ms < LATE_BYTES_MS else f"records older than {half_ms / HOUR_MS:g} h"
    findings.note(
        f"{settings.target_alias} gives {Guarantee.EXACTLY_ONCE.value}, but only {Guarantee.SINGLE_WRITER.value} for {which}, "
        f"because {why}: run one replicator of this flow at a time."
    )


async def check_flow_owner(
    target: Cluster, settings: SourceSettings, source_cluster_id: str, findings: Findings
) -> None:
    """Reports another flow or cluster that owns the source alias on *target*. Raises ClusterError."""
    decided = await _decided(target, settings)
    if decided is None:
        return
    # If the source did not answer, its cluster id is not compared.
    claim = claim_of(settings, source_cluster_id or decided.source_cluster_id, target.cluster_id)
    alias = settings.source_alias
    if runs_elsewhere(claim.flow, decided.flow):
        findings.note(
            f"{settings.target_alias} receives {alias} from flow {decided.flow}, which a Kubernetes cluster runs."
        )
        claim = replace(claim, flow=decided.flow)
    elif decided.flow in settings.takes_over:
        findings.note(f"This flow takes {alias} over from flow {decided.flow}: stop that one first.")
        claim = replace(claim, takes_over=settings.takes_over)
    try:
        check_owner(decided, claim, target_alias=settings.target_alias, source_alias=alias)
    except IdentityError as error:
        findings.problem(str(error))


async def _why_not(target: Cluster, name: str, decided: Identity | None, *, may_write: bool) -> str:
    """Returns the reason why transactions of *name* are impossible; "" if they are possible."""
    for node_id in sorted(target.metadata.brokers):
        versions = (await target.connection(node_id)).versions
        for key, api in TRANSACTION_APIS.items():
            if key not in versions:
                return f"broker {node_id} does not offer {api}"
    if not may_write:
        return f"Write on transactional id {name} is not granted"
    if decided is not None and not decided.transactional_id:
        return f"the flow began when it could not write by transactional id {name}, which holds until its next generation"
    if decided is None and not await admin.may_coordinate(target):
        return "its brokers are fewer than transaction.state.log.replication.factor, so it cannot coordinate transactions"
    return ""


async def _decided(target: Cluster, settings: SourceSettings) -> Identity | None:
    """Returns the flow's identity, or None if there is none or it may not be read."""
    topic = identity_topic(settings.source_alias)
    try:
        await target.refresh([topic])
        if target.leader(topic, 0) is None:
            return None
        log = DecisionLog(
            target, settings.source_alias, replication_factor=settings.offsets.replication_factor
        )
        return (await log.read()).identity
    except NotAuthorizedError:
        return None  # `permissions` reports the missing permission.

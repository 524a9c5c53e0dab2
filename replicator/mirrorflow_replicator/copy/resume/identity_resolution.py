"""Resolves the identity that a flow writes with (docs/exactly-once.md, clause 1).

The source connector or a bulk job resolves it before it assigns partitions.
"""

import asyncio
import time
from typing import NamedTuple

from mirrorflow_core.errors import WrittenOtherwiseError
from mirrorflow_core.exactly_once.altered_offsets import altered
from mirrorflow_core.exactly_once.identity import Claim, Identity, stream_definition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.writer.claim import Claim as OwnerClaim
from mirrorflow_core.writer.transaction_log import decided_records
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog, establish
from mirrorflow_kafka.stores.offset_stores import position_store
from mirrorflow_kafka.writer.log_batches import read_log
from mirrorflow_replicator.copy.task_parts import flow_topics


class ResolvedIdentity(NamedTuple):
    """The identity, and how new the flow is."""

    identity: Identity
    is_first: bool  # it was decided just now
    is_unused: bool  # no partition has begun with any identity


def claim_of(settings: SourceSettings, source_cluster_id: str, target_cluster_id: str) -> Claim:
    """Returns what a flow with *settings* claims between these clusters."""
    return Claim(
        source_cluster_id=source_cluster_id,
        target_cluster_id=target_cluster_id,
        policy=settings.naming_words,
        flow=settings.flow,
        stream=stream_definition(
            read_committed=settings.read_committed,
            header_words=settings.header_words,
        ),
        takes_over=settings.takes_over,
    )


async def identify(
    settings: SourceSettings, source: Cluster, target: Cluster, *, may_change: bool, fenced: int = 0
) -> ResolvedIdentity:
    """Returns the identity.

    A new generation begins if Java has copied since this flow did, or if *fenced* is over.

    The other reasons for a new generation are those of `stores.decision_log.establish`. Raises ClusterError,
    IdentityError.
    """
    await _refuse_owned_flow(settings, target)
    store = position_store(settings, target)
    log = DecisionLog(target, settings.source_alias, replication_factor=settings.offsets.replication_factor)
    await asyncio.gather(store.open(), log.ensure())
    decisions = await log.read()
    decided = decisions.identity
    java, beginnings = False, []
    if decided is not None:
        if may_change:
            beginnings = altered(decisions, decided.generation, store.positions, store.foreign)
        for partition, position in store.positions.items():
            anchor = decisions.anchor(partition, decided.generation)
            # Java wrote an offset without the extra fields. The anchor began behind an older one of those.
            if position.sequence < 0 and anchor is not None:
                java |= position.source_offset + 1 != anchor.source_offset
    identity = await establish(
        log,
        target,
        settings.source_alias,
        claim_of(settings, source.cluster_id, target.cluster_id),
        java=java or bool(beginnings),
        beginnings=beginnings,
        copied_generation=max(
            (one.epoch for one in store.positions.values() if one.sequence >= 0), default=0
        ),
        may_change=may_change,
        fenced=fenced,
        timeout_ms=settings.transaction_timeout_ms,
        now_ms=time.time_ns() // 1_000_000,
    )
    return ResolvedIdentity(identity, is_first=decided is None, is_unused=not decisions.partitions())


async def _refuse_owned_flow(settings: SourceSettings, target: Cluster) -> None:
    """Raise WrittenOtherwiseError if a process with `mirrorflow.writer=transactions` owns the flow now."""
    topics = flow_topics(settings)
    await target.refresh([topics.claims.topic])
    if target.leader(*topics.claims) is None:
        return
    claims = decided_records(await read_log(target, topics.claims, topics.claim_in), OwnerClaim).committed
    if claims and not claims[-1].left:
        raise WrittenOtherwiseError(source=settings.source_alias, writer="transactions")

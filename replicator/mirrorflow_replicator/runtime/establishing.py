"""The identity that a flow writes with, from what both clusters say (DESIGN 4.2, clause 1): asked by whoever is about to hand
out partitions, the source connector or a bulk job.
"""

import asyncio
import time
from typing import NamedTuple

from mirrorflow_replicator.flow.altered import altered
from mirrorflow_replicator.flow.identity import Claim, Identity, stream_definition
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.identity import IdentityLog, establish
from mirrorflow_replicator.kafka.stores import position_store
from mirrorflow_replicator.settings import SourceSettings


class Established(NamedTuple):
    """The identity, and how new the flow is."""

    identity: Identity
    is_first: bool  # it is decided just now
    is_unused: bool  # no partition was begun with any


async def identify(
    settings: SourceSettings, source: Cluster, target: Cluster, *, may_change: bool, fenced: int = 0
) -> Established:
    """The identity; a new generation where Java has copied since we did, or *fenced* is over.

    Raises ClusterError, IdentityError; the rest is `kafka.identity.establish`'s.
    """
    store = position_store(settings, target)
    log = IdentityLog(target, settings.source_alias, replication_factor=settings.offsets.replication_factor)
    await asyncio.gather(store.open(), log.ensure())
    decisions = await log.read()
    decided = decisions.identity
    java, beginnings = False, []
    if decided is not None and not settings.with_java:  # there positions without our fields are our own, too
        if may_change:
            beginnings = altered(decisions, decided.generation, store.positions, store.foreign)
        for partition, position in store.positions.items():
            anchor = decisions.anchor(partition, decided.generation)
            # A position without our fields was written by Java; the anchor began behind an older one of those.
            if position.sequence < 0 and anchor is not None:
                java |= position.source_offset + 1 != anchor.source_offset
    claim = Claim(
        source_cluster_id=source.cluster_id,
        target_cluster_id=target.cluster_id,
        policy=settings.naming_words,
        flow=settings.flow,
        stream=stream_definition(
            read_committed=settings.read_committed,
            header_words=settings.header_words,
            with_java=settings.with_java,
        ),
    )
    identity = await establish(
        log,
        target,
        settings.source_alias,
        claim,
        java=java or bool(beginnings),
        beginnings=beginnings,
        may_change=may_change,
        fenced=fenced,
        timeout_ms=settings.transaction_timeout_ms,
        now_ms=time.time_ns() // 1_000_000,
    )
    return Established(identity, is_first=decided is None, is_unused=not decisions.partitions())

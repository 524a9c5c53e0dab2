"""Fences a flow whose connector is stopped, so that no other process replaces the offsets that a user alters (KIP-875).

A task that was frozen when its connector was stopped could still commit a position, and a process that has just taken the flow
may have read the offsets before. Java's worker fences its tasks for the same reason (KIP-618).
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from mirrorflow_core.errors import FlowInUseError
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.writer.claim import ABANDONED_MS
from mirrorflow_core.writer.flow_lock import Fenced
from mirrorflow_kafka.client.cluster import connect_both
from mirrorflow_kafka.writer.fencing import why_unfenced
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.connectors.flow_clusters import FlowClusters
from mirrorflow_replicator.connectors.flow_takeover import FlowTakeover, last_claim

OWNER_WAIT_S: Final = ABANDONED_MS / 1000 + 2  # an owner that renews no claim for so long is gone


@asynccontextmanager
async def fenced_flow(settings: SourceSettings, *, group: str | None) -> AsyncIterator[None]:
    """Owns the flow for the length of the block, if it ever had an owner. *group* is as in `FlowOwner`.

    Raises FlowInUseError if another process owns it, before the block or after it: what the block has stored may then be
    replaced. Raises FlowEndedError if a switchover has ended it; ClusterError and SettingError, too.
    """
    resolve = Resolver(settings.providers).resolve_client
    source, target = await connect_both(settings.source_consumer, settings.target_producer, resolve=resolve)
    try:
        if await why_unfenced(target, settings.source_alias, settings.offsets.store) is not None:
            yield
            return
        clusters = FlowClusters(settings, source, target, initial=set())
        await clusters.open(has_claims=True)
        if await last_claim(clusters) is None:
            yield
            # A first owner reads the offsets after its claim.
            if await last_claim(clusters) is not None:
                raise FlowInUseError(source=settings.source_alias)
            return
        try:
            async with asyncio.timeout(OWNER_WAIT_S):
                owned = await FlowTakeover(settings, group).take(clusters, (), is_owner=False)
        except TimeoutError:
            raise FlowInUseError(source=settings.source_alias) from None
        if isinstance(owned, Fenced):
            raise FlowInUseError(source=settings.source_alias)
        yield
        is_ours = await owned.holds_lock()
        if is_ours and not group:
            is_ours = await owned.renew(left=True)
        if not is_ours:
            raise FlowInUseError(source=settings.source_alias)
    finally:
        await asyncio.gather(source.close(), target.close())

"""A task from a connector's settings: its two clusters, and everything else it stands on.

Whoever runs one, a task process or a bulk job, makes it here, so that both copy in the same way.
"""

import asyncio
import logging
from collections import Counter

from mirrorflow_replicator.connect.offset_map_records import offset_map_topic
from mirrorflow_replicator.connect.offset_syncs import offset_syncs_topic
from mirrorflow_replicator.connect.plugins import make_naming
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.credentials import Resolve
from mirrorflow_replicator.kafka.identity import IdentityLog
from mirrorflow_replicator.kafka.known_positions import PositionStore
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.runtime.mapping import MapLog, OffsetMaps
from mirrorflow_replicator.runtime.syncing import Syncing, SyncsLog
from mirrorflow_replicator.runtime.task import CopyTask, Parts
from mirrorflow_replicator.settings import SourceSettings

# For transactions of others in the offsets topic: Java's time out after a minute, and are looked for each ten seconds.
SETTLED_S = 75.0

log = logging.getLogger("mirrorflow.task")


async def begin(
    settings: SourceSettings,
    clusters: tuple[Cluster, Cluster],
    store: PositionStore,
    identity: Identity,
    *,
    resolve: Resolve,
    task: int,
    copier: str,
    own: Identity | None = None,
    claimed: bool = False,
) -> CopyTask:
    """A task that serves, without partitions yet; *store* is open. It closes *clusters* when it stops.

    *claimed*, *own*: as in `messages.Assign`. Raises ClusterError.
    """
    source, target = clusters
    decisions = IdentityLog(
        target, settings.source_alias, replication_factor=settings.offsets.replication_factor
    )
    await decisions.ensure()
    if claimed and not await store.settled(SETTLED_S):
        log.warning(
            "A transaction hides positions in %s for %g s; who holds it is not a task of this flow.",
            settings.offsets.topic,
            SETTLED_S,
        )
    await asyncio.gather(decisions.read(), store.read_new())
    errors: Counter[str] = Counter()
    parts = Parts(
        source=source,
        target=target,
        identity=identity,
        log=decisions,
        positions=store,
        route=make_naming(settings).route,
        rack=settings.source_consumer.properties.get("client.rack", ""),
        errors=errors,
        syncs=_syncing(settings, errors, target, resolve, with_maps=own is None),
        own=own,
    )
    begun = CopyTask(settings, task, parts, copier=copier)
    await begun.start()
    return begun


def _syncing(
    settings: SourceSettings, errors: Counter[str], target: Cluster, resolve: Resolve, *, with_maps: bool
) -> Syncing | None:
    if settings.syncs is None:
        return None
    log = SyncsLog(settings.syncs, offset_syncs_topic(settings), resolve=resolve)
    if not with_maps:
        return Syncing(log, lag_max=settings.syncs.lag_max, errors=errors, now_ms=now_ms, maps=None)
    map_log = MapLog(
        target,
        offset_map_topic(settings.source_alias),
        replication_factor=settings.offsets.replication_factor,
    )
    maps = OffsetMaps(map_log, errors=errors, now_ms=now_ms)
    return Syncing(log, lag_max=settings.syncs.lag_max, errors=errors, now_ms=now_ms, maps=maps)

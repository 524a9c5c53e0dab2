"""Builds a copy task from a connector's settings: its two clusters and everything else it needs.

Task processes and bulk jobs both build their task here, so that they copy in the same way.
"""

import asyncio
import logging
from collections import Counter

from mirrorflow_core.connect.offset_map_records import offset_map_topic
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.security.credentials import Resolve
from mirrorflow_kafka.stores.decision_log import DecisionLog
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_replicator.config.offset_sync_settings import offset_syncs_topic
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.copy.copy_task import CopyTask
from mirrorflow_replicator.copy.offset_map_writer import MapLog, OffsetMaps
from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter, SyncsLog
from mirrorflow_replicator.copy.task_parts import FencedStart, TaskParts
from mirrorflow_replicator.process.clock import now_ms

# For others' transactions in the offsets topic: Java's time out after 60 s, which brokers check every 10 s.
SETTLED_S = 75.0

# What a fenced task has in place of the first engine's identity, which it does not use.
_NO_IDENTITY = Identity(
    generation=0,
    producer_id=-1,
    producer_epoch=-1,
    transactional_id="",
    source_cluster_id="",
    target_cluster_id="",
    policy="",
    flow="",
    stream="",
    why="",
)

log = logging.getLogger("mirrorflow.task")


async def begin(
    settings: SourceSettings,
    clusters: tuple[Cluster, Cluster],
    store: PositionStore,
    identity: Identity | None,
    *,
    resolve: Resolve,
    task: int,
    copier: str,
    claimed: bool = False,
    fenced: FencedStart | None = None,
) -> CopyTask:
    """Returns a started task without partitions; *store* is open. The task closes *clusters* when it stops.

    *claimed*: as in `task_messages.Assign`. With *fenced*, nothing is read from *store*, and *identity* is None.
    Raises ClusterError.
    """
    source, target = clusters
    decisions = DecisionLog(
        target, settings.source_alias, replication_factor=settings.offsets.replication_factor
    )
    if fenced is None:
        await decisions.ensure()
    if claimed and not await store.settled(SETTLED_S):
        log.warning(
            "A transaction hides positions in %s for %g s; who holds it is not a task of this flow.",
            settings.offsets.topic,
            SETTLED_S,
        )
    if fenced is None:
        await asyncio.gather(decisions.read(), store.read_new())
    errors: Counter[str] = Counter()
    parts = TaskParts(
        source=source,
        target=target,
        identity=identity or _NO_IDENTITY,
        log=decisions,
        positions=store,
        route=make_naming(settings).route,
        rack=settings.source_consumer.properties.get("client.rack", ""),
        errors=errors,
        syncs=_syncing(settings, errors, target, resolve),
        fenced=fenced,
    )
    begun = CopyTask(settings, task, parts, copier=copier)
    await begun.start()
    return begun


def _syncing(
    settings: SourceSettings, errors: Counter[str], target: Cluster, resolve: Resolve
) -> OffsetSyncWriter | None:
    if settings.syncs is None:
        return None
    log = SyncsLog(settings.syncs, offset_syncs_topic(settings), resolve=resolve)
    map_log = MapLog(
        target,
        offset_map_topic(settings.source_alias),
        replication_factor=settings.offsets.replication_factor,
    )
    maps = OffsetMaps(map_log, errors=errors, now_ms=now_ms)
    return OffsetSyncWriter(log, lag_max=settings.syncs.lag_max, errors=errors, now_ms=now_ms, maps=maps)

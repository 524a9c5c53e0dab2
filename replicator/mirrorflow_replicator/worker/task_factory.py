"""Builds a copy task from a connector's settings: its two clusters and everything else it needs.

Task processes and bulk jobs both build their task here, so that they copy in the same way.
"""

from collections import Counter

from mirrorflow_core.connect.mirror_records import offset_map_topic
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.security.rotation import Resolve
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_replicator.config.offset_sync_settings import offset_syncs_topic
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.copy.copy_task import CopyTask
from mirrorflow_replicator.copy.offset_map_writer import MapLog, OffsetMaps
from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter, SyncsLog
from mirrorflow_replicator.copy.task_parts import FencedStart, TaskParts
from mirrorflow_replicator.process.clock import now_ms


async def begin(
    settings: SourceSettings,
    clusters: tuple[Cluster, Cluster],
    store: PositionStore,
    *,
    resolve: Resolve,
    task: int,
    fenced: FencedStart,
) -> CopyTask:
    """Returns a running copy task without partitions; *clusters* are source and target. Raises ClusterError."""
    source, target = clusters
    errors: Counter[str] = Counter()
    parts = TaskParts(
        source=source,
        target=target,
        positions=store,
        route=make_naming(settings).route,
        rack=settings.source_consumer.properties.get("client.rack", ""),
        errors=errors,
        syncs=_syncing(settings, errors, target, resolve),
        fenced=fenced,
    )
    begun = CopyTask(settings, task, parts)
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

"""Builds the sessions of a task process or of a Spark task, with the parts that its settings ask for."""

from collections import Counter
from typing import TYPE_CHECKING

from mirrorflow_core.connect.mirror_records import offset_map_topic
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.security.secret_rotation import Resolve
from mirrorflow_kafka.stores.position_store import PositionStore
from mirrorflow_replicator.config.connector_properties import offset_syncs_topic
from mirrorflow_replicator.config.plugins import make_naming
from mirrorflow_replicator.copy.offset_map_writer import MapLog, OffsetMaps
from mirrorflow_replicator.copy.offset_sync_writer import (
    OffsetSyncWriter,
    SyncsLog,
    SyncTarget,
    UnwrittenSyncs,
)
from mirrorflow_replicator.copy.task_parts import KnownSchemas, SessionParts, TaskParts
from mirrorflow_replicator.copy.task_session import TaskSession
from mirrorflow_replicator.process import now_ms

if TYPE_CHECKING:
    from mirrorflow_replicator.copy.schema_wait import SchemaWait


async def start_task_session(
    settings: SourceSettings,
    clusters: tuple[Cluster, Cluster],
    store: PositionStore,
    *,
    resolve: Resolve,
    task: int,
    session: SessionParts,
) -> TaskSession:
    """Returns a running session without partitions; *clusters* are source and target. Raises ClusterError."""
    source, target = clusters
    errors: Counter[str] = Counter()
    parts = TaskParts(
        source=source,
        target=target,
        positions=store,
        route=make_naming(settings).route,
        rack=settings.source_consumer.properties.get("client.rack", ""),
        errors=errors,
        syncs=_offset_sync_writer(settings, errors, target, resolve),
        schemas=_schema_wait(settings, session.known_schemas, errors),
        session=session,
    )
    started = TaskSession(settings, task, parts)
    await started.start()
    return started


def _schema_wait(settings: SourceSettings, known: KnownSchemas, errors: Counter[str]) -> "SchemaWait | None":
    if settings.schema_wait is None:
        return None
    from mirrorflow_replicator.copy.schema_wait import SchemaWait  # noqa: PLC0415 with clients of registries

    return SchemaWait(settings.schema_wait, known, errors)


def _offset_sync_writer(
    settings: SourceSettings, errors: Counter[str], target: Cluster, resolve: Resolve
) -> OffsetSyncWriter | None:
    if settings.syncs is None:
        return None
    log: SyncTarget = UnwrittenSyncs()
    if not settings.syncs.only_map:
        topic = offset_syncs_topic(settings, on_source=settings.syncs.on_source)
        log = SyncsLog(settings.syncs, topic, resolve=resolve)
    map_log = MapLog(
        target,
        offset_map_topic(settings.source_alias),
        replication_factor=settings.offsets.replication_factor,
    )
    maps = OffsetMaps(map_log, errors=errors, now_ms=now_ms)
    return OffsetSyncWriter(log, lag_max=settings.syncs.lag_max, errors=errors, now_ms=now_ms, maps=maps)

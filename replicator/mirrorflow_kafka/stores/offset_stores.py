"""Chooses the store of source offsets from a connector's settings: the offsets topic or a file."""

from pathlib import Path

from mirrorflow_core.settings import OffsetStore, SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.offsets_file import OffsetsFile
from mirrorflow_kafka.stores.offsets_topic import OffsetsLog
from mirrorflow_kafka.stores.position_store import PositionStore


def position_store(settings: SourceSettings, target: Cluster) -> PositionStore:
    """Return the configured store, not yet opened."""
    if settings.offsets.store is OffsetStore.FILE:
        return OffsetsFile(
            Path(settings.offsets.file), connector=settings.name, source_alias=settings.source_alias
        )
    return OffsetsLog(target, settings.offsets, connector=settings.name, source_alias=settings.source_alias)

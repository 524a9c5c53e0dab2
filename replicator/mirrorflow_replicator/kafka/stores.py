"""Which store of positions a connector's settings ask for."""

from pathlib import Path

from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.known_positions import PositionStore
from mirrorflow_replicator.kafka.offsets import OffsetsLog
from mirrorflow_replicator.kafka.offsets_file import OffsetsFile
from mirrorflow_replicator.settings import OffsetStore, SourceSettings


def position_store(settings: SourceSettings, target: Cluster) -> PositionStore:
    """The store, not yet opened."""
    if settings.offsets.store is OffsetStore.FILE:
        return OffsetsFile(
            Path(settings.offsets.file), connector=settings.name, source_alias=settings.source_alias
        )
    return OffsetsLog(target, settings.offsets, connector=settings.name, source_alias=settings.source_alias)

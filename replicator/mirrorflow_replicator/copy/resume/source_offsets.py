"""Looks up source offsets: the first, the end, and where the settings begin (`mirrorflow.start.from`)."""

from collections.abc import Sequence

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings, StartPosition
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.target_probe import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import raise_for
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.resume.source_scan import LogExtent


class SourceOffsets:
    """The source offsets of one flow. All methods raise ClusterError."""

    def __init__(self, source: Cluster, settings: SourceSettings) -> None:
        self._source = source
        self._settings = settings

    async def by_settings(
        self, fresh: Sequence[PartitionCopier], *, initial: bool
    ) -> dict[PartitionCopier, tuple[int, str]]:
        """Returns where *fresh* begin, and by which setting. *initial*: they existed when the flow began."""
        start = self._settings.start if initial else StartPosition.EARLIEST
        when = {
            StartPosition.EARLIEST: EARLIEST,
            StartPosition.LATEST: LATEST,
            StartPosition.TIMESTAMP: self._settings.start_timestamp_ms,
        }[start]
        found = await self.of(fresh, when)
        if start is StartPosition.TIMESTAMP:
            # No record is that young: begin at the end.
            ends = await self.of([lane for lane in fresh if found[lane] < 0], LATEST)
            found |= ends
        return {lane: (found[lane], start.value) for lane in fresh}

    async def of(self, lanes: Sequence[PartitionCopier], when: int) -> dict[PartitionCopier, int]:
        """Returns the offset of each at *when*; -1 where no record is as young.

        *when* is a timestamp in ms, EARLIEST or LATEST.
        """
        committed = self._settings.read_committed
        listed = await admin.list_offsets(
            self._source, [lane.source for lane in lanes], when, read_committed=committed
        )
        for partition, offset in listed.items():
            if offset.error:
                raise_for(
                    offset.error,
                    cluster=self._source.alias,
                    request="ListOffsets",
                    subject=str(TopicPartition(*partition)),
                )
        return {lane: listed[lane.source].offset for lane in lanes}

    async def extent(self, lane: PartitionCopier) -> LogExtent:
        """Returns the first offset and the end of the source partition now."""
        first = await self.of([lane], EARLIEST)
        end = await self.of([lane], LATEST)
        return LogExtent(first[lane], end[lane])

"""What a source partition holds, and where the settings let it begin (`mirrorflow.start.from`). Raises ClusterError."""

from collections.abc import Sequence

from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import raise_for
from mirrorflow_replicator.kafka.witnesses import EARLIEST, LATEST
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.walking import Extent
from mirrorflow_replicator.settings import SourceSettings, StartPosition


class SourceOffsets:
    """See the module."""

    def __init__(self, source: Cluster, settings: SourceSettings) -> None:
        self._source = source
        self._settings = settings

    async def by_settings(self, fresh: Sequence[Lane], *, initial: bool) -> dict[Lane, tuple[int, str]]:
        """Where *fresh* begin, and by which word; *initial*: they were there when the flow began."""
        start = self._settings.start if initial else StartPosition.EARLIEST
        when = {
            StartPosition.EARLIEST: EARLIEST,
            StartPosition.LATEST: LATEST,
            StartPosition.TIMESTAMP: self._settings.start_timestamp_ms,
        }[start]
        found = await self.of(fresh, when)
        if start is StartPosition.TIMESTAMP:
            # Nothing as young as that: begin at the end.
            ends = await self.of([lane for lane in fresh if found[lane] < 0], LATEST)
            found |= ends
        return {lane: (found[lane], start.value) for lane in fresh}

    async def of(self, lanes: Sequence[Lane], when: int) -> dict[Lane, int]:
        """The offset of each at a time, or EARLIEST, or LATEST; -1 where nothing is as young."""
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

    async def extent(self, lane: Lane) -> Extent:
        """What the source partition holds now."""
        first = await self.of([lane], EARLIEST)
        end = await self.of([lane], LATEST)
        entries = (await admin.describe_topic_configs(self._source, [lane.topic]))[lane.topic]
        compacted = any(
            entry.name == "cleanup.policy" and "compact" in (entry.value or "") for entry in entries
        )
        return Extent(first=first[lane], end=end[lane], compacted=compacted)

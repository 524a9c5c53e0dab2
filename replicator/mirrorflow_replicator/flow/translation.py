"""Where a group goes on: by the map of offsets first, by offset syncs where that says nothing, by both where it is a bound.

Both never let a group miss a record, so the later of two answers holds. Where they contradict each other, the older counts.
A bound of the map widens with time. Who does not know what was translated in an earlier life could step back behind it,
as with syncs of the past (KAFKA-13659), and is told of the map only what is exact.

Pure: `runtime.checkpoint_passes` reads both and asks.
"""

from collections.abc import Mapping

from mirrorflow_replicator.flow.offset_map import OffsetMap, Place
from mirrorflow_replicator.flow.offset_syncs import TOO_OLD, OffsetSyncStore
from mirrorflow_replicator.flow.partitions import TopicPartition


class Translator:
    """See the module. *maps* are of source partitions whose topics are still those of the maps, on both sides.

    `has_history`: earlier checkpoints are known.
    """

    def __init__(
        self, syncs: OffsetSyncStore, maps: Mapping[TopicPartition, OffsetMap] | None = None
    ) -> None:
        self.syncs = syncs
        self.has_history = True
        self.maps: Mapping[TopicPartition, OffsetMap] = {} if maps is None else maps

    def place(self, partition: TopicPartition, upstream_offset: int) -> Place | None:
        """Of a group that reads *upstream_offset* of the source's *partition* next; None: nothing is known of it."""
        known = self.maps.get(partition)
        mapped = None if known is None else known.place(upstream_offset)
        if mapped is not None and mapped.is_exact:
            return mapped
        synced = self._by_syncs(partition, upstream_offset)
        if not self.has_history:
            return synced
        if mapped is None or synced is None:
            return mapped or synced
        at_least = max(mapped.at_least, synced.at_least)
        ends = [end for end in (mapped.at_most, synced.at_most) if end is not None]
        if ends and min(ends) < at_least:
            return min(mapped, synced, key=lambda place: place.at_least)
        return Place(at_least, min(ends, default=None))

    def _by_syncs(self, partition: TopicPartition, upstream_offset: int) -> Place | None:
        at_least = self.syncs.translate_downstream(partition, upstream_offset)
        if at_least is None or at_least == TOO_OLD:
            return None
        at_most = None
        for upstream, downstream in self.syncs.partitions[partition]:
            if upstream < upstream_offset:
                break
            at_most = downstream
        return Place(at_least, at_most)

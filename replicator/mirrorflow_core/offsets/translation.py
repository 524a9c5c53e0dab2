"""Translates a group's source offset to target offsets with the offset map and the offset syncs.

An exact answer of the map is used as it is. Without an answer of the map, the syncs decide. If the map
returns a bound, both are combined: neither lets a group skip a record, so the higher offset counts; if they
contradict each other, the lower one counts. A bound of the map widens over time. A process that does not know
its predecessor's translations could step back behind them, as with old syncs (KAFKA-13659), so it uses only
exact answers of the map.

This module does no I/O: `connectors.checkpoint_passes` reads map and syncs.
"""

from collections.abc import Mapping

from mirrorflow_core.offsets.offset_map import MappedOffset, OffsetMap
from mirrorflow_core.offsets.offset_syncs import TOO_OLD, OffsetSyncStore
from mirrorflow_core.partitions import TopicPartition


class Translator:
    """Translates group offsets; see the module for the rules.

    *maps* is by source partition, only for topics that on both clusters are still those of the map.
    `has_history`: earlier checkpoints are known.
    """

    def __init__(
        self, syncs: OffsetSyncStore, maps: Mapping[TopicPartition, OffsetMap] | None = None
    ) -> None:
        self.syncs = syncs
        self.has_history = True
        self.maps: Mapping[TopicPartition, OffsetMap] = {} if maps is None else maps

    def place(self, partition: TopicPartition, upstream_offset: int) -> MappedOffset | None:
        """Return the target offsets for a group that reads *upstream_offset* next; None: unknown."""
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
        return MappedOffset(at_least, min(ends, default=None))

    def _by_syncs(self, partition: TopicPartition, upstream_offset: int) -> MappedOffset | None:
        at_least = self.syncs.translate_downstream(partition, upstream_offset)
        if at_least is None or at_least == TOO_OLD:
            return None
        at_most = None
        for upstream, downstream in self.syncs.partitions[partition]:
            if upstream < upstream_offset:
                break
            at_most = downstream
        return MappedOffset(at_least, at_most)

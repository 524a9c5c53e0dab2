"""Reads the flow's stored positions, offset map and offset syncs.

The offset map and offset syncs are only hints: `partition_planner` checks that the records there are equal. A position
is trusted, because it states which records the target must have.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mirrorflow_core.connect.mirror_records import (
    decode_map,
    decode_map_key,
    decode_offset_sync,
    offset_map_topic,
)
from mirrorflow_core.errors import BrokerError, NotAuthorizedError
from mirrorflow_core.offsets.offset_map import OffsetMap
from mirrorflow_core.offsets.offset_syncs import OffsetSyncStore, Sync
from mirrorflow_core.partitions import Position, TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import MirrorLog
from mirrorflow_kafka.stores.position_store import position_store
from mirrorflow_replicator.config.connector_properties import offset_syncs_topic


class OffsetGuess(NamedTuple):
    """An offset at which a record of the other side may lie."""

    offset: int
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOffsets:
    """The stored offsets of one partition."""

    position: Position | None = None
    map: OffsetMap | None = None
    syncs: tuple[Sync, ...] = ()  # newest first

    @property
    def copied_before(self) -> int | None:
        """The target has all copied records before this source offset; None if no offset is stored."""
        return None if self.position is None else self.position.source_offset + 1

    def began_at(self, target_offset: int) -> int | None:
        """Returns the source offset at which the flow began; None unless its map begins with the copy's first record, at *target_offset*."""
        if self.map is None or self.map.runs[0].downstream > target_offset:
            return None  # a map that was cleared begins again within the copy
        return self.map.runs[0].upstream

    def target_guesses(self, upstream: int) -> list[OffsetGuess]:
        """Returns target offsets of the first record at or after source offset *upstream*, best guess first."""
        guesses: list[OffsetGuess] = []
        translated = None if self.map is None else self.map.translate(upstream)
        if translated is not None:
            guesses.append(OffsetGuess(translated.at_least, translated.is_exact))
        before = next((sync for sync in self.syncs if sync.upstream_offset <= upstream), None)
        if before is not None:
            guesses.append(
                OffsetGuess(before.downstream_offset + upstream - before.upstream_offset, is_exact=False)
            )
        return guesses

    def source_guesses(self, downstream: int) -> list[OffsetGuess]:
        """Returns source offsets of the record at target offset *downstream*, best guess first."""
        guesses = [
            OffsetGuess(run.upstream + downstream - run.downstream, run.is_parallel)
            for run in (() if self.map is None else self.map.runs)
            if run.downstream <= downstream < run.downstream_end
        ]
        before = next((sync for sync in self.syncs if sync.downstream_offset <= downstream), None)
        if before is not None:
            guesses.append(
                OffsetGuess(before.upstream_offset + downstream - before.downstream_offset, is_exact=False)
            )
        return guesses


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFlowOffsets:
    """The stored offsets of all partitions; `problems` are sentences about what could not be read."""

    positions: Mapping[TopicPartition, Position] = field(default_factory=dict)
    maps: Mapping[TopicPartition, OffsetMap] = field(default_factory=dict)
    syncs: Mapping[TopicPartition, tuple[Sync, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def of(self, partition: TopicPartition, *, source_topic_id: str, target_topic_id: str) -> StoredOffsets:
        """Returns the stored offsets of a source partition, without those of topics that were deleted since."""
        position, known = self.positions.get(partition), self.maps.get(partition)
        ids = source_topic_id, target_topic_id
        if position is not None and not _same(ids, (position.source_topic_id, position.target_topic_id)):
            position = None
        if known is not None and not _same(ids, known.stream[1:]):
            known = None
        return StoredOffsets(position=position, map=known, syncs=self.syncs.get(partition, ()))


async def read_stored_offsets(
    source: Cluster, target: Cluster, settings: SourceSettings
) -> StoredFlowOffsets:
    """Reads the internal topics; skips missing ones, and adds forbidden ones to `problems`. Raises ClusterError."""
    problems: list[str] = []
    store = position_store(settings, target)
    positions: Mapping[TopicPartition, Position] = {}
    try:
        await target.refresh([settings.offsets.topic])
        await store.read_new()
        positions = dict(store.positions)
    except NotAuthorizedError as error:
        problems.append(f"Positions cannot be read, so ends of partitions stay undecided: {error}")
    maps: dict[TopicPartition, OffsetMap] = {}
    for key, value in (await _newest(target, offset_map_topic(settings.source_alias), problems)).items():
        try:
            maps[decode_map_key(key)] = decode_map(value)
        except ValueError:
            continue  # written by a later version; the map is only a hint
    store_of_syncs = OffsetSyncStore(must_read_to_end=False)
    if settings.syncs is not None:
        where = source if settings.syncs.on_source else target
        async for key, value in _read(
            where, offset_syncs_topic(settings, on_source=settings.syncs.on_source), problems
        ):
            try:
                sync = decode_offset_sync(key, value)
            except ValueError:
                continue
            pair = Sync(sync.upstream_offset, sync.downstream_offset)
            store_of_syncs.add(TopicPartition(sync.topic, sync.partition), pair)
    return StoredFlowOffsets(
        positions=positions, maps=maps, syncs=store_of_syncs.partitions, problems=tuple(problems)
    )


async def _newest(cluster: Cluster, topic: str, problems: list[str]) -> dict[bytes | None, bytes | None]:
    return {key: value async for key, value in _read(cluster, topic, problems)}


async def _read(
    cluster: Cluster, topic: str, problems: list[str]
) -> AsyncIterator[tuple[bytes | None, bytes | None]]:
    try:
        async for record in MirrorLog(cluster, topic).read_new():
            yield record.key, record.value
    except NotAuthorizedError as error:
        problems.append(f"{topic} cannot be read; target offsets are searched by content: {error}")
    except BrokerError as error:
        if error.code != UNKNOWN_TOPIC_OR_PARTITION:
            raise


def _same(ids: tuple[str, str], known: tuple[str, ...]) -> bool:
    return all(
        not topic_id or not known_id or topic_id == known_id
        for topic_id, known_id in zip(ids, known, strict=True)
    )

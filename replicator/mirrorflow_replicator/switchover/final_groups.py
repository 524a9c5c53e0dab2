"""Says where each group stands on the new active cluster, and places groups there when the old one is lost.

`summarised` reads the report of the checkpoint connector's last pass. `clamp_groups` needs the target alone: it commits what the
checkpoints have, no further than the copy reaches. A checkpoint that the offset map contradicts is of an earlier copy, and its source
offset is translated again.
Guarantee: no group moves back, no group with members is moved, and none is moved past the end of its copy.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby
from typing import Final

from mirrorflow_core.errors import BrokerError, ClusterError, NotAuthorizedError
from mirrorflow_core.offsets.checkpoints import (
    HAS_MEMBERS,
    OTHER_KIND,
    GroupOffset,
    Point,
    Points,
    Writable,
    writable,
)
from mirrorflow_core.offsets.offset_translation import Committed, Translator
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import CheckpointSettings
from mirrorflow_core.wire.error_codes import OFFSET_METADATA_TOO_LARGE, UNKNOWN_TOPIC_OR_PARTITION, name_of
from mirrorflow_kafka.admin import admin, groups
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_group_selection
from mirrorflow_replicator.connectors.known_offsets import KnownOffsets, OffsetReaders

GROUPS_AT_ONCE: Final = 32  # as in the connector: a coordinator answers one request of a connection at a time


class GroupOutcome(Enum):
    """What a group reads on the new active cluster; the value is its name in status and reports."""

    EXACT = "exact"  # nothing again
    BOUND = "bound"  # some records again, at most `FinalGroup.repeats_max`
    REFUSED = "refused"  # it was not moved to where it stands on the old cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalGroup:
    """One group of a pair at the end of a switchover."""

    group: str
    outcome: GroupOutcome
    repeats_max: int | None = 0  # records that it reads again at most; None: unknown
    why: str = ""  # the first reason why it is refused, with its partition
    is_active: bool = False  # it has members on the old cluster, which may still commit


def summarised(offsets: Iterable[GroupOffset]) -> tuple[FinalGroup, ...]:
    """Returns each group of *offsets*, which are those of the last pass, sorted by name."""
    by_group = groupby(sorted(offsets, key=_row_key), key=lambda offset: offset.group)
    return tuple(_summary(group, list(rows)) for group, rows in by_group)


def _row_key(offset: GroupOffset) -> tuple[str, str, int]:
    return offset.group, offset.target_topic, offset.partition


def _summary(group: str, rows: list[GroupOffset]) -> FinalGroup:
    is_active = any(row.has_members_on_source for row in rows)
    missing = next((row for row in rows if not row.written), None)
    if missing is not None:
        why = f"{missing.topic}-{missing.partition}: {missing.why}"
        return FinalGroup(
            group=group, outcome=GroupOutcome.REFUSED, repeats_max=None, why=why, is_active=is_active
        )
    repeats = [row.again[1] for row in rows]
    known = [count for count in repeats if count is not None]
    total = sum(known) if len(known) == len(repeats) else None
    outcome = GroupOutcome.EXACT if total == 0 else GroupOutcome.BOUND
    return FinalGroup(group=group, outcome=outcome, repeats_max=total, is_active=is_active)


def clamped(
    points: Points, starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Points:
    """Returns *points* inside the copies, which begin at *starts* and end at *ends*; without those of unknown copies.

    A consumer outside of its log would apply its reset policy, and skip or repeat everything.
    """
    return {
        partition: replace(
            point, downstream_offset=max(starts[partition], min(point.downstream_offset, ends[partition]))
        )
        for partition, point in points.items()
        if partition in starts and partition in ends
    }


def of_present_copy(
    points: Points,
    sources: Mapping[TopicPartition, Collection[TopicPartition]],
    translator: Translator,
    void: Collection[TopicPartition],
) -> Points:
    """Returns *points*, of which those of an earlier copy are translated again; at the beginning of the copy where that is unknown.

    *sources*: source partitions by copy, of which *void* ones have a map of an earlier copy alone.
    """

    def offset_of(point: Point, source: TopicPartition) -> int:
        if source in void:
            return 0
        mapped = translator.translate(source, point.upstream_offset)
        limit = translator.at_most(source, point.upstream_offset)
        if mapped is not None and limit is None:
            limit = mapped.at_least  # the copy has not reached it yet, as far as the map shows
        if limit is None or point.downstream_offset <= limit:
            return point.downstream_offset
        return 0 if mapped is None else mapped.at_least

    return {
        copy: replace(
            point,
            downstream_offset=min(
                (offset_of(point, source) for source in sources.get(copy, ())),
                default=point.downstream_offset,
            ),
        )
        for copy, point in points.items()
    }


async def clamp_groups(settings: CheckpointSettings, target: Cluster) -> tuple[FinalGroup, ...]:
    """Commits the last checkpoint of each selected group, clamped to its copy, and returns the groups, sorted by name.

    It is for a switchover whose source is lost: what groups have read there since their last checkpoints, they read again. Without
    Read on the offset map, checkpoints of an earlier copy are not recognised. A group that the target refuses keeps no other group back.
    Raises ClusterError if the target cannot be used, InvalidSettingError.
    """
    known = KnownOffsets(settings, OffsetReaders(source=target, target=target, syncs=target, reader=target))
    try:
        await known.read_checkpoints()
    except BrokerError as error:
        # The flow was lost before its checkpoint connector had created the topic: no group was ever moved, and none can be.
        if error.code != UNKNOWN_TOPIC_OR_PARTITION:
            raise
    selects, listed = make_group_selection(settings).selects, await groups.list_groups(target)
    points: Mapping[str, Points] = {
        group: its for group, its in known.checkpoints.items() if selects(group) and its
    }
    copies = {partition for its in points.values() for partition in its}
    points = await _of_present_copies(known, points, copies)
    limits = await _limits(target, copies)
    limit = asyncio.Semaphore(GROUPS_AT_ONCE)

    async def place(group: str) -> FinalGroup:
        async with limit:
            try:
                known = listed.get(group)
                if known is not None and not known.state:  # brokers before Kafka 2.6 list none
                    known = await groups.describe_group(target, group)
                match writable(known):
                    case Writable.YES:
                        inside = clamped(points[group], *limits)
                        return await _place(target, group, inside, points[group].keys() - inside.keys())
                    case Writable.ACTIVE:
                        return _refused(group, HAS_MEMBERS)
                    case Writable.OTHER_KIND:
                        return _refused(group, OTHER_KIND)
            except ClusterError as error:
                # Until all groups are placed, applications can write to neither side. A missing ACL is not awaited.
                if error.retriable and not isinstance(error, NotAuthorizedError):
                    raise
                return _refused(group, str(error))

    return tuple(await asyncio.gather(*map(place, sorted(points))))


async def _of_present_copies(
    known: KnownOffsets, points: Mapping[str, Points], copies: Collection[TopicPartition]
) -> Mapping[str, Points]:
    """Returns the *points* of each group as `of_present_copy` does, by the offset maps on the target. Raises ClusterError."""
    if not copies:
        return points
    try:
        await known.read_new_maps()
    except NotAuthorizedError:
        return points
    sources = known.sources_by_copy()
    wanted = {source for copy in copies for source in sources.get(copy, ())}
    translator, void = await known.current_translator(wanted, None)
    return {group: of_present_copy(its, sources, translator, void) for group, its in points.items()}


async def _limits(
    target: Cluster, partitions: set[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Returns where the logs of those *partitions* begin and end that have a leader."""
    begins, ends = await asyncio.gather(
        admin.list_offsets(target, partitions, EARLIEST), admin.list_offsets(target, partitions, LATEST)
    )
    return (
        {key: listed.offset for key, listed in begins.items() if not listed.error},
        {key: listed.offset for key, listed in ends.items() if not listed.error},
    )


async def _place(
    target: Cluster, group: str, points: Points, unplaced: Iterable[TopicPartition]
) -> FinalGroup:
    """Commits *points* unless the group is there or ahead; *unplaced* partitions have no known copy. Raises ClusterError."""
    own = await groups.fetch_offsets(target, group)
    due = {
        partition: Committed(offset=point.downstream_offset, metadata=point.metadata)
        for partition, point in points.items()
        if partition not in own or own[partition].offset < point.downstream_offset
    }
    codes = await groups.commit_offsets(target, group, due) if due else {}
    too_large = {
        partition: Committed(offset=due[partition].offset)
        for partition, code in codes.items()
        if code == OFFSET_METADATA_TOO_LARGE
    }
    if too_large:
        codes |= await groups.commit_offsets(target, group, too_large)
    # After a refusal that names members, the later offsets were not sent, and have no code.
    for partition, code in sorted(codes.items()):
        if code in groups.MEMBERS_PRESENT:
            return _refused(group, HAS_MEMBERS)
        if code:
            return _refused(group, f"{partition}: {name_of(code)}")
    if missing := sorted(unplaced):
        return _refused(group, f"{missing[0]}: its copy cannot be read")
    return FinalGroup(group=group, outcome=GroupOutcome.BOUND, repeats_max=None)


def _refused(group: str, why: str) -> FinalGroup:
    return FinalGroup(group=group, outcome=GroupOutcome.REFUSED, repeats_max=None, why=why)

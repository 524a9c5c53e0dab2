"""Decides which task of an export reads which offsets. Pure.

Ranges can be read in any order, so a partition is split into ranges, each with one task and one file of about
the configured size. Offsets without records (compaction, markers) make a file smaller than planned.
"""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mirrorflow_core.partitions import TopicPartition

# Starting a task costs some 50 ms, which would dominate for fewer offsets.
OFFSETS_MIN = 1_000


class OffsetExtent(NamedTuple):
    """The offsets of a partition to archive, frozen when the export began; `end` is exclusive."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRange:
    """The offsets that one task reads; *index* is its number in the plan and in the name of its file."""

    index: int
    topic: str
    partition: int
    start: int
    end: int


def plan_ranges(
    extents: Mapping[TopicPartition, OffsetExtent],
    bytes_per_offset: Mapping[TopicPartition, float],
    *,
    file_bytes: int,
) -> tuple[ExportRange, ...]:
    """Splits *extents* into ranges: largest partitions first, each in offset order."""

    def cost(partition: TopicPartition) -> float:
        extent = extents[partition]
        return (extent.end - extent.start) * bytes_per_offset.get(partition, 1.0)

    pieces = [
        (partition, piece)
        for partition in sorted(extents, key=lambda one: (-cost(one), one))
        for piece in _pieces(extents[partition], bytes_per_offset.get(partition, 1.0), file_bytes)
    ]
    return tuple(
        ExportRange(index=index, topic=topic, partition=number, start=piece.start, end=piece.end)
        for index, ((topic, number), piece) in enumerate(pieces)
    )


def _pieces(extent: OffsetExtent, bytes_per_offset: float, file_bytes: int) -> Iterable[OffsetExtent]:
    total = extent.end - extent.start
    if total <= 0:
        return
    wanted = max(OFFSETS_MIN, int(file_bytes / max(bytes_per_offset, 1.0)))
    number = -(-total // wanted)  # of about equal length, so that none is tiny
    bounds = [extent.start + total * at // number for at in range(number + 1)]
    for start, end in itertools.pairwise(bounds):
        yield OffsetExtent(start, end)

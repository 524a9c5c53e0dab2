"""Detects stored offsets that another program altered or deleted, such as Java's REST API.

An anchor records the newest foreign entry on its partition's stored offset that was known then
(`Anchor.seen_at`). A later foreign entry is a user's request and changes the stream (docs/exactly-once.md,
clause 9): the partition restarts at the requested offset. Where an anchor does not have that field, an entry
counts if it replaced a stored offset of the same generation. MirrorFlow's own REST API decides first and
writes afterwards (`worker.offset_changes`), so its changes are not detected again. This module covers changes
made through Java's REST API after which Java has not copied.

This module does no I/O: `stores.position_store` reads, `connectors.source_host` decides.
"""

from collections.abc import Mapping
from typing import NamedTuple

from mirrorflow_core.exactly_once.identity import UNTOLD, Anchor, Beginning, Decisions
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import UNKNOWN, Position

WHY = "offsets altered elsewhere"


class AlteredOffset(NamedTuple):
    """The newest stored offset of a partition, if another program wrote it: an offset or a deletion."""

    at: int  # its offset in the offsets topic; UNKNOWN where offsets are stored in a file
    after: int  # generation of our stored offset that it replaced; UNKNOWN: none was seen


NOTHING_FOREIGN = AlteredOffset(UNKNOWN, UNKNOWN)


def altered(
    decisions: Decisions,
    generation: int,
    positions: Mapping[TopicPartition, Position],
    foreign: Mapping[TopicPartition, AlteredOffset],
) -> list[Beginning]:
    """Return the start offsets that new foreign entries request, for the generation after *generation*."""
    found = []
    for partition, word in foreign.items():
        anchor = decisions.newest_anchor(partition, generation)
        if anchor is None or not _is_news(anchor, word):
            continue
        offset = _first(positions.get(partition))
        said = decisions.beginning(partition, after=anchor.generation)
        if said is None or said.source_offset != offset:
            topic, number = partition
            found.append(
                Beginning(
                    generation=generation + 1, topic=topic, partition=number, source_offset=offset, why=WHY
                )
            )
    return found


def _is_news(anchor: Anchor, word: AlteredOffset) -> bool:
    if anchor.seen_at == UNTOLD or word.at == UNKNOWN:
        return word.after == anchor.generation
    return word.at > anchor.seen_at


def _first(position: Position | None) -> int:
    return UNKNOWN if position is None or position.source_offset < 0 else position.source_offset + 1

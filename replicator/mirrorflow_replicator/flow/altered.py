"""Positions that somebody else has altered or taken away: Java's REST, while Java had not copied since (DESIGN 4.2, clause 9).

Where a partition begins is decided with the newest foreign word on its position in sight (`Anchor.seen_at`). A later one is
a user's will, and a change of the stream: the partition begins anew, where that says. Of a log in which nobody knows what
was seen, a word counts that came behind a position of the same generation. Our own REST decides first and writes then
(`runtime.offset_changes`), so what it has decided is no news.

Pure: `kafka.known_positions` reads, `runtime.hosting` decides.
"""

from collections.abc import Mapping
from typing import NamedTuple

from mirrorflow_replicator.flow.identity import UNTOLD, Anchor, Beginning, Decisions
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.position import UNKNOWN, Position

WHY = "offsets altered elsewhere"


class Foreign(NamedTuple):
    """The newest word on a partition's position, where it is not ours: another offset, or that there is none."""

    at: int  # its offset in the offsets topic; UNKNOWN where positions are in a file
    after: int  # the generation of our position that it took the place of; UNKNOWN: none was seen


NOTHING_FOREIGN = Foreign(UNKNOWN, UNKNOWN)


def altered(
    decisions: Decisions,
    generation: int,
    positions: Mapping[TopicPartition, Position],
    foreign: Mapping[TopicPartition, Foreign],
) -> list[Beginning]:
    """Where partitions begin in the generation behind *generation*, the newest one that is decided, by words that are news."""
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


def _is_news(anchor: Anchor, word: Foreign) -> bool:
    if anchor.seen_at == UNTOLD or word.at == UNKNOWN:
        return word.after == anchor.generation
    return word.at > anchor.seen_at


def _first(position: Position | None) -> int:
    return UNKNOWN if position is None or position.source_offset < 0 else position.source_offset + 1

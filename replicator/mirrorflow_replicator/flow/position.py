"""How far a partition has been copied, and a short ladder of how far it had been before.

The newest point says where to go on; an older rung serves a target that lost its tail, so that only what was lost is
walked again. This module keeps the ladder short and well spread; it knows no clock and no store: `connect.positions`
writes the values in MM2's bytes, `kafka.offsets` keeps them, `flow.alignment` decides by them.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

UNKNOWN = -1

# DESIGN 4.2, clause 7. A rung may get twice as old as its target before a younger one takes its place, so on average
# it has about the target's age, and no rung is older than 2.5 h.
RUNG_AGES_MS = (10_000, 60_000, 600_000, 3_600_000)
RUNGS_MAX = len(RUNG_AGES_MS)


class Rung(NamedTuple):
    """The record with this source offset carried this sequence and sits at this target offset; -1 is unknown."""

    source_offset: int
    sequence: int
    target_offset: int
    at_ms: int  # wall clock, when it was the last record delivered


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where one partition stands. Offsets are of the last record delivered, as MM2 counts; -1 and "" are unknown.

    Only `source_offset` is Java's: a position that Java MM2 wrote has nothing else.
    """

    topic: str  # on the source
    partition: int
    source_offset: int
    sequence: int = UNKNOWN
    target_offset: int = UNKNOWN
    target_end: int = UNKNOWN  # the target's end, where nothing but markers of ours lay behind the record
    epoch: int = UNKNOWN
    source_topic_id: str = ""
    target_topic_id: str = ""
    rungs: tuple[Rung, ...] = ()  # youngest first
    left: bool = False  # the copier that wrote this has stopped cleanly
    written_ms: int = UNKNOWN  # wall clock
    copier: str = ""  # random id of the process

    @property
    def rung(self) -> Rung:
        """The newest point itself."""
        return Rung(self.source_offset, self.sequence, self.target_offset, self.written_ms)


def advance(position: Position | None, newer: Position, now_ms: int) -> Position:
    """*newer* as written at *now_ms*, with the ladder of *position*, the one before, carried on.

    Rungs lie strictly before the position and before each other, by source offset; sequences are ordinals and grow with them, beyond 2^31.
    Rungs of another epoch or another topic (by id) say nothing about this stream and are dropped, and so are those
    that do not lie before *newer*, which happens when a partition begins again.
    """
    written = replace(newer, rungs=(), written_ms=now_ms)
    if position is None or not _same_stream(position, written):
        return written
    rungs = tuple(rung for rung in position.rungs if rung.source_offset < written.source_offset)
    if written.source_offset > position.source_offset and position.sequence != UNKNOWN:
        rungs = _climbed(rungs, position.rung, now_ms)
    return replace(written, rungs=rungs[:RUNGS_MAX])


def _same_stream(position: Position, newer: Position) -> bool:
    return (
        position.epoch == newer.epoch
        and position.source_topic_id == newer.source_topic_id
        and position.target_topic_id == newer.target_topic_id
    )


def _climbed(rungs: tuple[Rung, ...], point: Rung, now_ms: int) -> tuple[Rung, ...]:
    """*rungs* with *point* offered to the first; a rung that got too old for its place is offered to the next."""
    kept = list(rungs)
    offered = point
    for place, age_ms in enumerate(RUNG_AGES_MS):
        if place == len(kept):
            kept.append(offered)
            break
        # A clock that was set back makes a rung younger than now; it then waits in its place, which harms nobody.
        if now_ms - kept[place].at_ms < 2 * age_ms:
            break
        kept[place], offered = offered, kept[place]
    return tuple(kept)

"""The stored offset of a partition: how far it has been copied, with up to four older resume points.

Copying resumes from the newest point. An older one (a rung) serves a target that lost its tail, so that only
the lost part is scanned again. This module keeps the rungs few and spread over time; it does no I/O and reads
no clock. `connect.position_records` encodes the values in MM2's format, `stores.offsets_topic` stores them,
and `exactly_once.alignment` resumes from them.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

UNKNOWN = -1

# docs/exactly-once.md, clause 7. A rung may get twice as old as its entry here before a younger one replaces
# it, so on average it has about that age, and no rung is older than 2.5 h.
RUNG_AGES_MS = (10_000, 60_000, 600_000, 3_600_000)
RUNGS_MAX = len(RUNG_AGES_MS)


class Rung(NamedTuple):
    """A resume point: source offset, ordinal and target offset of one record; -1: unknown."""

    source_offset: int
    sequence: int
    target_offset: int
    at_ms: int  # wall clock when it was the last delivered record
    source_epoch: int = UNKNOWN  # leader epoch of the source record


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The stored offset of one partition.

    Offsets are of the last delivered record, as in MM2; -1 and "": unknown. Java MM2 writes `source_offset`
    only.
    """

    topic: str  # on the source
    partition: int
    source_offset: int
    source_epoch: int = UNKNOWN  # leader epoch of the source record
    sequence: int = UNKNOWN
    target_offset: int = UNKNOWN
    target_end: int = UNKNOWN  # the target's end offset, if only our markers followed the record
    epoch: int = UNKNOWN
    source_topic_id: str = ""
    target_topic_id: str = ""
    rungs: tuple[Rung, ...] = ()  # youngest first
    left: bool = False  # the copier that wrote this has stopped cleanly
    written_ms: int = UNKNOWN  # wall clock
    copier: str = ""  # random id of the process

    @property
    def rung(self) -> Rung:
        """The newest point as a rung."""
        return Rung(self.source_offset, self.sequence, self.target_offset, self.written_ms, self.source_epoch)


def advance(position: Position | None, newer: Position, now_ms: int) -> Position:
    """Return *newer* with time *now_ms* and the rungs of *position*, the stored offset before it.

    Rungs lie strictly before the newest point and before each other, by source offset. Their `sequence` is
    the ordinal, which grows beyond 2^31. Rungs of another epoch or topic id are dropped, and so are those
    that do not lie before *newer*, as when a partition restarts.
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
    """Return *rungs* with *point* first if the first is too old; that one then moves on likewise."""
    kept = list(rungs)
    offered = point
    for place, age_ms in enumerate(RUNG_AGES_MS):
        if place == len(kept):
            kept.append(offered)
            break
        # If the clock was set back, a rung lies in the future and stays in its place, which is harmless.
        if now_ms - kept[place].at_ms < 2 * age_ms:
            break
        kept[place], offered = offered, kept[place]
    return tuple(kept)

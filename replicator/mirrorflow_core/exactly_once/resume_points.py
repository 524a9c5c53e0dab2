"""Collects the resume points of a stream: from delivered records, stored offsets and the anchor.

`exactly_once.alignment` resumes from these pairs, so a pair of another stream (generation, topic id) is never
included.
"""

from mirrorflow_core.exactly_once.alignment import OffsetPair
from mirrorflow_core.exactly_once.identity import Anchor
from mirrorflow_core.exactly_once.stream import Stream
from mirrorflow_core.position import Position


def ladder(anchor: Anchor, position: Position | None, stream: Stream | None) -> tuple[OffsetPair, ...]:
    """Return the known pairs of the stream that starts at *anchor*, newest first, the anchor last."""
    pairs = [] if stream is None else [stream.delivered]
    if position is not None and _continues(anchor, position):
        pairs += [
            OffsetPair(p.source_offset, p.sequence, p.target_offset, p.source_epoch)
            for p in (position.rung, *position.rungs)
        ]
    first = anchor.as_pair()
    later = [pair for pair in pairs if pair.ordinal > first.ordinal and pair.target_offset >= 0]
    return (*sorted(later, key=lambda pair: pair.ordinal, reverse=True), first)


def known_end(anchor: Anchor, position: Position | None, stream: Stream | None) -> int:
    """Return the target's end offset when only our markers followed the newest pair; -1: unknown."""
    newest = ladder(anchor, position, stream)[0]
    if stream is not None and stream.delivered == newest and stream.known_end >= 0:
        return stream.known_end
    if position is not None and _continues(anchor, position) and position.sequence == newest.ordinal:
        return position.target_end
    return -1


def _continues(anchor: Anchor, position: Position) -> bool:
    return (
        position.sequence >= 0
        and position.epoch == anchor.generation
        and position.source_topic_id == anchor.source_topic_id
        and position.target_topic_id == anchor.target_topic_id
    )

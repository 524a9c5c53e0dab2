"""Known pairs of a stream, from what is delivered, what positions say and where the stream began.

The rungs are what `flow.alignment` goes on from; a rung of another stream (generation, topic) must never be among them.
"""

from mirrorflow_replicator.flow.alignment import Pair
from mirrorflow_replicator.flow.identity import Anchor
from mirrorflow_replicator.flow.position import Position
from mirrorflow_replicator.flow.stream import Stream


def ladder(anchor: Anchor, position: Position | None, stream: Stream | None) -> tuple[Pair, ...]:
    """Known pairs of the stream that *anchor* begins, newest first, the anchor last."""
    pairs = [] if stream is None else [stream.delivered]
    if position is not None and _continues(anchor, position):
        pairs += [
            Pair(source_offset=p.source_offset, ordinal=p.sequence, target_offset=p.target_offset)
            for p in (position.rung, *position.rungs)
        ]
    first = anchor.as_pair()
    later = [pair for pair in pairs if pair.ordinal > first.ordinal and pair.target_offset >= 0]
    return (*sorted(later, key=lambda pair: pair.ordinal, reverse=True), first)


def known_end(anchor: Anchor, position: Position | None, stream: Stream | None) -> int:
    """Where the target ended when nothing but markers of ours lay behind the newest pair of the ladder; -1 if nobody knows."""
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

"""What is said of a group's offset: where it stands, where that is on the target, whether it was put there, and if not, why.

Beside it what a failover would cost: how many records the group would read again if it went on there now.

Pure: `runtime.checkpoint_passes` and the command `mirrorflow offsets` gather the facts.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from mirrorflow_replicator.flow.checkpoints import Offset, Points, Standing, Standings
from mirrorflow_replicator.flow.groups import Writable
from mirrorflow_replicator.flow.partitions import TopicPartition

NOT_KNOWN = "nothing is known of where it stands on the target: that lies before all that was copied, or nothing is copied yet"
NOT_ASKED = "sync.group.offsets.enabled is false, so only the checkpoint says it"
HAS_MEMBERS = "the target's group has members, which say themselves where it stands"
OTHER_KIND = "the target has a group of another kind under that name"
NO_CHECKPOINT = "no checkpoint says it yet"
SET_BACK = "the group was set back on the source, and the target's group never goes back"
DUE = "it is due with the next pass"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """What is known of one group, by target partition. `target` None: its offsets there were not asked for."""

    group: str
    standings: Standings
    points: Points
    written_ms: Callable[[str, TopicPartition], int]
    target: Mapping[TopicPartition, Offset] | None = None
    ends: Mapping[TopicPartition, int] | None = None  # of the copies
    writable: Writable = Writable.YES
    is_synchronised: bool = False  # whether the target's group is to be moved at all
    problem: str = ""  # why the last attempt failed


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """One group and partition. None is what is not known, or not there."""

    group: str
    topic: str  # on the source
    partition: int
    target_topic: str
    source_offset: int
    target_offset: int | None  # nothing is missed from here on
    at_most: int | None  # what would be read again lies before this
    checkpoint_offset: int | None
    checkpoint_written_ms: int | None
    group_offset: int | None  # of the target's own group
    written: bool  # the target's group stands there, or farther
    why: str  # it is not written, or stands elsewhere; "" where there is nothing to say

    @property
    def translation(self) -> str:
        """exact, bound or unknown."""
        if self.target_offset is None:
            return "unknown"
        return "exact" if self.target_offset == self.at_most else "bound"

    @property
    def begins_at(self) -> int | None:
        """Where a consumer of the group would begin on the target now; by its checkpoint, where it has no offset there."""
        return self.checkpoint_offset if self.group_offset is None else self.group_offset

    @property
    def again(self) -> tuple[int, int | None]:
        """How many records it would read again then: at least, at most. None: it has nothing to begin by, or nobody knows."""
        begin, place = self.begins_at, self.target_offset
        if begin is None or place is None:
            return 0, None
        most = None if self.at_most is None else max(0, self.at_most - begin)
        return max(0, place - begin), most


def group_offsets(facts: GroupFacts) -> Iterator[GroupOffset]:
    """A line for each partition that the group has an offset of, by name."""
    for target, standing in sorted(facts.standings.items()):
        source = standing.source or target
        point = facts.points.get(target)
        own = None if facts.target is None else facts.target.get(target)
        end = None if facts.ends is None else facts.ends.get(target)
        written_ms = facts.written_ms(facts.group, target)
        place = standing.downstream_offset
        at_most = standing.at_most
        if at_most is None and place is not None and end is not None:
            at_most = max(end, place)  # there is no more than that to be read again
        written = own is not None and place is not None and own.offset >= place
        yield GroupOffset(
            group=facts.group,
            topic=source.topic,
            partition=source.partition,
            target_topic=target.topic,
            source_offset=standing.upstream_offset,
            target_offset=place,
            at_most=at_most,
            checkpoint_offset=None if point is None else point.downstream_offset,
            checkpoint_written_ms=None if written_ms < 0 else written_ms,
            group_offset=None if own is None else own.offset,
            written=written,
            why=_ahead(own, place) if written else _why_not(facts, target, standing, end),
        )


def _ahead(own: Offset | None, place: int | None) -> str:
    if own is None or place is None or own.offset == place:
        return ""
    return f"the target's group is ahead, at {own.offset}, and never goes back"


def _why_not(facts: GroupFacts, target: TopicPartition, standing: Standing, end: int | None) -> str:
    point = facts.points.get(target)
    if standing.downstream_offset is None:
        return NOT_KNOWN
    if not facts.is_synchronised:
        return NOT_ASKED
    if facts.problem:
        return facts.problem
    if facts.writable is Writable.ACTIVE:
        return HAS_MEMBERS
    if facts.writable is Writable.OTHER_KIND:
        return OTHER_KIND
    if point is None:
        return NO_CHECKPOINT
    if standing.upstream_offset < point.upstream_offset:
        return SET_BACK
    if end is not None and point.downstream_offset > end:
        return f"the copy ends at {end}"
    return DUE

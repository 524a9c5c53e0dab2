"""Offset syncs: which pairs of offsets are written while copying, and what they say of a group's offset later.

A sync says: the record at this upstream (source) offset lies at this downstream (target) offset. `PartitionSyncs` decides
as Java's OffsetSyncWriter which pairs are due now and which may wait for the next flush; it takes whole runs of records
where Java takes one, and gives the same syncs. `OffsetSyncStore` is Java's: 64 pairs of each partition, the more the nearer
to its end, and the translation of offsets by them.

Both keep to the rule that an answer too old makes a group read again, and one too new makes it miss records: so nothing is
said of what lies behind a known pair but that it comes at least one offset later.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from mirrorflow_replicator.flow.partitions import TopicPartition

# Syncs of a partition that wait to be written; then the oldest and the newest stay, and every other one between them.
PENDING_MAX = 16
# One for each bit of an offset, as in Java.
SLOTS = 64
# Translations that are none: the group stands before all that is known. Java writes no checkpoint then.
TOO_OLD: Final = -1


class Sync(NamedTuple):
    """The record at `upstream_offset` lies at `downstream_offset` of the copy."""

    upstream_offset: int
    downstream_offset: int


class PartitionSyncs:
    """What of one partition is to be written to the offset-syncs topic.

    Due at once, as in Java: the first record of a process, one more than *lag_max* downstream offsets after the last sync,
    one after a gap upstream (markers, compaction), and the first after a step back. All others wait for `promote`, and
    only the newest of them. Java writes what its ten requests in flight can carry and keeps the newest of the rest; here
    `pending` keeps up to PENDING_MAX of each partition, because the older ones serve groups that lag.
    """

    __slots__ = ("_delayed", "_downstream", "_due_at", "_step", "_upstream", "pending")

    def __init__(self, lag_max: int) -> None:
        self.pending: list[Sync] = []  # oldest first
        self._step = max(0, lag_max) + 1
        self._upstream = self._downstream = -1  # of the last record
        self._due_at = 0  # the downstream offset from which the next record is due
        self._delayed = False  # the last record has no sync yet

    def delivered(self, upstream: int, downstream: int, count: int) -> bool:
        """*count* records without a gap lie where these offsets begin; whether there is something to write now."""
        last = downstream + count - 1
        if last < self._due_at and upstream == self._upstream + 1 and downstream > self._downstream:
            self._upstream += count
            self._downstream = last
            self._delayed = True
            return False
        if upstream <= self._upstream or downstream <= self._downstream:
            self.pending.clear()  # what was known of the copy is not true any more
            first = downstream
        elif upstream != self._upstream + 1:
            first = downstream
        else:
            first = max(downstream, self._due_at)
        newest = last - (last - first) % self._step
        self._add([Sync(upstream + at - downstream, at) for at in _spread(first, newest, self._step)])
        self._upstream = upstream + count - 1
        self._downstream = last
        self._due_at = newest + self._step
        self._delayed = newest != last
        return True

    def delivered_with_gaps(self, upstream: Sequence[int], downstream: int) -> bool:
        """As `delivered`, for records that lie one behind the other downstream only."""
        due, begin = False, 0
        for at in range(1, len(upstream) + 1):
            if at == len(upstream) or upstream[at] != upstream[at - 1] + 1:
                due |= self.delivered(upstream[begin], downstream + begin, at - begin)
                begin = at
        return due

    def aligned(self, upstream: int, downstream: int) -> bool:
        """The target was asked, and has the record at *upstream* last, at *downstream*; whether that is to be written now.

        *upstream* may lie behind the record, where markers follow it: then the pair is older than the truth, never newer.
        """
        if downstream == self._downstream and upstream >= self._upstream:
            return False
        is_first = self._downstream < 0
        stepped_back = upstream < self._upstream or downstream < self._downstream
        self._upstream, self._downstream, self._delayed = upstream, downstream, True
        if is_first or not (stepped_back or downstream >= self._due_at):
            return False
        if stepped_back:
            # Whoever has read newer pairs must forget them: a sync that steps back tells it.
            self.pending.clear()
        self._due_at = downstream + self._step
        return self.promote()

    def lost(self, left: Sync) -> None:
        """The copy has been made anew behind *left*, by an earlier process: that is to be written now."""
        newest = Sync(self._upstream, self._downstream)
        # Whoever has read pairs of before must forget them: a sync that steps back tells it.
        self.pending[:] = [left, newest] if newest.upstream_offset > left.upstream_offset else [left]
        self._delayed = False

    def promote(self) -> bool:
        """Let the last record's sync be written, too; whether there is something to write now."""
        if self._delayed:
            self._delayed = False
            self._add([Sync(self._upstream, self._downstream)])
        return bool(self.pending)

    def take(self) -> tuple[Sync, ...]:
        """What is to be written now, oldest first; it is not pending any more."""
        taken = tuple(self.pending)
        self.pending.clear()
        return taken

    def give_back(self, syncs: Sequence[Sync]) -> None:
        """*syncs* could not be written; they are pending again unless a step back has made them void."""
        later = self.pending[:1]
        if not later or later[0].upstream_offset > syncs[-1].upstream_offset:
            self.pending[:0] = syncs
            self._add([])

    def _add(self, syncs: Sequence[Sync]) -> None:
        self.pending += syncs
        while len(self.pending) > PENDING_MAX:
            del self.pending[1:-1:2]


def _spread(first: int, last: int, step: int) -> Sequence[int]:
    """From *first* to *last* by *step*; where those are many, the denser the nearer to the last, as a store keeps them."""
    count = (last - first) // step + 1
    if count <= PENDING_MAX:
        return range(first, last + 1, step)
    found, back = [last], 1
    while back < count - 1:
        found.append(last - back * step)
        back *= 2
    return [first, *reversed(found)]


Slots = tuple[Sync, ...]


class OffsetSyncStore:
    """The pairs of each partition, and what they say (Java's OffsetSyncStore of 4.x).

    Slot 0 is the newest, slot 63 the oldest that may be used. For two different pairs in slots i < j:
    upstream(i) <= upstream(j) + 2^j - 2^i (near enough), and >= upstream(j) + 2^max(i - 2, 0) (far enough).

    With *must_read_to_end* a pair of the past takes the place of all before it until `is_read_to_end`: who does not know
    what was translated in an earlier life could step back behind it. Without (the checkpoints of that life were read),
    history counts. Beyond Java, a step back of the downstream offset voids older pairs as one of the upstream offset does:
    the copy was made anew, and they would let groups skip what it holds now.
    """

    def __init__(self, *, must_read_to_end: bool) -> None:
        self.is_read_to_end = False  # set when all syncs that were there at the start have been added
        self._must_read_to_end = must_read_to_end
        self._slots: dict[TopicPartition, Slots] = {}

    @property
    def partitions(self) -> Mapping[TopicPartition, Slots]:
        """The slots of every partition of which there is a sync."""
        return self._slots

    def add(self, partition: TopicPartition, sync: Sync) -> None:
        """The next sync of the topic."""
        slots = self._slots.get(partition)
        if slots is None or self._voids(slots[0], sync):
            self._slots[partition] = (sync,) * SLOTS
        else:
            self._slots[partition] = _updated(slots, sync)

    def translate_downstream(self, partition: TopicPartition, upstream_offset: int) -> int | None:
        """Where a group that stands at *upstream_offset* goes on downstream; never behind the first record it lacks.

        None: nothing is known (yet). TOO_OLD: it stands before every pair.
        """
        slots = self._slots.get(partition)
        if not self.is_read_to_end or slots is None:
            return None
        for upstream, downstream in slots:
            if upstream <= upstream_offset:
                # Of what comes behind the pair nobody knows how many records were copied: one offset, never more.
                return downstream if upstream == upstream_offset else downstream + 1
        return TOO_OLD

    def _voids(self, newest: Sync, sync: Sync) -> bool:
        return (
            (self._must_read_to_end and not self.is_read_to_end)
            or sync.upstream_offset < newest.upstream_offset
            or sync.downstream_offset < newest.downstream_offset
        )


def _updated(old: Slots, sync: Sync) -> Slots:
    """*old* with *sync* in slot 0, and as many older pairs as the rules of the slots let live."""
    slots = list(old)
    slots[0] = replacement = sync
    at = 0  # of *old*, what is considered next
    for current in range(1, SLOTS):
        previous = slots[current - 1]
        while True:
            candidate = old[at]
            far_enough = _is_far_enough(previous, candidate, current - 1)
            fits = (
                far_enough
                and _is_near_enough(previous, candidate, current - 1, current)
                and (current + 1 == SLOTS or _is_far_enough(candidate, slots[current + 1], current))
            )
            if fits:
                replacement = candidate
            repeated = at + 1 < SLOTS and candidate is old[at + 1]
            skip = repeated or not far_enough
            if fits or skip:
                at += 1
            if at >= current or not skip:
                break
        if _is_near_enough(previous, slots[current], current - 1, current):
            break  # and so are all behind it
        slots[current] = replacement
    return tuple(slots)


def _is_near_enough(newer: Sync, older: Sync, i: int, j: int) -> bool:
    return newer is older or newer.upstream_offset <= older.upstream_offset + (1 << j) - (1 << i)


def _is_far_enough(newer: Sync, older: Sync, i: int) -> bool:
    bound = older.upstream_offset + (1 << max(i - 2, 0))
    return newer is older or newer.upstream_offset >= bound

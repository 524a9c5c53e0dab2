"""Decides which offset syncs a copier writes, and translates offsets with the syncs that were read.

An offset sync states that the record at an upstream (source) offset lies at a downstream (target) offset.
`PartitionSyncs` decides like Java's OffsetSyncWriter which pairs are due now and which may wait for the next
flush. It takes whole runs of records where Java takes one record, and returns the same syncs.
`OffsetSyncStore` works like Java's: it keeps 64 pairs per partition, denser towards the end, and translates
offsets with them.

A translation that is too low makes a group re-read records; one that is too high makes it skip records. So an
offset after a known pair is only translated to one offset after that pair.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from mirrorflow_core.partitions import TopicPartition

# Limit of pending syncs per partition; above it, the first, the last and every other one between them are
# kept.
PENDING_MAX = 16
# One for each bit of an offset, as in Java.
SLOTS = 64
# Not a translation: the group's offset lies before all known pairs. Java writes no checkpoint then.
TOO_OLD: Final = -1


class Sync(NamedTuple):
    """An offset sync: the record at `upstream_offset` lies at `downstream_offset` of the copy."""

    upstream_offset: int
    downstream_offset: int


class PartitionSyncs:
    """The offset syncs of one partition that are to be written.

    As in Java, these records are due at once: the first of a process, one more than *lag_max* downstream
    offsets after the last sync, one after an upstream gap (markers, compaction), and the first after a step
    back. Of all others, only the newest is written, with `promote`. Java writes what its ten in-flight
    requests can carry and keeps the newest of the rest. Here `pending` keeps up to PENDING_MAX per partition,
    because older syncs serve groups that lag.
    """

    __slots__ = ("_delayed", "_downstream", "_due_at", "_step", "_upstream", "pending")

    def __init__(self, lag_max: int) -> None:
        self.pending: list[Sync] = []  # oldest first
        self._step = max(0, lag_max) + 1
        self._upstream = self._downstream = -1  # of the last record
        self._due_at = 0  # the downstream offset from which the next record is due
        self._delayed = False  # the last record has no sync yet

    def delivered(self, upstream: int, downstream: int, count: int) -> bool:
        """Adds *count* records without a gap from these offsets on; returns whether syncs are due now."""
        last = downstream + count - 1
        if last < self._due_at and upstream == self._upstream + 1 and downstream > self._downstream:
            self._upstream += count
            self._downstream = last
            self._delayed = True
            return False
        if upstream <= self._upstream or downstream <= self._downstream:
            self.pending.clear()  # the pairs no longer hold for the copy
            first = downstream
        elif upstream != self._upstream + 1:
            first = downstream
        else:
            first = max(downstream, self._due_at)
        newest = last - (last - first) % self._step
        self._add(
            [Sync(upstream + offset - downstream, offset) for offset in _spread(first, newest, self._step)]
        )
        self._upstream = upstream + count - 1
        self._downstream = last
        self._due_at = newest + self._step
        self._delayed = newest != last
        return True

    def delivered_with_gaps(self, upstream: Sequence[int], downstream: int) -> bool:
        """Adds records as `delivered` does, where only the downstream offsets are consecutive."""
        due, begin = False, 0
        for index in range(1, len(upstream) + 1):
            if index == len(upstream) or upstream[index] != upstream[index - 1] + 1:
                due |= self.delivered(upstream[begin], downstream + begin, index - begin)
                begin = index
        return due

    def aligned(self, upstream: int, downstream: int) -> bool:
        """Applies an alignment: the target's last record is that of *upstream*, at *downstream*.

        Returns whether syncs are to be written now. *upstream* may lie after the record, where markers
        follow it. The translation is then too low, never too high.
        """
        if downstream == self._downstream and upstream >= self._upstream:
            return False
        is_first = self._downstream < 0
        stepped_back = upstream < self._upstream or downstream < self._downstream
        self._upstream, self._downstream, self._delayed = upstream, downstream, True
        if is_first or not (stepped_back or downstream >= self._due_at):
            return False
        if stepped_back:
            # Readers must discard newer pairs: a sync that steps back makes them do so.
            self.pending.clear()
        self._due_at = downstream + self._step
        return self.promote()

    def lost(self, left: Sync) -> None:
        """Makes *left* due now: an earlier process re-created the copy from there on."""
        newest = Sync(self._upstream, self._downstream)
        # Readers must discard earlier pairs: a sync that steps back makes them do so.
        self.pending[:] = [left, newest] if newest.upstream_offset > left.upstream_offset else [left]
        self._delayed = False

    def promote(self) -> bool:
        """Makes the last record's sync due, too; returns whether syncs are to be written now."""
        if self._delayed:
            self._delayed = False
            self._add([Sync(self._upstream, self._downstream)])
        return bool(self.pending)

    def repeat(self) -> bool:
        """Makes the last record's sync due again; returns whether there is one."""
        self._delayed = self._downstream >= 0
        return self.promote()

    def take(self) -> tuple[Sync, ...]:
        """Removes and returns the pending syncs, oldest first."""
        taken = tuple(self.pending)
        self.pending.clear()
        return taken

    def put_back(self, syncs: Sequence[Sync]) -> None:
        """Makes *syncs* pending again, which could not be written, unless a step back has made them void."""
        later = self.pending[:1]
        if not later or later[0].upstream_offset > syncs[-1].upstream_offset:
            self.pending[:0] = syncs
            self._add([])

    def _add(self, syncs: Sequence[Sync]) -> None:
        self.pending += syncs
        while len(self.pending) > PENDING_MAX:
            del self.pending[1:-1:2]


def _spread(first: int, last: int, step: int) -> Sequence[int]:
    """Returns *first* to *last* by *step*; if too many, denser to the end, as in `OffsetSyncStore`."""
    count = (last - first) // step + 1
    if count <= PENDING_MAX:
        return range(first, last + 1, step)
    offsets, back = [last], 1
    while back < count - 1:
        offsets.append(last - back * step)
        back *= 2
    return [first, *reversed(offsets)]


Slots = tuple[Sync, ...]


class OffsetSyncStore:
    """Keeps the offset syncs of each partition and translates offsets (Java's OffsetSyncStore of 4.x).

    Slot 0 is the newest pair, slot 63 the oldest usable one. For two different pairs in slots i < j:
    upstream(i) <= upstream(j) + 2^j - 2^i (near enough), and >= upstream(j) + 2^max(i - 2, 0) (far enough).

    With *must_read_to_end*, each pair read before `is_read_to_end` replaces all before it: a process that
    does not know its predecessor's translations could otherwise step back before them. Without it (the
    earlier checkpoints were read), all pairs count. Unlike Java, a step back of the downstream offset also
    voids older pairs, as one of the upstream offset does: the copy was re-created, and they would let groups
    skip records that it holds now.
    """

    def __init__(self, *, must_read_to_end: bool) -> None:
        self.is_read_to_end = False  # all syncs that were there at the start have been added
        self._must_read_to_end = must_read_to_end
        self._slots: dict[TopicPartition, Slots] = {}

    @property
    def partitions(self) -> Mapping[TopicPartition, Slots]:
        """The slots of every partition that has a sync."""
        return self._slots

    def without(self, partitions: Collection[TopicPartition]) -> "OffsetSyncStore":
        """Returns a store with the pairs of all other partitions."""
        if not partitions:
            return self
        others = OffsetSyncStore(must_read_to_end=self._must_read_to_end)
        others.is_read_to_end = self.is_read_to_end
        others._slots = {key: slots for key, slots in self._slots.items() if key not in partitions}
        return others

    def add(self, partition: TopicPartition, sync: Sync) -> bool:
        """Adds the next sync of the topic; returns whether it steps back on the target: the copy was created again, or lost records."""
        slots = self._slots.get(partition)
        if slots is None or self._voids(slots[0], sync):
            self._slots[partition] = (sync,) * SLOTS
        else:
            self._slots[partition] = _updated(slots, sync)
        return slots is not None and _steps_back(slots[0], sync)

    def mark_read_to_end(self) -> None:
        """Notes that all syncs that were there at the start have been added."""
        self.is_read_to_end = True

    def translate_downstream(self, partition: TopicPartition, upstream_offset: int) -> int | None:
        """Returns the downstream offset for a group at *upstream_offset*; never past its first unread record.

        None: nothing is known (yet). TOO_OLD: the offset lies before every pair.
        """
        slots = self._slots.get(partition)
        if not self.is_read_to_end or slots is None:
            return None
        for upstream, downstream in slots:
            if upstream <= upstream_offset:
                # The number of records copied after the pair is unknown: advance by one offset, never more.
                return downstream if upstream == upstream_offset else downstream + 1
        return TOO_OLD

    def translate_back(
        self, partition: TopicPartition, downstream_offset: int
    ) -> tuple[int, int | None] | None:
        """Returns the source offsets for a reader at *downstream_offset*: the first is never past its first unread record.

        What it reads again lies before the second; None: no newer pair is known. None instead of both: nothing is known
        (yet), or the offset lies before every pair.
        """
        slots = self._slots.get(partition)
        if not self.is_read_to_end or slots is None:
            return None
        at_most = None
        for upstream, downstream in slots:
            if downstream < downstream_offset:
                # An upstream offset may be that of a marker after the record (`PartitionSyncs.aligned`), so a pair holds for a
                # reader that has read its record.
                at_least = upstream + 1
                if downstream + 1 == downstream_offset:
                    return at_least, at_least
                return at_least, None if at_most is None else max(at_least, at_most)
            at_most = upstream
        return None

    def _voids(self, newest: Sync, sync: Sync) -> bool:
        return (
            (self._must_read_to_end and not self.is_read_to_end)
            or sync.upstream_offset < newest.upstream_offset
            or _steps_back(newest, sync)
        )


def _steps_back(newest: Sync, sync: Sync) -> bool:
    """Returns whether *sync* is at an earlier target offset, or its first one has another record now."""
    if sync.downstream_offset == 0 == newest.downstream_offset:
        return sync.upstream_offset > newest.upstream_offset
    return sync.downstream_offset < newest.downstream_offset


def _updated(old: Slots, sync: Sync) -> Slots:
    """Returns the slots with *sync* in slot 0 and the older pairs that the slot rules still allow."""
    slots = list(old)
    slots[0] = replacement = sync
    index = 0  # index in *old* of the next candidate
    for current in range(1, SLOTS):
        previous = slots[current - 1]
        while True:
            candidate = old[index]
            far_enough = _is_far_enough(previous, candidate, current - 1)
            fits = (
                far_enough
                and _is_near_enough(previous, candidate, current - 1, current)
                and (current + 1 == SLOTS or _is_far_enough(candidate, slots[current + 1], current))
            )
            if fits:
                replacement = candidate
            repeated = index + 1 < SLOTS and candidate is old[index + 1]
            skip = repeated or not far_enough
            if fits or skip:
                index += 1
            if index >= current or not skip:
                break
        if _is_near_enough(previous, slots[current], current - 1, current):
            break  # and so are all after it
        slots[current] = replacement
    return tuple(slots)


def _is_near_enough(newer: Sync, older: Sync, i: int, j: int) -> bool:
    return newer is older or newer.upstream_offset <= older.upstream_offset + (1 << j) - (1 << i)


def _is_far_enough(newer: Sync, older: Sync, i: int) -> bool:
    bound = older.upstream_offset + (1 << max(i - 2, 0))
    return newer is older or newer.upstream_offset >= bound

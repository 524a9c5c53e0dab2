"""Maps source offsets of a partition to target offsets and back, as runs, so that offsets translate exactly.

A run means: `records` records of the stream, and no others of it, lie in [upstream, upstream_end) of the
source and in [downstream, downstream_end) of the target. In a parallel run every offset holds a record, so
each source offset has one target offset. Gaps of the source (compaction, markers, aborted records) and of the
target (markers, fences, foreign records) start a new run. They lie between runs, so translations stay exact.

The number of runs is limited. Above the limit, neighbours are merged, first those that lose the least
precision for their distance from the end. In a merged run, with S source offsets and T target offsets that
hold no record of the stream, a translation is known within S + T. So precision falls about in proportion to
the distance, but a translation is never wrong.

`PartitionMap` grows while a partition is copied; `OffsetMap` is the stored form. Both guarantee that
`at_least` of a translation never lies after a record that the group has yet to read. What a process did not
store before it died becomes one run between two known pairs, whose ordinals give its number of records. Facts
that contradict the map clear it.

A stored map names the leader epoch in which the target still had all its records. If the log shows that this
epoch ended earlier, the target has lost records since (an unclean election), and the map is truncated there,
whatever the target holds there now.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import OffsetPair

# At most some 3 kB per partition, written every few seconds if changed. With a marker after each transaction,
# the last fifty transactions are exact, and offsets 10,000 back are known within some 500 records.
RUNS_MAX = 256
MERGED_AT_ONCE = RUNS_MAX // 4  # finding the cheapest pair costs as much for one merge as for many
FIRST_EPOCH: Final = 0  # the first leader epoch of a partition
UNKNOWN: Final = -1  # number of records in a run that another program or an earlier generation copied


class MappedOffset(NamedTuple):
    """A translated offset: from `at_least` a group skips nothing, and re-reads only before `at_most`."""

    at_least: int
    at_most: int | None  # None: the copy has not reached it yet

    @property
    def is_exact(self) -> bool:
        """Whether a group skips nothing and reads nothing again."""
        return self.at_least == self.at_most


class Run(NamedTuple):
    """A source range and a target range that hold the same records. Ends are exclusive; other offsets in them hold no record."""

    upstream: int
    downstream: int
    upstream_end: int
    downstream_end: int
    records: int  # or UNKNOWN

    @property
    def is_parallel(self) -> bool:
        """Whether every offset, on both clusters, holds a record of the stream."""
        return self.records == self.upstream_end - self.upstream == self.downstream_end - self.downstream

    @property
    def width(self) -> int:
        """The maximum error of a translation in this run, in offsets."""
        rooms = self.upstream_end - self.upstream, self.downstream_end - self.downstream
        return max(rooms) if self.records == UNKNOWN else sum(rooms) - 2 * self.records

    @property
    def is_possible(self) -> bool:
        """Whether both ranges are large enough for its records."""
        room = min(self.upstream_end - self.upstream, self.downstream_end - self.downstream)
        return UNKNOWN <= self.records <= room and room >= 0

    def translate(self, offset: int) -> MappedOffset:
        """Returns the translation for a group that reads *offset* next, which is not before the run."""
        if offset <= self.upstream:
            return MappedOffset(self.downstream, self.downstream)
        if offset >= self.upstream_end:
            return MappedOffset(self.downstream_end, self.downstream_end)
        before = offset - self.upstream
        if self.records == UNKNOWN:
            return MappedOffset(self.downstream, self.downstream_end)
        no_source_records = self.upstream_end - self.upstream - self.records
        no_target_records = self.downstream_end - self.downstream - self.records
        fewest, most = max(0, before - no_source_records), min(self.records, before)
        at_most = self.downstream + most + no_target_records
        return MappedOffset(self.downstream + fewest, min(at_most, self.downstream_end))

    def reversed(self) -> "Run":
        """Returns the run with source and target exchanged."""
        return Run(self.downstream, self.upstream, self.downstream_end, self.upstream_end, self.records)

    def cut(self, upstream: int, downstream: int) -> "Run | None":
        """Returns the part that certainly lies before both offsets; None if that is empty."""
        if self.upstream_end <= upstream and self.downstream_end <= downstream:
            return self
        kept = min(upstream - self.upstream, downstream - self.downstream)
        if not self.is_parallel or kept <= 0:
            return None
        return Run(self.upstream, self.downstream, self.upstream + kept, self.downstream + kept, kept)


class MapStream(NamedTuple):
    """The stream of a map. With another topic id the map is void; with another generation its ordinals are."""

    generation: int
    source_topic_id: str  # "" if the brokers have no topic ids
    target_topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMap:
    """The stored map of a partition: runs that do not overlap, oldest first, at least one."""

    stream: MapStream
    ordinal: int  # of the next record
    upstream_end: int  # no record of the stream lies between the last run and this source offset
    runs: tuple[Run, ...]
    # The target's leader epoch when it was last queried and had all of this. A log with no other epoch never
    # lost records.
    leader_epoch: int = FIRST_EPOCH

    def before(self, downstream: int) -> "OffsetMap | None":
        """Returns the map truncated at *downstream*, where the target's loss begins; None if empty."""
        if self.runs[-1].downstream_end <= downstream:
            return self
        known = PartitionMap.of(self)
        known.lose(downstream)
        kept = known.kept(OffsetPair(-1, known.ordinal - 1, -1))
        return kept if kept.runs[0][:2] == self.runs[0][:2] else None

    def translate(self, offset: int) -> MappedOffset | None:
        """Returns the translation for a group that reads source *offset* next; None if it lies before the map.

        Where nothing was copied yet, a group at the place where copying began is at the end of the copy; None, as in
        MM2, for a partition that never had a record.
        """
        index = bisect_right(self.runs, offset, key=_upstream) - 1
        if index < 0 or self.upstream_end == 0:
            return None
        if offset > self.upstream_end:
            return MappedOffset(self.runs[-1].downstream_end, None)
        return self.runs[index].translate(offset)

    def translate_back(self, target_offset: int) -> MappedOffset | None:
        """Returns the source offsets for a reader of the copy that reads *target_offset* next, as `translate` the other way.

        Target offsets without a record of the stream (markers, foreign records) count as gaps. Behind the map there may be
        newer records of the stream, so nothing there is taken as read.
        """
        index = bisect_right(self.runs, target_offset, key=_downstream) - 1
        if index < 0 or self.upstream_end == 0:
            return None
        if target_offset > self.runs[-1].downstream_end:
            return MappedOffset(self.runs[-1].upstream_end, None)
        return self.runs[index].reversed().translate(target_offset)

    def is_current(self, downstream: int, *, generation: int, kept_end: int) -> bool:
        """Returns whether the map still shows what was copied before target offset *downstream*.

        *generation* is that of the newest position: a new one may have begun elsewhere on the source. At *kept_end*, the
        target has lost records since `leader_epoch`: others may be there now.
        """
        return generation == self.stream.generation and downstream <= kept_end

    def source_of(self, target_offset: int) -> int | None:
        """Returns the source offset of the record that was copied to *target_offset*; None if it is not known exactly."""
        index = bisect_right(self.runs, target_offset, key=_downstream) - 1
        if index < 0:
            return 0 if self.runs[0].upstream == 0 else None
        run = self.runs[index]
        if target_offset == run.downstream:
            return run.upstream
        if target_offset < run.downstream_end and run.upstream == run.upstream_end:
            return run.upstream  # the source had other records then, and was rewritten
        if target_offset < run.downstream_end:
            return run.upstream + target_offset - run.downstream if run.is_parallel else None
        # A run is followed by markers of the flow and records of others; after the last run there may be newer records of the flow.
        is_known = target_offset == run.downstream_end or index + 1 < len(self.runs)
        return run.upstream_end if is_known else None


class PartitionMap:
    """The growing map of one partition, updated with each acknowledged batch and each alignment."""

    __slots__ = (
        "_downstream", "_ordinal", "_passed", "_runs", "_upstream", "_upstream_begin", "leader_epoch", "stream",
    )  # fmt: skip

    def __init__(self, stream: MapStream, last: OffsetPair) -> None:
        """Starts an empty map: the record with the ordinal of *last*, and all before, lie up to its offsets."""
        self.stream = stream
        self.leader_epoch = FIRST_EPOCH
        self._begin(last.source_offset + 1, last.target_offset + 1, last.ordinal + 1)

    @classmethod
    def of(cls, kept: OffsetMap) -> "PartitionMap":
        """Returns a map that continues the stored one."""
        last = kept.runs[-1]
        continued = cls(
            kept.stream, OffsetPair(last.upstream_end - 1, kept.ordinal - 1, last.downstream_end - 1)
        )
        continued._runs = list(kept.runs)
        continued._passed = kept.upstream_end
        continued.leader_epoch = kept.leader_epoch
        return continued

    def note_leader_epoch(self, epoch: int) -> None:
        """Notes the leader epoch of the target partition; -1: unknown."""
        self.leader_epoch = max(FIRST_EPOCH, epoch)

    def _begin(self, upstream: int, downstream: int, ordinal: int) -> None:
        self._runs: list[Run] = [Run(upstream, downstream, upstream, downstream, 0)]
        self._open(upstream, downstream, ordinal)

    def _open(self, upstream: int, downstream: int, ordinal: int) -> None:
        """Starts the growing run here; it is parallel."""
        self._upstream_begin = self._upstream = self._passed = upstream
        self._downstream = downstream
        self._ordinal = ordinal  # of the run's first record

    @property
    def ordinal(self) -> int:
        """The ordinal of the next record."""
        return self._ordinal + self._upstream - self._upstream_begin

    @property
    def closed(self) -> Sequence[Run]:
        """All runs except the growing one."""
        return self._runs

    def delivered(self, upstream: int, downstream: int, count: int, ordinal: int) -> None:
        """Adds *count* records without a gap; the first has *ordinal* and lies at these offsets."""
        if upstream != self._upstream or downstream != self._downstream:
            self._break(upstream, downstream, ordinal)
        self._upstream += count
        self._downstream += count

    def delivered_with_gaps(self, upstream: Sequence[int], downstream: int, ordinal: int) -> None:
        """Adds records as `delivered` does, where only the target offsets are consecutive."""
        begin = 0
        for index in range(1, len(upstream) + 1):
            if index == len(upstream) or upstream[index] != upstream[index - 1] + 1:
                self.delivered(upstream[begin], downstream + begin, index - begin, ordinal + begin)
                begin = index

    def _break(self, upstream: int, downstream: int, ordinal: int) -> None:
        between = ordinal - self.ordinal  # number of records whose acknowledgement was lost
        if between < 0 or upstream < self._upstream or downstream < self._downstream:
            self._begin(upstream, downstream, ordinal)
            return
        self._close()
        self._bridge(upstream, downstream, ordinal, between)

    def _close(self) -> None:
        """Adds the growing run to the closed ones, and starts another."""
        count = self._upstream - self._upstream_begin
        if count:
            begin = self._downstream - count
            self._add(Run(self._upstream_begin, begin, self._upstream, self._downstream, count))
        self._open(self._upstream, self._downstream, self.ordinal)

    def _add(self, run: Run) -> None:
        last = self._runs[-1]
        if last.is_parallel and run.is_parallel and last[2:4] == run[:2]:
            self._runs[-1] = _merged(last, run)
            return
        self._runs.append(run)
        if len(self._runs) >= RUNS_MAX:
            self._runs = _thinned(self._runs)

    def aligned(self, stream: MapStream, last: OffsetPair) -> bool:
        """Applies an alignment: *last* is the target's last record of *stream*. Returns whether earlier content became invalid."""
        upstream, downstream, ordinal = last.source_offset + 1, last.target_offset + 1, last.ordinal + 1
        same, self.stream = self.stream, stream
        if same[1:] != stream[1:]:
            self._begin(upstream, downstream, ordinal)
            return True
        counts = same == stream
        if (
            counts
            and (ordinal, downstream) == (self.ordinal, self._downstream)
            and upstream >= self._upstream
        ):
            return False
        passed = max(self._passed, self._upstream)
        self._close()
        stepped_back = upstream < self._upstream or downstream < self._downstream
        if stepped_back:
            counts &= self._cut(upstream, downstream)
        if counts and ordinal < self.ordinal:
            self._begin(upstream, downstream, ordinal)
        elif counts:
            self._bridge(upstream, downstream, ordinal, ordinal - self.ordinal)
        else:
            none_between = not stepped_back and upstream <= passed
            self._bridge(upstream, downstream, ordinal, 0 if none_between else UNKNOWN)
        return stepped_back

    def lose(self, downstream: int) -> None:
        """Removes everything from target offset *downstream* on, which the target has lost."""
        self._close()
        if not self._cut(self._upstream, downstream):
            # The number of earlier records is unknown now, as with a map of an earlier generation.
            self.stream = self.stream._replace(generation=UNKNOWN)

    def _cut(self, upstream: int, downstream: int) -> bool:
        """Removes what does not lie before these offsets; returns whether the ordinal is still known."""
        ordinal = self._ordinal
        while self._runs:
            last = self._runs.pop()
            kept = last.cut(upstream, downstream)
            if UNKNOWN not in {last.records, ordinal}:
                ordinal -= last.records
            elif kept is not last:
                ordinal = UNKNOWN
            if kept is not None:
                self._runs.append(kept)
                known = ordinal if kept.records == UNKNOWN else ordinal + kept.records
                self._open(kept.upstream_end, kept.downstream_end, UNKNOWN if ordinal == UNKNOWN else known)
                return ordinal != UNKNOWN
        self._begin(upstream, downstream, UNKNOWN)
        return False

    def _bridge(self, upstream: int, downstream: int, ordinal: int, records: int) -> None:
        """Adds a run of *records* records from the end of the map up to these offsets."""
        between = Run(self._upstream, self._downstream, upstream, downstream, records)
        if not between.is_possible:
            # The stored map and the target contradict each other: then only the target counts.
            self._begin(upstream, downstream, ordinal)
            return
        if records and between[:2] != between[2:4]:
            self._add(between)
        self._open(upstream, downstream, ordinal)

    def follow(self, kept: OffsetMap) -> None:
        """Prepends the map *kept*, which was stored before this one began, as far as it is still valid."""
        own, passed, ordinal = self._all(), self._passed, self.ordinal
        if kept.stream[1:] != self.stream[1:] or any(run.records == UNKNOWN for run in own):
            return
        upstream, downstream = self._upstream, self._downstream
        begin, first_ordinal = own[0], ordinal - sum(run.records for run in own)
        earlier = PartitionMap.of(kept)
        earlier.aligned(self.stream, OffsetPair(begin.upstream - 1, first_ordinal - 1, begin.downstream - 1))
        self._runs = list(earlier.closed)
        for run in own:
            if run.records:
                self._add(run)
        self._open(upstream, downstream, ordinal)
        self._passed = passed

    def extend_to_log_start(self) -> None:
        """Adds what was copied before this map began, where no map of it was stored: a process died before it could.

        Only where every target offset before the map holds a record of the stream, so that the ordinals bound each offset.
        """
        begin = self._all()[0]
        records = self.ordinal - sum(run.records for run in self._all())
        if 0 < records == begin.downstream:
            empty = (Run(0, 0, 0, 0, 0),)
            self.follow(OffsetMap(stream=self.stream, ordinal=0, upstream_end=0, runs=empty))

    def _all(self) -> list[Run]:
        count = self._upstream - self._upstream_begin
        if not count:
            return list(self._runs)
        head = Run(self._upstream_begin, self._downstream - count, self._upstream, self._downstream, count)
        last = self._runs[-1]
        if last.is_parallel and last[2:4] == head[:2]:
            return [*self._runs[:-1], _merged(last, head)]
        return [*self._runs, head]

    def kept(self, delivered: OffsetPair) -> OffsetMap:
        """Returns the map to store; *delivered* is the stream's last delivered record."""
        if delivered.ordinal + 1 == self.ordinal:
            self._passed = max(self._passed, self._upstream, delivered.source_offset + 1)
        runs = self._all()
        if runs[-1].upstream_end < self._upstream or runs[-1].downstream_end < self._downstream:
            runs.append(Run(self._upstream, self._downstream, self._upstream, self._downstream, 0))
        return OffsetMap(
            stream=self.stream,
            ordinal=self.ordinal,
            upstream_end=max(self._passed, self._upstream),
            runs=tuple(runs),
            leader_epoch=self.leader_epoch,
        )


def _upstream(run: Run) -> int:
    return run.upstream


def _downstream(run: Run) -> int:
    return run.downstream


def _thinned(runs: list[Run]) -> list[Run]:
    """Merges up to MERGED_AT_ONCE neighbouring pairs, least width relative to distance from the end first."""
    end = runs[-1].upstream_end

    def cost(index: int) -> float:
        return _merged(runs[index], runs[index + 1]).width / (end - runs[index + 1].upstream + 1)

    taken: set[int] = set()  # indexes of the older run of each pair
    for index in sorted(range(len(runs) - 1), key=cost):
        if taken.isdisjoint((index - 1, index, index + 1)):
            taken.add(index)
            if len(taken) == MERGED_AT_ONCE:
                break
    return [
        _merged(run, runs[index + 1]) if index in taken else run
        for index, run in enumerate(runs)
        if index - 1 not in taken
    ]


def _merged(older: Run, newer: Run) -> Run:
    unknown = UNKNOWN in {older.records, newer.records}
    records = UNKNOWN if unknown else older.records + newer.records
    return Run(older.upstream, older.downstream, newer.upstream_end, newer.downstream_end, records)

"""Where the records of a partition lie on the target, as runs: what makes an offset's translation exact at any distance.

A run says: `records` records of the stream, and no others of it, lie in [upstream, upstream_end) of the source and in
[downstream, downstream_end) of the target. Where source and target run in parallel a run has no room for anything else,
and each offset in it has one place. Gaps of the source (compaction, markers, aborted records) and of the target (markers,
fences, foreign records) begin a new run, so that they lie between runs and cost no exactness.

The runs of a partition are bounded. When there are too many, neighbours are merged, those first that lose least for how
far back they are, and a merged run tells what it still can: with S source offsets and T target offsets that are no records
of the stream, an offset's place is known within S + T. So the farther back, the wider, about in proportion; never wrong.

`PartitionMap` records while copying, `OffsetMap` is what is kept of it. Both promise that a place's `at_least` never lies
behind a record that the group has yet to read. What a process did not write before it died is one run between two known
pairs, whose ordinals tell how many records it has. Whatever contradicts what is known, clears it.

What was kept says in which leader epoch the target still had all of it. Where the log tells that this epoch ended earlier,
the target has lost records since (an unclean election), and what is told of them is cut off, whatever lies there now.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirrorflow_replicator.flow.alignment import Pair

# Some 3 kB a partition at most, written every few seconds where it changes. With a marker behind each transaction the last
# fifty transactions are exact, and what lies 10,000 back is known within some 500 records.
RUNS_MAX = 256
MERGED_AT_ONCE = RUNS_MAX // 4  # looking for the cheapest costs as much for one as for many
FIRST_EPOCH: Final = 0  # of a partition's leaders
UNKNOWN: Final = -1  # records of a run that somebody else has copied, or an earlier generation


class Place(NamedTuple):
    """Where a group goes on: at `at_least` it misses nothing; it reads what lies before `at_most` again, and no more."""

    at_least: int
    at_most: int | None  # None: the copy is not that far yet

    @property
    def is_exact(self) -> bool:
        """Whether it misses nothing and reads nothing again."""
        return self.at_least == self.at_most


class Run(NamedTuple):
    """See the module. Ends are exclusive."""

    upstream: int
    downstream: int
    upstream_end: int
    downstream_end: int
    records: int  # UNKNOWN: nobody knows

    @property
    def is_parallel(self) -> bool:
        """Whether it holds nothing but records of the stream, on both sides."""
        return self.records == self.upstream_end - self.upstream == self.downstream_end - self.downstream

    @property
    def width(self) -> int:
        """How far a place in it can be off."""
        rooms = self.upstream_end - self.upstream, self.downstream_end - self.downstream
        return max(rooms) if self.records == UNKNOWN else sum(rooms) - 2 * self.records

    @property
    def is_possible(self) -> bool:
        """Whether it has room for its records."""
        room = min(self.upstream_end - self.upstream, self.downstream_end - self.downstream)
        return UNKNOWN <= self.records <= room and room >= 0

    def place(self, offset: int) -> Place:
        """Of a group that reads *offset* next, which is not before the run."""
        if offset <= self.upstream:
            return Place(self.downstream, self.downstream)
        if offset >= self.upstream_end:
            return Place(self.downstream_end, self.downstream_end)
        before = offset - self.upstream
        if self.records == UNKNOWN:
            return Place(self.downstream, self.downstream_end)
        no_source_records = self.upstream_end - self.upstream - self.records
        no_target_records = self.downstream_end - self.downstream - self.records
        fewest, most = max(0, before - no_source_records), min(self.records, before)
        at_most = self.downstream + most + no_target_records
        return Place(self.downstream + fewest, min(at_most, self.downstream_end))

    def cut(self, upstream: int, downstream: int) -> "Run | None":
        """What of it surely lies before both offsets; None if that is nothing."""
        if self.upstream_end <= upstream and self.downstream_end <= downstream:
            return self
        kept = min(upstream - self.upstream, downstream - self.downstream)
        if not self.is_parallel or kept <= 0:
            return None
        return Run(self.upstream, self.downstream, self.upstream + kept, self.downstream + kept, kept)


class Stream(NamedTuple):
    """Which stream of records a map is about. Of another topic nothing holds, of another generation no ordinal."""

    generation: int
    source_topic_id: str  # "" where brokers have none
    target_topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetMap:
    """The runs of a partition, oldest first, at least one; none overlaps another."""

    stream: Stream
    ordinal: int  # of the record that comes next
    upstream_end: int  # behind the last run, no record of the stream lies before this source offset
    runs: tuple[Run, ...]
    # Of the target, when it was last asked, and had all of this. In a log with no other epoch nothing was ever lost.
    leader_epoch: int = FIRST_EPOCH

    def before(self, downstream: int) -> "OffsetMap | None":
        """What of it holds where the target has lost what was at *downstream* and behind it; None if that is nothing."""
        if self.runs[-1].downstream_end <= downstream:
            return self
        known = PartitionMap.of(self)
        known.lose(downstream)
        kept = known.kept(Pair(-1, known.ordinal - 1, -1))
        return kept if kept.runs[0][:2] == self.runs[0][:2] else None

    def place(self, offset: int) -> Place | None:
        """Of a group that reads source *offset* next; None: it stands before all that is known.

        As in MM2 nothing is said of a partition of which nothing was copied yet.
        """
        at = bisect_right(self.runs, offset, key=_upstream) - 1
        if at < 0 or (len(self.runs) < 3 and not any(run.records for run in self.runs)):
            return None
        if offset > self.upstream_end:
            return Place(self.runs[-1].downstream_end, None)
        return self.runs[at].place(offset)


class PartitionMap:
    """The map of one partition as it grows. Told of each batch that was acknowledged, and of each alignment."""

    __slots__ = (
        "_downstream", "_ordinal", "_passed", "_runs", "_upstream", "_upstream_begin", "leader_epoch", "stream",
    )  # fmt: skip

    def __init__(self, stream: Stream, at: Pair) -> None:
        """Nothing is known but that the record with the ordinal of *at* and all before it lie before these offsets."""
        self.stream = stream
        self.leader_epoch = FIRST_EPOCH
        self._begin(at.source_offset + 1, at.target_offset + 1, at.ordinal + 1)

    @classmethod
    def of(cls, kept: OffsetMap) -> "PartitionMap":
        """To be continued from what was kept."""
        last = kept.runs[-1]
        found = cls(kept.stream, Pair(last.upstream_end - 1, kept.ordinal - 1, last.downstream_end - 1))
        found._runs = list(kept.runs)
        found._passed = kept.upstream_end
        found.leader_epoch = kept.leader_epoch
        return found

    def _begin(self, upstream: int, downstream: int, ordinal: int) -> None:
        self._runs: list[Run] = [Run(upstream, downstream, upstream, downstream, 0)]
        self._open(upstream, downstream, ordinal)

    def _open(self, upstream: int, downstream: int, ordinal: int) -> None:
        """The run that grows begins here; it is parallel."""
        self._upstream_begin = self._upstream = self._passed = upstream
        self._downstream = downstream
        self._ordinal = ordinal  # of the run's first record

    @property
    def ordinal(self) -> int:
        """Of the record that comes next."""
        return self._ordinal + self._upstream - self._upstream_begin

    @property
    def closed(self) -> Sequence[Run]:
        """All runs but the one that grows."""
        return self._runs

    def delivered(self, upstream: int, downstream: int, count: int, ordinal: int) -> None:
        """*count* records without a gap, the first with *ordinal*, lie where these offsets begin."""
        if upstream != self._upstream or downstream != self._downstream:
            self._break(upstream, downstream, ordinal)
        self._upstream += count
        self._downstream += count

    def delivered_with_gaps(self, upstream: Sequence[int], downstream: int, ordinal: int) -> None:
        """As `delivered`, for records that lie one behind the other on the target only."""
        begin = 0
        for at in range(1, len(upstream) + 1):
            if at == len(upstream) or upstream[at] != upstream[at - 1] + 1:
                self.delivered(upstream[begin], downstream + begin, at - begin, ordinal + begin)
                begin = at

    def _break(self, upstream: int, downstream: int, ordinal: int) -> None:
        between = ordinal - self.ordinal  # of batches whose acknowledgement was lost
        if between < 0 or upstream < self._upstream or downstream < self._downstream:
            self._begin(upstream, downstream, ordinal)
            return
        self._close()
        self._bridge(upstream, downstream, ordinal, between)

    def _close(self) -> None:
        """The run that grew is one of the others."""
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

    def has_more_than(self, at: Pair) -> bool:
        """Whether it knows of records behind *at*."""
        return self._downstream > at.target_offset + 1 or self._upstream > at.source_offset + 1

    def aligned(self, stream: Stream, at: Pair) -> bool:
        """The target was asked: of *stream* it has the record of *at* last. Whether something of before does not hold any more."""
        upstream, downstream, ordinal = at.source_offset + 1, at.target_offset + 1, at.ordinal + 1
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
        """The target has lost what was at *downstream* and behind it."""
        self._close()
        if not self._cut(self._upstream, downstream):
            # How many records there were before is not known any more: as of an earlier generation.
            self.stream = self.stream._replace(generation=UNKNOWN)

    def _cut(self, upstream: int, downstream: int) -> bool:
        """Forget what does not lie before these offsets; whether the ordinal is still known."""
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
        """From the end of what is known to these offsets, between which there are so many *records*."""
        between = Run(self._upstream, self._downstream, upstream, downstream, records)
        if not between.is_possible:
            # What was kept and what the target says do not fit: then only the target counts.
            self._begin(upstream, downstream, ordinal)
            return
        if records and between[:2] != between[2:4]:
            self._add(between)
        self._open(upstream, downstream, ordinal)

    def follow(self, kept: OffsetMap) -> None:
        """Go on from what *kept* says, which was written before this began, as far as it still holds."""
        own, passed, ordinal = self._all(), self._passed, self.ordinal
        if kept.stream[1:] != self.stream[1:] or any(run.records == UNKNOWN for run in own):
            return
        upstream, downstream = self._upstream, self._downstream
        begin, first_ordinal = own[0], ordinal - sum(run.records for run in own)
        earlier = PartitionMap.of(kept)
        earlier.aligned(self.stream, Pair(begin.upstream - 1, first_ordinal - 1, begin.downstream - 1))
        self._runs = list(earlier.closed)
        for run in own:
            if run.records:
                self._add(run)
        self._open(upstream, downstream, ordinal)
        self._passed = passed

    def _all(self) -> list[Run]:
        count = self._upstream - self._upstream_begin
        if not count:
            return list(self._runs)
        head = Run(self._upstream_begin, self._downstream - count, self._upstream, self._downstream, count)
        last = self._runs[-1]
        if last.is_parallel and last[2:4] == head[:2]:
            return [*self._runs[:-1], _merged(last, head)]
        return [*self._runs, head]

    def kept(self, delivered: Pair) -> OffsetMap:
        """What is to be written, *delivered* being how far the stream is."""
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


def _thinned(runs: list[Run]) -> list[Run]:
    """*runs* with MERGED_AT_ONCE fewer: merged are the neighbours that are least wide for their distance from the end."""
    end = runs[-1].upstream_end

    def cost(at: int) -> float:
        return _merged(runs[at], runs[at + 1]).width / (end - runs[at + 1].upstream + 1)

    taken: set[int] = set()  # the older of two
    for at in sorted(range(len(runs) - 1), key=cost):
        if taken.isdisjoint((at - 1, at, at + 1)):
            taken.add(at)
            if len(taken) == MERGED_AT_ONCE:
                break
    return [
        _merged(run, runs[at + 1]) if at in taken else run
        for at, run in enumerate(runs)
        if at - 1 not in taken
    ]


def _merged(older: Run, newer: Run) -> Run:
    unknown = UNKNOWN in {older.records, newer.records}
    records = UNKNOWN if unknown else older.records + newer.records
    return Run(older.upstream, older.downstream, newer.upstream_end, newer.downstream_end, records)

"""One stretch of a partition, source beside target: the batches of both go in, what each window held comes out.

Both sides are told their delivered batches in order and walked in lock step. Where both stand at a batch's border and the
two batches hold the same bytes, their records are equal, and none is decoded. Otherwise digests are compared, record by
record, until both stand at a border again. Where digests part, what follows on both sides says where they go on together
(`resync`), so one lost record does not make all that follow it different.

A stretch begins and ends on both sides at records that belong together (`borders` sees to it), and every record of either
side within is counted in one window: nothing can lie between two stretches unseen.

Pure: who fetches is `reading`.
"""

from collections import Counter, deque
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from mirrorflow_replicator.errors import CorruptRecordsError
from mirrorflow_replicator.wire.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    Batch,
    checksum_holds,
)
from mirrorflow_seed.verify.digests import Digested, RecordDigest
from mirrorflow_seed.verify.resync import LEVELS, together_again
from mirrorflow_seed.verify.splits import Split
from mirrorflow_seed.verify.windows import Kind, Tally, WindowResult

UNSETTLED: Final = "The target ends here, and no position says whether this was copied."
_DECIDES_TIMESTAMPS = CODEC_MASK | LOG_APPEND_TIME_BIT


class Needs(NamedTuple):
    """Which side is to be fed, or ended, before the comparison can go on; neither: it is done."""

    source: bool = False
    target: bool = False


def same_records(one: Batch, other: Batch) -> bool:
    """Whether two batches are known to hold equal records, each at the same distance from its batch's first.

    A record's bytes hold key, value and headers as they are, and its timestamp and offset as differences to the batch's. So
    with the same codec, base timestamp and number, equal bytes are equal records; with LogAppendTime the batch's last
    timestamp is everybody's. Producer, sequence, leader epoch and the transactional bit say nothing of records. False is no
    answer: the same records may be in other bytes.
    """
    return (
        one.size_bytes == other.size_bytes
        and one.count == other.count
        and one.base_timestamp == other.base_timestamp
        and one.last_offset_delta == other.last_offset_delta
        and one.magic == other.magic == 2
        and not (one.attributes ^ other.attributes) & _DECIDES_TIMESTAMPS
        and (not one.is_log_append_time or one.max_timestamp == other.max_timestamp)
        # A view compares element by element; a bytearray by memcmp, and copying one side costs as little.
        and bytearray(one.data[HEADER_BYTES:]) == other.data[HEADER_BYTES:]
    )


class Comparison:
    """See the module. `source`, `target` and their ends are told; `advance` says what is needed next."""

    def __init__(
        self, split: Split, *, source: RecordDigest, target: RecordDigest, decode_all: bool = False
    ) -> None:
        self.behind = 0  # records at the end of the source that the target need not have yet
        self._split = split
        self._is_plain = source.is_plain and not decode_all
        self._source = _Side("source", source, split.source_from, split.source_to)
        self._target = _Side("target", target, split.target_from, split.target_to)
        self._tallies: dict[int, Tally] = {}
        self._cursor = split.source_from
        self._level = 0

    def feed(self, *, source: Iterable[Batch] = (), target: Iterable[Batch] = ()) -> None:
        """What was fetched, without control batches and those of aborted transactions."""
        self._source.batches.extend(source)
        self._target.batches.extend(target)

    def end(self, *, source: bool = False, target: bool = False) -> None:
        """A side has no more."""
        self._source.is_ended |= source
        self._target.is_ended |= target

    def advance(self) -> Needs:
        """Compare as far as both sides go. Raises CorruptRecordsError."""
        source, target = self._source, self._target
        while True:
            if source.wants or target.wants:
                return Needs(source=source.wants, target=target.wants)
            if self._is_plain and not source.head and not target.head and self._same_batches():
                continue
            source.fill(1)
            target.fill(1)
            if source.wants or target.wants:
                continue
            if not (source.head or target.head):
                return Needs()
            if not (source.head and target.head):
                self._leave_out(len(source.head), len(target.head), at_end=True)
                continue
            self._same_heads()
            if source.head and target.head:
                needs = self._rejoin()
                if needs is not None:
                    return needs

    def results(self, *, reason: str = "") -> list[WindowResult]:
        """Windows in order. With a *reason* the comparison could not go on, and what was not seen whole is undecided."""
        size, split = self._split.window_offsets, self._split
        if reason:
            for index in range(self._cursor // size, -(-split.source_to // size)):
                self._tally(index * size).reason = reason
        return [
            tally.result(
                topic=split.topic,
                partition=split.partition,
                target_topic=split.target_topic,
                from_offset=max(index * size, split.source_from),
                to_offset=min((index + 1) * size, max(split.source_to, split.source_from)),
            )
            for index, tally in sorted(self._tallies.items())
        ]

    def _tally(self, offset: int) -> Tally:
        index = offset // self._split.window_offsets
        found = self._tallies.get(index)
        if found is None:
            found = self._tallies[index] = Tally(index)
        return found

    def _same_batches(self) -> bool:
        one, other = self._source.whole, self._target.whole
        if one is None or other is None:
            return False
        size = self._split.window_offsets
        is_in_one = one.base_offset // size == one.last_offset // size
        if not (is_in_one or one.is_dense) or not same_records(one, other):
            return False
        if not checksum_holds(other):
            self._target.corrupt(other)
        self._source.batches.popleft()
        self._target.batches.popleft()
        offset, left = one.base_offset, one.count
        while left:
            count = left if is_in_one else min(left, size - offset % size)
            self._tally(offset).same(count, other.base_offset + offset - one.base_offset)
            offset, left = offset + count, left - count
        self._cursor = one.last_offset
        return True

    def _same_heads(self) -> None:
        sources, targets = self._source.head, self._target.head
        size = self._split.window_offsets
        while sources and targets:
            first, begin = sources[0], targets[0].offset
            border = (first.offset // size + 1) * size
            run: list[Digested] = []
            while (
                sources and targets and sources[0].digest == targets[0].digest and sources[0].offset < border
            ):
                run.append(sources.popleft())
                end = targets.popleft().offset + 1
            if not run:
                return
            self._tally(first.offset).same_digested(run, begin, end)
            self._cursor = run[-1].offset

    def _rejoin(self) -> Needs | None:
        """Find where both go on together; what is needed for that, if it is not there."""
        source, target = self._source, self._target
        while self._level < len(LEVELS):
            count = LEVELS[self._level]
            source.fill(count)
            target.fill(count)
            needs = Needs(source=source.lacks(count), target=target.lacks(count))
            if any(needs):
                return needs
            left = [one.digest for one in islice(source.head, count)]
            right = [one.digest for one in islice(target.head, count)]
            is_all = source.is_all_within(count), target.is_all_within(count)
            found = together_again(left, right, is_all=is_all)
            if found is not None:
                self._leave_out(*found)
                break
            if all(is_all):
                self._leave_out(len(left), len(right), at_end=True)
                break
            self._level += 1
        else:
            self._leave_out(min(LEVELS[-1], len(source.head)), min(LEVELS[-1], len(target.head)))
        self._level = 0
        return None

    def _leave_out(self, sources: int, targets: int, *, at_end: bool = False) -> None:
        """So many records of both sides have nothing in their place."""
        left = [self._source.head.popleft() for _ in range(sources)]
        right = [self._target.head.popleft() for _ in range(targets)]
        both = Counter(one.digest for one in left) & Counter(one.digest for one in right)
        waiting: dict[bytes, deque[Digested]] = {}
        unpaired: deque[Digested] = deque()
        places = both.copy()
        for record in right:
            if places[record.digest]:
                places[record.digest] -= 1
                waiting.setdefault(record.digest, deque()).append(record)
            else:
                unpaired.append(record)
        placed: list[tuple[Digested, Tally]] = []
        for record in left:
            if waiting.get(record.digest):
                self._differ(Kind.MOVED, record, waiting[record.digest].popleft(), placed)
            elif unpaired:
                self._differ(Kind.CHANGED, record, unpaired.popleft(), placed)
            elif at_end and self._split.is_behind(record.offset):
                self.behind += 1
            elif at_end and self._split.settled_before is None:
                self._cursor = record.offset
                self._tally(record.offset).source(record)
                self._tally(record.offset).reason = UNSETTLED
            else:
                self._differ(Kind.MISSING, record, None, placed)
        for record in unpaired:
            self._differ(Kind.EXTRA, None, record, placed)
        # In the order of the target, for its chain.
        for record, tally in sorted(placed, key=lambda one: one[0].offset):
            tally.target(record)

    def _differ(
        self,
        kind: Kind,
        source: Digested | None,
        target: Digested | None,
        placed: list[tuple[Digested, Tally]],
    ) -> None:
        if source is not None:
            self._cursor = source.offset
        tally = self._tally(self._cursor)
        if source is not None:
            tally.source(source)
        if target is not None:
            placed.append((target, tally))
        tally.differs(kind, source, target)


class _Side:
    """What is known of one side: batches that wait, and digests in front of them."""

    __slots__ = ("_begin", "_digest", "_end", "batches", "head", "is_ended", "name")

    def __init__(self, name: str, digest: RecordDigest, begin: int, end: int) -> None:
        self.name = name
        self.batches: deque[Batch] = deque()
        self.head: deque[Digested] = deque()
        self.is_ended = False
        self._digest = digest
        self._begin, self._end = begin, end

    @property
    def wants(self) -> bool:
        """Whether it has nothing, and is to get more."""
        return not (self.is_ended or self.head or self.batches)

    @property
    def whole(self) -> Batch | None:
        """The first batch, if it lies within the stretch."""
        if not self.batches:
            return None
        first = self.batches[0]
        return first if first.base_offset >= self._begin and first.next_offset <= self._end else None

    def lacks(self, count: int) -> bool:
        """Whether it has fewer digests than that, and is to get more."""
        return len(self.head) < count and not self.is_ended

    def is_all_within(self, count: int) -> bool:
        """Whether so many digests from the front are all that there are."""
        return self.is_ended and not self.batches and len(self.head) <= count

    def fill(self, count: int) -> None:
        """Have so many digests, or all that there are now."""
        while len(self.head) < count and self.batches:
            batch = self.batches.popleft()
            if not checksum_holds(batch):
                self.corrupt(batch)
            within = self._begin, self._end
            self.head.extend(
                one for one in self._digest.of_batch(batch) if within[0] <= one.offset < within[1]
            )

    def corrupt(self, batch: Batch) -> None:
        """Raises CorruptRecordsError."""
        raise CorruptRecordsError(f"the batch at offset {batch.base_offset} of the {self.name} is damaged")

"""Finds the source record that was copied last, where the target is ahead of the last stored offset.

The target's log shows the ordinal of its last record; this module finds the source offset of that record. The
method depends on the source's log:

1. `DenseWalk`: counts the source's records after the known pair while no offset is missing. A log without
   gaps was not compacted, so the count is exact. The timestamps in the headers of all copies are compared too
   (`BatchTimes`).
2. If the counted record differs from the copy, or the source elected a leader in between, its log may have
   been truncated and rewritten: records are compared one by one, and a `Divergence` is reported.
3. `CompactedMatch`: where offsets are missing, matches the remaining source records with the copies, by
   content.

This module does no I/O: `resume.source_scan` reads, decodes and digests the logs.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mirrorflow_core.errors import UndecidedError
from mirrorflow_core.exactly_once.alignment import OffsetPair, ResumeAt
from mirrorflow_core.partitions import TopicPartition

NONE = -1
END = 1 << 63  # above every offset of a log
KEY_BITS = 1 << 25  # 4 MiB


class Mark(NamedTuple):
    """Identifies a record on both clusters: digests of key and content (key, value, headers), and timestamp.

    `key` is empty for a record without one. `timestamp` is NONE where the target has replaced it
    (LogAppendTime).
    """

    key: bytes
    content: bytes
    timestamp: int


class Divergence(NamedTuple):
    """Source and copy differ from source offset `offset` on.

    Either the source's log was truncated, and perhaps rewritten. Or, if the source is known to be intact,
    another producer wrote the record at `target_offset` with the flow's identity.
    """

    offset: int
    target_offset: int = NONE
    source_epoch: int = NONE  # leader epoch of the last equal record, the one before; NONE: unknown
    is_source_intact: bool | None = None  # None: unknown


class Truncation(NamedTuple):
    """The source still holds the copied records up to `kept`, and others from `offset` on at the latest.

    `is_exact`: other records begin exactly at `offset`. Otherwise comparing the records between decides
    (`resume.source_scan`).
    """

    kept: OffsetPair
    offset: int
    is_exact: bool


def truncated_at(ladder: Sequence[OffsetPair], epoch: int, end_offset: int) -> Truncation | None:
    """Return where the source no longer holds the records that were copied; None if there is no sign of that.

    *ladder* holds the known pairs, newest first. *epoch* and *end_offset* are the source's answer for the
    leader epoch of the newest pair: the largest epoch in its log that is not above it, and the end offset of
    that epoch (KIP-101, LeaderEpochFileCache.endOffsetFor).
    """
    newest = ladder[0]
    if end_offset == NONE or (epoch == newest.source_epoch and end_offset > newest.source_offset):
        return None
    # Equal epoch and offset mean the same record. Copied records of a later epoch are gone from the source;
    # its log may hold further records of the earlier epoch in their place, which were never copied.
    replaced = [pair.source_offset for pair in ladder if pair.source_epoch > epoch]
    offset = min([end_offset, *replaced])
    kept = next(
        (pair for pair in ladder if NONE < pair.source_epoch <= epoch and pair.source_offset < offset),
        ladder[-1],
    )
    is_exact = epoch == newest.source_epoch or kept.source_offset + 1 >= offset
    return Truncation(kept, offset, is_exact)


class BatchTimes:
    """The largest timestamp of each source batch after a known pair, by the ordinals of its records.

    Batch headers on both clusters hold this timestamp, so copies are compared without decoding. This detects
    another producer's batch between those of the flow.
    """

    __slots__ = ("_lasts", "_times")

    def __init__(self, known: OffsetPair) -> None:
        self._lasts = array("q", [known.ordinal])  # ordinal of the last record
        self._times = array("q", [NONE])

    def add(self, last: int, max_timestamp: int, *, is_partial: bool) -> None:
        """Add the next batch, up to ordinal *last*; *is_partial*: it begins at or before the known pair."""
        if is_partial:
            self._lasts[0] = NONE - 1  # no copied batch begins at its first record
        self._lasts.append(last)
        self._times.append(max_timestamp)

    def of(self, first: int, last: int) -> int | None:
        """Return the largest timestamp of ordinals *first* to *last*; None unless these are whole batches."""
        before, end = bisect_left(self._lasts, first - 1), bisect_left(self._lasts, last)
        if end == len(self._lasts) or (self._lasts[before], self._lasts[end]) != (first - 1, last):
            return None
        return max(self._times[before + 1 : end + 1])


class DenseWalk:
    """Counts source records from a known pair to the record with the requested ordinal.

    Pass every batch of the log in order, also control batches and aborted ones (`records` None). Counting
    stops at the first missing offset.
    """

    __slots__ = ("_left", "_next", "_ordinal", "epochs", "found", "is_dense", "times")

    def __init__(self, at: ResumeAt) -> None:
        self._left = at.walk_records
        self._next = at.known.source_offset + 1
        self.is_dense = True
        self.found = NONE  # source offset of the record with the requested ordinal
        self.epochs: set[int] = set()  # leader epochs of the batches counted
        self.times = BatchTimes(at.known)
        self._ordinal = at.known.ordinal

    def take(
        self,
        base_offset: int,
        next_offset: int,
        *,
        records: int | None,
        leader_epoch: int,
        max_timestamp: int,
    ) -> bool:
        """Count the next batch and return whether another is needed.

        *records* is the number of its records in the stream, which must fill its offsets; None for a batch
        outside the stream. A batch of the stream with 0 records was emptied by compaction, which keeps a
        producer's last header.
        """
        if base_offset > self._next or records not in {None, next_offset - base_offset}:
            self.is_dense = False
            return False
        begin = max(base_offset, self._next)
        left = 0 if records is None else next_offset - begin
        self._ordinal += left
        if left:
            self.times.add(self._ordinal, max_timestamp, is_partial=begin > base_offset)
        self.epochs.add(leader_epoch)
        self._next = next_offset
        if left < self._left:
            self._left -= left
            return True
        self.found = begin + self._left - 1
        return False

    @property
    def reached(self) -> int:
        """The source offset up to which (exclusive) no offset is missing."""
        return self._next


class _Keys:
    """A Bloom filter of keys, 4 MiB.

    With a million keys the false-positive rate is below one in a thousand.
    """

    __slots__ = ("_bits",)

    def __init__(self) -> None:
        self._bits = bytearray()  # allocated with the first key: most matches need one window only

    def add(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._bits = self._bits or bytearray(KEY_BITS // 8)
            for bit in self._bits_of(key):
                self._bits[bit >> 3] |= 1 << (bit & 7)

    def __contains__(self, key: bytes) -> bool:
        return bool(self._bits) and all(self._bits[bit >> 3] >> (bit & 7) & 1 for bit in self._bits_of(key))

    @staticmethod
    def _bits_of(key: bytes) -> Iterator[int]:
        """Return four bit numbers. Keys are 16-byte digests, so four bytes of them serve as a hash value."""
        number = int.from_bytes(key, "little")
        return (number >> shift & (KEY_BITS - 1) for shift in (0, 32, 64, 96))


class CompactedMatch:
    """Finds the last copied record of a compacted source by matching source records with windows of copies.

    Windows are checked newest first.

    Compaction removes a record only when a later record with its key exists, and never changes the order
    (Cleaner, LogCleanerManager). So if the source still has a copied record of a key, it also has the newest
    copied record of that key. The copied part of the source ends where this holds for every key before.

    Newer records may have replaced a whole window. Then none of the remaining source records with its keys
    was copied, and the copied part ends before the first of them: an earlier window decides where. Windows
    below the deciding one confirm that the source's records before it were copied and did not match by
    chance.

    Guarantee: the last value of each key is the same on both clusters, whatever else repeats. A record that
    was never copied is skipped only if it equals a copy in key, value, headers, timestamp and order. In doubt
    a record is new.
    """

    def __init__(self, at: ResumeAt) -> None:
        self._at = at
        self._lowest = at.known.source_offset + at.walk_records  # each record took one source offset
        self._behind = at.ordinal + 1  # ordinal of the first copy after the window
        self._limit = END  # source records from here on are decided: new, or matched with a newer window
        self._found: tuple[int, int] | None = None  # offset and epoch of the record that was copied last
        self._has_copies = False
        self._keys_behind = _Keys()  # keys whose newest copy a newer window found in the source
        self._begin([], is_oldest=True)

    def look(self, copies: Sequence[tuple[int, Mark]], *, is_oldest: bool) -> int:
        """Start the next window: the flow's records in it as (ordinal, mark), in target log order.

        Returns the source offset from which source records must be passed to `take`.
        """
        self._settle()
        self._keys_behind.add(self._keys_found)
        first = copies[0][0] if copies else self._behind
        whole_from = self._at.known.ordinal + 1 if is_oldest else first
        self._begin([mark for _, mark in copies], is_oldest=is_oldest)
        self._is_whole = len(copies) == self._behind - whole_from
        self._behind = first
        self._has_copies |= bool(copies)
        return self._at.known.source_offset + max(1, first - self._at.known.ordinal)

    def _begin(self, copies: list[Mark], *, is_oldest: bool) -> None:
        self._copies = copies
        self._last = {mark: index for index, mark in enumerate(copies)}
        self._newest = {mark.key: index for index, mark in enumerate(copies)}
        self._is_oldest = is_oldest
        self._is_whole = False
        self._matched = NONE  # index of the copy matched last
        self._first_match = self._first_of_keys = END  # source offsets
        # Keys with an older record found, at that source offset, but not yet their newest copy.
        self._awaited: dict[bytes, int] = {}
        self._keys_found: set[bytes] = set()  # keys whose newest copy was found
        # (offset, epoch) of the last copied records, all of them equal.
        self._run: list[tuple[int, int]] = []
        self._run_mark: Mark | None = None
        self._first_new = END  # source offset

    def take(self, offset: int, mark: Mark, leader_epoch: int) -> bool:
        """Match the next source record and return whether more are needed."""
        if offset >= self._limit:
            self._first_new = offset
            return False
        index = self._find(mark)
        if index == NONE and not self._may_be_older(mark):
            self._first_new = offset
            return False
        if index != NONE:
            self._matched = index
            self._first_match = min(self._first_match, offset)
        if mark.key not in self._newest:
            return True
        self._first_of_keys = min(self._first_of_keys, offset)
        if index == NONE or mark != self._copies[self._newest[mark.key]]:
            self._awaited.setdefault(mark.key, offset)
            return True
        self._awaited.pop(mark.key, None)
        self._keys_found.add(mark.key)
        if not self._awaited:
            if mark != self._run_mark:
                self._run_mark, self._run = mark, []
            self._run.append((offset, leader_epoch))
        return True

    def _settle(self) -> None:
        """Evaluate the window that ends."""
        if self._found is not None:
            first_new = self._first_new_here()
            if first_new < self._limit:  # later matches are by chance
                self._found = first_new - 1, NONE
            self._limit = min(self._limit, first_new, self._first_match)
        elif self._run:
            self._found = self._end_of_run()
            self._limit = min(self._limit, self._first_match)
        else:
            # Records below the lowest possible source offset of the last copy were copied, whatever is
            # missing.
            of_keys = max(self._first_of_keys, self._lowest + 1)
            self._limit = min(self._limit, self._first_new, of_keys)

    def _first_new_here(self) -> int:
        """Return the source offset of the window's first record that was never copied; END if none."""
        waits = [at for key, at in self._awaited.items() if key not in self._keys_behind]
        return min([self._first_new, *(max(at, self._lowest + 1) for at in waits)])

    def _end_of_run(self) -> tuple[int, int]:
        # Fewer records than equal copies: compaction or retention removed some, and the rest may be newer
        # than any copy.
        are_certain = len(self._run) >= self._equal_copies()
        certain = [one for one in self._run if are_certain or one[0] <= self._lowest]
        offset, epoch = (certain or self._run[:1])[-1]
        return min(offset, self._first_new - 1), epoch

    def result(self, partition: TopicPartition) -> OffsetPair:
        """Return the pair of the last copied record.

        Raises UndecidedError where the target has no copies left.
        """
        self._settle()
        if not self._has_copies:
            raise UndecidedError(
                topic=partition.topic,
                partition=partition.partition,
                evidence="the target has none of the flow's last records any more",
            )
        offset, epoch = self._found or (min(self._lowest, self._limit - 1), NONE)
        return OffsetPair(offset, self._at.ordinal, self._at.target_offset, epoch)

    def _find(self, mark: Mark) -> int:
        """Return the index of the next copy equal to *mark*, after the one matched last; NONE if none."""
        if self._last.get(mark, NONE) <= self._matched:
            return NONE
        return self._copies.index(mark, self._matched + 1)

    def _may_be_older(self, mark: Mark) -> bool:
        """Return whether a record without a match in this window may have been copied."""
        if not self._is_oldest and self._matched == NONE:
            return True
        if self._is_whole:
            return False
        # The target was compacted too: a newer copy of the key replaced this one, here or in a newer window.
        return mark.key in self._keys_behind or self._newest.get(mark.key, NONE) > self._matched

    def _equal_copies(self) -> int:
        """Return how many consecutive copies equal the last copied records."""
        copies, mark = self._copies, self._run_mark
        assert mark is not None
        last = self._last[mark]
        first = last
        while first > 0 and copies[first - 1] == mark:
            first -= 1
        return last - first + 1

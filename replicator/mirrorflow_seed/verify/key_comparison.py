"""Compares compacted partitions by the newest record of each key. Pure: sorted rows go in, classes of keys come out.

    read a part of a log ──> rows of digests ──> Spark sorts them by key and spills ──> compare each class of keys

The log cleaner removes older records and tombstones at different times on each side, so the comparison is of what a
consumer ends up with: the newest value of each key, where a tombstone equals no record. Each log is read once, whatever
its number of keys (`key_rows`). Keys are divided into classes by their digest; a class is one window of the result. Keys
that differ are looked up again before they are reported (`key_lookup`).

A key whose newest source record may not be copied yet counts as behind. Without a stored offset, the newest record
that both sides have shows what was copied, because records are copied in order.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from mirrorflow_core.record_digests import DigestedRecord
from mirrorflow_seed.verify.key_rows import REPORT_KEY, KeyRow, NewestRecord
from mirrorflow_seed.verify.offset_windows import (
    DifferenceKind,
    VerifyRange,
    WindowResult,
    WindowTally,
)

UNSETTLED: Final = "Keys differ, and no stored offset shows whether their newest records were copied."
EXPIRED: Final = "Some keys exist on one side only; retention (cleanup.policy=compact,delete) may have deleted them on the other."


class DifferingKey(NamedTuple):
    """A key whose newest records are not equal; a side without one, or with a tombstone that counts as none, is None."""

    key: bytes  # its digest
    source: DigestedRecord | None
    target: DigestedRecord | None


class KeyClassComparison:
    """Compares the newest records of the keys of one class, which are added one after the other."""

    def __init__(self, verify_range: VerifyRange, key_class: int, *, lists_all: bool = False) -> None:
        """*lists_all*: the result has the offsets of all differences."""
        self.behind = self.bytes_read = self.memory_bytes = 0
        self.seconds = 0.0
        self.verify_range = verify_range
        self._key_class = key_class
        self._tally = WindowTally(0, lists_all=lists_all)
        self._problem: str | None = None
        self._differing: list[DifferingKey] = []
        self._undecided_keys: dict[bytes, str] = {}  # with the reason of each
        self._equal_to = 0  # the source offset after the newest record that both sides have

    def add_report(self, report: str) -> None:
        """Adds the report of a task that read a part of the log."""
        values = json.loads(report)
        self.bytes_read += values["bytes"]
        self.seconds += values["seconds"]
        self.memory_bytes = max(self.memory_bytes, values["memory"])
        self._problem = self._problem or values["problem"]

    def add(self, key: bytes, on_source: NewestRecord | None, on_target: NewestRecord | None) -> None:
        """Adds a key, by its digest, with its newest record on each side."""
        source = None if on_source is None or (on_source.is_tombstone and on_target is None) else on_source
        target = None if on_target is None or (on_target.is_tombstone and on_source is None) else on_target
        if source is None and target is None:
            return
        if source is not None and target is not None and source.record.digest == target.record.digest:
            self._equal_to = max(self._equal_to, source.record.offset + 1)
            self._tally.add_source(source.record)
            self._tally.add_target(target.record)
            return
        self._differing.append(
            DifferingKey(
                key, None if source is None else source.record, None if target is None else target.record
            )
        )

    @property
    def keys_to_look_up(self) -> frozenset[bytes]:
        """The digests of keys that would be reported as different; none if a log was not read to its end."""
        if self._problem:
            return frozenset()
        return frozenset(
            differing.key
            for differing in self._differing
            if not self._is_behind(differing) and not self._reason_of(differing)
        )

    def _is_behind(self, differing: DifferingKey) -> bool:
        return differing.source is not None and self.verify_range.is_behind(differing.source.offset)

    def _reason_of(self, differing: DifferingKey) -> str | None:
        """Returns why a key is undecided, whether or not it was written again; None if it is not."""
        verify_range, (_, source, target) = self.verify_range, differing
        if source is not None and verify_range.copied_before is None and source.offset >= self._equal_to:
            return verify_range.open_transaction or UNSETTLED
        return EXPIRED if (source is None or target is None) and verify_range.can_expire else None

    def leave_undecided(self, keys: Iterable[bytes], reason: str) -> None:
        """Sets the reason why these *keys* are not different."""
        self._undecided_keys |= dict.fromkeys(keys, reason)

    def add_cost(self, *, bytes_read: int, seconds: float) -> None:
        """Adds the cost of a lookup."""
        self.bytes_read += bytes_read
        self.seconds += seconds

    def result(self) -> WindowResult:
        """Returns the result of the class. If a log was not read to its end, no key counts as different."""
        verify_range, tally = self.verify_range, self._tally
        if self._problem:
            tally.leave_undecided(self._problem)
        else:
            for differing in sorted(self._differing, key=_source_first):
                self._add_differing(differing)
        return tally.result(
            verify_range, verify_range.source_from, verify_range.source_to, key_class=self._key_class
        )

    def _add_differing(self, differing: DifferingKey) -> None:
        tally = self._tally
        key, source, target = differing
        if self._is_behind(differing):
            self.behind += 1
            return
        if source is not None:
            tally.add_source(source)
        if target is not None:
            tally.add_target(target)
        if reason := self._reason_of(differing) or self._undecided_keys.get(key):
            tally.leave_undecided(reason)
        elif target is None:
            tally.add_difference(DifferenceKind.MISSING, source, None)
        else:
            kind = DifferenceKind.EXTRA if source is None else DifferenceKind.CHANGED
            tally.add_difference(kind, source, target)


def _source_first(differing: DifferingKey) -> tuple[bool, int]:
    _, source, target = differing
    if source is not None:
        return False, source.offset
    assert target is not None
    return True, target.offset


def compare_key_rows(
    rows: Iterable[KeyRow], ranges: Sequence[VerifyRange], *, lists_all: bool = False
) -> Iterator[KeyClassComparison]:
    """Yields the comparison of each class of keys; the rows are sorted by GROUP and ORDER."""
    for (number, key_class), of_class in groupby(rows, key=itemgetter(0, 1)):
        comparison = KeyClassComparison(ranges[number], key_class, lists_all=lists_all)
        for key, of_key in groupby(of_class, key=itemgetter(2)):
            newest: list[NewestRecord | None] = [None, None]
            for row in of_key:
                if row.report is None:
                    newest[row.side] = NewestRecord(DigestedRecord(row.offset, row.digest), row.is_tombstone)
                else:
                    comparison.add_report(row.report)
            if key != REPORT_KEY:
                comparison.add(key, *newest)
        yield comparison

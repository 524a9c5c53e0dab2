"""Compares a compacted partition by the newest record of each key on both sides, for the keys of one class.

The log cleaner removes older records and tombstones at different times on each side. So the comparison is of
what a consumer ends up with: the newest value of each key, where a tombstone equals no record. Classes of
keys, by the digest of the key, bound the memory: a task reads the whole partition and keeps the keys of its
class.

A key whose newest source record may not be copied yet counts as behind. Without a stored offset, the newest
record on both sides shows what was copied, because records are copied in order.
"""

from collections.abc import Iterable, Iterator

from mirrorflow_core.errors import CorruptRecordsError
from mirrorflow_core.wire.batch import Batch, checksum_holds
from mirrorflow_core.wire.records import decode
from mirrorflow_seed.verify.comparison import Needs
from mirrorflow_seed.verify.digests import Digested, RecordDigest
from mirrorflow_seed.verify.splits import Split
from mirrorflow_seed.verify.windows import DifferenceKind, WindowResult, WindowTally

UNSETTLED = "Keys differ, and no stored offset shows whether their newest records were copied."
EXPIRED = "Some keys exist on one side only; retention (cleanup.policy=compact,delete) may have deleted them on the other."

# The newest record of a key, and whether it is a tombstone.
_Newest = tuple[Digested, bool]


class NewestPerKeyComparison:
    """Compares the keys of one class; used like `comparison.Comparison`."""

    def __init__(self, split: Split, *, source: RecordDigest, target: RecordDigest) -> None:
        self.behind = 0
        self._split = split
        self._digests = {"source": source, "target": target}
        self._newest: dict[str, dict[bytes, _Newest]] = {"source": {}, "target": {}}
        self._ended = {"source": False, "target": False}

    def feed(self, *, source: Iterable[Batch] = (), target: Iterable[Batch] = ()) -> None:
        """Adds batches of either side, in order. Raises CorruptRecordsError."""
        for side, batches in (("source", source), ("target", target)):
            for batch in batches:
                self._take(side, batch)

    def end(self, *, source: bool = False, target: bool = False) -> None:
        """Marks a side as complete."""
        self._ended["source"] |= source
        self._ended["target"] |= target

    def advance(self) -> Needs:
        """Returns which side it needs next: first all of the source, then the target."""
        if not self._ended["source"]:
            return Needs(source=True)
        return Needs(target=not self._ended["target"])

    def results(self, *, reason: str = "") -> list[WindowResult]:
        """Returns one result for the class."""
        split, tally = self._split, WindowTally(0)
        pairs = list(self._keys())
        settled = split.settled_before
        if settled is None:
            both = (
                here[0].offset
                for here, there in pairs
                if here and there and here[0].digest == there[0].digest
            )
            settled = max(both, default=-1) + 1
        for here, there in pairs:
            self._judge(tally, here, there, settled)
        tally.reason = reason or tally.reason
        result = tally.result(
            topic=split.topic,
            partition=split.partition,
            target_topic=split.target_topic,
            from_offset=split.source_from,
            to_offset=split.source_to,
            key_class=split.key_class,
        )
        return [result]

    def _take(self, side: str, batch: Batch) -> None:
        if not checksum_holds(batch):
            raise CorruptRecordsError(f"the batch at offset {batch.base_offset} of the {side} is damaged")
        split, digest, newest = self._split, self._digests[side], self._newest[side]
        end = split.source_to if side == "source" else split.target_to
        for record in decode(batch):
            key = digest.of_key(record.key)
            if record.offset < end and int.from_bytes(key[:8], "big") % split.key_classes == split.key_class:
                newest[key] = Digested(record.offset, digest.of(record)), record.value is None

    def _keys(self) -> Iterator[tuple[_Newest | None, _Newest | None]]:
        """Yields the newest records of each key: in source order, then keys that only the target has."""
        here, there = self._newest["source"], self._newest["target"]
        for key in sorted(here, key=lambda one: here[one][0].offset):
            yield here[key], there.get(key)
        for key in sorted(there.keys() - here.keys(), key=lambda one: there[one][0].offset):
            yield None, there[key]

    def _judge(
        self,
        tally: WindowTally,
        here: _Newest | None,
        there: _Newest | None,
        settled: int,
    ) -> None:
        source = None if here is None or (here[1] and there is None) else here[0]
        target = None if there is None or (there[1] and here is None) else there[0]
        if source is not None and target is not None and source.digest == target.digest:
            tally.source(source)
            tally.target(target)
        elif source is not None and source.offset >= settled and self._split.settled_before is not None:
            self.behind += 1
        elif source is not None or target is not None:
            if source is not None:
                tally.source(source)
            if target is not None:
                tally.target(target)
            if source is not None and source.offset >= settled:
                tally.reason = UNSETTLED
                return
            if (source is None or target is None) and self._split.can_expire:
                tally.reason = EXPIRED
                return
            kind = (
                DifferenceKind.MISSING
                if target is None
                else DifferenceKind.EXTRA
                if source is None
                else DifferenceKind.CHANGED
            )
            tally.differs(kind, source, target)

"""What was found in one window of source offsets, and the first records that differ in it.

A window is the source offsets [n x size, (n + 1) x size) of a partition, cut to what was compared. Counts are of records that
consumers see. Batches that are the same bytes on both sides count without being decoded, so sums and chains stand for the
`digested` records alone: the others are in neither sum, being equal and in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Final

from mirrorflow_seed.verify.digests import DIGEST_BYTES, SUM_MODULUS, Digested

# Of a window; the counts go on. A window of another topic altogether must not fill the driver.
DIFFERENCES_MAX: Final = 10


class Outcome(Enum):
    """How a window compared."""

    EQUAL = "equal"
    REORDERED = "reordered"  # the same records in another order
    DIFFERENT = "different"
    UNDECIDED = "undecided"  # never equal, never different: the reason says what is not known


class Kind(Enum):
    """How a record differs."""

    MISSING = "missing"  # on the source alone
    EXTRA = "extra"  # on the target alone, or once too often
    CHANGED = "changed"  # another one is in its place
    MOVED = "moved"  # in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One record that differs: offsets, -1 where it is not, and digests in hex, "" where it is not. No payload."""

    kind: Kind
    source_offset: int = -1
    target_offset: int = -1
    source_digest: str = ""
    target_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowResult:
    """See the module. Offsets are of the source unless they say otherwise; ends are exclusive."""

    topic: str
    partition: int
    target_topic: str
    from_offset: int
    to_offset: int
    target_from_offset: int = -1  # of the first record of the target that belongs here; -1: none does
    target_to_offset: int = -1
    source_count: int = 0
    target_count: int = 0
    source_sum: str = "0" * 32  # hex, modulo 2^128
    target_sum: str = "0" * 32
    source_chain: str = ""  # hex, the digest of the digests in their order; "" where nothing was digested
    target_chain: str = ""
    digested: int = 0  # source records that the sums stand for
    ordered_equal: bool | None = None  # None: undecided
    outcome: Outcome
    differing: int = 0  # records that differ, each side's
    key_class: int = -1  # of a compacted topic, whose keys are compared class by class
    reason: str = ""  # why it is undecided
    differences: tuple[Difference, ...] = ()  # the first of them


class Tally:
    """A window that is being compared."""

    __slots__ = (
        "_chains", "_sums", "differences", "differing", "digested", "has_changed", "index", "is_ordered", "reason",
        "source_count", "target_count", "target_from", "target_to",
    )  # fmt: skip

    def __init__(self, index: int) -> None:
        self.index = index
        self.source_count = self.target_count = self.digested = self.differing = 0
        self.target_from = self.target_to = -1
        self.is_ordered = True
        self.has_changed = False  # a record is on one side alone
        self.reason = ""
        self.differences: list[Difference] = []
        self._sums = [0, 0]
        self._chains = [blake2b(digest_size=DIGEST_BYTES), blake2b(digest_size=DIGEST_BYTES)]

    def same(self, count: int, target_from: int) -> None:
        """*count* records were the same bytes, one behind the other from *target_from* on."""
        self.source_count += count
        self.target_count += count
        self._place(target_from, target_from + count)

    def same_digested(self, records: Sequence[Digested], target_from: int, target_to: int) -> None:
        """*records* of the source are those of the target within these offsets, in order."""
        count = len(records)
        self.source_count += count
        self.target_count += count
        self.digested += count
        self._place(target_from, target_to)
        digests = [record.digest for record in records]
        total = sum([int.from_bytes(digest, "big") for digest in digests])
        chained = b"".join(digests)
        for side in (0, 1):
            self._sums[side] = (self._sums[side] + total) % SUM_MODULUS
            self._chains[side].update(chained)

    def source(self, record: Digested) -> None:
        """A record of the source."""
        self.source_count += 1
        self.digested += 1
        self._add(0, record)

    def target(self, record: Digested) -> None:
        """A record of the target."""
        self.target_count += 1
        self._place(record.offset, record.offset + 1)
        self._add(1, record)

    def differs(self, kind: Kind, source: Digested | None, target: Digested | None) -> None:
        """Note a difference between records that are counted apart."""
        self.is_ordered = False
        self.has_changed |= kind is not Kind.MOVED
        self.differing += 1
        if len(self.differences) < DIFFERENCES_MAX:
            self.differences.append(
                Difference(
                    kind=kind,
                    source_offset=-1 if source is None else source.offset,
                    target_offset=-1 if target is None else target.offset,
                    source_digest="" if source is None else source.digest.hex(),
                    target_digest="" if target is None else target.digest.hex(),
                )
            )

    @property
    def outcome(self) -> Outcome:
        """By counts, sums and order."""
        if self.reason:
            # A record that surely differs is not taken back by one that nobody can tell of.
            return Outcome.DIFFERENT if self.has_changed else Outcome.UNDECIDED
        if self.source_count != self.target_count or self._sums[0] != self._sums[1]:
            return Outcome.DIFFERENT
        return Outcome.EQUAL if self.is_ordered else Outcome.REORDERED

    def result(
        self,
        *,
        topic: str,
        partition: int,
        target_topic: str,
        from_offset: int,
        to_offset: int,
        key_class: int = -1,
    ) -> WindowResult:
        """What is left of it."""
        outcome = self.outcome
        return WindowResult(
            topic=topic,
            partition=partition,
            target_topic=target_topic,
            from_offset=from_offset,
            to_offset=to_offset,
            target_from_offset=self.target_from,
            target_to_offset=self.target_to,
            source_count=self.source_count,
            target_count=self.target_count,
            source_sum=f"{self._sums[0]:032x}",
            target_sum=f"{self._sums[1]:032x}",
            source_chain=self._chains[0].hexdigest() if self.digested else "",
            target_chain=self._chains[1].hexdigest() if self.digested else "",
            digested=self.digested,
            ordered_equal=None if outcome is Outcome.UNDECIDED else outcome is Outcome.EQUAL,
            outcome=outcome,
            differing=self.differing,
            key_class=key_class,
            reason=self.reason,
            differences=tuple(self.differences),
        )

    def _add(self, side: int, record: Digested) -> None:
        self._sums[side] = (self._sums[side] + int.from_bytes(record.digest, "big")) % SUM_MODULUS
        self._chains[side].update(record.digest)

    def _place(self, begin: int, end: int) -> None:
        if self.target_from < 0:
            self.target_from = begin
        self.target_to = max(self.target_to, end)

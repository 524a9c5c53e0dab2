"""Finds where two diverged sequences continue alike, with the fewest records skipped on both sides.

Skipped records are reported as missing, extra or changed, so a poor choice makes a difference look larger,
never smaller.
"""

from collections.abc import Sequence
from typing import Final

# Consecutive records that must agree, or all up to the end: a single one may be a twin.
RUN_RECORDS: Final = 3
# Records searched on each side, few at first: most differences are one record. The last level takes 5 MB.
LEVELS: Final = (16, 512, 16_384)


def together_again(
    left: Sequence[bytes], right: Sequence[bytes], *, is_all: tuple[bool, bool]
) -> tuple[int, int] | None:
    """Returns how many records to skip on each side so that the rest agrees; None if nothing agrees.

    *is_all* says for each side whether its sequence is complete.
    """
    places: dict[bytes, int] = {}
    for at, digest in enumerate(right):
        places.setdefault(digest, at)
    best: tuple[int, int] | None = None
    for at, digest in enumerate(left):
        if best is not None and at >= sum(best):
            break
        there = places.get(digest)
        if there is None or (best is not None and at + there >= sum(best)):
            continue
        count = min(RUN_RECORDS, len(left) - at, len(right) - there)
        is_enough = (
            count == RUN_RECORDS
            or (is_all[0] and len(left) - at == count)
            or (is_all[1] and len(right) - there == count)
        )
        if is_enough and all(left[at + i] == right[there + i] for i in range(count)):
            best = at, there
    return best

"""Where two sequences that have parted go on together: the fewest records left out on both sides.

What is left out is told as missing, extra or changed, so a poor choice makes a difference look larger, never smaller.
"""

from collections.abc import Sequence
from typing import Final

# So many records in a row are to agree, or all up to the end: one alone may be a twin, as of a tombstone sent twice.
RUN_RECORDS: Final = 3
# How far is looked on each side, first a little: nearly all differences are one record. The last is some 5 MB of digests.
LEVELS: Final = (16, 512, 16_384)


def together_again(
    left: Sequence[bytes], right: Sequence[bytes], *, is_all: tuple[bool, bool]
) -> tuple[int, int] | None:
    """How many to leave out on each side so that what follows agrees; None if nothing does.

    *is_all* says of each side whether it ends there.
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

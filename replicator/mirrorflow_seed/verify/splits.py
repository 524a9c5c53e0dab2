"""Defines what one task compares: a stretch of source offsets and the matching stretch of the target.

It also selects the windows of a sample, by a hash of run, topic, partition and window: a repeated run
compares the same windows, another run others.
"""

from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Final

# One row per hundred thousand offsets: a billion records are 10,000 rows of some 300 bytes.
WINDOW_OFFSETS: Final = 100_000
# A task should take seconds: a million records of 1 kB take three, and starting a task costs 50 ms.
SPLIT_WINDOWS: Final = 10
# Keys per class of a compacted partition: this many of each side take some 60 MB in a task.
KEYS_MAX: Final = 200_000


class Method(Enum):
    """How a partition is compared."""

    STREAM = "stream"  # record by record, in order
    LATEST = "latest"  # the newest record of each key, as compaction runs at different times on each side


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A stretch of a partition to compare. Ends are exclusive; offsets at its edges may have no record."""

    topic: str
    partition: int
    target_topic: str
    source_from: int
    source_to: int
    target_from: int
    target_to: int
    # The target has all source records before this offset; None if no offset is stored.
    settled_before: int | None = None
    timestamps: bool = True  # False: the target sets its own
    method: Method = Method.STREAM
    key_class: int = 0  # with LATEST: which of `key_classes`
    key_classes: int = 1
    can_expire: bool = False  # with LATEST: retention may have deleted a key's last record on one side
    window_offsets: int = WINDOW_OFFSETS

    def is_behind(self, offset: int) -> bool:
        """Whether the target may not have source offset *offset* yet."""
        return self.settled_before is not None and offset >= self.settled_before

    @property
    def offsets(self) -> int:
        """Number of offsets to read on both sides."""
        return self.source_to - self.source_from + self.target_to - self.target_from

    @property
    def windows(self) -> int:
        """Approximate number of windows."""
        if self.method is Method.LATEST:
            return 1
        return max(1, -(-self.source_to // self.window_offsets) - self.source_from // self.window_offsets)


def is_sampled(run_id: str, topic: str, partition: int, window: int, share: float) -> bool:
    """Whether run *run_id* compares this window; *share* is the sampled fraction of windows."""
    if share >= 1.0:
        return True
    text = f"{run_id}\0{topic}\0{partition}\0{window}"
    number = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
    return number < share * (1 << 64)


def stretches(
    run_id: str,
    topic: str,
    partition: int,
    begin: int,
    end: int,
    *,
    share: float,
    window_offsets: int = WINDOW_OFFSETS,
    split_windows: int = SPLIT_WINDOWS,
) -> list[tuple[int, int]]:
    """Cuts [begin, end) at window boundaries into sampled stretches of at most *split_windows* windows."""
    found: list[tuple[int, int]] = []
    for window in range(begin // window_offsets, -(-end // window_offsets)):
        if not is_sampled(run_id, topic, partition, window, share):
            continue
        start = max(begin, window * window_offsets)
        stop = min(end, (window + 1) * window_offsets)
        if found and found[-1][1] == start and stop - found[-1][0] <= split_windows * window_offsets:
            found[-1] = found[-1][0], stop
        else:
            found.append((start, stop))
    return found

"""What one task compares: a stretch of source offsets, and the stretch of the target that belongs to it.

Also which windows are compared at all: with a sample, each by a hash of run, partition and window, so that another run
looks elsewhere and the same run again at the same.
"""

from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import Final

# Digests of a hundred thousand records make one row: a billion records are 10,000 rows of some 300 bytes.
WINDOW_OFFSETS: Final = 100_000
# A task is to take seconds: a million records of 1 kB take three, and starting a task costs 50 ms.
SPLIT_WINDOWS: Final = 10
# Of a compacted partition: so many keys of each side at once take some 60 MB in a task.
KEYS_MAX: Final = 200_000


class Method(Enum):
    """How a partition is compared."""

    STREAM = "stream"  # record by record, in order
    LATEST = "latest"  # the newest record of each key: the log cleaner works on each side in its own time


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """See the module. Ends are exclusive; offsets before the first and behind the last record of the stretch may be gone."""

    topic: str
    partition: int
    target_topic: str
    source_from: int
    source_to: int
    target_from: int
    target_to: int
    # The target has all records of the source before this offset; None: nobody has said so.
    settled_before: int | None = None
    timestamps: bool = True  # False: the target sets its own
    method: Method = Method.STREAM
    key_class: int = 0  # with LATEST: of so many `key_classes`, which one
    key_classes: int = 1
    can_expire: bool = False  # with LATEST: retention may have taken a key's last record on one side
    window_offsets: int = WINDOW_OFFSETS

    def is_behind(self, offset: int) -> bool:
        """Whether the target need not have that source offset yet, if it ends before it."""
        return self.settled_before is not None and offset >= self.settled_before

    @property
    def offsets(self) -> int:
        """How much there is to read, both sides."""
        return self.source_to - self.source_from + self.target_to - self.target_from

    @property
    def windows(self) -> int:
        """How many rows come of it, about."""
        if self.method is Method.LATEST:
            return 1
        return max(1, -(-self.source_to // self.window_offsets) - self.source_from // self.window_offsets)


def is_sampled(run_id: str, topic: str, partition: int, window: int, share: float) -> bool:
    """Whether that window is one of those that *run_id* looks at."""
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
    """[begin, end) cut at windows into stretches of at most *split_windows*, without those that are not sampled."""
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

"""Plans a wave of a seed: the offset range of each partition, and the task that copies it. Pure.

One task copies several ranges at once, because one request to a broker carries one batch of each partition: with few
partitions, a broker does half as much work again for the same bytes. Ranges are assigned largest first, each to the
smallest task. The largest tasks start first, so the last one to start is short.

A wave ends when all its tasks have ended, so a task that has given its slot to others waits for them. Tasks do so (`yields`)
only where long ones would hold all slots. Otherwise a short task gets a slot soon anyway, and one large partition, by itself
the length of the seed, is copied without a break. A task that makes no progress gives its slot back in either case.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.partitions import TopicPartition

TASK_BYTES_MIN: Final = 2 << 30  # half a minute at 70 MB/s; a start costs a second
TASK_BYTES_MAX: Final = 8 << 30  # two minutes at 70 MB/s, so that no wave waits long for its last task
TASK_PARTITIONS_MAX: Final = 200  # bounds tasks of empty partitions, each of which costs a few requests
TASKS_PER_SLOT: Final = 4  # several tasks per slot even out wrong estimates
LONG_PART: Final = 4  # of a wave: a task that takes more than this part of it is long
RECORD_BYTES: Final = 1_000  # assumed size of a record if the brokers do not report log sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRange:
    """The offset range of one partition that a wave copies.

    Messages and reports identify it by `index`, its number in the plan.
    """

    index: int
    topic: str
    partition: int
    start: int  # the next offset of the copy, else the first offset of the source
    end: int  # exclusive, frozen: later records are left to the next wave or to the connector
    bytes: int  # estimated, from start to end

    @property
    def source(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTask:
    """The ranges that one Spark task copies at once."""

    ranges: tuple[SeedRange, ...]
    bytes_per_second: int | None = None  # its part of the job's rate
    yields: bool = True  # whether it gives its slot to others after `wave.ms`, although it copies

    @property
    def bytes(self) -> int:
        """The estimated bytes of all ranges."""
        return sum(seed_range.bytes for seed_range in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedLog:
    """The offsets and size of a source partition; `bytes` is None if the brokers do not report it."""

    start: int
    end: int
    bytes: int | None = None


def ranges_of(
    logs: Mapping[TopicPartition, SeedLog],
    positions: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
) -> tuple[SeedRange, ...]:
    """Returns a range for each partition of *logs*, sorted.

    It starts at the next offset in *positions*, else in *starts*, else at the start of the log.
    """
    ranges = []
    for index, (source, log) in enumerate(sorted(logs.items())):
        known = positions.get(source)
        start = starts.get(source, log.start) if known is None else known
        left, held = max(0, log.end - max(start, log.start)), log.end - log.start
        size = left * RECORD_BYTES if log.bytes is None or held <= 0 else log.bytes * left // held
        ranges.append(
            SeedRange(
                index=index,
                topic=source.topic,
                partition=source.partition,
                start=start,
                end=log.end,
                bytes=size,
            )
        )
    return tuple(ranges)


def was_copied_before(ranges: Iterable[SeedRange], positions: Mapping[TopicPartition, int]) -> bool:
    """Returns whether an earlier run, or the connector, has copied each of *ranges* at least in part.

    Empty partitions do not count, nor does a flow without any position.
    """
    begun = [seed_range.source in positions for seed_range in ranges if seed_range.end > 0]
    return bool(begun) and all(begun)


def tasks_of(ranges: Iterable[SeedRange], *, slots: int, is_limited: bool = False) -> tuple[SeedTask, ...]:
    """Returns the tasks for *ranges*, largest first; ranges that are already copied are left out.

    *slots* is the number of tasks that Spark runs at once. *is_limited*: the job has a rate, which is divided among all
    tasks beforehand. Then there is one for each slot: all of them run at once, however many executors start later.
    """
    left = sorted(
        (seed_range for seed_range in ranges if seed_range.start < seed_range.end),
        key=lambda seed_range: (-seed_range.bytes, seed_range.index),
    )
    total_bytes = sum(seed_range.bytes for seed_range in left)
    wanted = max(1, slots) if is_limited else _count_of_tasks(total_bytes, len(left), slots)
    count = min(len(left), wanted)
    tasks: list[list[SeedRange]] = [[] for _ in range(count)]
    emptiest = [(0, 0, index) for index in range(count)]  # a heap of (bytes, partitions, task index)
    for seed_range in left:
        filled, partitions, index = heapq.heappop(emptiest)
        tasks[index].append(seed_range)
        if is_limited or partitions + 1 < TASK_PARTITIONS_MAX:
            heapq.heappush(emptiest, (filled + seed_range.bytes, partitions + 1, index))
    # With a rate, tasks wait for no slot, but executors that start late wait for the next wave.
    yields = is_limited or (count > slots and _long_ranges_of(left, slots) >= slots)
    planned = (SeedTask(ranges=tuple(seed_task), yields=yields) for seed_task in tasks)
    return tuple(sorted(planned, key=lambda seed_task: -seed_task.bytes))


def _long_ranges_of(ranges: Sequence[SeedRange], slots: int) -> int:
    """Returns the number of ranges that hold a slot for a quarter of the wave or more, and for longer than most tasks."""
    whole = sum(seed_range.bytes for seed_range in ranges)
    long_bytes = max(TASK_BYTES_MAX, whole // (max(1, slots) * LONG_PART))
    return sum(seed_range.bytes > long_bytes for seed_range in ranges)


def _count_of_tasks(total_bytes: int, partitions: int, slots: int) -> int:
    """Returns at least one task per slot, more if the size or the number of partitions requires it."""
    slots = max(1, slots)  # executors may not have started yet
    turns = min(TASKS_PER_SLOT, max(1, total_bytes // (slots * TASK_BYTES_MIN)))
    return max(
        slots * turns, math.ceil(total_bytes / TASK_BYTES_MAX), math.ceil(partitions / TASK_PARTITIONS_MAX)
    )


def lag_of(ranges: Sequence[SeedRange], next_offsets: Mapping[int, int]) -> int:
    """Returns the number of offsets left to copy; *next_offsets* are by index of the range."""
    return sum(
        max(0, seed_range.end - max(seed_range.start, next_offsets.get(seed_range.index, 0)))
        for seed_range in ranges
    )

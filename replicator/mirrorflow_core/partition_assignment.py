"""Assigns partitions to tasks evenly by count or by load, and moves few partitions, only where the gain is worth it.

`connect.group_assignment` decides which node runs a task.

    end offsets over time ──> offsets per second, smoothed ──┐
    stored, end offsets   ──> lag in offsets ────────────────┼──> load: bytes per second
    a few batches         ──> bytes per offset ──────────────┘
    assignment, all partitions, loads ──> assign_by_load ──> new assignment
    assignment, loads, at each check  ──> Balance.checked ──> the same, or a few partitions moved

A load does not depend on the node or task that copies a partition. Rates measure what is produced, not what is
copied: a task that cannot keep up shows by its lag.

`assign` is for a single process and gives each task equally many partitions. `assign_by_load` guarantees: a partition stays
with its task, and new partitions go to the tasks with the least load, so adding or removing a topic moves no other
partition. Only new tasks receive partitions from others, and a task that lost its last partition receives one,
because no task may be empty. A first assignment is a round robin, as in Java. `Balance` guarantees: partitions move
only after several checks in a row have shown a gain, a few at a time, and a moved partition stays for some checks.
All are deterministic.

This module does no I/O; `connectors.load_balancing` reads what the loads are computed from.
"""

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition

NEWEST = 0.3  # weight of the newest sample; after three samples an old one has about 1/e of its weight
CATCH_UP_S = 600.0  # lag counts as if it were to be copied within this time
RECORD_BYTES = 1_000.0  # used where no record was sampled
Assignment = tuple[tuple[TopicPartition, ...], ...]
Loads = Mapping[TopicPartition, float]
# The load of an idle partition: its share of fetch sessions, and of queries after a leader change.
IDLE_BYTES_PER_S = 1_000.0
# A move interrupts its partition for about a second. A task can copy a hundred times this rate, so less is
# not worth it.
WORTH_BYTES_PER_S = float(1 << 20)
UNEVEN = 0.25  # share of the busier task's load; a smaller difference has no noticeable effect
WORTH = 0.05  # share of the busiest task's load that a rebalance must remove in total
ROUNDING = 1e-9  # relative error of sums of loads
PATIENCE = 3  # checks in a row
STAY = 10  # checks during which a moved partition is not moved again
# The maximum number of partitions that a rebalance moves: a twentieth of all, but at least 2 and at most 64.
MOVES_MIN, MOVES_PART, MOVES_MAX = 2, 0.05, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Smoothed rates in offsets per second, by partition; a record takes one offset."""

    at_s: float = 0.0
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    per_s: Mapping[TopicPartition, float] = field(default_factory=dict)

    def updated(self, ends: Mapping[TopicPartition, int], now_s: float) -> "Rates":
        """Returns the rates updated with end offsets *ends* at *now_s*; other partitions are dropped."""
        passed_s = max(now_s - self.at_s, 1e-3)
        per_s = {}
        for partition, end in ends.items():
            if partition not in self.ends:
                continue
            # A re-created topic starts at offset 0 again.
            rate = max(0, end - self.ends[partition]) / passed_s
            before = self.per_s.get(partition, rate)
            per_s[partition] = before + NEWEST * (rate - before)
        return Rates(at_s=now_s, ends=dict(ends), per_s=per_s)


def behind(
    ends: Mapping[TopicPartition, int],
    copied: Mapping[TopicPartition, int],
    before: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Returns the lag in offsets of partitions that make progress.

    *copied* is the last offset copied, *before* that of the previous sample. A partition that makes no
    progress causes no load, whatever its lag.
    """
    return {
        partition: max(0, end - copied[partition] - 1)
        for partition, end in ends.items()
        if partition in copied and copied[partition] != before.get(partition)
    }


def loads(
    per_s: Mapping[TopicPartition, float],
    behind: Mapping[TopicPartition, int],
    record_bytes: Mapping[TopicPartition, float],
) -> dict[TopicPartition, float]:
    """Returns bytes per second of each partition with a rate. *behind*: lag in offsets; *record_bytes*: where known."""
    known = list(record_bytes.values())
    average = sum(known) / len(known) if known else RECORD_BYTES
    return {
        partition: (rate + max(0, behind.get(partition, 0)) / CATCH_UP_S)
        * record_bytes.get(partition, average)
        for partition, rate in per_s.items()
    }


def assign(
    partitions: Iterable[TopicPartition], tasks: int, previous: Sequence[Sequence[TopicPartition]] = ()
) -> Assignment:
    """Returns `min(tasks, partitions)` tuples of partitions, each sorted, none empty.

    A partition stays with its task in *previous*, unless that task would have more than an equal share. The
    others go, in sorted order, to the task with the fewest. So a new topic restarts no task, and a first
    assignment is a round robin.
    """
    wanted = sorted(set(partitions))
    count = min(tasks, len(wanted))
    if count == 0:
        return ()
    share = -(-len(wanted) // count)
    task_of = {partition: task for task, had in enumerate(previous[:count]) for partition in had}
    loads: list[list[TopicPartition]] = [[] for _ in range(count)]
    unassigned = []
    for partition in wanted:
        task = task_of.get(partition)
        if task is not None and len(loads[task]) < share:
            loads[task].append(partition)
        else:
            unassigned.append(partition)
    for partition in unassigned:
        min(loads, key=len).append(partition)
    for load in loads:
        if not load:
            load.append(max(loads, key=len).pop())
    return tuple(tuple(sorted(load)) for load in loads)


def assign_by_load(
    partitions: Iterable[TopicPartition],
    tasks: int,
    previous: Sequence[Sequence[TopicPartition]] = (),
    loads: Loads | None = None,
) -> Assignment:
    """Returns `min(tasks, partitions)` tuples of partitions, each sorted, none empty.

    *previous* is the current assignment. A partition without a load counts with the average load.
    """
    wanted = sorted(set(partitions))
    count = min(tasks, len(wanted))
    if count == 0:
        return ()
    plan = _Plan(count, _weights(wanted, loads or {}))
    task_of = {partition: task for task, had in reversed([*enumerate(previous[:count])]) for partition in had}
    for partition in wanted:
        if partition in task_of:
            plan.put(partition, task_of[partition])
    plan.fill([partition for partition in wanted if partition not in task_of])
    if any(not had for had in plan.tasks[len(previous) :]):
        plan.spread(len(previous))
    plan.occupy()
    return plan.assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The result of earlier checks."""

    uneven: int = 0  # checks in a row that found a move worth it
    stay: Mapping[TopicPartition, int] = field(default_factory=dict)  # remaining checks without a move

    def checked(self, assignment: Assignment, loads: Loads) -> tuple["Balance", Assignment]:
        """Runs one check; returns the state for the next one and the assignment from now on."""
        stay = {partition: looks - 1 for partition, looks in self.stay.items() if looks > 1}
        better = lightened(assignment, loads, stay=stay)
        if better == assignment:
            return Balance(stay=stay), assignment
        if self.uneven + 1 < PATIENCE:
            return Balance(uneven=self.uneven + 1, stay=stay), assignment
        return Balance(stay=stay | dict.fromkeys(moved(assignment, better), STAY)), better


def moved(before: Assignment, after: Assignment) -> tuple[TopicPartition, ...]:
    """Returns the partitions that move to another task, sorted."""
    task_of = {partition: task for task, had in enumerate(before) for partition in had}
    return tuple(
        sorted(
            partition
            for task, had in enumerate(after)
            for partition in had
            if task_of.get(partition, task) != task
        )
    )


def lightened(assignment: Assignment, loads: Loads, *, stay: Collection[TopicPartition] = ()) -> Assignment:
    """Returns *assignment* with a few partitions moved to less busy tasks, or unchanged."""
    if len(assignment) < 2:
        return assignment
    plan = _Plan(len(assignment), _weights([partition for had in assignment for partition in had], loads))
    for task, had in enumerate(assignment):
        for partition in had:
            plan.put(partition, task)
    count = len(plan.weights)
    most = max(MOVES_MIN, min(math.ceil(MOVES_PART * count), MOVES_MAX))
    worth = max(WORTH_BYTES_PER_S, min(WORTH, most / count) * max(plan.loads))
    pinned, gained = set(stay), 0.0
    for _ in range(most):
        # A minimum gain per move, so that partitions with little load do not move too.
        move = plan.best_move(worth / most, pinned)
        if move is None:
            break
        gain, moved = move
        gained += gain
        pinned.add(moved)
    return plan.assignment if gained >= worth else assignment


def _weights(partitions: Sequence[TopicPartition], loads: Loads) -> dict[TopicPartition, float]:
    known = [loads[partition] for partition in partitions if partition in loads]
    average = sum(known) / len(known) if known else 0.0
    return {partition: IDLE_BYTES_PER_S + loads.get(partition, average) for partition in partitions}


class _Plan:
    """An assignment under construction."""

    def __init__(self, count: int, weights: Mapping[TopicPartition, float]) -> None:
        self.weights = weights
        self.tasks: list[set[TopicPartition]] = [set() for _ in range(count)]
        self.loads = [0.0] * count

    @property
    def assignment(self) -> Assignment:
        return tuple(tuple(sorted(had)) for had in self.tasks)

    def put(self, partition: TopicPartition, task: int) -> None:
        self.tasks[task].add(partition)
        self.loads[task] += self.weights[partition]

    def take(self, partition: TopicPartition, task: int) -> None:
        self.tasks[task].remove(partition)
        self.loads[task] -= self.weights[partition]

    def fill(self, partitions: Iterable[TopicPartition]) -> None:
        """Gives each of *partitions*, the highest load first, to the least busy task."""
        heap = [(load, len(self.tasks[task]), task) for task, load in enumerate(self.loads)]
        heapq.heapify(heap)
        for partition in sorted(partitions, key=lambda partition: (-self.weights[partition], partition)):
            task = heap[0][2]
            self.put(partition, task)
            heapq.heapreplace(heap, (self.loads[task], len(self.tasks[task]), task))

    def spread(self, old: int) -> None:
        """Fills the tasks after the first *old* ones to an even share, from what old tasks have above it."""
        share = sum(self.loads) / len(self.tasks)
        least, most = share * (1 - ROUNDING), share * (1 + ROUNDING)
        for giver in sorted(range(old), key=lambda task: (-self.loads[task], task)):
            for partition in sorted(
                self.tasks[giver], key=lambda partition: (-self.weights[partition], partition)
            ):
                taker = min(range(old, len(self.tasks)), key=lambda task: (self.loads[task], task))
                weight = self.weights[partition]
                has_room = not self.tasks[taker] or self.loads[taker] + weight <= most
                if has_room and self.loads[giver] - weight >= least:
                    self.take(partition, giver)
                    self.put(partition, taker)

    def occupy(self) -> None:
        """Gives each empty task the partition with the least load from the busiest task with more than one."""
        for task, had in enumerate(self.tasks):
            if not had:
                rich = [task for task, has in enumerate(self.tasks) if len(has) > 1]
                giver = max(rich, key=lambda task: (self.loads[task], -task))
                least = min(self.tasks[giver], key=lambda partition: (self.weights[partition], partition))
                self.take(least, giver)
                self.put(least, task)

    def best_move(
        self, least: float, pinned: Collection[TopicPartition]
    ) -> tuple[float, TopicPartition] | None:
        """Makes the move that best relieves a busy task; returns (gain, partition), or None below *least*."""
        order = sorted(range(len(self.tasks)), key=lambda task: (self.loads[task], task))
        taker = order[0]
        for giver in reversed(order):
            gap = self.loads[giver] - self.loads[taker]
            if gap < UNEVEN * self.loads[giver]:
                return None
            if len(self.tasks[giver]) == 1:
                continue
            free = (partition for partition in self.tasks[giver] if partition not in pinned)
            gain, moved = max(
                (
                    (min(self.weights[partition], gap - self.weights[partition]), partition)
                    for partition in free
                ),
                default=(0.0, None),
            )
            if moved is not None and gain >= least:
                self.take(moved, giver)
                self.put(moved, taker)
                return gain, moved
        return None

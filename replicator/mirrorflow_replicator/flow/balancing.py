"""Which task copies which partition, by what each partition costs: little moves, and only where it is worth it.

    what tasks have, what there is, loads ──> place ──> what tasks have now
    what tasks have, loads, look after look ──> Balance.looked ──> the same, or a few partitions elsewhere

Promises. `place`: whatever a task has stays with it; new partitions go to the tasks with the least load; so a new topic moves
nothing else, and neither does one that is gone. Only tasks that there were not before are filled from the others, and a
task that lost its last partition is given one, for none may be empty. A first assignment is a round robin, as Java's.
`Balance`: partitions move only after several looks in a row have shown that it is worth it, a few at a time, and one that
has moved stays for a while. Both are the same for the same arguments. A load is in bytes per second.

Pure. `flow.assignment` is for one process, where tasks have as many partitions each; `runtime.balancing` measures.
"""

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mirrorflow_replicator.flow.assignment import Assignment
from mirrorflow_replicator.flow.partitions import TopicPartition

Loads = Mapping[TopicPartition, float]

# What a partition costs of which nothing comes: its part of fetch sessions, of questions after a change of leaders.
IDLE_BYTES_PER_S = 1_000.0
# A move interrupts its partition for a second or so. A task copies a hundred times this: less is not worth it.
WORTH_BYTES_PER_S = float(1 << 20)
UNEVEN = 0.25  # of the load of the busier of two tasks: nobody notices less
WORTH = 0.05  # of the load of the busiest task: what a rebalance must take off, all in all
# How many partitions a rebalance moves at most: two, or a twentieth of all, but never a crowd at once.
MOVES_MIN, MOVES_PART, MOVES_MAX = 2, 0.05, 64
ROUNDING = 1e-9  # of sums of loads
PATIENCE = 3  # looks in a row
QUIET = 10  # looks without a position of somebody else's: Java stores them each minute, and only of what is copied
STAY = 10  # looks for which a partition that was moved is not moved again


def place(
    partitions: Iterable[TopicPartition],
    tasks: int,
    previous: Sequence[Sequence[TopicPartition]] = (),
    loads: Loads | None = None,
) -> Assignment:
    """Which task copies which of *partitions*: `min(tasks, partitions)` tuples, each sorted, none empty.

    *previous* is what the tasks have. A partition without a load counts as the average one.
    """
    wanted = sorted(set(partitions))
    count = min(tasks, len(wanted))
    if count == 0:
        return ()
    plan = _Plan(count, _weights(wanted, loads or {}))
    homes = {one: task for task, had in reversed([*enumerate(previous[:count])]) for one in had}
    for one in wanted:
        if one in homes:
            plan.put(one, homes[one])
    plan.fill([one for one in wanted if one not in homes])
    if any(not had for had in plan.tasks[len(previous) :]):
        plan.spread(len(previous))
    plan.occupy()
    return plan.assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What earlier looks have shown."""

    uneven: int = 0  # looks in a row after which something was worth moving
    stay: Mapping[TopicPartition, int] = field(default_factory=dict)  # looks that it is not to be moved

    def looked(self, assignment: Assignment, loads: Loads) -> tuple["Balance", Assignment]:
        """After another look: what to go by at the next one, and who copies what from now on."""
        stay = {one: looks - 1 for one, looks in self.stay.items() if looks > 1}
        better = lightened(assignment, loads, stay=stay)
        if better == assignment:
            return Balance(stay=stay), assignment
        if self.uneven + 1 < PATIENCE:
            return Balance(uneven=self.uneven + 1, stay=stay), assignment
        return Balance(stay=stay | dict.fromkeys(moved(assignment, better), STAY)), better


@dataclass(frozen=True, slots=True, kw_only=True)
class Strangers:
    """Whether somebody else's tasks copy some of the partitions: Java's, which store positions without our fields."""

    seen: frozenset[tuple[TopicPartition, int]] | None = None  # partitions, and where such a position lies
    quiet: int = QUIET  # looks since a new one was seen

    def looked(self, seen: frozenset[tuple[TopicPartition, int]]) -> "Strangers":
        """After another look: the first one cannot tell old positions from new ones."""
        is_new = self.seen is not None and bool(seen - self.seen)
        return Strangers(seen=seen, quiet=0 if is_new else min(self.quiet + 1, QUIET))

    @property
    def are_at_work(self) -> bool:
        return self.quiet < QUIET


def moved(before: Assignment, after: Assignment) -> tuple[TopicPartition, ...]:
    """The partitions that are another task's afterwards, sorted."""
    homes = {one: task for task, had in enumerate(before) for one in had}
    return tuple(sorted(one for task, had in enumerate(after) for one in had if homes.get(one, task) != task))


def lightened(assignment: Assignment, loads: Loads, *, stay: Collection[TopicPartition] = ()) -> Assignment:
    """*assignment* with a few partitions moved from busy tasks to idle ones; the same where it is not worth it."""
    if len(assignment) < 2:
        return assignment
    plan = _Plan(len(assignment), _weights([one for had in assignment for one in had], loads))
    for task, had in enumerate(assignment):
        for one in had:
            plan.put(one, task)
    count = len(plan.weights)
    most = max(MOVES_MIN, min(math.ceil(MOVES_PART * count), MOVES_MAX))
    worth = max(WORTH_BYTES_PER_S, min(WORTH, most / count) * max(plan.loads))
    pinned, gained = set(stay), 0.0
    for _ in range(most):
        # So much each, else the least of partitions would come along.
        move = plan.best_move(worth / most, pinned)
        if move is None:
            break
        gain, one = move
        gained += gain
        pinned.add(one)
    return plan.assignment if gained >= worth else assignment


def _weights(partitions: Sequence[TopicPartition], loads: Loads) -> dict[TopicPartition, float]:
    known = [loads[one] for one in partitions if one in loads]
    average = sum(known) / len(known) if known else 0.0
    return {one: IDLE_BYTES_PER_S + loads.get(one, average) for one in partitions}


class _Plan:
    """Tasks that are being filled."""

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
        """Give each of *partitions*, the heaviest first, to the least busy task."""
        heap = [(load, len(self.tasks[task]), task) for task, load in enumerate(self.loads)]
        heapq.heapify(heap)
        for one in sorted(partitions, key=lambda one: (-self.weights[one], one)):
            task = heap[0][2]
            self.put(one, task)
            heapq.heapreplace(heap, (self.loads[task], len(self.tasks[task]), task))

    def spread(self, old: int) -> None:
        """Fill the tasks behind the *old* ones up to an even share, by what those have above theirs, the busiest first."""
        share = sum(self.loads) / len(self.tasks)
        least, most = share * (1 - ROUNDING), share * (1 + ROUNDING)
        for giver in sorted(range(old), key=lambda task: (-self.loads[task], task)):
            for one in sorted(self.tasks[giver], key=lambda one: (-self.weights[one], one)):
                taker = min(range(old, len(self.tasks)), key=lambda task: (self.loads[task], task))
                weight = self.weights[one]
                has_room = not self.tasks[taker] or self.loads[taker] + weight <= most
                if has_room and self.loads[giver] - weight >= least:
                    self.take(one, giver)
                    self.put(one, taker)

    def occupy(self) -> None:
        """Let each empty task have the least of what the busiest has; there are partitions enough."""
        for task, had in enumerate(self.tasks):
            if not had:
                rich = [one for one, has in enumerate(self.tasks) if len(has) > 1]
                giver = max(rich, key=lambda one: (self.loads[one], -one))
                least = min(self.tasks[giver], key=lambda one: (self.weights[one], one))
                self.take(least, giver)
                self.put(least, task)

    def best_move(
        self, least: float, pinned: Collection[TopicPartition]
    ) -> tuple[float, TopicPartition] | None:
        """Move what takes most off the busier of two tasks: how much that was, and what; None where it is not *least*."""
        order = sorted(range(len(self.tasks)), key=lambda task: (self.loads[task], task))
        taker = order[0]
        for giver in reversed(order):
            gap = self.loads[giver] - self.loads[taker]
            if gap < UNEVEN * self.loads[giver]:
                return None
            if len(self.tasks[giver]) == 1:
                continue
            free = (one for one in self.tasks[giver] if one not in pinned)
            gain, one = max(
                ((min(self.weights[one], gap - self.weights[one]), one) for one in free),
                default=(0.0, None),
            )
            if one is not None and gain >= least:
                self.take(one, giver)
                self.put(one, taker)
                return gain, one
        return None

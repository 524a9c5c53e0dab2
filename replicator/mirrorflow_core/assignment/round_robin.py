"""Assigns partitions to tasks evenly by count."""

from collections.abc import Iterable, Sequence

from mirrorflow_core.partitions import TopicPartition

Assignment = tuple[tuple[TopicPartition, ...], ...]


def assign(
    partitions: Iterable[TopicPartition], tasks: int, previous: Sequence[Sequence[TopicPartition]] = ()
) -> Assignment:
    """Return `min(tasks, partitions)` tuples of partitions, each sorted, none empty.

    A partition stays with its task in *previous*, unless that task would have more than an equal share. The
    others go, in sorted order, to the task with the fewest. So a new topic restarts no task, and a first
    assignment is a round robin.
    """
    wanted = sorted(set(partitions))
    count = min(tasks, len(wanted))
    if count == 0:
        return ()
    share = -(-len(wanted) // count)
    homes = {partition: task for task, had in enumerate(previous[:count]) for partition in had}
    loads: list[list[TopicPartition]] = [[] for _ in range(count)]
    homeless = []
    for partition in wanted:
        home = homes.get(partition)
        if home is not None and len(loads[home]) < share:
            loads[home].append(partition)
        else:
            homeless.append(partition)
    for partition in homeless:
        min(loads, key=len).append(partition)
    for load in loads:
        if not load:
            load.append(max(loads, key=len).pop())
    return tuple(tuple(sorted(load)) for load in loads)

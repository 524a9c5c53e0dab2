"""Builds and reads the task configs of a connector, in the format of Java's connectors.

`task.assigned.partitions` is MirrorSourceConfig's. `mirrorflow.task.initial` is ours and Java ignores it; it
marks partitions that existed when the flow began. Values are the connector's, with references unresolved:
nothing that a host has resolved is included. Pure.
"""

from collections.abc import Mapping, Sequence

from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.partitions import TopicPartition

INDEX = "task.index"
PARTITIONS = "task.assigned.partitions"
INITIAL = "mirrorflow.task.initial"


def of_source(
    properties: Mapping[str, str], assignment: Assignment, *, initial: bool
) -> tuple[dict[str, str], ...]:
    """Return the task configs of a MirrorSourceConnector with *properties*, one per part of *assignment*."""
    mark = {INITIAL: "true"} if initial else {}
    return tuple(
        {
            **properties,
            INDEX: str(number),
            PARTITIONS: ",".join(str(partition) for partition in sorted(partitions)),
            **mark,
        }
        for number, partitions in enumerate(assignment)
    )


def of_one(properties: Mapping[str, str]) -> tuple[dict[str, str], ...]:
    """Return the only task config of a single-task connector."""
    return ({**properties, INDEX: "0"},)


def partitions(task: Mapping[str, str]) -> tuple[TopicPartition, ...]:
    """Return the partitions that *task* copies; entries that name no partition are skipped."""
    found = []
    for text in task.get(PARTITIONS, "").split(","):
        topic, _, number = text.strip().rpartition("-")
        if topic and number.isascii() and number.isdigit():
            found.append(TopicPartition(topic, int(number)))
    return tuple(found)


def is_initial(task: Mapping[str, str]) -> bool:
    """Return whether the task's partitions existed when the flow began."""
    return task.get(INITIAL) == "true"


def are_same(tasks: Sequence[Mapping[str, str]], others: Sequence[Mapping[str, str]] | None) -> bool:
    """Return whether both are the same work; the mark of a new flow is ignored."""
    return others is not None and [_work(one) for one in tasks] == [_work(one) for one in others]


def _work(task: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in task.items() if key != INITIAL}

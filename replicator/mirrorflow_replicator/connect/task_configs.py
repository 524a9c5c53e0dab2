"""The properties of a connector's tasks, as Java's connectors write them and we read them back.

`task.assigned.partitions` is MirrorSourceConfig's; a name of ours, which Java passes over, says that the partitions were
there when the flow began. Values are those of the connector, references included: nothing that a host has resolved gets in.
Pure.
"""

from collections.abc import Mapping, Sequence

from mirrorflow_replicator.flow.assignment import Assignment
from mirrorflow_replicator.flow.partitions import TopicPartition

INDEX = "task.index"
PARTITIONS = "task.assigned.partitions"
INITIAL = "mirrorflow.task.initial"


def of_source(
    properties: Mapping[str, str], assignment: Assignment, *, initial: bool
) -> tuple[dict[str, str], ...]:
    """The tasks of a MirrorSourceConnector with *properties* that share *assignment*."""
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
    """The only task of a connector that has one."""
    return ({**properties, INDEX: "0"},)


def partitions(task: Mapping[str, str]) -> tuple[TopicPartition, ...]:
    """Which partitions *task* copies; what is no partition is passed over, as nobody could copy it."""
    found = []
    for text in task.get(PARTITIONS, "").split(","):
        topic, _, number = text.strip().rpartition("-")
        if topic and number.isascii() and number.isdigit():
            found.append(TopicPartition(topic, int(number)))
    return tuple(found)


def is_initial(task: Mapping[str, str]) -> bool:
    """Whether its partitions were there when the flow began."""
    return task.get(INITIAL) == "true"


def are_same(tasks: Sequence[Mapping[str, str]], others: Sequence[Mapping[str, str]] | None) -> bool:
    """Whether both are the same work; that the flow is no longer new changes none of it."""
    return others is not None and [_work(one) for one in tasks] == [_work(one) for one in others]


def _work(task: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in task.items() if key != INITIAL}

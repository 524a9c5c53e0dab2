"""The current configs and statuses of a Connect worker group, and the task configs that MirrorFlow's connectors get.

Replayed from the config and status topics, as Java's ClusterConfigState and its status cache. Guarantees: task configs take
effect with their commit, and only if all of them are present. Compaction may have removed one of an older set; the connector is
then inconsistent until its task configs are written again (`KafkaConfigBackingStore`).

In a task config, `task.assigned.partitions` is MirrorSourceConfig's. `mirrorflow.task.initial` is ours and Java ignores it; it
marks partitions that existed when the flow began. Values are the connector's, with references unresolved.
"""

from collections.abc import Mapping, Sequence

from mirrorflow_core.connect.session_keys import SessionKey
from mirrorflow_core.connect.worker_records import (
    ConfigRecord,
    ConnectorConfig,
    ConnectorTarget,
    LogLevelRecord,
    RestartRequest,
    TargetState,
    TaskConfig,
    TaskCount,
    TasksCommit,
    WorkerState,
    WorkerStatus,
)
from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.partitions import TopicPartition

INDEX = "task.index"
PARTITIONS = "task.assigned.partitions"
INITIAL = "mirrorflow.task.initial"
Properties = Mapping[str, str]


def source_task_configs(
    properties: Mapping[str, str], assignment: Assignment, *, initial: bool
) -> tuple[dict[str, str], ...]:
    """Returns the task configs of a MirrorSourceConnector with *properties*, one per part of *assignment*."""
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


def single_task_config(properties: Mapping[str, str]) -> tuple[dict[str, str], ...]:
    """Returns the only task config of a single-task connector."""
    return ({**properties, INDEX: "0"},)


def task_partitions(task: Mapping[str, str]) -> tuple[TopicPartition, ...]:
    """Returns the partitions that *task* copies; entries that name no partition are skipped."""
    partitions = []
    for text in task.get(PARTITIONS, "").split(","):
        topic, _, number = text.strip().rpartition("-")
        if topic and number.isascii() and number.isdigit():
            partitions.append(TopicPartition(topic, int(number)))
    return tuple(partitions)


def is_initial_task(task: Mapping[str, str]) -> bool:
    """Returns whether the task's partitions existed when the flow began."""
    return task.get(INITIAL) == "true"


def are_same_tasks(tasks: Sequence[Mapping[str, str]], others: Sequence[Mapping[str, str]] | None) -> bool:
    """Returns whether both are the same work; the mark of a new flow is ignored."""
    return others is not None and [_work(task) for task in tasks] == [_work(other) for other in others]


def _work(task: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in task.items() if key != INITIAL}


class WorkerConfigs:
    """The desired state by connector name: properties, task configs, target states; and the session key."""

    def __init__(self) -> None:
        self.connectors: dict[str, Properties] = {}
        self.tasks: dict[str, tuple[Properties, ...]] = {}  # as last committed, task 0 first
        self.inconsistent: set[str] = set()  # their task configs must be written again
        self.session_key: SessionKey | None = None
        self.fenced: dict[str, int] = {}  # how many transactional tasks Java's workers have admitted
        self.unfenced: set[str] = set()  # their task configs were written again since
        self._targets: dict[str, TargetState] = {}
        self._uncommitted: dict[str, dict[int, Properties]] = {}
        self._deleted: set[str] = set()

    def target(self, connector: str) -> TargetState:
        """Returns the target state of *connector*; STARTED where none is stored."""
        return self._targets.get(connector, TargetState.STARTED)

    def take(self, record: ConfigRecord) -> None:
        """Applies the next record of the config topic."""
        match record:
            case ConnectorConfig(connector=name, properties=None):
                # As in Java, its task records stay in the topic but no longer count; a re-created connector
                # writes new ones.
                self.connectors.pop(name, None)
                self.tasks.pop(name, None)
                self._uncommitted.pop(name, None)
                self.inconsistent.discard(name)
                self.fenced.pop(name, None)
                self._deleted.add(name)
            case ConnectorConfig(connector=name, properties=properties) if properties is not None:
                self.connectors[name] = properties
                self._deleted.discard(name)
            case TaskConfig(connector=name) | TasksCommit(connector=name) if name in self._deleted:
                pass  # written by a node that had not read of the deletion yet
            case ConnectorTarget(connector=name, state=None):
                self._targets.pop(name, None)
            case ConnectorTarget(connector=name, state=state) if state is not None:
                self._targets[name] = state
            case TaskConfig(connector=name, task=task, properties=properties):
                waiting = self._uncommitted.setdefault(name, {})
                if properties is None:
                    waiting.pop(task, None)
                else:
                    waiting[task] = properties
            case TasksCommit(connector=name, tasks=count):
                self.unfenced.add(name)
                self._commit(name, count)
            case RestartRequest() | LogLevelRecord():
                pass  # events leave no state
            case TaskCount(connector=name, tasks=count):
                self.fenced[name] = count
                self.unfenced.discard(name)
            case SessionKey():
                self.session_key = record

    def _commit(self, name: str, count: int) -> None:
        waiting = self._uncommitted.pop(name, {})
        if any(number not in waiting for number in range(count)):
            self.inconsistent.add(name)
            return
        self.inconsistent.discard(name)
        self.tasks[name] = tuple(waiting[number] for number in range(count))


class LatestStatuses:
    """The latest status of each connector and task."""

    def __init__(self) -> None:
        self._connectors: dict[str, WorkerStatus] = {}
        self._tasks: dict[str, dict[int, WorkerStatus]] = {}

    def connector(self, name: str) -> WorkerStatus | None:
        """Returns the latest status of connector *name*; None if there is none."""
        return self._connectors.get(name)

    def tasks(self, name: str) -> dict[int, WorkerStatus]:
        """Returns the latest status of each of its tasks, by task number."""
        return dict(sorted(self._tasks.get(name, {}).items()))

    def connectors(self) -> frozenset[str]:
        """Returns the names of connectors with a known status, their own or a task's."""
        return frozenset(self._connectors) | frozenset(name for name, tasks in self._tasks.items() if tasks)

    def take(self, status: WorkerStatus) -> None:
        """Applies the next record of the status topic."""
        if status.state is WorkerState.DESTROYED:
            self._forget(status)
            return
        known = self.latest_status(status)
        # A worker may report the loss of a task after another worker has started it (KAFKA-10413's race).
        overtaken = (
            known is not None and known.state is WorkerState.RUNNING and known.generation >= status.generation
        )
        if status.state is WorkerState.UNASSIGNED and overtaken:
            return
        if status.task is None:
            self._connectors[status.connector] = status
        else:
            self._tasks.setdefault(status.connector, {})[status.task] = status

    def may_write(self, status: WorkerStatus) -> bool:
        """Returns whether *status* may be written (Java's putSafe).

        It may not where another worker has written a status of a later generation.
        """
        known = self.latest_status(status)
        return known is None or known.worker_id == status.worker_id or known.generation <= status.generation

    def latest_status(self, status: WorkerStatus) -> WorkerStatus | None:
        """Returns the latest status of the same connector or task as *status*."""
        if status.task is None:
            return self._connectors.get(status.connector)
        return self._tasks.get(status.connector, {}).get(status.task)

    def _forget(self, status: WorkerStatus) -> None:
        if status.task is None:
            self._connectors.pop(status.connector, None)
            self._tasks.pop(status.connector, None)
        else:
            self._tasks.get(status.connector, {}).pop(status.task, None)

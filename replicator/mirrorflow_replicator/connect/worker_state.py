"""What the records of Connect's config and status topics amount to, read in order: Java's ClusterConfigState, and its
cache of statuses.

Promises: task configs count from their commit on, and only when it finds all of them; compaction may have taken one of
an older set away, which makes the connector inconsistent until its tasks are written anew (`KafkaConfigBackingStore`).
"""

from collections.abc import Mapping

from mirrorflow_replicator.connect.session_keys import SessionKey
from mirrorflow_replicator.connect.worker_records import (
    ConfigRecord,
    ConnectorConfig,
    ConnectorTarget,
    LogLevel,
    RestartRequest,
    State,
    TargetState,
    TaskConfig,
    TaskCount,
    TasksCommit,
    WorkerStatus,
)

Properties = Mapping[str, str]


class WorkerConfigs:
    """What is to run, by name of connector."""

    def __init__(self) -> None:
        self.connectors: dict[str, Properties] = {}
        self.tasks: dict[str, tuple[Properties, ...]] = {}  # as last committed, task 0 first
        self.inconsistent: set[str] = set()  # their tasks must be written anew
        self.session_key: SessionKey | None = None
        self.fenced: dict[str, int] = {}  # how many transactional tasks Java's workers have let write
        self.unfenced: set[str] = set()  # their tasks were written anew since
        self._targets: dict[str, TargetState] = {}
        self._uncommitted: dict[str, dict[int, Properties]] = {}

    def target(self, connector: str) -> TargetState:
        """What is wanted of *connector*; STARTED where nobody has said anything else."""
        return self._targets.get(connector, TargetState.STARTED)

    def take(self, record: ConfigRecord) -> None:
        """Take the next record of the topic."""
        match record:
            case ConnectorConfig(connector=name, properties=None):
                # Its tasks stay in the topic, as Java leaves them there, and count no more: made anew, it writes its own.
                self.connectors.pop(name, None)
                self.tasks.pop(name, None)
                self._uncommitted.pop(name, None)
                self.inconsistent.discard(name)
                self.fenced.pop(name, None)
            case ConnectorConfig(connector=name, properties=properties) if properties is not None:
                self.connectors[name] = properties
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
            case RestartRequest() | LogLevel():
                pass  # an event; nothing stays of it
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


class WorkerStatuses:
    """How connectors and tasks fare."""

    def __init__(self) -> None:
        self._connectors: dict[str, WorkerStatus] = {}
        self._tasks: dict[str, dict[int, WorkerStatus]] = {}

    def connector(self, name: str) -> WorkerStatus | None:
        """The last word on connector *name*."""
        return self._connectors.get(name)

    def tasks(self, name: str) -> dict[int, WorkerStatus]:
        """The last word on each of its tasks, by number."""
        return dict(sorted(self._tasks.get(name, {}).items()))

    def connectors(self) -> frozenset[str]:
        """The names of which something is known."""
        return frozenset(self._connectors) | frozenset(name for name, tasks in self._tasks.items() if tasks)

    def take(self, status: WorkerStatus) -> None:
        """Take the next record of the topic."""
        if status.state is State.DESTROYED:
            self._forget(status)
            return
        known = self.last_word(status)
        # Who lost a task says so late: another has had it running since (KAFKA-10413's race).
        overtaken = (
            known is not None and known.state is State.RUNNING and known.generation >= status.generation
        )
        if status.state is State.UNASSIGNED and overtaken:
            return
        if status.task is None:
            self._connectors[status.connector] = status
        else:
            self._tasks.setdefault(status.connector, {})[status.task] = status

    def may_write(self, status: WorkerStatus) -> bool:
        """Whether *status* may be written where another worker could have the say by now (Java's putSafe)."""
        known = self.last_word(status)
        return known is None or known.worker_id == status.worker_id or known.generation <= status.generation

    def last_word(self, status: WorkerStatus) -> WorkerStatus | None:
        """What was said last of what *status* speaks of."""
        if status.task is None:
            return self._connectors.get(status.connector)
        return self._tasks.get(status.connector, {}).get(status.task)

    def _forget(self, status: WorkerStatus) -> None:
        if status.task is None:
            self._connectors.pop(status.connector, None)
            self._tasks.pop(status.connector, None)
        else:
            self._tasks.get(status.connector, {}).pop(status.task, None)

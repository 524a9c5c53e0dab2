"""Encodes and decodes the records of Connect's config and status topics, byte for byte as Java.

Keys are plain text; values are JSON of JsonConverter without schemas. The config topic holds the desired
state of the worker group (`KafkaConfigBackingStore`), the status topic its observed state
(`KafkaStatusBackingStore`). A value of None is a tombstone and deletes what the key names. The encoded bytes
equal Java's except for the order inside `properties`, where Java has the order of a hash map.

`decode_config` and `decode_status` return None for records of other kinds (tracked topics), which stay
untouched. They raise ValueError with the problem, never with a value, because properties hold secrets.

Pure: `stores.worker_topics` reads and writes the topics, `connect.worker_state` derives the current state
from them.
"""

import base64
from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any, TypeAlias, assert_never

from mirrorflow_core.connect.session_keys import SessionKey
from mirrorflow_core.java.json_text import dumped, parsed_object
from mirrorflow_core.light_dataclasses import dataclass

TASKS_MAX = 2**31 - 1  # an int32
_SESSION_KEY = "session-key"


class TargetState(Enum):
    """The desired state of a connector, set by the user."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"


class WorkerState(Enum):
    """The observed state of a connector or task (Java's AbstractStatus.State)."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    FAILED = "FAILED"
    DESTROYED = "DESTROYED"
    RESTARTING = "RESTARTING"
    STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """`connector-NAME`: the connector's properties; None where it was deleted."""

    connector: str
    properties: Mapping[str, str] | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """`task-NAME-N`: the properties of one task, which take effect with the next commit."""

    connector: str
    task: int
    properties: Mapping[str, str] | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksCommit:
    """`commit-NAME`: the connector has *tasks* tasks, with the properties written before."""

    connector: str
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorTarget:
    """`target-state-NAME`: the connector's target state.

    None where it was deleted, which means STARTED as long as the connector exists.
    """

    connector: str
    state: TargetState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """`restart-connector-NAME` (KIP-745): an event, handled only when it arrives."""

    connector: str
    include_tasks: bool = False
    only_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLevelRecord:
    """`logger-cluster-NAMESPACE` (KIP-976): an event, handled only when it arrives."""

    namespace: str
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCount:
    """`tasks-fencing-NAME` (KIP-618): how many transactional tasks may write since the previous record."""

    connector: str
    tasks: int


ConfigRecord: TypeAlias = (
    ConnectorConfig
    | TaskConfig
    | TasksCommit
    | ConnectorTarget
    | RestartRequest
    | TaskCount
    | LogLevelRecord
    | SessionKey
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """`status-connector-NAME`, or `status-task-NAME-N` where *task* is a number.

    DESTROYED is written as a tombstone, as in Java, and read from one.
    """

    connector: str
    task: int | None = None
    state: WorkerState
    worker_id: str = ""  # host:port
    generation: int = 0  # of the group; an old one marks a worker that has lost the unit
    trace: str | None = None  # why it failed
    version: str | None = None  # plugin version, since Kafka 4.1

    @property
    def key(self) -> bytes:
        """The key of its record."""
        if self.task is None:
            return f"status-connector-{self.connector}".encode()
        return f"status-task-{self.connector}-{self.task}".encode()


def encode_config(record: ConfigRecord) -> tuple[bytes, bytes | None]:
    """Returns the key and value of *record*."""
    match record:
        case ConnectorConfig(connector=name, properties=properties):
            return f"connector-{name}".encode(), _properties(properties)
        case TaskConfig(connector=name, task=task, properties=properties):
            return f"task-{name}-{task}".encode(), _properties(properties)
        case TasksCommit(connector=name, tasks=tasks):
            return f"commit-{name}".encode(), _object({"tasks": tasks})
        case ConnectorTarget(connector=name, state=state):
            if state is None:
                return f"target-state-{name}".encode(), None
            # Workers before 3.5 do not support STOPPED (KIP-875); they read it as PAUSED.
            old = TargetState.PAUSED if state is TargetState.STOPPED else state
            return f"target-state-{name}".encode(), _object({"state": old.value, "state.v2": state.value})
        case RestartRequest(connector=name, include_tasks=include_tasks, only_failed=only_failed):
            value = _object({"include-tasks": include_tasks, "only-failed": only_failed})
            return f"restart-connector-{name}".encode(), value
        case TaskCount(connector=name, tasks=tasks):
            return f"tasks-fencing-{name}".encode(), _object({"task-count": tasks})
        case SessionKey(key=key, algorithm=algorithm, created_ms=created_ms):
            text = base64.b64encode(key).decode("ascii")
            return _SESSION_KEY.encode(), _object(
                {"key": text, "algorithm": algorithm, "creation-timestamp": created_ms}
            )
        case LogLevelRecord(namespace=namespace, level=level):
            return f"logger-cluster-{namespace}".encode(), _object({"level": level})
    assert_never(record)


def decode_config(key: bytes | None, value: bytes | None) -> ConfigRecord | None:
    """Returns the decoded record of the config topic; None for other kinds. Raises ValueError."""
    kinds = (
        "target-state",
        "restart-connector",
        "connector",
        "commit",
        "tasks-fencing",
        "task",
        "logger-cluster",
    )
    kind, rest = _kind(key, kinds)
    if key == _SESSION_KEY.encode():
        return None if value is None else _read_session_key(parsed_object(value))
    fields = None if value is None else parsed_object(value)
    match kind:
        case "connector":
            return ConnectorConfig(connector=rest, properties=_read_properties(fields))
        case "task":
            name, task = _split_task(rest)
            return TaskConfig(connector=name, task=task, properties=_read_properties(fields))
        case "commit":
            return TasksCommit(connector=rest, tasks=_count(fields, "tasks"))
        case "target-state":
            return ConnectorTarget(connector=rest, state=_read_target(fields))
        case "restart-connector" if fields is not None:
            return RestartRequest(
                connector=rest,
                include_tasks=fields.get("include-tasks") is True,
                only_failed=fields.get("only-failed") is True,
            )
        case "tasks-fencing" if fields is not None:
            return TaskCount(connector=rest, tasks=_count(fields, "task-count"))
        case "logger-cluster" if fields is not None and isinstance(level := fields.get("level"), str):
            return LogLevelRecord(namespace=rest, level=level)
    return None


def encode_status(status: WorkerStatus) -> tuple[bytes, bytes | None]:
    """Returns the key and value of *status*."""
    if status.state is WorkerState.DESTROYED:
        return status.key, None
    value = {
        "state": status.state.value,
        "trace": status.trace,
        "worker_id": status.worker_id,
        "generation": status.generation,
        "version": status.version,
    }
    return status.key, _object(value)


def decode_status(key: bytes | None, value: bytes | None) -> WorkerStatus | None:
    """Returns the decoded record of the status topic; None for a tracked topic or another kind. Raises ValueError."""
    kind, rest = _kind(key, ("status-connector", "status-task"))
    if not kind:
        return None
    name, task = (rest, None) if kind == "status-connector" else _split_task(rest)
    if value is None:
        return WorkerStatus(connector=name, task=task, state=WorkerState.DESTROYED)
    fields = parsed_object(value)
    try:
        state = WorkerState(_text(fields, "state"))
    except ValueError as error:
        raise ValueError("its state is none of Connect's") from error
    generation = fields.get("generation")
    if not isinstance(generation, int) or isinstance(generation, bool):
        raise ValueError("its generation is not a whole number")  # noqa: TRY004 - as above
    return WorkerStatus(
        connector=name,
        task=task,
        state=state,
        worker_id=_text(fields, "worker_id") or "",
        generation=generation,
        trace=_text(fields, "trace"),
        version=_text(fields, "version"),
    )


def _kind(key: bytes | None, kinds: tuple[str, ...]) -> tuple[str, str]:
    """Returns which of *kinds* the key has, and the text after it; two empty strings for none."""
    if key is None:
        raise ValueError("its key is null")
    text = key.decode("utf-8", "replace")
    for kind in kinds:
        if text.startswith(f"{kind}-"):
            return kind, text[len(kind) + 1 :]
    return "", ""


def _split_task(text: str) -> tuple[str, int]:
    """Returns the connector and the task number of a key.

    A connector's name may itself hold hyphens and end in a number. Raises ValueError where there is no task
    number.
    """
    name, _, number = text.rpartition("-")
    if not name or not (number.isascii() and number.isdigit()) or int(number) > TASKS_MAX:
        raise ValueError("its key does not end with the number of a task")
    return name, int(number)


def _properties(properties: Mapping[str, str] | None) -> bytes | None:
    return None if properties is None else _object({"properties": dict(properties)})


def _read_properties(fields: Mapping[str, Any] | None) -> dict[str, str] | None:
    if fields is None:
        return None
    properties = fields.get("properties")
    if not isinstance(properties, dict):
        raise ValueError("it has no properties")  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    for name, value in properties.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"the property {name} is not a string")
    # The REST API accepts null for a property and Java keeps it; it means the same as an absent property.
    return {name: value for name, value in properties.items() if value is not None}


def _read_target(fields: Mapping[str, Any] | None) -> TargetState | None:
    if fields is None:
        return None
    # An unknown state.v2 is ignored, as in Java, so that a later version may add states.
    for name in ("state.v2", "state"):
        written = fields.get(name)
        if written in {state.value for state in TargetState}:
            return TargetState(written)
    raise ValueError("its target state is none of Connect's")


def _read_session_key(fields: Mapping[str, Any]) -> SessionKey:
    created_ms = fields.get("creation-timestamp")
    try:
        key = base64.b64decode(_text(fields, "key") or "", validate=True)
    except ValueError as error:
        raise ValueError("the session key is not base64") from error
    if not key or not isinstance(created_ms, int) or isinstance(created_ms, bool):
        raise ValueError("the session key lacks its bytes or its time")
    return SessionKey(key=key, algorithm=_text(fields, "algorithm") or "", created_ms=created_ms)


def _count(fields: Mapping[str, Any] | None, name: str) -> int:
    count = None if fields is None else fields.get(name)
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= TASKS_MAX:
        raise ValueError(f"{name} is not a count")
    return count


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is not a string")
    return value


def _object(fields: dict[str, Any]) -> bytes:
    return dumped(fields).encode()

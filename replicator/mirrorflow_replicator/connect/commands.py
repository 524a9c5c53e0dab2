"""What a writing call of Connect's REST asks for: a request -> a command, or Connect's refusal.

Paths, bodies, status codes and sentences are those of Connect 4.3 (ConnectorsResource, CreateConnectorRequest,
ConnectorOffsets; KIP-477, KIP-745, KIP-875, KIP-980). Whether the connector exists, and whether its properties are
right, is not looked at here: `connect.herd` decides that. No sentence holds a property's value.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mirrorflow_replicator.connect.view import WORD_MAX, ConnectError, Request
from mirrorflow_replicator.connect.worker_records import TargetState

NOT_FOUND = "HTTP 404 Not Found"  # Jersey's sentence where no resource matches
NOT_ALLOWED = "HTTP 405 Method Not Allowed"
_INITIAL_STATES = {
    "RUNNING": TargetState.STARTED,
    "PAUSED": TargetState.PAUSED,
    "STOPPED": TargetState.STOPPED,
}
LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")  # Log4j's
_TARGETS = {"pause": TargetState.PAUSED, "resume": TargetState.STARTED, "stop": TargetState.STOPPED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """Run *name* with *properties*; *target* only for one that is new, and None says nothing of it."""

    name: str
    properties: Mapping[str, str] = field(repr=False)
    target: TargetState | None = None
    may_exist: bool  # PUT: it may be there already; POST: it may not


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Change single properties of *name*; None takes one away (KIP-477)."""

    name: str
    changes: Mapping[str, str | None] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Run *name* no more, and forget it; its positions stay."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTarget:
    """Pause, resume or stop *name*."""

    name: str
    target: TargetState


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Start *name* anew, and its tasks with it (KIP-745)."""

    name: str
    include_tasks: bool = False
    only_failed: bool = False

    @property
    def is_plain(self) -> bool:
        """Asked for in the manner of before KIP-745, and answered so."""
        return not (self.include_tasks or self.only_failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTask:
    """Start one task of *name* anew."""

    name: str
    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOffsets:
    """Read the positions of *name* (KIP-875)."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterOffsets:
    """Write positions of *name*: pairs of a source partition and its offset, None to forget it."""

    name: str
    offsets: tuple[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsets:
    """Forget all positions of *name*."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLevel:
    """Set the level of logger *name* and all below it, of this worker or of all of its group (KIP-495, KIP-976)."""

    name: str
    level: str
    everywhere: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTasks:
    """From the node that has connector *name* to the leader: these are its tasks now, as the body says."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """From a node that is about to start a transactional task of *name* to the leader: end earlier ones (KIP-618)."""

    name: str


Internal: TypeAlias = PutTasks | Fence
Command: TypeAlias = (
    Configure
    | Patch
    | Delete
    | SetTarget
    | Restart
    | RestartTask
    | ListOffsets
    | AlterOffsets
    | ResetOffsets
    | Internal
    | SetLevel
)


def command(request: Request, path: list[str], query: Mapping[str, list[str]]) -> Command:
    """The command of a request that would change something. Raises ConnectError."""
    match request.method, path:
        case "POST", ["connectors"]:
            return _created(request)
        case "DELETE", ["connectors", name]:
            return Delete(name=name)
        case "PUT", ["connectors", name, "config"]:
            return Configure(name=name, properties=_named(properties(request), name), may_exist=True)
        case "PATCH", ["connectors", name, "config"]:
            changes = _strings(_object(request))
            given = {key: value for key, value in changes.items() if value is not None}
            return Patch(name=name, changes={**changes, **_named(given, name)})
        case "PUT", ["connectors", name, "pause" | "resume" | "stop" as word]:
            return SetTarget(name=name, target=_TARGETS[word])
        case "POST", ["connectors", name, "restart"]:
            return Restart(
                name=name, include_tasks=_flag(query, "includeTasks"), only_failed=_flag(query, "onlyFailed")
            )
        case "POST", ["connectors", name, "tasks", number, "restart"]:
            return RestartTask(name=name, task=_task(number))
        case "PATCH", ["connectors", name, "offsets"]:
            return AlterOffsets(name=name, offsets=_offsets(request))
        case "DELETE", ["connectors", name, "offsets"]:
            return ResetOffsets(name=name)
        case "PUT", ["connectors", _, "topics", "reset"]:
            raise ConnectError(403, "Topic tracking reset is disabled.")
        case "PUT", ["admin", "loggers", name]:
            # As Java: a scope that is none is the worker's.
            everywhere = query.get("scope", [""])[0].lower() == "cluster"
            return SetLevel(name=name, level=_level(request), everywhere=everywhere)
    raise ConnectError(405 if _is_known(path) else 404, NOT_ALLOWED if _is_known(path) else NOT_FOUND)


def internal_command(request: Request, path: list[str]) -> Internal | None:
    """What one node asks of another (InternalConnectResource, KIP-507 and KIP-618); None where it is no such request."""
    match request.method, path:
        case "POST", ["connectors", name, "tasks"]:
            return PutTasks(name=name)
        case "PUT", ["connectors", name, "fence"]:
            return Fence(name=name)
    return None


def task_configs(request: Request) -> tuple[dict[str, str], ...]:
    """The body as the properties of a connector's tasks, the first one's first. Raises ConnectError."""
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise ConnectError(400, "The body is not JSON; send a list of the tasks' properties.") from error
    if not isinstance(body, list) or not all(isinstance(one, dict) for one in body):
        raise ConnectError(400, "The body is not a list of objects; send the tasks' properties.")
    return tuple({key: value for key, value in _strings(one).items() if value is not None} for one in body)


def properties(request: Request) -> dict[str, str]:
    """The body as a connector's properties; those that are null are left out. Raises ConnectError."""
    return {key: value for key, value in _strings(_object(request)).items() if value is not None}


def sets_level(request: Request, path: list[str]) -> bool:
    """Whether it is about a logger, which every worker has."""
    return request.method == "PUT" and path[:2] == ["admin", "loggers"] and len(path) == 3


def _level(request: Request) -> str:
    level = _strings(_object(request)).get("level")
    if level is None:
        raise ConnectError(400, "Desired 'level' parameter was not specified in request.")
    if level.upper() not in LEVELS:
        raise ConnectError(404, f"invalid log level '{level[:WORD_MAX]}'.")
    return level.upper()


def _is_known(path: list[str]) -> bool:
    """Whether there is a resource there, for another method."""
    match path:
        case (
            []
            | ["connectors" | "connector-plugins" | "health"]
            | ["connectors", _]
            | ["admin", "loggers", *_]
        ):
            return True
        case ["connectors", _, word]:
            return word in {"config", "tasks", "status", "topics", "offsets", "restart", *_TARGETS}
        case ["connectors", _, "tasks", _, word]:
            return word in {"status", "restart"}
    return False


def _created(request: Request) -> Configure:
    body = _object(request)
    if unknown := body.keys() - {"name", "config", "initial_state"}:
        raise ConnectError(
            400, f"The body has fields that a connector is not created with: {', '.join(sorted(unknown))}."
        )
    name, config, initial = body.get("name"), body.get("config"), body.get("initial_state")
    if name is not None and not isinstance(name, str):
        raise ConnectError(400, "The connector's name is not a string.")
    if not isinstance(config, dict):
        raise ConnectError(400, "config is missing; send an object of the connector's properties.")
    if initial is not None and str(initial).upper() not in _INITIAL_STATES:
        raise ConnectError(400, "initial_state is none of RUNNING, PAUSED and STOPPED.")
    # As Java: spaces around a name are nobody's intention.
    name = (name or "").strip()
    given = {key: value for key, value in _strings(config).items() if value is not None}
    return Configure(
        name=name,
        properties=_named(given, name),
        target=None if initial is None else _INITIAL_STATES[str(initial).upper()],
        may_exist=False,
    )


def _named(given: dict[str, str], name: str) -> dict[str, str]:
    """*given* with the name that the path, or the request, has."""
    if given.setdefault("name", name) != name:
        raise ConnectError(
            400,
            f"Connector name configuration ({given['name']}) doesn't match connector name in the URL ({name})",
        )
    return given


def _offsets(request: Request) -> tuple[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None], ...]:
    body = _object(request)
    entries = body.get("offsets")
    if body.keys() - {"offsets"} or not isinstance(entries, list | None):
        raise ConnectError(400, "The body is not an object with a list of offsets.")
    if not entries:
        raise ConnectError(400, "Partitions / offsets need to be provided for an alter offsets request")
    pairs = []
    for entry in entries:
        if not isinstance(entry, dict) or entry.keys() - {"partition", "offset"}:
            raise ConnectError(400, "An entry of offsets is not an object of partition and offset.")
        pair = (entry.get("partition"), entry.get("offset"))
        if not all(isinstance(part, dict | None) for part in pair):
            raise ConnectError(400, "The partition or the offset of an entry is not an object.")
        pairs.append(pair)
    return tuple(pairs)


def _flag(query: Mapping[str, list[str]], name: str) -> bool:
    """Java's Boolean parameter: anything but "true" is false."""
    return query.get(name, ["false"])[0].lower() == "true"


def _task(number: str) -> int:
    # Java's Integer parameter: what is no integer matches no resource.
    if not (number.isascii() and number.isdigit() and len(number) < 11):
        raise ConnectError(404, NOT_FOUND)
    return int(number)


def _object(request: Request) -> dict[str, Any]:
    media_type = request.content_type.partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ConnectError(415, "HTTP 415 Unsupported Media Type")
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise ConnectError(
            400, "The body is not JSON; send an object of the connector's properties."
        ) from error
    if not isinstance(body, dict):
        raise ConnectError(
            400, "The body is not a JSON object; send the connector's properties as strings by name."
        )
    return body


def _strings(body: Mapping[str, Any]) -> dict[str, str | None]:
    return {name: None if value is None else _text(value) for name, value in body.items()}


def _text(value: object) -> str:
    """Jackson reads numbers and booleans into a map of strings as they are written."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise ConnectError(400, "A property is an object or a list; send each property as a string.")

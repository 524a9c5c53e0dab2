"""Parses a call of Connect's REST API that changes something. Pure.

Resources, bodies, status codes and messages are those of Connect 4.3 (ConnectorsResource,
CreateConnectorRequest, ConnectorOffsets; KIP-477, KIP-745, KIP-875, KIP-980). Parsing does not
check whether the connector exists and its properties are right: `worker.config_decisions` does. No message contains a
property's value.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.connect.worker_records import (
    TargetState,
)
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_replicator.http.worker_view import WORD_MAX, Request
from mirrorflow_replicator.logs import NUMBERS as LOG_LEVELS

NOT_FOUND = "HTTP 404 Not Found"  # Jersey's message where no resource matches
NOT_ALLOWED = "HTTP 405 Method Not Allowed"
NULL_VALUE = "{}: a property cannot be null; leave it out, or give it a value."
_ALSO = (
    "You can also find the above list of errors at the endpoint "
    "`/connector-plugins/{connectorType}/config/validate`"
)
_INITIAL_STATES = {
    "RUNNING": TargetState.STARTED,
    "PAUSED": TargetState.PAUSED,
    "STOPPED": TargetState.STOPPED,
}
_TARGETS = {"pause": TargetState.PAUSED, "resume": TargetState.STARTED, "stop": TargetState.STOPPED}
READING = ("GET", "HEAD", "OPTIONS")
_ANY = "*"
_NUMBER = "#"
INTEGER = re.compile(r"-?[0-9]+")  # Java's Integer parameter: other text matches no resource
_RESOURCES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("GET",)),
    ("health", ("GET",)),
    ("connectors", ("GET", "POST")),
    ("connectors/*", ("GET", "DELETE")),
    ("connectors/*/config", ("GET", "PUT", "PATCH")),
    ("connectors/*/status", ("GET",)),
    ("connectors/*/topics", ("GET",)),
    ("connectors/*/topics/reset", ("PUT",)),
    ("connectors/*/offsets", ("GET", "PATCH", "DELETE")),
    ("connectors/*/restart", ("POST",)),
    ("connectors/*/pause", ("PUT",)),
    ("connectors/*/resume", ("PUT",)),
    ("connectors/*/stop", ("PUT",)),
    ("connectors/*/fence", ("PUT",)),
    ("connectors/*/tasks", ("GET", "POST")),
    ("connectors/*/tasks/#/status", ("GET",)),
    ("connectors/*/tasks/#/restart", ("POST",)),
    ("connectors/*/tasks-config", ("GET",)),  # until 3.9
    ("connector-plugins", ("GET",)),
    ("connector-plugins/*/config", ("GET",)),
    ("connector-plugins/*/config/validate", ("PUT",)),
    ("admin/loggers", ("GET",)),
    ("admin/loggers/*", ("GET", "PUT")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfConnector:
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Configure:
    """Creates or changes *name* with *properties*; *target* is for a new one, None leaves it unset."""

    name: str
    properties: Mapping[str, str] = field(repr=False)
    target: TargetState | None = None
    may_exist: bool  # PUT: it may exist already; POST: it may not


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """Changes single properties of *name*; None removes one (KIP-477)."""

    name: str
    changes: Mapping[str, str | None] = field(repr=False)


class Delete(_OfConnector):
    """Deletes connector *name*; its offsets stay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTarget:
    """Pauses, resumes or stops *name*."""

    name: str
    target: TargetState


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restarts *name*, and its tasks on request (KIP-745)."""

    name: str
    include_tasks: bool = False
    only_failed: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the call has the form from before KIP-745, whose response is another."""
        return not (self.include_tasks or self.only_failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartTask:
    """Restarts one task of *name*."""

    name: str
    task: int


class ListOffsets(_OfConnector):
    """Reads the stored offsets of *name* (KIP-875)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterOffsets:
    """Writes offsets of *name*: pairs of a source partition and its offset, None to delete it."""

    name: str
    offsets: tuple[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None], ...]


class ResetOffsets(_OfConnector):
    """Deletes all stored offsets of *name*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLevel:
    """Sets the level of logger *name* and all below it, here or in the whole group (KIP-495, KIP-976)."""

    name: str
    level: str
    everywhere: bool


class PutTasks(_OfConnector):
    """Sent by the node that runs connector *name* to the leader, with its new task configs in the body."""


class Fence(_OfConnector):
    """Sent to the leader before a transactional task of *name* starts: fence its earlier tasks (KIP-618)."""


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
    """Returns the command of a request that would change something. Raises ConnectError."""
    if request.body:
        _require_json(request)
    match request.method, path:
        case "POST", ["connectors"]:
            return _created(request)
        case "DELETE", ["connectors", name]:
            return Delete(name=name)
        case "PUT", ["connectors", name, "config"]:
            return Configure(
                name=name, properties=_complete(_strings(_object(request)), name), may_exist=True
            )
        case "PATCH", ["connectors", name, "config"]:
            changes = _strings(_object(request))
            given = {key: value for key, value in changes.items() if value is not None}
            return Patch(name=name, changes={**changes, **_named(given, name)})
        case "PUT", ["connectors", name, "pause" | "resume" | "stop" as action]:
            return SetTarget(name=name, target=_TARGETS[action])
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
        case "PUT", ["admin", "loggers", name]:
            # As in Java: an unknown scope means the worker.
            everywhere = query.get("scope", [""])[0].lower() == "cluster"
            return SetLevel(name=name, level=_level(request), everywhere=everywhere)
    raise no_such_call(path)


def internal_command(request: Request, path: list[str]) -> Internal | None:
    """Returns the call of another node (InternalConnectResource, KIP-507, KIP-618); None if it is not one."""
    match request.method, path:
        case "POST", ["connectors", name, "tasks"]:
            return PutTasks(name=name)
        case "PUT", ["connectors", name, "fence"]:
            return Fence(name=name)
    return None


def task_configs(request: Request) -> tuple[dict[str, str], ...]:
    """Returns the body as the properties of a connector's tasks, by task number. Raises ConnectError."""
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise ConnectError(400, "The body is not JSON; send a list of the tasks' properties.") from error
    if not isinstance(body, list) or not all(isinstance(item, dict) for item in body):
        raise ConnectError(400, "The body is not a list of objects; send the tasks' properties.")
    return tuple(
        {key: value for key, value in _strings(level).items() if value is not None} for level in body
    )


def properties(request: Request) -> dict[str, str | None]:
    """Returns the body as a connector's properties, to be validated. Raises ConnectError."""
    return _strings(_object(request))


def invalid_configuration(sentences: Collection[str]) -> ConnectError:
    """Returns the error for an invalid configuration: Connect's text around *sentences*."""
    begin = f"Connector configuration is invalid and contains the following {len(sentences)} error(s):"
    return ConnectError(400, "\n".join((begin, *sentences, _ALSO)))


def no_such_call(path: Sequence[str]) -> ConnectError:
    """Returns the error for an unsupported method of the resource at *path*, or for a missing resource."""
    return ConnectError(405, NOT_ALLOWED) if methods(path) else ConnectError(404, NOT_FOUND)


def sets_level(request: Request, path: list[str]) -> bool:
    """Whether the request sets a logger's level, which every worker supports."""
    return request.method == "PUT" and path[:2] == ["admin", "loggers"] and len(path) == 3


def _level(request: Request) -> str:
    level = _strings(_object(request)).get("level")
    if level is None:
        raise ConnectError(400, "Desired 'level' parameter was not specified in request.")
    if level.upper() not in LOG_LEVELS:
        raise ConnectError(404, f"invalid log level '{level[:WORD_MAX]}'.")
    return level.upper()


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
        raise ConnectError(400, "initial_state must be RUNNING, PAUSED or STOPPED.")
    # As in Java: spaces around a name are not intended.
    name = (name or "").strip()
    return Configure(
        name=name,
        properties=_complete(_strings(config), name),
        target=None if initial is None else _INITIAL_STATES[str(initial).upper()],
        may_exist=False,
    )


def _complete(given: Mapping[str, str | None], name: str) -> dict[str, str]:
    """Returns *given* as the whole configuration of *name*; like Java, refuses a property without a value."""
    properties = _named({key: value for key, value in given.items() if value is not None}, name)
    if nulls := sorted(key for key, value in given.items() if value is None and key != "name"):
        raise invalid_configuration([NULL_VALUE.format(key) for key in nulls])
    return properties


def _named(given: dict[str, str], name: str) -> dict[str, str]:
    """Returns *given* with the name from the path or the request. Raises ConnectError if they differ."""
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
    """Parses Java's Boolean parameter: anything but "true" is false."""
    return query.get(name, ["false"])[0].lower() == "true"


def _task(number: str) -> int:
    if not (number.isascii() and number.isdigit() and len(number) < 11):
        raise ConnectError(404, NOT_FOUND)
    return int(number)


def _require_json(request: Request) -> None:
    media_type = (request.content_type or "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise ConnectError(415, "HTTP 415 Unsupported Media Type")


def _object(request: Request) -> dict[str, Any]:
    _require_json(request)
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
    """Converts as Jackson does: numbers and booleans become strings as they are written."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise ConnectError(400, "A property is an object or a list; send each property as a string.")


def methods(path: Sequence[str]) -> tuple[str, ...]:
    """Returns the methods of the resource at *path* (its parts), sorted; none if it does not exist."""
    for pattern, allowed in _RESOURCES:
        parts = pattern.split("/") if pattern else []
        if len(parts) == len(path) and all(map(_matches, parts, path)):
            return tuple(sorted({*allowed, "OPTIONS", *(("HEAD",) if "GET" in allowed else ())}))
    return ()


def _matches(pattern: str, part: str) -> bool:
    if pattern == _NUMBER:
        return INTEGER.fullmatch(part) is not None
    return pattern in (_ANY, part)

"""Serves Kafka Connect's REST API: reads from a `WorkerView`, writes as commands for the worker.

Paths, bodies and error messages are those of Connect 4.3 (ConnectorsResource, ConnectorPluginsResource,
RootResource, LoggingResource, AbstractHerder), so that its clients work unchanged. Writes return
403 unless `rest.modify.enable` allows them, and 501 where connectors come from files. Validating a
configuration changes nothing and is always allowed. Until the worker has read its connectors, calls about
them return 503.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import parse_qs, unquote

from mirrorflow_core.connect.session_keys import MISSING_SIGNATURE, ConnectError
from mirrorflow_core.reports import ConnectorReport, TaskReport
from mirrorflow_replicator.config.connector_classes import CONNECTORS
from mirrorflow_replicator.config.providers import shown
from mirrorflow_replicator.http.commands import (
    INTEGER,
    NOT_ALLOWED,
    NOT_FOUND,
    READING,
    Command,
    ListOffsets,
    command,
    internal_command,
    methods,
    no_such_call,
    properties,
    sets_level,
)
from mirrorflow_replicator.http.rest_plugins import definitions, plugins, validation
from mirrorflow_replicator.http.worker_view import (
    Request,
    Response,
    WorkerView,
    error_response,
    json_response,
)
from mirrorflow_replicator.logs import LoggerLevel
from mirrorflow_replicator.version import connect_version

CHANGING = ("POST", "PUT", "PATCH", "DELETE")
ALLOW = (("Allow", "GET,HEAD,OPTIONS"),)
QUERY_FIELDS_MAX = 64  # Connect uses a handful; a request with more is not from a real client
STARTING = "Worker is still starting up."  # Java's (HealthResource)
COMMIT_UNKNOWN = "unknown"  # Java's value where a build does not know its commit (AppInfoParser)
WARNINGS_SHOWN = 10  # of a connector in its status; its log has all
CHANGES_REFUSED = (
    "This API is read-only; change the connector's properties file or its MirrorFlow resource, "
    "or set rest.modify.enable=true."
)
CHANGES_MISSING = (
    "The connectors of this process come from files, so it takes no changes over REST, although "
    "rest.modify.enable=true; start it as `mirrorflow-replicator distributed` instead."
)

_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
Query = Mapping[str, list[str]]


def respond(request: Request, state: WorkerView) -> Response | Command:
    """Returns the response of Connect's REST API to *request*, or the command that must run first.

    Never raises for anything that a client can send.
    """
    try:
        if _BROKEN_ESCAPE.search(request.path):
            message = "a percent sign without two hexadecimal digits"
            raise ValueError(message)  # noqa: TRY301 - the same refusal as for what the two functions below refuse
        path = [unquote(part, errors="strict") for part in request.path.strip("/").split("/") if part]
        query = parse_qs(request.query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:  # not UTF-8 after decoding, or too many fields
        return error_response(400, "HTTP 400 Bad Request")
    try:
        return _route(request, path, query, state)
    except ConnectError as error:
        return error_response(error.status, str(error))


def _route(request: Request, path: list[str], query: Query, state: WorkerView) -> Response | Command:
    if request.method == "OPTIONS":
        return _options(path, state)
    validates = len(path) == 4 and path[0] == "connector-plugins" and path[2:] == ["config", "validate"]
    if validates and request.method == "PUT":
        return json_response(validation(path[1], properties(request), state))
    if validates:
        raise ConnectError(405, NOT_ALLOWED)
    if called := internal_command(request, path):
        if state.takes_calls:
            # Signed by another node: `rest.modify.enable` restricts users only.
            return called
        if state.takes_changes and not request.signature.mac:
            raise ConnectError(400, MISSING_SIGNATURE)
    if request.method in CHANGING:
        if not state.modify_enabled:
            return error_response(403, CHANGES_REFUSED, headers=ALLOW)
        if not state.takes_changes and not sets_level(request, path):
            return error_response(501, CHANGES_MISSING)
        if request.method == "PUT" and path[:1] == ["connectors"] and path[2:] == ["topics", "reset"]:
            # Java forgets topics and learns them from the next records; those shown here are copied now.
            return Response(status=202)
        return command(request, path, query)
    if request.method not in ("GET", "HEAD"):
        return error_response(405, NOT_ALLOWED, headers=ALLOW)
    match path:
        case []:
            return json_response(
                {
                    "version": connect_version(state.version),
                    "commit": state.commit or COMMIT_UNKNOWN,
                    "kafka_cluster_id": state.kafka_cluster_id or "",
                }
            )
        case ["health"]:
            return _health(state)
        case ["connectors", *_] if not state.has_connectors:
            # An empty list, or 404, would mean that the connectors were deleted.
            raise ConnectError(503, STARTING)
        case ["connectors"]:
            return json_response(_connectors(query, _with_hidden_secrets(state)))
        case ["connectors", name, "offsets"] if state.takes_changes:
            # As in Java, what is stored: also of a stopped connector, and before its offsets are altered.
            return ListOffsets(name=name)
        case ["connectors", name, *rest]:
            return json_response(_connector(name, rest, _with_hidden_secrets(state)))
        case ["connector-plugins"]:
            return json_response(plugins(state))
        case ["connector-plugins", name, "config"]:
            return json_response(definitions(name))
        case ["admin", "loggers"]:
            loggers = sorted(state.loggers().items())
            return json_response({name: _level(logger) for name, logger in loggers if logger.level != "OFF"})
        case ["admin", "loggers", name]:
            return json_response(_logger(name, state))
        case _:
            raise no_such_call(path)


def _options(path: list[str], state: WorkerView) -> Response:
    """Returns the methods of a resource, in the header and the body as in Jersey's response."""
    allowed = methods(path)
    if not allowed:
        raise ConnectError(404, NOT_FOUND)
    changes = state.modify_enabled and state.takes_changes
    names = [method for method in allowed if changes or method in READING or path[:1] != ["connectors"]]
    return Response(
        content_type="text/plain", headers=(("Allow", ",".join(names)),), body=", ".join(names).encode()
    )


def _with_hidden_secrets(state: WorkerView) -> WorkerView:
    """Returns *state* with secrets in plain text hidden.

    Where the worker accepts changes nothing is hidden, because clients write back what they have read.
    """
    if state.takes_changes:
        return state
    return replace(
        state,
        connectors=tuple(
            replace(
                report,
                properties=shown(report.properties),
                task_properties=tuple(shown(task_property) for task_property in report.task_properties),
            )
            for report in state.connectors
        ),
    )


def _health(state: WorkerView) -> Response:
    """Serves `GET /health` (KIP-1017)."""
    if not state.serving:
        return json_response({"status": "starting", "message": STARTING}, status=503)
    ready = "Worker has completed startup and is ready to handle requests."
    return json_response({"status": "healthy", "message": ready})


def _connectors(query: Query, state: WorkerView) -> object:
    if "expand" not in query:
        return [report.name for report in state.connectors]
    shown: dict[str, Callable[[ConnectorReport], object]] = {
        "status": connector_status,
        "info": connector_info,
    }
    wanted = [part for part in ("status", "info") if part in query["expand"]]
    return {report.name: {part: shown[part](report) for part in wanted} for report in state.connectors}


def _connector(name: str, rest: list[str], state: WorkerView) -> object:
    """Serves `/connectors/{name}` and the paths below it."""
    report = next((report for report in state.connectors if report.name == name), None)
    match rest:
        case ["topics"]:  # Java also responds for a connector that does not exist
            return {name: {"topics": [] if report is None else list(report.topics)}}
        case ["status"]:
            if report is None:
                raise ConnectError(404, f"No status found for connector {name}")
            return connector_status(report)
        case ["tasks", number, "status"]:
            return _task_status(name, number, report)
        case [] | ["config" | "tasks" | "tasks-config" | "offsets"]:
            if report is None:
                raise ConnectError(404, f"Connector {name} not found")
            views: dict[str, Callable[[ConnectorReport], object]] = {
                "": connector_info,
                "config": _config,
                "tasks": _tasks,
                "tasks-config": _tasks_config,
                "offsets": _offsets,
            }
            return views[rest[0] if rest else ""](report)
        case _:
            raise no_such_call(["connectors", name, *rest])


def _type(connector_class: str) -> str:
    """Connect's type of a connector class: all of MM2's connectors are sources."""
    return "source" if connector_class.rpartition(".")[2] in CONNECTORS else "unknown"


def _config(report: ConnectorReport) -> dict[str, str]:
    # With the name in the path: in mm2 mode it includes the flow, as flows have equal connector names.
    return {**report.properties, "name": report.name}


def connector_info(report: ConnectorReport) -> dict[str, object]:
    """Returns Java's ConnectorInfo."""
    return {
        "name": report.name,
        "config": _config(report),
        "tasks": [
            {"connector": report.name, "task": number} for number in range(len(report.task_properties))
        ],
        "type": _type(report.connector_class),
    }


def connector_status(report: ConnectorReport) -> dict[str, object]:
    """Returns Java's ConnectorStateInfo."""
    connector = {"state": report.state, "worker_id": report.worker_id or "", **_version(report)}
    # Java has a trace for failures only; here clients see nowhere else that a topic was not created.
    trace = report.trace or " ".join(report.warnings[:WARNINGS_SHOWN])
    if trace:
        connector["trace"] = trace
    return {
        "name": report.name,
        "connector": connector,
        "tasks": [_task(task, report) for task in report.tasks],
        "type": _type(report.connector_class),
    }


def _task(task: TaskReport, report: ConnectorReport) -> dict[str, object]:
    status: dict[str, object] = {
        "id": task.task,
        "state": task.state,
        "worker_id": task.worker_id or report.worker_id or "",
        **_version(report),
    }
    if task.trace is not None:
        status["trace"] = task.trace
    return status


def _version(report: ConnectorReport) -> dict[str, str]:
    """The version field, since Connect 4.1."""
    return {} if report.version is None else {"version": report.version}


def _task_status(name: str, number: str, report: ConnectorReport | None) -> dict[str, object]:
    if not INTEGER.fullmatch(number):
        raise ConnectError(404, NOT_FOUND)
    tasks = () if report is None else report.tasks
    task_report = next((task for task in tasks if str(task.task) == number), None)
    if report is None or task_report is None:
        raise ConnectError(404, f"No status found for task {name}-{number}")
    return _task(task_report, report)


def _tasks(report: ConnectorReport) -> list[dict[str, object]]:
    return [
        {"id": {"connector": report.name, "task": number}, "config": dict(properties)}
        for number, properties in enumerate(report.task_properties)
    ]


def _tasks_config(report: ConnectorReport) -> dict[str, dict[str, str]]:
    """Serves `tasks-config`: Connect had it before 4.0, and operators of that time still call it."""
    return {
        f"{report.name}-{number}": dict(properties)
        for number, properties in enumerate(report.task_properties)
    }


def _offsets(report: ConnectorReport) -> dict[str, object]:
    """Returns offsets as in KIP-875 and MM2: that of the last copied record, if any, for each partition."""
    return {
        "offsets": [
            {
                "partition": {
                    "cluster": report.source_alias,
                    "partition": part.partition,
                    "topic": part.topic,
                },
                "offset": {"offset": part.source_offset - 1},
            }
            for task in report.tasks
            for part in task.partitions
            if part.source_offset
        ]
    }


def _level(known: LoggerLevel) -> dict[str, str | int | None]:
    """Returns a logger's level as in KIP-976."""
    return {"level": known.level, "last_modified": known.changed_ms}


def _logger(name: str, state: WorkerView) -> dict[str, str | int | None]:
    known = "root" if name.lower() == "root" else name
    loggers = state.loggers()
    if known not in loggers:
        raise ConnectError(404, f"Logger {name} not found.")
    return _level(loggers[known])

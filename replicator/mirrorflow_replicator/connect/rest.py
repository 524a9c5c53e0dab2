"""Kafka Connect's REST API: what only reads is answered from a `WorkerView`, what changes something becomes a command.

Paths, bodies and error sentences are those of Connect 4.3 (ConnectorsResource, ConnectorPluginsResource, RootResource,
LoggingResource, AbstractHerder), so that its clients need not know whom they ask. What changes something is answered
with 403 unless `rest.modify.enable=true`, and with 501 where connectors come from files; validation of a configuration
changes nothing and is allowed.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import parse_qs, unquote

from mirrorflow_replicator.connect.commands import (
    NOT_ALLOWED,
    NOT_FOUND,
    Command,
    ListOffsets,
    command,
    internal_command,
    properties,
    sets_level,
)
from mirrorflow_replicator.connect.hiding import shown, shown_value
from mirrorflow_replicator.connect.view import (
    ConnectError,
    LoggerLevel,
    PluginKey,
    Request,
    Response,
    WorkerView,
    error_response,
    json_response,
)
from mirrorflow_replicator.flow.report import ConnectorReport, TaskReport

PACKAGE = "org.apache.kafka.connect.mirror."
PLUGINS = ("MirrorCheckpointConnector", "MirrorHeartbeatConnector", "MirrorSourceConnector")
READING = ("GET", "HEAD")
CHANGING = ("POST", "PUT", "PATCH", "DELETE")
ALLOW = (("Allow", "GET,HEAD,OPTIONS"),)
QUERY_FIELDS_MAX = 64  # Connect knows a handful; more is not a client
WARNINGS_SHOWN = 10  # of a connector in its status; its log has all
CHANGES_REFUSED = (
    "This API is read-only; change the connector's properties file or its MirrorFlow resource, "
    "or set rest.modify.enable=true."
)
CHANGES_MISSING = (
    "The connectors of this process come from files, so it takes no changes over REST, although "
    "rest.modify.enable=true; start it as `mirrorflow-replicator distributed` instead."
)

Query = Mapping[str, list[str]]


def answer(request: Request, state: WorkerView) -> Response | Command:
    """The response of Connect's REST API to *request*, or what has to be done before there can be one.

    Never raises for what a client can send.
    """
    try:
        path = [unquote(part, errors="strict") for part in request.path.strip("/").split("/") if part]
        query = parse_qs(request.query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError:  # not UTF-8 behind the percent signs, or too many fields
        return error_response(400, "HTTP 400 Bad Request")
    try:
        return _route(request, path, query, state)
    except ConnectError as error:
        return error_response(error.status, str(error))


def _route(request: Request, path: list[str], query: Query, state: WorkerView) -> Response | Command:
    if request.method == "OPTIONS":
        return Response(headers=ALLOW)
    validates = len(path) == 4 and path[0] == "connector-plugins" and path[2:] == ["config", "validate"]
    if validates:
        if request.method == "PUT":
            return json_response(_validation(path[1], request, state))
        return error_response(405, NOT_ALLOWED, headers=(("Allow", "PUT,OPTIONS"),))
    if state.takes_calls and (called := internal_command(request, path)):
        # Signed by another node: what `rest.modify.enable` keeps out are people.
        return called
    if request.method in CHANGING:
        if not state.modify_enabled:
            return error_response(403, CHANGES_REFUSED, headers=ALLOW)
        if not state.takes_changes and not sets_level(request, path):
            return error_response(501, CHANGES_MISSING)
        return command(request, path, query)
    if request.method not in READING:
        return error_response(405, NOT_ALLOWED, headers=ALLOW)
    match path:
        case []:
            return json_response(
                {"version": state.version, "commit": state.commit, "kafka_cluster_id": state.kafka_cluster_id}
            )
        case ["health"]:
            return _health(state)
        case ["connectors"]:
            return json_response(_connectors(query, _as_shown(state)))
        case ["connectors", name, "offsets"] if state.takes_changes:
            # As Java, what is stored: also of a connector that is stopped, and before its offsets are altered.
            return ListOffsets(name=name)
        case ["connectors", name, *rest]:
            return json_response(_connector(name, rest, _as_shown(state)))
        case ["connector-plugins"]:
            return json_response(_plugins(state))
        case ["connector-plugins", name, "config"]:
            return json_response(
                [_definition(key, order) for order, key in enumerate(_plugin_keys(name, state))]
            )
        case ["admin", "loggers"]:
            listed = {
                name: _level(one) for name, one in sorted(state.loggers().items()) if one.level != "OFF"
            }
            return json_response(listed)
        case ["admin", "loggers", name]:
            return json_response(_logger(name, state))
        case _:
            raise ConnectError(404, NOT_FOUND)


def _as_shown(state: WorkerView) -> WorkerView:
    """*state* without secrets in plain text; but where it takes changes, and what is read is written back."""
    if state.takes_changes:
        return state
    return replace(
        state,
        connectors=tuple(
            replace(
                report,
                properties=shown(report.properties),
                task_properties=tuple(shown(one) for one in report.task_properties),
            )
            for report in state.connectors
        ),
    )


def _health(state: WorkerView) -> Response:
    """KIP-1017."""
    if not state.serving:
        return json_response({"status": "starting", "message": "Worker is still starting up."}, status=503)
    ready = "Worker has completed startup and is ready to handle requests."
    return json_response({"status": "healthy", "message": ready})


def _connectors(query: Query, state: WorkerView) -> object:
    if "expand" not in query:
        return [report.name for report in state.connectors]
    shown: dict[str, Callable[[ConnectorReport], object]] = {
        "status": connector_status,
        "info": connector_info,
    }
    wanted = [word for word in ("status", "info") if word in query["expand"]]
    return {report.name: {word: shown[word](report) for word in wanted} for report in state.connectors}


def _connector(name: str, rest: list[str], state: WorkerView) -> object:
    """`/connectors/{name}` and what is below it."""
    report = next((report for report in state.connectors if report.name == name), None)
    match rest:
        case ["topics"]:  # Java answers for a connector that does not exist, too
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
        case ["restart" | "pause" | "resume" | "stop"] | ["topics", "reset"] | ["tasks", _, "restart"]:
            raise ConnectError(405, NOT_ALLOWED)
        case _:
            raise ConnectError(404, NOT_FOUND)


def _type(connector_class: str) -> str:
    """All of MM2's connectors are sources to Connect."""
    return "source" if connector_class.rpartition(".")[2] in PLUGINS else "unknown"


def _config(report: ConnectorReport) -> dict[str, str]:
    # The name that the path has: in mm2 mode it holds the flow, as every flow has a connector of the same name.
    return {**report.properties, "name": report.name}


def connector_info(report: ConnectorReport) -> dict[str, object]:
    """Java's ConnectorInfo."""
    return {
        "name": report.name,
        "config": _config(report),
        "tasks": [
            {"connector": report.name, "task": number} for number in range(len(report.task_properties))
        ],
        "type": _type(report.connector_class),
    }


def connector_status(report: ConnectorReport) -> dict[str, object]:
    """Java's ConnectorStateInfo."""
    connector = {"state": report.state, "worker_id": report.worker_id, **_version(report)}
    # Java has a trace for failures alone; a topic that could not be created would be seen nowhere else by a client.
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
        "worker_id": task.worker_id or report.worker_id,
        **_version(report),
    }
    if task.trace:
        status["trace"] = task.trace
    return status


def _version(report: ConnectorReport) -> dict[str, str]:
    """Since Connect 4.1."""
    return {"version": report.version} if report.version else {}


def _task_status(name: str, number: str, report: ConnectorReport | None) -> dict[str, object]:
    # Java's Integer parameter: what is no integer matches no resource.
    if not (number.isascii() and number.removeprefix("-").isdigit()):
        raise ConnectError(404, NOT_FOUND)
    tasks = () if report is None else report.tasks
    found = next((task for task in tasks if str(task.task) == number), None)
    if report is None or found is None:
        raise ConnectError(404, f"No status found for task {name}-{number}")
    return _task(found, report)


def _tasks(report: ConnectorReport) -> list[dict[str, object]]:
    return [
        {"id": {"connector": report.name, "task": number}, "config": dict(properties)}
        for number, properties in enumerate(report.task_properties)
    ]


def _tasks_config(report: ConnectorReport) -> dict[str, dict[str, str]]:
    """Connect before 4.0 had it; operators of that time still ask."""
    return {
        f"{report.name}-{number}": dict(properties)
        for number, properties in enumerate(report.task_properties)
    }


def _offsets(report: ConnectorReport) -> dict[str, object]:
    """KIP-875, in MM2's terms: the offset is of the last record copied, so a partition without one is left out."""
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
            if part.source_offset > 0
        ]
    }


def _plugins(state: WorkerView) -> list[dict[str, str]]:
    """The connectors; with `connectorsOnly=false` Java adds converters and transforms, of which there are none here."""
    return [{"class": PACKAGE + name, "type": "source", "version": state.version} for name in PLUGINS]


def _plugin(name: str) -> str:
    """The simple class name for what Connect takes: the full name, the simple one, or it without "Connector"."""
    simple = name.removeprefix(PACKAGE)
    for plugin in PLUGINS:
        if simple in {plugin, plugin.removesuffix("Connector")}:
            return plugin
    raise ConnectError(404, f"Unknown plugin {name}.")


def _plugin_keys(name: str, state: WorkerView) -> tuple[PluginKey, ...]:
    return state.plugin_keys.get(_plugin(name), ())


def _definition(key: PluginKey, order: int) -> dict[str, object]:
    """Java ConfigKeyInfo."""
    return {
        "name": key.name,
        "type": key.type,
        "required": key.required,
        "default_value": key.default,
        "importance": key.importance,
        "documentation": key.documentation,
        "group": key.group,
        "width": "NONE",
        "display_name": key.name,
        "dependents": [],
        "order": order,
    }


def _validation(name: str, request: Request, state: WorkerView) -> dict[str, object]:
    """Java ConfigInfos: every known and every given key, with what is wrong about it."""
    given = properties(request)
    included = given.get("connector.class")
    plugin = _plugin(name)
    if included is not None and included.removeprefix(PACKAGE) not in {
        plugin,
        plugin.removesuffix("Connector"),
    }:
        raise ConnectError(400, f"Included connector type {included} does not match request type {name}")
    keys = {key.name: key for key in state.plugin_keys.get(plugin, ())}
    problems = state.validate(plugin, given)
    names = [*keys, *sorted((given.keys() | problems.keys()) - keys.keys())]
    configs = []
    for order, key_name in enumerate(names):
        key = keys.get(key_name) or PluginKey(name=key_name)
        value = {
            "name": key_name,
            "value": shown_value(key_name, given[key_name]) if key_name in given else key.default,
            "recommended_values": [],
            "errors": [problems[key_name]] if key_name in problems else [],
            "visible": True,
        }
        configs.append({"definition": _definition(key, order), "value": value})
    groups = list(dict.fromkeys(key.group for key in keys.values())) or ["Common"]
    return {"name": PACKAGE + plugin, "error_count": len(problems), "groups": groups, "configs": configs}


def _level(known: LoggerLevel) -> dict[str, str | int | None]:
    """KIP-976."""
    return {"level": known.level, "last_modified": known.changed_ms}


def _logger(name: str, state: WorkerView) -> dict[str, str | int | None]:
    known = "root" if name.lower() == "root" else name
    loggers = state.loggers()
    if known not in loggers:
        raise ConnectError(404, f"Logger {name} not found.")
    return _level(loggers[known])

"""What the HTTP of a process is answered from: a request, the worker as it is now, a response.

Values only. `runtime.http` makes requests and sends responses, the worker makes one `WorkerView` for each request,
`rest`, `metrics` and `progress` say what the one looks like in the terms of the other.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from mirrorflow_replicator.connect.samples import Samples
from mirrorflow_replicator.flow.report import ConnectorReport
from mirrorflow_replicator.settings import MetricsLevel

JSON = "application/json"
SIGNATURE_HEADER = "X-Connect-Authorization"  # KIP-507
ALGORITHM_HEADER = "X-Connect-Request-Signature-Algorithm"
WORD_MAX = 64  # letters of what a client sent that are said back to it

Validate = Callable[[str, Mapping[str, str]], Mapping[str, str]]


def _accept_all(*_: object) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """By whom of a group a request was sent: what its two headers say, "" for one that is not there (KIP-507)."""

    mac: str = ""  # base64
    algorithm: str = ""  # Java's name


NO_SIGNATURE = Signature()


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. `path` is as sent (percent-encoded, no query), `query` what follows the question mark."""

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    content_type: str = ""
    signature: Signature = NO_SIGNATURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One HTTP response. A body in pieces is sent piece by piece, so that no large answer holds up the loop."""

    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | Iterable[bytes] = b""


class ConnectError(Exception):
    """What becomes Connect's error body (Java ErrorMessage), with this HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginKey:
    """A setting that a connector class knows, as `GET /connector-plugins/{class}/config` lists it (Java ConfigKeyInfo)."""

    name: str
    type: str = "STRING"  # Java's ConfigDef.Type
    default: str | None = None
    required: bool = False
    importance: str = "MEDIUM"
    documentation: str = ""
    group: str = "Common"


class LoggerLevel(NamedTuple):
    """A logger's level by Log4j's name, and when that was changed; None: never (Java LoggerLevel)."""

    level: str
    changed_ms: int | None = None


def _root_alone() -> Mapping[str, LoggerLevel]:
    return {"root": LoggerLevel("INFO")}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """The worker as it is at this moment.

    `validate(class, properties)` returns a sentence for each wrong key. `loggers` holds levels by name, "root" among
    them. `samples` is what the worker has fed with task reports; it gives rates and windows.
    """

    connectors: tuple[ConnectorReport, ...]
    now_s: float  # wall clock
    kafka_cluster_id: str = ""  # of the target, as Connect's own cluster is
    version: str = ""
    commit: str = ""
    modify_enabled: bool = False
    in_group: bool = False  # other nodes have their part of what is told here
    takes_calls: bool = False  # of other nodes, beside what people ask; else they have a server of their own
    takes_changes: bool = False  # of connectors over REST, where `modify_enabled`: a distributed worker does
    elsewhere: tuple[ConnectorReport, ...] = ()  # of `here`: what other nodes of the group have all of
    ready: bool = False  # every connector has begun whatever it was to begin
    serving: bool = False  # the worker answers for its connectors, begun or not: what Connect calls healthy
    metrics_level: MetricsLevel = MetricsLevel.PARTITION
    warnings: tuple[str, ...] = ()
    samples: Samples = field(default_factory=Samples)
    validate: Validate = _accept_all
    plugin_keys: Mapping[str, tuple[PluginKey, ...]] = field(default_factory=dict)  # by simple class name
    loggers: Callable[[], Mapping[str, LoggerLevel]] = _root_alone  # asked by who shows them


def here(view: WorkerView) -> WorkerView:
    """*view* without what other nodes of a group do: they tell of it themselves, and nothing is counted twice."""
    if not view.in_group:
        return view
    connectors = []
    for report in view.connectors:
        tasks = tuple(task for task in report.tasks if task.is_here)
        if report.is_here or tasks:
            numbers = {task.task for task in tasks}
            properties = tuple(one for number, one in enumerate(report.task_properties) if number in numbers)
            connectors.append(replace(report, tasks=tasks, task_properties=properties))
    return replace(view, connectors=tuple(connectors), elsewhere=_elsewhere(view, connectors))


def _elsewhere(view: WorkerView, mine: Iterable[ConnectorReport]) -> tuple[ConnectorReport, ...]:
    """Connectors of which this node has nothing."""
    names = {report.name for report in mine}
    return tuple(
        replace(report, state="UNASSIGNED", tasks=(), task_properties=(), groups=None, reason="", uncopied=())
        for report in view.connectors
        if report.name not in names
    )


def json_response(value: object, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """*value* as compact JSON, non-ASCII letters as they are (as Jackson writes it)."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(status=status, headers=headers, body=body)


def error_response(status: int, message: str, *, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Connect's error body (Java ErrorMessage)."""
    return json_response({"error_code": status, "message": message}, status=status, headers=headers)


def limit_of(query: Mapping[str, str], *, default: int, maximum: int) -> int | Response:
    """`?limit=` as a number from 0 to *maximum*; the refusal where it is none."""
    text = query.get("limit", str(default))
    if text.isascii() and text.isdigit() and len(text) <= len(str(maximum)) and int(text) <= maximum:
        return int(text)
    return error_response(400, f"limit: {text[:WORD_MAX]} is no number from 0 to {maximum}.")

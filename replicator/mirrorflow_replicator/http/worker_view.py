"""Defines the values of the HTTP server: a request, the view of the worker that serves it, and a response.

`http.server` builds requests and sends responses, and the worker builds one `WorkerView` for each request.
`rest`, `metrics` and `progress` turn a view into a response.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace

from mirrorflow_core.connect.session_keys import NO_SIGNATURE, Signature
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.reports import ConnectorReport
from mirrorflow_core.settings import MetricNames, MetricsLevel
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.logs import LoggerLevel
from mirrorflow_replicator.process import ResourceUsage

JSON = "application/json"
SIGNATURE_HEADER = "X-Connect-Authorization"  # KIP-507
ALGORITHM_HEADER = "X-Connect-Request-Signature-Algorithm"
WORD_MAX = 64  # characters of a client's input that are repeated in a response

Validate = Callable[[str, Mapping[str, str]], Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request. `path` is as sent (percent-encoded, no query), `query` is the part after the question mark.

    `content_type` is the header of that name; None without one.
    """

    method: str
    path: str
    query: str = ""
    body: bytes = b""
    content_type: str | None = None
    signature: Signature = NO_SIGNATURE


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One HTTP response. A body in pieces is sent piece by piece, so that a large response does not block the loop."""

    status: int = 200
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | Iterable[bytes] = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerView:
    """A snapshot of the worker.

    `validate(class, properties)` returns an error message for each wrong key. `loggers` returns levels by name,
    including "root". `samples` is what the worker has collected from task reports; it returns rates and windows.
    """

    connectors: tuple[ConnectorReport, ...]
    now_s: float  # wall clock, to compare with timestamps of records
    monotonic_s: float  # for ages and rates: a wall clock may be set
    kafka_cluster_id: str | None = None  # of the target, as Connect's own cluster is; None: not read yet
    version: str | None = None
    commit: str | None = None
    modify_enabled: bool = False
    in_group: bool = False  # other nodes may have a part of these connectors
    takes_calls: bool = False  # other nodes call this server too; otherwise they have a separate one
    takes_changes: bool = False  # of connectors over REST, if `modify_enabled`: true for a distributed worker
    elsewhere: tuple[ConnectorReport, ...] = ()  # set by `here`: connectors that run on other nodes only
    ready: bool = False  # every connector has started all that it should run
    has_connectors: bool = (
        True  # `connectors` is complete: from files, or the config topic was read to its end
    )
    serving: bool = False  # the worker answers for its connectors, started or not: what Connect calls healthy
    metrics_level: MetricsLevel = MetricsLevel.PARTITION
    metric_names: frozenset[MetricNames] = frozenset({MetricNames.LEGACY})
    warnings: tuple[str, ...] = ()
    samples: Samples = field(default_factory=Samples)
    validate: Validate = lambda *_: {}
    loggers: Callable[[], Mapping[str, LoggerLevel]] = lambda: {
        "root": LoggerLevel("INFO")
    }  # called only when needed
    process: Callable[[], ResourceUsage | None] = lambda: None  # as above; None: this system has no /proc
    is_rebalancing: bool = False  # the group is rebalancing


def local_view(view: WorkerView) -> WorkerView:
    """Returns *view* without what other nodes of a group run: they report that, so nothing counts twice."""
    if not view.in_group:
        return view
    connectors = []
    for report in view.connectors:
        tasks = tuple(task for task in report.tasks if task.is_here)
        if report.is_here or tasks:
            numbers = {task.task for task in tasks}
            properties = tuple(
                properties for number, properties in enumerate(report.task_properties) if number in numbers
            )
            connectors.append(replace(report, tasks=tasks, task_properties=properties))
    mine = {report.name for report in connectors}
    elsewhere = tuple(
        replace(
            report,
            state="UNASSIGNED",
            tasks=(),
            task_properties=(),
            groups=None,
            reason=None,
            uncopied=(),
            nothing_selected=None,
        )
        for report in view.connectors
        if report.name not in mine
    )
    return replace(view, connectors=tuple(connectors), elsewhere=elsewhere)


def json_response(value: object, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Returns *value* as compact JSON, with non-ASCII characters unescaped (as Jackson writes it)."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return Response(status=status, headers=headers, body=body)


def error_response(status: int, message: str, *, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Returns Connect's error body (Java ErrorMessage)."""
    return json_response({"error_code": status, "message": message}, status=status, headers=headers)


def limit_of(query: Mapping[str, str], *, default: int, maximum: int) -> int | Response:
    """Returns `?limit=` as a number from 0 to *maximum*, or the error response if it is not one."""
    text = query.get("limit", str(default))
    if text.isascii() and text.isdigit() and len(text) <= len(str(maximum)) and int(text) <= maximum:
        return int(text)
    return error_response(400, f"limit: {text[:WORD_MAX]} is not a number from 0 to {maximum}.")

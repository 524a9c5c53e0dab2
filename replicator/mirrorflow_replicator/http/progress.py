"""Answers `/progress` (a summary of at most 4 KiB) and `/progress/partitions`.

The operator polls the summary and builds the status from it. So it is versioned, and bounded for any number of partitions: it
has counts, and one example of each reason.
"""

import json
import re
from hashlib import blake2b

from mirrorflow_core.reports import ConnectorReport, Guarantee, PartitionPhase, PartitionReport, SideReport
from mirrorflow_replicator.http.partition_rates import shown_lag_records
from mirrorflow_replicator.http.replicating_state import Totals, is_ready, partitions_of, replicating, totals
from mirrorflow_replicator.http.worker_view import (
    Response,
    WorkerView,
    error_response,
    json_response,
    limit_of,
)

VERSION = 1
BATCH_PATHS = ("raw", "coalesced", "reencoded")
SUMMARY_MAX_BYTES = 4096  # an operator of a thousand flows reads at most 4 MiB a round
REASONS_MAX = 8  # the most frequent; a partition has one, so more are rare
EXAMPLE_MAX = 200  # characters: the partition and the error; `/progress/partitions` has it whole
WARNING_MAX = 200
MESSAGE_MAX = 300  # of why a cluster cannot be used: the address, what failed there and what to do
WARNINGS_IN_SUMMARY = 3  # in the summary
WORD_MAX = 64  # reasons are PascalCase words; connector names are cut below
PATH_MAX = 320  # the end of the folder of a Secret, whose name has up to 253 characters
NAME_MAX = 249  # as for Kafka's topic names; a resource's name has up to 253 characters with its namespace
_NOT_PLAIN = re.compile(r"[^-A-Za-z0-9._/]")
LIMIT_DEFAULT = 1000  # of `/progress/partitions`: longer tables are not read to the end
LIMIT_MAX = 1_000_000
WARNINGS_MAX = 100  # of one connector there; a checkpoint connector reports at most as many
FAILED_TASKS_MAX = 100  # of one connector there; they tend to fail alike
UNCOPIED_MAX = 100  # messages about them in `/progress/partitions`; they tend to be alike
DIGEST_BYTES = 16
# What changes while a connector's state does not.
FIGURES = (
    "uptimeSeconds",
    "lagRecords",
    "lagSeconds",
    "recordsPerSecond",
    "bytesPerSecond",
    "records",
    "bytes",
)
_PASSING = frozenset(
    {*FIGURES, "batches", "sinceSeconds", "ageSeconds", "intervalSeconds", "checkpoints", "moved", "active"}
)


def respond(query: dict[str, str], view: WorkerView) -> Response:
    """Answers `GET /progress`: `?connector=`, else the first source connector, else the first connector."""
    chosen = _chosen(query, view) or tuple(
        report for report in view.elsewhere if query.get("connector") in {None, report.name}
    )
    if not chosen:
        return error_response(404, "This process has no such connector; GET /connectors lists those it has.")
    return json_response(_summary_of_first(chosen, view))


def _summary_of_first(chosen: tuple[ConnectorReport, ...], view: WorkerView) -> dict[str, object] | None:
    """Returns the summary of the first source connector, else of the first connector; None if there is none."""
    sources = [report for report in chosen if report.connector_class.endswith("MirrorSourceConnector")]
    return summary((sources or chosen)[0], view) if chosen else None


def summary(report: ConnectorReport, view: WorkerView) -> dict[str, object]:
    """Returns the summary of *report*, at most `SUMMARY_MAX_BYTES` as JSON."""
    total = totals(report, view)
    value = _summary(report, total, view, name_max=NAME_MAX, reasons_max=REASONS_MAX)
    # Characters that JSON escapes may take six bytes each: rare enough to shorten and retry.
    for name_max, reasons_max in ((63, 4), (16, 0)):
        body = json_response(value).body
        if isinstance(body, bytes) and len(body) <= SUMMARY_MAX_BYTES:
            break
        value = _summary(report, total, view, name_max=name_max, reasons_max=reasons_max)
    return value


def _summary(
    report: ConnectorReport, total: Totals, view: WorkerView, *, name_max: int, reasons_max: int
) -> dict[str, object]:
    parts = list(partitions_of(report))
    return {
        "version": VERSION,
        "connector": report.name[:name_max],
        "flow": report.flow[:name_max],
        "state": report.state[:WORD_MAX],
        "uptimeSeconds": round(max(0.0, view.monotonic_s - report.started_at_s), 1),
        "tasks": {
            "total": len(report.tasks),
            "running": sum(task.state == "RUNNING" for task in report.tasks),
            "failed": sum(task.state == "FAILED" for task in report.tasks),
        },
        "partitions": {
            "total": total.partitions,
            **{phase.value: total.phases[phase] for phase in PartitionPhase},
            "behindStart": total.behind_start,
            "lagUnknown": total.lags_unknown,
            "stalled": total.stalled,
        },
        # Not before every partition has reported: the first one to report is not all of them.
        "caughtUp": is_ready(report, view)
        and total.partitions > 0
        and total.behind_start == 0
        and not report.uncopied
        and report.nothing_selected is None,
        "lagRecords": total.lag_records,
        "lagSeconds": None if total.lag_s is None else round(total.lag_s, 3),
        "recordsPerSecond": round(total.rate.records, 1),
        "bytesPerSecond": round(total.rate.bytes, 1),
        "records": sum(part.records for part in parts),
        "bytes": sum(part.bytes for part in parts),
        "batches": _batches(parts),
        "skippedRecords": sum(part.skipped_records for part in parts),
        "lostRecords": sum(part.lost_records for part in parts),
        "losses": sum(part.losses for part in parts),
        "refusedWrites": sum(part.refused_writes for part in parts),
        "guarantee": {guarantee.value: total.guarantees[guarantee] for guarantee in Guarantee},
        "reasons": [
            {
                "reason": reason[:WORD_MAX],
                "count": count,
                **({"example": _line(text, EXAMPLE_MAX)} if text else {}),
            }
            for reason, count in total.reasons.most_common(reasons_max)
            for text in [total.examples.get(reason, "")]
        ],
        **_warnings(report, view, min(reasons_max, WARNINGS_IN_SUMMARY)),
        "refusedSettings": len({key for task in report.tasks for key in task.refused_settings}),
        "replicating": replicating(report, total, view).value,
        "source": _side(report.source, view.monotonic_s) | _message(report.source, reasons_max),
        "target": _side(report.target, view.monotonic_s) | _message(report.target, reasons_max),
        **_missing(report.missing),
        **_checkpoints(report, view.monotonic_s),
        **_schemas(report, view.monotonic_s),
    }


def _warnings(report: ConnectorReport, view: WorkerView, shown_max: int) -> dict[str, object]:
    """Returns the warnings of the connector and of its worker, where a key with a typo is one."""
    warnings = tuple(dict.fromkeys((*view.warnings, *report.warnings)))
    return {
        "warnings": len(warnings),
        "firstWarnings": [_line(warning, WARNING_MAX) for warning in warnings[:shown_max]],
    }


def _batches(parts: list[PartitionReport]) -> dict[str, int]:
    return {path: sum(getattr(part, f"batches_{path}") for part in parts) for path in BATCH_PATHS}


def _side(side: SideReport, now_s: float) -> dict[str, object]:
    if side.reason is None:
        return {"reach": "Unknown"}
    return {
        "reach": "Unreachable" if side.reason else "Reachable",
        "reason": _plain(side.reason, WORD_MAX),
        "sinceSeconds": _age_s(1000 * side.since_s, now_s),
        "clusterId": _plain(side.cluster_id or "", WORD_MAX),
    }


def _message(side: SideReport, reasons_max: int) -> dict[str, object]:
    """Returns why the cluster cannot be used, where the summary has room for reasons."""
    return {"message": _line(side.message, MESSAGE_MAX)} if side.reason and reasons_max else {}


def _missing(missing: tuple[str, str] | None) -> dict[str, object]:
    """The file's path and key, and nothing of its content."""
    if missing is None:
        return {}
    folder, name = missing
    return {"missing": {"path": _plain(folder[-PATH_MAX:], PATH_MAX), "key": _plain(name, NAME_MAX)}}


def _line(text: str, length_max: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length_max else f"{line[: length_max - 4]} ..."


def _plain(text: str, length_max: int) -> str:
    """Keeps only characters that take one byte each, so that the summary's size can be bounded."""
    return _NOT_PLAIN.sub("", text)[:length_max]


def _checkpoints(report: ConnectorReport, now_s: float) -> dict[str, object]:
    groups = report.groups
    if groups is None:
        return {}
    return {
        "checkpoints": {
            "groups": groups.selected,
            "failing": groups.failing,
            "ageSeconds": None if groups.passed_s is None else _age_s(1000 * groups.passed_s, now_s),
            "intervalSeconds": groups.interval_s,
            "recordsReadAgain": groups.read_again_records,
            "followedBy": groups.followed_by or "",
        }
    }


def _schemas(report: ConnectorReport, now_s: float) -> dict[str, object]:
    schemas = report.schemas
    if schemas is None:
        return {}
    return {
        "schemas": {
            "subjects": schemas.subjects,
            "versions": schemas.versions,
            "missing": schemas.missing,
            "conflicts": schemas.conflicts,
            "registered": schemas.registered,
            "ageSeconds": None if schemas.passed_s is None else _age_s(1000 * schemas.passed_s, now_s),
            "intervalSeconds": round(schemas.interval_s, 3),
        }
    }


def partitions(query: dict[str, str], view: WorkerView) -> Response:
    """Answers `GET /progress/partitions?limit=&connector=&unless=&columns=`: every partition, the greatest lag first.

    For the table of `mirrorflow run`, so unlike the summary it names topics and groups. It also has the messages about
    topics that are not copied, which have no partition, each connector's own state and warnings, and the response to
    `/progress`, so that a console needs one request.

    With *unless*, the response has a `digest` of all but partitions, figures and ages. A client that sends the last digest
    receives only `figures` and partitions while it stays the same: most of a thousand connectors do not change in five seconds.
    With *columns*, partitions are a list for each field, which is read in a third of the time. A field with the same value in
    all partitions is that value in place of a list, except `partition`: its length is the number of partitions.
    """
    limit = limit_of(query, default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
    if isinstance(limit, Response):
        return limit
    chosen = _chosen(query, view)
    rows = [
        (shown_lag_records(report, part), report, part) for report in chosen for part in partitions_of(report)
    ]
    rows.sort(key=lambda row: (row[0] is None, -(row[0] or 0), row[1].name, row[2].topic, row[2].partition))
    head: dict[str, object] = {
        "version": VERSION,
        "summary": _summary_of_first(chosen, view),
        "total": len(rows),
        "uncopiedTotal": sum(len(report.uncopied) for report in chosen),
        "uncopied": [text for report in chosen for text in report.uncopied][:UNCOPIED_MAX],
        "nothingSelected": " ".join(
            report.nothing_selected for report in chosen if report.nothing_selected is not None
        ),
        "connectors": [_connector(report, view) for report in chosen],
    }
    if "unless" in query:
        head = _unless_unchanged(head, query["unless"])
    shown = [_partition(report, part, lag, view) for lag, report, part in rows[:limit]]
    if "columns" in query:
        listed = {name: [row[name] for row in shown] for name in next(iter(shown), ())}
        return json_response({**head, "columns": {name: _column(name, listed[name]) for name in listed}})
    return json_response({**head, "partitions": shown})


def _column(name: str, values: list[object]) -> object:
    is_shared = name != "partition" and values == values[:1] * len(values)
    return values[0] if is_shared else values


def _unless_unchanged(head: dict[str, object], known: str) -> dict[str, object]:
    """Returns *head* with its digest, or only digest and figures where the client knows the rest by its digest."""
    summary = head["summary"] if isinstance(head["summary"], dict) else {}
    digest = blake2b(json.dumps(_without_figures(head)).encode(), digest_size=DIGEST_BYTES).hexdigest()
    if digest != known:
        return {**head, "digest": digest}
    figures = {name: summary[name] for name in FIGURES if name in summary}
    return {"version": VERSION, "digest": digest, "figures": figures}


def _without_figures(value: object) -> object:
    if isinstance(value, dict):
        return {
            name: _without_figures(inner)
            for name, inner in value.items()
            # `checkpoints` is a count of groups that were written, and in a summary the state of all groups.
            if name not in _PASSING or (name == "checkpoints" and isinstance(inner, dict))
        }
    return [*map(_without_figures, value)] if isinstance(value, list) else value


def _connector(report: ConnectorReport, view: WorkerView) -> dict[str, object]:
    groups = report.groups
    return {
        "connector": report.name,
        "class": report.connector_class,
        "sourceAlias": report.source_alias,
        "targetAlias": report.target_alias,
        "state": report.state,
        "reason": report.reason or "",
        "message": report.trace or "",
        "standby": report.is_standby,
        "source": {**_side(report.source, view.monotonic_s), "message": report.source.message},
        "target": {**_side(report.target, view.monotonic_s), "message": report.target.message},
        "failedTasks": [
            {"task": task.task, "reason": task.reason or "", "message": task.trace or ""}
            for task in report.tasks
            if task.state == "FAILED"
        ][:FAILED_TASKS_MAX],
        "warnings": list(report.warnings[:WARNINGS_MAX]),
        "warningsTotal": len(report.warnings),
        "groups": None
        if groups is None
        else {
            "selected": groups.selected,
            "failing": groups.failing,
            "active": groups.active,
            "checkpoints": groups.checkpoints,
            "moved": groups.moved,
            "followedBy": groups.followed_by or "",
        },
        **_schemas(report, view.monotonic_s),
        "heartbeats": [
            {
                "cluster": beat.cluster,
                "topic": beat.topic,
                "ageSeconds": _age_s(beat.timestamp_ms, view.now_s),
            }
            for beat in report.heartbeats
        ],
    }


def _age_s(timestamp_ms: float, now_s: float) -> float:
    return round(max(0.0, now_s - timestamp_ms / 1000), 3)


def _partition(
    report: ConnectorReport, part: PartitionReport, lag: int | None, view: WorkerView
) -> dict[str, object]:
    rate = view.samples.rate(report.name, part.topic, part.partition, view.monotonic_s)
    age_s = view.samples.lag_s(report.name, part, view.monotonic_s, view.now_s)
    return {
        "connector": report.name,
        "topic": part.topic,
        "targetTopic": part.target_topic,
        "partition": part.partition,
        "phase": part.phase.value,
        "sourceOffset": part.source_offset,
        "sourceEndOffset": part.source_end_offset,
        "targetOffset": part.target_offset,
        "lagRecords": lag,
        "lagSeconds": None if age_s is None else round(age_s, 3),
        "recordsPerSecond": round(rate.records, 1),
        "bytesPerSecond": round(rate.bytes, 1),
        "records": part.records,
        "bytes": part.bytes,
        "batches": _batches([part]),
        "reachedStartEnd": part.reached_start_end,
        "guarantee": part.guarantee.value,
        "guaranteeReason": part.guarantee_reason or "",
        "writeMode": part.write_mode,
        "sourceLeaderEpoch": part.source_leader_epoch,
        "targetLeaderEpoch": part.target_leader_epoch,
        "reason": part.reason or "",
        "message": part.message or "",
        "stalledSeconds": None
        if part.stalled_since_ms is None
        else _age_s(part.stalled_since_ms, view.monotonic_s),
    }


def _chosen(query: dict[str, str], view: WorkerView) -> tuple[ConnectorReport, ...]:
    name = query.get("connector")
    return tuple(report for report in view.connectors if name is None or report.name == name)

"""Reports a process's progress: `/progress` in at most 4 KiB, `/progress/partitions` in full.

The operator polls the summary and builds the status from it. So it is versioned, and bounded for any number
of partitions: it has counts, and one example of each reason.
"""

import re

from mirrorflow_core.reports import ConnectorReport, Guarantee, PartitionPhase, PartitionReport, SideReport
from mirrorflow_replicator.http.samples import lag_records
from mirrorflow_replicator.http.totals import Totals, is_ready, partitions_of, replicating, totals
from mirrorflow_replicator.http.worker_view import (
    Response,
    WorkerView,
    error_response,
    json_response,
    limit_of,
)

VERSION = 1
SUMMARY_MAX_BYTES = 4096  # an operator of a thousand flows reads at most 4 MiB a round
REASONS_MAX = 8  # the most frequent; a partition has one, so more are rare
EXAMPLE_MAX = 200  # characters: the partition and the error; `/progress/partitions` has it whole
WARNING_MAX = 200
WARNINGS_TOLD = 3  # in the summary
WORD_MAX = 64  # reasons are PascalCase words; connector names are cut below
PATH_MAX = 320  # the end of the folder of a Secret, whose name has up to 253 characters
NAME_MAX = 249  # as for Kafka's topic names; a resource's name has up to 253 characters with its namespace
_NOT_PLAIN = re.compile(r"[^-A-Za-z0-9._/]")
LIMIT_DEFAULT = 1000  # of `/progress/partitions`: longer tables are not read to the end
LIMIT_MAX = 1_000_000
WARNINGS_MAX = 100  # of one connector there; a checkpoint connector reports at most as many
UNCOPIED_MAX = 100  # messages about them in `/progress/partitions`; they tend to be alike


def answer(query: dict[str, str], view: WorkerView) -> Response:
    """Answers `GET /progress`: `?connector=`, else the first source connector, else the first connector."""
    chosen = _chosen(query, view) or tuple(
        report for report in view.elsewhere if query.get("connector") in {None, report.name}
    )
    if not chosen:
        return error_response(404, "This process has no such connector; GET /connectors lists those it has.")
    sources = [report for report in chosen if report.connector_class.endswith("MirrorSourceConnector")]
    return json_response(summary((sources or chosen)[0], view))


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
        "uptimeSeconds": round(max(0.0, view.now_s - report.started_at_s), 1),
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
        and not report.nothing_selected,
        "lagRecords": total.lag_records,
        "lagSeconds": None if total.lag_s < 0 else round(total.lag_s, 3),
        "recordsPerSecond": round(total.rate.records, 1),
        "bytesPerSecond": round(total.rate.bytes, 1),
        "records": sum(part.records for part in parts),
        "bytes": sum(part.bytes for part in parts),
        "batches": {
            "raw": sum(part.batches_raw for part in parts),
            "coalesced": sum(part.batches_coalesced for part in parts),
            "reencoded": sum(part.batches_reencoded for part in parts),
        },
        "skippedRecords": sum(part.skipped_records for part in parts),
        "lostRecords": sum(part.lost_records for part in parts),
        "losses": sum(part.losses for part in parts),
        "refusedWrites": sum(part.refused_writes for part in parts),
        "guarantee": {guarantee.value: total.guarantees[guarantee] for guarantee in Guarantee},
        "reasons": [
            {"reason": reason[:WORD_MAX], "count": count, **_example(total.examples.get(reason, ""))}
            for reason, count in total.reasons.most_common(reasons_max)
        ],
        "warnings": len(report.warnings),
        "firstWarnings": [
            _line(one, WARNING_MAX) for one in report.warnings[: min(reasons_max, WARNINGS_TOLD)]
        ],
        "refusedSettings": len({key for task in report.tasks for key in task.refused_settings}),
        "replicating": replicating(report, total, view).value,
        "source": _side(report.source, view.now_s),
        "target": _side(report.target, view.now_s),
        **_missing(report.missing),
        **_checkpoints(report, view.now_s),
    }


def _side(side: SideReport, now_s: float) -> dict[str, object]:
    if side.reason is None:
        return {"reach": "Unknown"}
    return {
        "reach": "Unreachable" if side.reason else "Reachable",
        "reason": _plain(side.reason, WORD_MAX),
        "sinceSeconds": _age_s(1000 * side.since_s, now_s),
        "clusterId": _plain(side.cluster_id, WORD_MAX),
    }


def _missing(missing: tuple[str, str] | None) -> dict[str, object]:
    """The file's path and key, and nothing of its content."""
    if missing is None:
        return {}
    folder, name = missing
    return {"missing": {"path": _plain(folder[-PATH_MAX:], PATH_MAX), "key": _plain(name, NAME_MAX)}}


def _example(text: str) -> dict[str, str]:
    return {"example": _line(text, EXAMPLE_MAX)} if text else {}


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
        }
    }


def partitions(query: dict[str, str], view: WorkerView) -> Response:
    """Answers `GET /progress/partitions?limit=&connector=`: every partition, the greatest lag first.

    Meant for the local runner's table, so unlike the summary it names topics and groups. It also has the
    messages about topics that are not copied, which have no partition, and each connector's own state and
    warnings.
    """
    limit = limit_of(query, default=LIMIT_DEFAULT, maximum=LIMIT_MAX)
    if isinstance(limit, Response):
        return limit
    chosen = _chosen(query, view)
    rows = [(lag_records(part), report, part) for report in chosen for part in partitions_of(report)]
    rows.sort(key=lambda row: (-row[0], row[1].name, row[2].topic, row[2].partition))
    return json_response(
        {
            "version": VERSION,
            "total": len(rows),
            "uncopiedTotal": sum(len(report.uncopied) for report in chosen),
            "uncopied": [text for report in chosen for text in report.uncopied][:UNCOPIED_MAX],
            "nothingSelected": " ".join(
                report.nothing_selected for report in chosen if report.nothing_selected
            ),
            "connectors": [_connector(report, view) for report in chosen],
            "partitions": [_partition(report, part, lag, view) for lag, report, part in rows[:limit]],
        }
    )


def _connector(report: ConnectorReport, view: WorkerView) -> dict[str, object]:
    groups = report.groups
    return {
        "connector": report.name,
        "class": report.connector_class,
        "state": report.state,
        "reason": report.reason,
        "message": report.trace,
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
        },
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
    report: ConnectorReport, part: PartitionReport, lag: int, view: WorkerView
) -> dict[str, object]:
    rate = view.samples.rate(report.name, part.topic, part.partition, view.now_s)
    age_s = view.samples.lag_s(report.name, part, view.now_s, view.now_s)
    return {
        "connector": report.name,
        "topic": part.topic,
        "targetTopic": part.target_topic,
        "partition": part.partition,
        "phase": part.phase.value,
        "sourceOffset": _known(part.source_offset),
        "sourceEndOffset": _known(part.source_end_offset),
        "targetOffset": _known(part.target_offset),
        "lagRecords": _known(lag),
        "lagSeconds": None if age_s < 0 else round(age_s, 3),
        "recordsPerSecond": round(rate.records, 1),
        "bytesPerSecond": round(rate.bytes, 1),
        "records": part.records,
        "bytes": part.bytes,
        "batches": {
            "raw": part.batches_raw,
            "coalesced": part.batches_coalesced,
            "reencoded": part.batches_reencoded,
        },
        "reachedStartEnd": part.reached_start_end,
        "guarantee": part.guarantee.value,
        "guaranteeReason": part.guarantee_reason,
        "reason": part.reason,
        "message": part.message,
        "stalledSeconds": _age_s(part.stalled_since_ms, view.now_s) if part.is_stalled else None,
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _chosen(query: dict[str, str], view: WorkerView) -> tuple[ConnectorReport, ...]:
    name = query.get("connector")
    return tuple(report for report in view.connectors if name is None or report.name == name)

"""What a process says of its progress: `/progress` in at most 4 KiB, `/progress/partitions` in full.

The summary is what the operator polls and what a status is made of, so it is versioned, bounded however many
partitions there are, and holds no name of a topic or group. `replicating` is decided from what was seen to move,
never from what a task calls itself.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from mirrorflow_replicator.connect.samples import NO_RATE, Rate, lag_records
from mirrorflow_replicator.connect.view import Response, WorkerView, error_response, json_response, limit_of
from mirrorflow_replicator.flow.report import ConnectorReport, Guarantee, PartitionReport, Phase, SideReport

VERSION = 1
SUMMARY_MAX_BYTES = 4096  # DESIGN, section 6: an operator of a thousand flows reads 4 MiB a round, no more
REASONS_MAX = 8  # the most frequent; a partition has one, so more of them are rare
WORD_MAX = 64  # reasons are PascalCase words; connector names are cut below
PATH_MAX = 320  # the end of the folder of a Secret, whose name has 253 letters
NAME_MAX = 249  # as Kafka's topic names; a resource's name has 253 letters with its namespace
STUCK_AFTER_S = 30.0  # one window without a record while the source has some
_NOT_PLAIN = re.compile(r"[^-A-Za-z0-9._/]")
LIMIT_DEFAULT = 1000  # of `/progress/partitions`: a table that nobody reads to the end
LIMIT_MAX = 1_000_000
NOT_COPIED = "TopicNotCopied"  # the reason of a topic that is selected and has no, or no whole, copy
WARNINGS_MAX = 100  # of one connector there; as many as a checkpoint connector tells
UNCOPIED_MAX = 100  # sentences about those in `/progress/partitions`; they tend to say the same of each


class Replicating(Enum):
    """What a connector is seen to do."""

    ADVANCING = "Advancing"  # records were delivered within the window
    IDLE = "Idle"  # nothing to copy
    THROTTLED = "Throttled"  # a broker makes us wait, and there is something to copy
    STUCK = "Stuck"  # something to copy, and nothing moved for the window; or a topic that cannot be copied
    SOURCE_DATA_LOST = (
        "SourceDataLost"  # a partition stopped because records were gone before they were copied
    )
    PAUSED = "Paused"
    WAITING = "Waiting"  # starting, what there is to copy is not known yet, or another copier of the flow is at work


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over the partitions of a connector; lag counts only partitions whose lag is known."""

    partitions: int
    phases: Counter[Phase]
    behind_start: int  # partitions that have not reached the end offsets seen at start
    lag_records: int
    lags_unknown: int  # partitions at work whose lag is not known
    lag_s: float  # the greatest; -1: no partition with a lag knows its age
    rate: Rate
    guarantees: Counter[Guarantee]
    reasons: Counter[str]


def partitions_of(report: ConnectorReport) -> Iterator[PartitionReport]:
    """All partitions of *report*, by task."""
    return (partition for task in report.tasks for partition in task.partitions)


def has_started(connectors: tuple[ConnectorReport, ...]) -> bool:
    """Whether every connector has its tasks running and every partition was asked once where to go on.

    A connector that still discovers its topics must not say RUNNING. What stopped or waits has been asked.
    """
    return bool(connectors) and all(_has_started(report) for report in connectors)


def _has_started(report: ConnectorReport) -> bool:
    if report.state not in {"RUNNING", "PAUSED"} or len(report.tasks) < len(report.task_properties):
        return False
    if any(task.state not in {"RUNNING", "PAUSED"} for task in report.tasks):
        return False
    return all(partition.phase is not Phase.STARTING for partition in partitions_of(report))


def is_ready(report: ConnectorReport, view: WorkerView) -> bool:
    """Whether what *report* says holds for the whole connector; another one's trouble is not its own."""
    return view.ready or (report.heard_of_all and _has_started(report))


def totals(report: ConnectorReport, view: WorkerView) -> Totals:
    """Sum up *report* with the rates that *view* has sampled."""
    phases: Counter[Phase] = Counter()
    guarantees: Counter[Guarantee] = Counter()
    reasons: Counter[str] = Counter()
    behind_start = lag = unknown = count = 0
    age_s, age_known, rate = 0.0, False, NO_RATE
    for part in partitions_of(report):
        count += 1
        phases[part.phase] += 1
        guarantees[part.guarantee] += 1
        behind_start += not part.reached_start_end
        if part.reason:
            reasons[part.reason] += 1
        records = lag_records(part)
        unknown += records < 0 and part.phase is not Phase.STOPPED
        if records > 0:
            lag += records
            age = view.samples.lag_s(report.name, part, view.now_s, view.now_s)
            age_known = age_known or age >= 0
            age_s = max(age_s, age)
        rate = rate.plus(view.samples.rate(report.name, part.topic, part.partition, view.now_s))
    reasons.update(word for word in (report.reason, *(task.reason for task in report.tasks)) if word)
    if report.uncopied:
        reasons[NOT_COPIED] += len(report.uncopied)
    return Totals(
        partitions=count,
        phases=phases,
        behind_start=behind_start,
        lag_records=lag,
        lags_unknown=unknown,
        lag_s=age_s if age_known or lag == 0 else -1.0,
        rate=rate,
        guarantees=guarantees,
        reasons=reasons,
    )


def replicating(report: ConnectorReport, total: Totals, view: WorkerView) -> Replicating:
    """One word for what *report* is seen to do."""
    if report in view.elsewhere:
        return Replicating.WAITING  # for work, of which other nodes have all
    if report.state == "PAUSED":
        return Replicating.PAUSED
    if total.reasons["SourceDataLost"]:
        return Replicating.SOURCE_DATA_LOST
    if total.lag_records and view.samples.is_throttled(report.name, view.now_s):
        return Replicating.THROTTLED
    if total.rate.records > 0:
        return Replicating.ADVANCING
    stopped, waiting = total.phases[Phase.STOPPED], total.phases[Phase.WAITING]
    ready = is_ready(report, view)
    starting = total.phases[Phase.STARTING] or (total.partitions == 0 and not ready)
    if report.state == "FAILED" or (report.tasks and all(task.state == "FAILED" for task in report.tasks)):
        return Replicating.STUCK
    young = view.now_s - report.started_at_s < STUCK_AFTER_S
    # No partition tells of a topic without a copy, and once all were heard of there is nothing to wait for.
    if report.uncopied and (ready or not young):
        return Replicating.STUCK
    if young and (starting or total.lag_records):
        return Replicating.WAITING
    if total.phases[Phase.STARTING] or report.state == "UNASSIGNED":
        return Replicating.STUCK
    if waiting and total.lag_records:
        return Replicating.WAITING
    if total.lag_records or (stopped and stopped == total.partitions):
        return Replicating.STUCK
    # Right after the start nothing is known to be missing, which is not the same as nothing missing.
    return Replicating.WAITING if total.lags_unknown else Replicating.IDLE


def answer(query: dict[str, str], view: WorkerView) -> Response:
    """`GET /progress`: of the connector that `?connector=` names, else of the first source connector, else the first."""
    chosen = _chosen(query, view) or tuple(
        report for report in view.elsewhere if query.get("connector") in {None, report.name}
    )
    if not chosen:
        return error_response(404, "This process has no such connector; GET /connectors lists those it has.")
    sources = [report for report in chosen if report.connector_class.endswith("MirrorSourceConnector")]
    return json_response(summary((sources or chosen)[0], view))


def summary(report: ConnectorReport, view: WorkerView) -> dict[str, object]:
    """The summary of *report*, never more than `SUMMARY_MAX_BYTES` as JSON."""
    total = totals(report, view)
    value = _summary(report, total, view, name_max=NAME_MAX, reasons_max=REASONS_MAX)
    # Letters that JSON escapes may take six bytes each: rare enough to try again rather than to count.
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
            **{phase.value: total.phases[phase] for phase in Phase},
            "behindStart": total.behind_start,
        },
        # Not before every partition was heard of: the first one to report is not all of them.
        "caughtUp": is_ready(report, view)
        and total.partitions > 0
        and total.behind_start == 0
        and not report.uncopied,
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
            {"reason": reason[:WORD_MAX], "count": count}
            for reason, count in total.reasons.most_common(reasons_max)
        ],
        "warnings": len(report.warnings),
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
    """What names a file, and nothing of what is in it."""
    if missing is None:
        return {}
    folder, name = missing
    return {"missing": {"path": _plain(folder[-PATH_MAX:], PATH_MAX), "key": _plain(name, NAME_MAX)}}


def _plain(text: str, length_max: int) -> str:
    """As many bytes as letters, whatever somebody has called something: the summary's size is counted on it."""
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
    """`GET /progress/partitions?limit=&connector=`: every partition, the one with the greatest lag first.

    Meant for the local runner's table: unlike the summary it does name topics and groups. So do the sentences about topics
    that are not copied, which have no partition to be said of, and what each connector says of itself.
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
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _chosen(query: dict[str, str], view: WorkerView) -> tuple[ConnectorReport, ...]:
    name = query.get("connector")
    return tuple(report for report in view.connectors if name is None or report.name == name)

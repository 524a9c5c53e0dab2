"""Joins what several pods of one connector report: each has a part of the partitions. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mirrorflow_console.documents import ConnectorDocument, Figures
from mirrorflow_replicator.http.progress import ReplicatingState
from mirrorflow_replicator.http.progress_text import UNREACHABLE

_SUMS: Final = (
    "lagRecords", "recordsPerSecond", "bytesPerSecond", "records", "bytes", "skippedRecords", "lostRecords", "losses", "warnings",
)  # fmt: skip
_COUNTS: Final = ("tasks", "partitions", "guarantee", "batches")
# The flow is in the first of these states that a pod is in.
_STATES: Final = tuple(
    one.value
    for one in (
        ReplicatingState.SOURCE_DATA_LOST,
        ReplicatingState.STUCK,
        ReplicatingState.THROTTLED,
        ReplicatingState.ADVANCING,
        ReplicatingState.PAUSED,
        ReplicatingState.IDLE,
        ReplicatingState.WAITING,
    )
)


def merged(documents: Sequence[ConnectorDocument]) -> ConnectorDocument:
    """Returns one document for all pods of a flow. *documents* has at least one."""
    first = documents[0]
    if len(documents) == 1:
        return first
    progresses = [one.progress for one in documents]
    rows = sorted(
        (row for one in progresses for row in one.partitions), key=lambda row: -(row["lagRecords"] or 0)
    )
    summary = _summary([one.summary for one in progresses])
    progress = replace(
        progresses[0],
        summary=summary,
        partitions=tuple(rows),
        uncopied=tuple(text for one in progresses for text in one.uncopied),
        uncopied_total=sum(one.uncopied_total for one in progresses),
        problem=next((one.problem for one in progresses if one.problem), ""),
        reason=next((one.reason for one in progresses if one.reason), ""),
        task_problems=tuple(problem for one in progresses for problem in one.task_problems),
        warnings=tuple(dict.fromkeys(text for one in progresses for text in one.warnings)),
        is_standby=all(one.is_standby for one in progresses),
        sides={side: _side([one.sides.get(side, {}) for one in progresses]) for side in ("source", "target")},
        companions=tuple(companion for one in progresses for companion in one.companions),
    )
    return replace(
        first,
        progress=progress,
        figures=Figures.of(summary),
        has_unknown_ages=any(one.has_unknown_ages for one in documents),
        digest="",
        partitions_total=sum(one.partitions_total for one in documents),
        dropped=sum(one.dropped for one in documents),
    )


def _summary(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    states = {one["replicating"] for one in summaries}
    ages = [one["lagSeconds"] for one in summaries]
    reasons: dict[str, dict[str, Any]] = {}
    for one in (reason for summary in summaries for reason in summary["reasons"]):
        known = reasons.setdefault(one["reason"], {**one, "count": 0})
        known["count"] += one["count"]
    return {
        **summaries[0],
        **{name: sum(one[name] for one in summaries) for name in _SUMS},
        **{name: dict(sum((Counter(one[name]) for one in summaries), Counter())) for name in _COUNTS},
        "lagSeconds": None if None in ages else max(ages),
        "uptimeSeconds": min(one["uptimeSeconds"] for one in summaries),
        "caughtUp": all(one["caughtUp"] for one in summaries),
        "replicating": next((one for one in _STATES if one in states), ""),
        "reasons": [*reasons.values()],
        **{side: _side([one[side] for one in summaries]) for side in ("source", "target")},
    }


def _side(sides: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the cluster's state for the pod that cannot use it, if there is one."""
    return min(sides, key=lambda side: side.get("reach") != UNREACHABLE)

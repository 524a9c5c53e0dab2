"""Joins what several pods of one connector report: each has a part of the partitions. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mirrorflow_console.documents import ConnectorDocument, Figures
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_replicator.http.progress_text import UNREACHABLE
from mirrorflow_replicator.http.replicating_state import ReplicatingState

_SUMS: Final = (
    "lagRecords", "recordsPerSecond", "bytesPerSecond", "records", "bytes", "skippedRecords", "lostRecords", "losses", "warnings",
)  # fmt: skip
_COUNTS: Final = ("tasks", "partitions", "guarantee", "batches")
# The flow is in the first of these states that a pod is in.
_STATES: Final = tuple(
    state.value
    for state in (
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
    progresses = [document.progress for document in documents]
    summary = _summary([progress.summary for progress in progresses])
    progress = replace(
        progresses[0],
        summary=summary,
        uncopied=tuple(text for progress in progresses for text in progress.uncopied),
        uncopied_total=sum(progress.uncopied_total for progress in progresses),
        problem=next((progress.problem for progress in progresses if progress.problem), ""),
        reason=next((progress.reason for progress in progresses if progress.reason), ""),
        task_problems=tuple(problem for progress in progresses for problem in progress.task_problems),
        warnings=tuple(dict.fromkeys(text for progress in progresses for text in progress.warnings)),
        is_standby=all(progress.is_standby for progress in progresses),
        sides={
            side: _side([progress.sides.get(side, {}) for progress in progresses])
            for side in ("source", "target")
        },
        companions=tuple(companion for progress in progresses for companion in progress.companions),
    )
    return replace(
        first,
        progress=progress,
        partitions=PartitionTable.joined([document.partitions for document in documents]),
        figures=Figures.of(summary),
        has_unknown_ages=any(document.has_unknown_ages for document in documents),
        digest="",
        partitions_total=sum(document.partitions_total for document in documents),
        dropped=sum(document.dropped for document in documents),
    )


def _summary(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    states = {summary["replicating"] for summary in summaries}
    ages = [summary["lagSeconds"] for summary in summaries]
    reasons: dict[str, dict[str, Any]] = {}
    for reason in (reason for summary in summaries for reason in summary["reasons"]):
        known = reasons.setdefault(reason["reason"], {**reason, "count": 0})
        known["count"] += reason["count"]
    return {
        **summaries[0],
        **{name: sum(summary[name] for summary in summaries) for name in _SUMS},
        **{name: dict(sum((Counter(summary[name]) for summary in summaries), Counter())) for name in _COUNTS},
        "lagSeconds": None if None in ages else max(ages),
        "uptimeSeconds": min(summary["uptimeSeconds"] for summary in summaries),
        "caughtUp": all(summary["caughtUp"] for summary in summaries),
        "replicating": next((state for state in _STATES if state in states), ""),
        "reasons": [*reasons.values()],
        **{side: _side([summary[side] for summary in summaries]) for side in ("source", "target")},
    }


def _side(sides: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns the cluster's state for the pod that cannot use it, if there is one."""
    return min(sides, key=lambda side: side.get("reach") != UNREACHABLE)

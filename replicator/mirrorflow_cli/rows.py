"""Formats progress as text for `run`: one row per topic, a connector's totals, and errors."""

from collections.abc import Mapping, Sequence
from typing import Any

from mirrorflow_cli.progress import Companion, Progress

COLUMNS = ("topic", "target", "partitions", "lag", "records/s", "MB/s", "phase", "guarantee", "reason")
FIGURES = frozenset({"partitions", "lag", "records/s", "MB/s"})
PHASES = ("stopped", "waiting", "starting", "copying")  # worst first
TROUBLES_MAX = 5  # sentences per connector; they tend to repeat for each topic


def by_topic(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Groups *rows* by topic; rows come with the greatest lag first, so topics do too."""
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        topics.setdefault(str(row["topic"]), []).append(row)
    return topics


def cells(topic: str, partitions: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Returns the cells of `COLUMNS` for a topic, summed over its partitions."""
    lags = [row["lagRecords"] for row in partitions if row.get("lagRecords") is not None]
    phases = {str(row.get("phase")) for row in partitions}
    return (
        topic,
        str(partitions[0].get("targetTopic", "")),
        str(len(partitions)),
        f"{sum(lags):,}" if lags else "?",
        f"{sum(row.get('recordsPerSecond', 0) for row in partitions):,.0f}",
        f"{sum(row.get('bytesPerSecond', 0) for row in partitions) / 1e6:,.1f}",
        next((phase for phase in PHASES if phase in phases), ""),
        " ".join(sorted({str(row.get("guarantee", "")) for row in partitions})),
        " ".join(sorted({str(row["reason"]) for row in partitions if row.get("reason")})),
    )


def is_starting(progress: Progress) -> bool:
    """Returns whether nothing is known yet about the partitions; figures would be meaningless zeros."""
    return progress.partitions_total == 0 and progress.summary.get("replicating") == "Waiting"


def troubles(progress: Progress) -> list[str]:
    """Returns errors of topics and partitions, the first few of each; further topics are only counted."""
    messages = [str(row["message"]) for row in progress.partitions if row.get("message")]
    further = progress.uncopied_total - len(progress.uncopied[:TROUBLES_MAX])
    rest = [f"Not copied either: {further} more."] if further > 0 else []
    nothing = [progress.nothing_selected] if progress.nothing_selected else []
    return [*nothing, *progress.uncopied[:TROUBLES_MAX], *rest, *messages[:TROUBLES_MAX]]


def reasons(progress: Progress) -> list[str]:
    """Returns each reason why something is not copied, with its count."""
    return [f"{one['reason']} x{one['count']}" for one in progress.summary.get("reasons", ())]


def lag_in_words(summary: Mapping[str, Any]) -> str:
    """Returns the lag in records, as "at least N" or "?" if some of it is unknown."""
    partitions = summary.get("partitions", {})
    records, unknown = summary.get("lagRecords", 0), partitions.get("lagUnknown", 0)
    is_unreached = summary.get("source", {}).get("reach") == "Unreachable" and not partitions.get("total")
    if unknown or is_unreached:
        return f"at least {records:,}" if records else "?"
    return f"{records:,}"


def totals(progress: Progress) -> str:
    """Returns a connector's summary as text."""
    if is_starting(progress):
        return f"{progress.connector}: starting"
    summary = progress.summary
    lag_s = summary.get("lagSeconds")
    behind = "" if lag_s is None else f" ({lag_s:,.1f} s)"
    return (
        f"{progress.connector}: {summary.get('replicating', '')}, {progress.partitions_total} partitions,"
        f" lag {lag_in_words(summary)} records{behind},"
        f" {summary.get('recordsPerSecond', 0):,.0f} records/s, {summary.get('bytesPerSecond', 0) / 1e6:,.1f} MB/s,"
        f" {summary.get('records', 0):,} copied" + "".join(f", {reason}" for reason in reasons(progress))
    )


def companion_line(one: Companion) -> str:
    """Returns one line for a connector other than the source; it does not change with time alone."""
    groups, beats = one.said.get("groups"), one.said.get("heartbeats", ())
    if one.said.get("state") == "UNASSIGNED":
        return f"{one.connector}: starting"
    parts = [] if one.said.get("state") == "RUNNING" else [str(one.said.get("reason") or "failed")]
    if groups:
        parts += [
            f"{groups['selected']:,} groups",
            f"{groups['checkpoints']:,} checkpoints",
            f"{groups['moved']:,} offsets given to groups",
        ]
        parts += [f"{groups['failing']:,} groups fail"] if groups["failing"] else []
    if beats:
        parts.append("heartbeats to " + " and ".join(str(beat["cluster"]) for beat in beats))
    return f"{one.connector}: {', '.join(parts)}"


def companion_troubles(one: Companion) -> list[str]:
    """Returns the errors and warnings that such a connector reports, the first few."""
    said = [str(one.said["message"])] if one.said.get("message") else []
    said += [str(warning) for warning in one.said.get("warnings", ())]
    further = (
        len(said) - TROUBLES_MAX + int(one.said.get("warningsTotal", 0)) - len(one.said.get("warnings", ()))
    )
    rest = [f"{further} more."] if further > 0 else []
    return [f"{one.connector}: {sentence}" for sentence in (*said[:TROUBLES_MAX], *rest)]

"""What `run` shows in words: partitions of a topic together, a connector's totals, what is wrong."""

from collections.abc import Mapping, Sequence
from typing import Any

from mirrorflow_cli.progress import Companion, Progress

COLUMNS = ("topic", "target", "partitions", "lag", "records/s", "MB/s", "phase", "guarantee", "reason")
FIGURES = frozenset({"partitions", "lag", "records/s", "MB/s"})
PHASES = ("stopped", "waiting", "starting", "copying")  # worst first
TROUBLES_MAX = 5  # sentences of one connector: they tend to say the same of each topic


def by_topic(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows arrive with the greatest lag first, and so do topics."""
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        topics.setdefault(str(row["topic"]), []).append(row)
    return topics


def cells(topic: str, partitions: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The cells of `COLUMNS` for a topic, its partitions together."""
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
    """Whether nothing is known yet of what it copies: figures would be zeros that mean nothing."""
    return progress.partitions_total == 0 and progress.summary.get("replicating") == "Waiting"


def troubles(progress: Progress) -> list[str]:
    """What is wrong with topics and partitions, the first few of each; the rest is a number."""
    if progress.partitions_total == 0 and progress.summary.get("replicating") == "Idle":
        return [
            "No topic of the source matches, or Describe on it is not granted; `mirrorflow check` says which."
        ]
    messages = [str(row["message"]) for row in progress.partitions if row.get("message")]
    further = progress.uncopied_total - len(progress.uncopied[:TROUBLES_MAX])
    rest = [f"Not copied either: {further} more."] if further > 0 else []
    return [*progress.uncopied[:TROUBLES_MAX], *rest, *messages[:TROUBLES_MAX]]


def reasons(progress: Progress) -> list[str]:
    """Why something does not go on, each with how often."""
    return [f"{one['reason']} x{one['count']}" for one in progress.summary.get("reasons", ())]


def totals(progress: Progress) -> str:
    """The summary of a connector in words."""
    if is_starting(progress):
        return f"{progress.connector}: starting"
    summary = progress.summary
    lag_s = summary.get("lagSeconds")
    behind = "" if lag_s is None else f" ({lag_s:,.1f} s)"
    return (
        f"{progress.connector}: {summary.get('replicating', '')}, {progress.partitions_total} partitions,"
        f" lag {summary.get('lagRecords', 0):,} records{behind},"
        f" {summary.get('recordsPerSecond', 0):,.0f} records/s, {summary.get('bytesPerSecond', 0) / 1e6:,.1f} MB/s,"
        f" {summary.get('records', 0):,} copied" + "".join(f", {reason}" for reason in reasons(progress))
    )


def companion_line(one: Companion) -> str:
    """What a connector beside the one that copies has done; nothing in it changes by time alone."""
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
    """What is wrong with it, in its own words, the first few."""
    said = [str(one.said["message"])] if one.said.get("message") else []
    said += [str(warning) for warning in one.said.get("warnings", ())]
    further = (
        len(said) - TROUBLES_MAX + int(one.said.get("warningsTotal", 0)) - len(one.said.get("warnings", ()))
    )
    rest = [f"{further} more."] if further > 0 else []
    return [f"{one.connector}: {sentence}" for sentence in (*said[:TROUBLES_MAX], *rest)]

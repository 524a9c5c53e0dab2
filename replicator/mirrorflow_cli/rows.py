"""What a line of the live table says: partitions of a topic together, a connector's totals."""

from collections.abc import Mapping, Sequence
from typing import Any

from mirrorflow_cli.progress import Progress

COLUMNS = ("topic", "target", "partitions", "lag", "records/s", "MB/s", "phase", "guarantee", "reason")
FIGURES = frozenset({"partitions", "lag", "records/s", "MB/s"})
PHASES = ("stopped", "waiting", "starting", "copying")  # worst first


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


def totals(progress: Progress) -> str:
    """The summary of a connector in words."""
    summary = progress.summary
    lag_s = summary.get("lagSeconds")
    behind = "" if lag_s is None else f" ({lag_s:,.1f} s)"
    return (
        f"{progress.connector}: {summary.get('replicating', '')}, {progress.partitions_total} partitions,"
        f" lag {summary.get('lagRecords', 0):,} records{behind},"
        f" {summary.get('recordsPerSecond', 0):,.0f} records/s, {summary.get('bytesPerSecond', 0) / 1e6:,.1f} MB/s,"
        f" {summary.get('records', 0):,} copied"
    )

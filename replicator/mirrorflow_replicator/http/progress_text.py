"""Formats the summary of `/progress` as one line of text: for `mirrorflow run`, `status`, and the log of a worker."""

from collections.abc import Mapping
from typing import Any

UNREACHABLE = "Unreachable"  # the `reach` of a cluster that cannot be used now


def summary_line(summary: Mapping[str, Any]) -> str:
    """Returns a connector's summary; "starting" while no figures are known."""
    connector, state = summary.get("connector", ""), state_of(summary)
    if not partitions_total(summary):
        return ", ".join([f"{connector}: {state}", *reasons(summary)])
    lag_s = summary.get("lagSeconds")
    delay = f" ({lag_s:,.1f} s)" if lag_s and summary.get("lagRecords") else ""
    return ", ".join(
        [
            f"{connector}: {state}",
            counted(partitions_total(summary), "partition"),
            f"lag {lag_text(summary)}{delay}",
            f"{summary.get('recordsPerSecond', 0):,.0f} records/s",
            f"{summary.get('bytesPerSecond', 0) / 1e6:,.1f} MB/s",
            f"{summary.get('records', 0):,} copied",
            *reasons(summary),
        ]
    )


def state_of(summary: Mapping[str, Any]) -> str:
    """Returns the state, or the cluster that cannot be used: nothing is copied then, whatever the state."""
    sides = unreachable_sides(summary)
    if sides:
        return " and ".join(f"{side} {summary[side].get('reason') or UNREACHABLE}" for side in sides)
    state = str(summary.get("replicating", ""))
    return "starting" if state == "Waiting" and not partitions_total(summary) else state


def unreachable_sides(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns which of `source` and `target` cannot be used now."""
    return tuple(side for side in ("source", "target") if summary.get(side, {}).get("reach") == UNREACHABLE)


def partitions_total(summary: Mapping[str, Any]) -> int:
    return int(summary.get("partitions", {}).get("total", 0))


def lag_text(summary: Mapping[str, Any]) -> str:
    """Returns the lag in records, as "at least N" or "?" if some of it is unknown."""
    partitions = summary.get("partitions", {})
    records, unknown = summary.get("lagRecords", 0), partitions.get("lagUnknown", 0)
    is_unreached = "source" in unreachable_sides(summary) and not partitions.get("total")
    if unknown or is_unreached:
        return f"at least {records:,}" if records else "?"
    return f"{records:,}"


def reasons(summary: Mapping[str, Any]) -> list[str]:
    """Returns each reason why something is not copied, with its count, but for those that `state_of` has."""
    shown = {summary[side].get("reason") for side in unreachable_sides(summary)}
    return [
        f"{reason['reason']} x{reason['count']}"
        for reason in summary.get("reasons", ())
        if reason["reason"] not in shown
    ]


def counted(count: int, noun: str) -> str:
    """Returns "1 partition", "2 partitions"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def duration(seconds: float) -> str:
    """Returns a duration in its two largest units: "48 s", "2 min 8 s", "3 h 5 min", "4 d 2 h"."""
    rest = int(seconds)
    for size, unit, below, below_unit in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if rest >= size:
            small = rest % size // below
            return f"{rest // size} {unit}" + (f" {small} {below_unit}" if small else "")
    return f"{rest} s"

"""Turns the conditions of a query into the topics, partitions, offsets and timestamps to read. Pure.

Conditions on topic, partition and offset are met exactly, and Spark does not check them again. Those on timestamps only
reduce what is read: the records of a log need not be in the order of their timestamps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

# More than any offset or timestamp in ms
UNBOUNDED: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Values from `low` up to `high`, inclusive."""

    low: int = -UNBOUNDED
    high: int = UNBOUNDED

    def narrowed(self, low: int, high: int) -> "Bounds":
        return Bounds(low=max(self.low, low), high=min(self.high, high))

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFilter:
    """What a query asks for; None: any."""

    topics: frozenset[str] | None = None
    partition: Bounds = Bounds()
    partitions: frozenset[int] | None = None
    offset: Bounds = Bounds()
    timestamp_ms: Bounds = Bounds()

    def selects(self, topic: str, partition: int) -> bool:
        """Whether records of the partition can be asked for."""
        return (
            (self.topics is None or topic in self.topics)
            and partition in self.partition
            and (self.partitions is None or partition in self.partitions)
        )


def push_filters(filters: Sequence[Any]) -> tuple[TableFilter, list[Any]]:
    """Returns what *filters*, which all hold, ask for, and those that Spark still has to check."""
    query, rest = TableFilter(), []
    for condition in filters:
        query, is_exact = _narrowed(query, condition)
        if not is_exact:
            rest.append(condition)
    return query, rest


def _narrowed(query: TableFilter, condition: Any) -> tuple[TableFilter, bool]:
    """Returns *query* with one more condition, and whether that is then met exactly."""
    kind, path = type(condition).__name__, tuple(getattr(condition, "attribute", ()))
    column = ".".join(path).lower()
    match column:
        case "topic" if kind in {"EqualTo", "In"}:
            names = frozenset([condition.value] if kind == "EqualTo" else condition.value)
            return replace(query, topics=names if query.topics is None else query.topics & names), True
        case "topic" | "partition" | "offset" | "timestamp" if kind == "IsNotNull":
            return query, column != "timestamp"
        case "partition" if kind == "In":
            numbers = frozenset(condition.value)
            known = numbers if query.partitions is None else query.partitions & numbers
            return replace(query, partitions=known), True
        case "partition" if (bounds := _bounds(kind, condition)) is not None:
            return replace(query, partition=query.partition.narrowed(*bounds)), True
        case "offset" if (bounds := _bounds(kind, condition)) is not None:
            return replace(query, offset=query.offset.narrowed(*bounds)), True
        case "timestamp" if (bounds := _time_bounds(kind, condition)) is not None:
            return replace(query, timestamp_ms=query.timestamp_ms.narrowed(*bounds)), False
    return query, False


def _bounds(kind: str, condition: Any) -> tuple[int, int] | None:
    """Returns the least and the largest value that meet a comparison with a whole number; None for other conditions."""
    value = getattr(condition, "value", None)
    if not isinstance(value, int):
        return None
    return {
        "EqualTo": (value, value),
        "GreaterThan": (value + 1, UNBOUNDED),
        "GreaterThanOrEqual": (value, UNBOUNDED),
        "LessThan": (-UNBOUNDED, value - 1),
        "LessThanOrEqual": (-UNBOUNDED, value),
    }.get(kind)


def _time_bounds(kind: str, condition: Any) -> tuple[int, int] | None:
    """Returns the timestamps in ms that may meet a comparison: whole milliseconds around it."""
    value = getattr(condition, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value.astimezone(UTC) - datetime.fromtimestamp(0, UTC)
    at_ms = (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000
    return {
        "EqualTo": (at_ms, at_ms),
        "GreaterThan": (at_ms, UNBOUNDED),
        "GreaterThanOrEqual": (at_ms, UNBOUNDED),
        "LessThan": (-UNBOUNDED, at_ms),
        "LessThanOrEqual": (-UNBOUNDED, at_ms),
    }.get(kind)

"""The partitions that connectors return, as a table of columns: checked, and read column by column. Pure.

A response has each field of all partitions as a list, or as one value where all have the same. The table keeps them so: most
fields of 10,000 partitions are alike, and a row is built only of those that a page lists.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any, Final, Self

from mirrorflow_console.field_kinds import (
    FLAG,
    INT,
    MAYBE_INT,
    MAYBE_NUMBER,
    MAYBE_TEXT,
    NUMBER,
    TEXT,
    Kinds,
    are_valid,
    is_valid,
)

PARTITIONS_MAX: Final = 20_000
_NUMBERED: Final = "partition"  # always a list: its length is the number of partitions
_FIELDS: Final[Mapping[str, Kinds]] = {
    "topic": TEXT,
    "targetTopic": TEXT,
    _NUMBERED: INT,
    "phase": TEXT,
    "sourceOffset": MAYBE_INT,
    "sourceEndOffset": MAYBE_INT,
    "targetOffset": MAYBE_INT,
    "lagRecords": MAYBE_INT,
    "lagSeconds": MAYBE_NUMBER,
    "recordsPerSecond": NUMBER,
    "bytesPerSecond": NUMBER,
    "records": INT,
    "bytes": INT,
    "reachedStartEnd": FLAG,
    "guarantee": TEXT,
    "guaranteeReason": TEXT,
    "writeMode": MAYBE_TEXT,
    "sourceLeaderEpoch": MAYBE_INT,
    "targetLeaderEpoch": MAYBE_INT,
    "reason": TEXT,
    "message": TEXT,
    "stalledSeconds": MAYBE_NUMBER,
    "batches": (),  # of any type: few pages show them, and check what they show by `heat_map.batch_counts`
}


class PartitionTable:
    """Partitions of connectors, usually those that lag most first. A column is a list, or the value that all partitions have."""

    __slots__ = ("_columns", "_count")

    def __init__(self, columns: Mapping[str, Any], count: int) -> None:
        """Keeps the *columns* of *count* partitions; of none they are empty lists."""
        self._columns = columns
        self._count = count

    def __len__(self) -> int:
        """Returns the number of partitions."""
        return self._count

    def column(self, name: str) -> list[Any]:
        """Returns the field *name* of each partition."""
        column = self._columns[name]
        return column if isinstance(column, list) else [column] * self._count

    def values(self, name: str) -> set[Any]:
        """Returns the values of the field *name*, each once."""
        column = self._columns[name]
        return {*column} if isinstance(column, list) else {column}

    def each(self, function: Callable[..., Any], *names: str) -> list[Any]:
        """Returns *function* of the fields *names* for each partition; it is called once where all partitions have the same."""
        columns = [self._columns[name] for name in names]
        if any(isinstance(column, list) for column in columns):
            return [*map(function, *map(self.column, names))]
        return [function(*columns)] * self._count

    def where(self, function: Callable[..., Any], *names: str) -> list[int]:
        """Returns the index of each partition for which *function* of the fields *names* is true."""
        return [*compress(range(self._count), self.each(function, *names))]

    def row(self, index: int) -> dict[str, Any]:
        """Returns all fields of the partition *index*."""
        return {
            name: column[index] if isinstance(column, list) else column
            for name, column in self._columns.items()
        }

    def rows(self, names: Sequence[str], indices: Sequence[int]) -> Iterable[dict[str, Any]]:
        """Returns the fields *names* of the partitions *indices*."""
        columns = [self.column(name) for name in names]
        return (
            {name: column[index] for name, column in zip(names, columns, strict=True)} for index in indices
        )

    def by_topic(self) -> dict[str, list[int]]:
        """Returns the indices of the partitions of each topic."""
        topics: dict[str, list[int]] = {}
        for index, topic in enumerate(self.column("topic")):
            if (indices := topics.get(topic)) is None:
                topics[topic] = indices = []
            indices.append(index)
        return topics

    def taken(self, indices: Sequence[int]) -> Self:
        """Returns the table of the partitions *indices*, in their order."""
        if not indices:
            return type(self)({name: [] for name in self._columns}, 0)
        columns = {
            name: [*map(column.__getitem__, indices)] if isinstance(column, list) else column
            for name, column in self._columns.items()
        }
        return type(self)(columns, len(indices))

    @classmethod
    def joined(cls, tables: Sequence["PartitionTable"]) -> Self:
        """Returns the partitions of all *tables*, those that lag most first."""
        columns = {name: [value for table in tables for value in table.column(name)] for name in _FIELDS}
        lags = columns["lagRecords"]
        order = sorted(range(len(lags)), key=lambda index: -(lags[index] or 0))
        return cls(columns, len(order)).taken(order)


NO_PARTITIONS: Final = PartitionTable({name: [] for name in _FIELDS}, 0)


def checked_partitions(columns: Any) -> tuple[PartitionTable, int]:
    """Returns the partitions in *columns* of which all fields are readable, and the number of the others.

    Unknown fields are left out. A list that has not as many values as there are partitions makes all of them unreadable.
    """
    numbers = columns.get(_NUMBERED) if isinstance(columns, dict) else None
    if not isinstance(numbers, list) or not numbers:
        return NO_PARTITIONS, 0
    count = min(len(numbers), PARTITIONS_MAX)
    checked: dict[str, Any] = {}
    unreadable: set[int] = set()
    strings: dict[str | None, str | None] = {}  # equal ones are kept once
    for name, kinds in _FIELDS.items():
        column = columns.get(name)
        if isinstance(column, list):
            if len(column) != len(numbers):
                return NO_PARTITIONS, count
            column = column[:count]
            if not are_valid(column, kinds):
                unreadable.update(index for index, value in enumerate(column) if not is_valid(value, kinds))
            elif str in kinds:
                column = [*map(strings.setdefault, column, column)]
        elif not is_valid(column, kinds):
            return NO_PARTITIONS, count
        checked[name] = column
    table = PartitionTable(checked, count)
    if unreadable:
        table = table.taken([index for index in range(count) if index not in unreadable])
    return table, len(unreadable)


def columns_of(rows: Any) -> dict[str, list[Any]]:
    """Returns the partitions in *rows*, each an object of JSON, as the columns that `checked_partitions` reads."""
    objects = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return {name: [row.get(name) for row in objects] for name in _FIELDS}

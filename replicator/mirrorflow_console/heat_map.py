"""Lays out partitions as a heat map: one cell a partition, one character for its state. Pure.

Ten thousand partitions are a string of ten thousand characters, which a script draws on a canvas. The same order is that of
the table beside it, so that the map needs no script to be understood.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import itemgetter
from typing import Any, Final

from mirrorflow_console.flow_views import Level, is_internal

_DIGITS: Final = tuple(str(level.value) for level in Level)
_BATCH_PATHS: Final = ("raw", "coalesced", "reencoded")
_COUNT_MAX: Final = 1 << 63
_LAG_STEPS_S: Final = (1.0, 10.0, 60.0, 600.0)


class Measure(Enum):
    """What the colour of a cell shows."""

    STATE = "state"
    LAG = "lag"
    GUARANTEE = "guarantee"
    MODE = "write mode"
    BATCHES = "batches"


# Each cell is a digit; the page's legend and the script's palette have the same order.
LEGENDS: Final[Mapping[Measure, tuple[str, ...]]] = {
    Measure.STATE: ("stopped", "stalled", "unknown", "starting or waiting", "copying"),
    Measure.LAG: ("no lag", "below 1 s", "below 10 s", "below 1 min", "below 10 min", "more", "unknown"),
    Measure.GUARANTEE: ("at least once", "exactly once"),
    Measure.MODE: ("not known yet", "plain batches", "in transactions"),
    Measure.BATCHES: ("nothing yet", "unchanged", "merged", "re-encoded"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """The cells of all partitions, topic by topic. `topics` has each topic's name, the number of its cells and their partitions.

    These are None for the rule: the partitions from 0 on.
    """

    measure: Measure
    cells: str
    topics: tuple[tuple[str, int, tuple[int, ...] | None], ...]
    counts: Mapping[str, int]


def heat_map(
    rows: Sequence[Mapping[str, Any]], levels: Sequence[Level], measure: Measure, *, internal: bool = False
) -> HeatMap:
    """Returns the heat map of the partitions in *rows*, with the level of each: topics with trouble first, then by name."""
    topics: dict[str, list[tuple[int, Level, Mapping[str, Any]]]] = {}
    for row, level in zip(rows, levels, strict=True):
        topics.setdefault(row["topic"], []).append((row["partition"], level, row))
    shown = [(name, partitions) for name, partitions in topics.items() if internal or not is_internal(name)]
    for _, partitions in shown:
        partitions.sort(key=itemgetter(0))
    shown.sort(key=lambda topic: (min(level for _, level, _ in topic[1]) > Level.WARNING, topic[0]))
    cell = _CELL[measure]
    cells = "".join(cell(row, level) for _, partitions in shown for _, level, row in partitions)
    return HeatMap(
        measure=measure,
        cells=cells,
        topics=tuple(
            (name, len(partitions), _unusual([number for number, _, _ in partitions]))
            for name, partitions in shown
        ),
        counts={word: cells.count(str(index)) for index, word in enumerate(LEGENDS[measure])},
    )


def _unusual(numbers: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the partitions in *numbers*; None if they are all from 0 on."""
    return None if numbers == [*range(len(numbers))] else tuple(numbers)


def _state(_: Mapping[str, Any], level: Level) -> str:
    return _DIGITS[level]


def _lag(row: Mapping[str, Any], _: Level) -> str:
    if row["lagRecords"] == 0:
        return "0"
    if row["lagSeconds"] is None:
        return "6"
    return str(1 + sum(row["lagSeconds"] >= step for step in _LAG_STEPS_S))


def _guarantee(row: Mapping[str, Any], _: Level) -> str:
    return str(int(row["guarantee"] == "exactly-once"))


def _mode(row: Mapping[str, Any], _: Level) -> str:
    return {"plain": "1", "transaction": "2"}.get(row["writeMode"], "0")


def batch_counts(row: Mapping[str, Any]) -> dict[str, int]:
    """Returns how many batches were copied on each path; what is no count is left out. Documents do not check it: few rows show it."""
    batches = row.get("batches")
    given = batches.items() if isinstance(batches, dict) else ()
    return {
        path: count
        for path, count in given
        if path in _BATCH_PATHS and type(count) is int and 0 <= count < _COUNT_MAX
    }


def _batches(row: Mapping[str, Any], _: Level) -> str:
    counts = batch_counts(row)
    known = [counts.get(path, 0) for path in _BATCH_PATHS]
    return str(1 + known.index(max(known))) if any(known) else "0"


_CELL: Final = {
    Measure.STATE: _state,
    Measure.LAG: _lag,
    Measure.GUARANTEE: _guarantee,
    Measure.MODE: _mode,
    Measure.BATCHES: _batches,
}

"""Lays out partitions as a heat map: one cell a partition, one character for its state. Pure.

Ten thousand partitions are a string of ten thousand characters, which a script draws on a canvas. The same order is that of
the table beside it, so that the map needs no script to be understood.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from mirrorflow_console.documents import field_values
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
    states = _cells(rows, levels, measure)
    topics: dict[str, list[tuple[int, Level, str]]] = {}
    for (topic, number), level, state in zip(
        field_values(rows, "topic", "partition"), levels, states, strict=True
    ):
        topics.setdefault(topic, []).append((number, level, state))
    shown = [(name, partitions) for name, partitions in topics.items() if internal or not is_internal(name)]
    for _, partitions in shown:
        partitions.sort()
    shown.sort(key=lambda topic: (min(level for _, level, _ in topic[1]) > Level.WARNING, topic[0]))
    cells = "".join(state for _, partitions in shown for _, _, state in partitions)
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


def _cells(rows: Sequence[Mapping[str, Any]], levels: Sequence[Level], measure: Measure) -> Iterable[str]:
    """Returns the character of each partition in *rows*."""
    if measure is Measure.STATE:
        return map(_DIGITS.__getitem__, levels)
    fields, cell = _CELL[measure]
    return map(cell, field_values(rows, *fields))


def _lag(lag: tuple[int | None, float | None]) -> str:
    records, age_s = lag
    if records == 0:
        return "0"
    if age_s is None:
        return "6"
    return str(1 + bisect_right(_LAG_STEPS_S, age_s))


def _guarantee(guarantee: str) -> str:
    return str(int(guarantee == "exactly-once"))


def _mode(mode: str | None) -> str:
    return {"plain": "1", "transaction": "2"}.get(mode or "", "0")


def batch_counts(batches: Any) -> dict[str, int]:
    """Returns how many *batches* of a partition were copied on each path; what is no count is left out.

    Documents do not check it: few rows show it.
    """
    given = batches.items() if isinstance(batches, dict) else ()
    return {
        path: count
        for path, count in given
        if path in _BATCH_PATHS and type(count) is int and 0 <= count < _COUNT_MAX
    }


def _batches(batches: Any) -> str:
    counts = batch_counts(batches)
    known = [counts.get(path, 0) for path in _BATCH_PATHS]
    return str(1 + known.index(max(known))) if any(known) else "0"


# The fields of a partition that a measure needs, and what returns its character.
_CELL: Final[Mapping[Measure, tuple[tuple[str, ...], Callable[[Any], str]]]] = {
    Measure.LAG: (("lagRecords", "lagSeconds"), _lag),
    Measure.GUARANTEE: (("guarantee",), _guarantee),
    Measure.MODE: (("writeMode",), _mode),
    Measure.BATCHES: (("batches",), _batches),
}

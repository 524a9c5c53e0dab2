"""Lays out partitions as a heat map: one cell a partition, one character for its state. Pure.

Ten thousand partitions are a string of ten thousand characters, which a script draws on a canvas. The same order is that of
the table beside it, so that the map needs no script to be understood.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from mirrorflow_console.flow_views import Level
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_console.partition_views import is_internal

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
    partitions: PartitionTable, levels: Sequence[Level], measure: Measure, *, internal: bool = False
) -> HeatMap:
    """Returns the heat map of *partitions*, with the level of each: topics with trouble first, then by name."""
    if measure is Measure.STATE:
        states = [*map(_DIGITS.__getitem__, levels)]
    else:
        fields, state = _STATE[measure]
        states = partitions.each(state, *fields)
    numbers = partitions.column("partition")
    shown = [
        (min(map(levels.__getitem__, own)) > Level.WARNING, topic, sorted(own, key=numbers.__getitem__))
        for topic, own in partitions.by_topic().items()
        if internal or not is_internal(topic)
    ]
    shown.sort()
    cells = "".join(states[index] for _, _, own in shown for index in own)
    return HeatMap(
        measure=measure,
        cells=cells,
        topics=tuple(
            (topic, len(own), _unusual([*map(numbers.__getitem__, own)])) for _, topic, own in shown
        ),
        counts={word: cells.count(str(index)) for index, word in enumerate(LEGENDS[measure])},
    )


def _unusual(numbers: Sequence[int]) -> tuple[int, ...] | None:
    """Returns the partitions in *numbers*; None if they are all from 0 on."""
    return None if numbers == [*range(len(numbers))] else tuple(numbers)


def _lag(records: int | None, age_s: float | None) -> str:
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
_STATE: Final[Mapping[Measure, tuple[tuple[str, ...], Callable[..., str]]]] = {
    Measure.LAG: (("lagRecords", "lagSeconds"), _lag),
    Measure.GUARANTEE: (("guarantee",), _guarantee),
    Measure.MODE: (("writeMode",), _mode),
    Measure.BATCHES: (("batches",), _batches),
}

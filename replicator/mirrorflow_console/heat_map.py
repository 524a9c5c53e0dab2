"""Lays out partitions as a heat map: one cell a partition, one character for its state. Pure.

Ten thousand partitions are a string of ten thousand characters, which a script draws on a canvas. The same order is that of
the table beside it, so that the map needs no script to be understood.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from mirrorflow_console.flow_views import Level, is_internal, partition_level

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


def heat_map(rows: Sequence[Mapping[str, Any]], measure: Measure, *, internal: bool = False) -> HeatMap:
    """Returns the heat map of the partitions in *rows*: topics with trouble first, then by name."""
    is_shown = {topic: internal or not is_internal(topic) for topic in {row["topic"] for row in rows}}
    shown = [row for row in rows if is_shown[row["topic"]]]
    worst: dict[str, Level] = {}
    for row in shown:
        worst[row["topic"]] = min(worst.get(row["topic"], Level.FINE), partition_level(row))
    shown.sort(key=lambda row: (worst[row["topic"]] > Level.WARNING, row["topic"], row["partition"]))
    cells = "".join(_CELL[measure](row) for row in shown)
    numbers: dict[str, list[int]] = {}
    for row in shown:
        numbers.setdefault(row["topic"], []).append(row["partition"])
    return HeatMap(
        measure=measure,
        cells=cells,
        topics=tuple(
            (topic, len(found), None if found == [*range(len(found))] else tuple(found))
            for topic, found in numbers.items()
        ),
        counts={word: cells.count(str(index)) for index, word in enumerate(LEGENDS[measure])},
    )


def _state(row: Mapping[str, Any]) -> str:
    return str(partition_level(row).value)


def _lag(row: Mapping[str, Any]) -> str:
    if row["lagRecords"] == 0:
        return "0"
    if row["lagSeconds"] is None:
        return "6"
    return str(1 + sum(row["lagSeconds"] >= step for step in _LAG_STEPS_S))


def _guarantee(row: Mapping[str, Any]) -> str:
    return str(int(row["guarantee"] == "exactly-once"))


def _mode(row: Mapping[str, Any]) -> str:
    return {"plain": "1", "transaction": "2"}.get(row["writeMode"], "0")


def _batches(row: Mapping[str, Any]) -> str:
    batches = row.get("batches")
    counts = batches if isinstance(batches, dict) else {}
    numbers = [counts.get(path) for path in ("raw", "coalesced", "reencoded")]
    known = [one if type(one) is int else 0 for one in numbers]
    return str(1 + known.index(max(known))) if any(known) else "0"


_CELL: Final = {
    Measure.STATE: _state,
    Measure.LAG: _lag,
    Measure.GUARANTEE: _guarantee,
    Measure.MODE: _mode,
    Measure.BATCHES: _batches,
}

"""Turns the offsets of consumer groups into rows: one a group, the one that would read most again first. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_console.documents import FlowReading
from mirrorflow_console.flow_views import Level

# Translations of a checkpoint connector, worst first.
_WORST_FIRST: Final = ("unknown", "bound", "exact")
# By topic and partition: the end of the source, and the records that are copied each second.
Partitions = Mapping[tuple[str, int], tuple[int | None, float]]
_NOT_COPIED: Final = (None, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """A group of a flow. *lag* is how many records it has not read on the source. *again_least* and *again_most*: records that it would read again after a failover now.

    None: unknown, because an offset of it is not translated. *again_s*: how long these records took to arrive, from the lag
    of the flow's rate; None where nothing is known.
    """

    group: str
    level: Level
    state: str
    partitions: int
    lag: int | None
    translation: str
    again_least: int | None
    again_most: int | None
    checkpoint_age_s: float | None
    again_s: float | None
    members: str  # on which sides it has members
    offsets: tuple[Mapping[str, Any], ...]


def group_rows(reading: FlowReading) -> list[GroupRow]:
    """Returns the groups of *reading*, worst first."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in reading.offsets:
        groups.setdefault(row["group"], []).append(row)
    keys, figures = (
        zip(*map(reading.partitions.column, names), strict=True)
        for names in (("topic", "partition"), ("sourceEndOffset", "recordsPerSecond"))
    )
    partitions: Partitions = dict(zip(keys, figures, strict=True))
    rows = [_row(group, lines, partitions) for group, lines in groups.items()]
    return sorted(rows, key=lambda row: (row.level, -(row.again_most or 0), -(row.lag or 0), row.group))


def _lag(line: Mapping[str, Any], partitions: Partitions) -> int | None:
    """Returns how far a group is behind the end of the source, as the source connector knows it."""
    end, _ = partitions.get((line["topic"], line["partition"]), _NOT_COPIED)
    offset = line["sourceOffset"]
    return None if end is None or offset is None else max(0, end - offset)


def _rate(line: Mapping[str, Any], partitions: Partitions) -> float:
    return partitions.get((line["topic"], line["partition"]), _NOT_COPIED)[1]


def _row(group: str, lines: Sequence[Mapping[str, Any]], partitions: Partitions) -> GroupRow:
    translations = {row["translation"] for row in lines}
    least = [row["readAgainAtLeast"] for row in lines]
    most = [row["readAgainAtMost"] for row in lines]
    ages = [row["checkpointAgeSeconds"] for row in lines if row["checkpointAgeSeconds"] is not None]
    why = sorted({row["why"] for row in lines if row["why"]})
    translation = next(
        (name for name in _WORST_FIRST if name in translations), ", ".join(sorted(translations))
    )
    if translation == "unknown":
        level = Level.WARNING
    else:
        level = Level.FINE if all(row["written"] for row in lines) else Level.WAITING
    times = [
        row["readAgainAtMost"] / rate
        for row in lines
        if row["readAgainAtMost"] and (rate := _rate(row, partitions)) > 0
    ]
    return GroupRow(
        group=group,
        level=level,
        state="; ".join(why) or "committed",
        partitions=len(lines),
        lag=_sum([_lag(row, partitions) for row in lines]),
        translation=translation,
        again_least=_sum(least),
        again_most=_sum(most),
        checkpoint_age_s=max(ages, default=None),
        again_s=0.0 if _sum(most) == 0 else max(times, default=None),
        members=_members(lines[0]),
        offsets=tuple(
            sorted(lines, key=lambda row: (-(row["readAgainAtMost"] or 0), row["topic"], row["partition"]))
        ),
    )


def _members(line: Mapping[str, Any]) -> str:
    sides = {side: line.get(f"hasMembersOn{side.capitalize()}") for side in ("source", "target")}
    alive = [side for side, has_members in sides.items() if has_members]
    if alive:
        return " and ".join(alive)
    if sides["source"] is None:
        return "unknown"
    return "none" if sides["target"] is False else "none on the source"


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None

"""Lays out a week of events as lines, one a flow. Pure: the template draws them as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mirrorflow_console.flow_views import Level
from mirrorflow_console.history import KEPT_S, HistoryEvent

WIDTH: Final = 1_040
LINES_MAX: Final = 30
# Marks closer than this would cover each other: the worst of them is drawn.
MARK_PIXELS: Final = 13
DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The events at one place of a line."""

    x: int
    level: Level
    events: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLine:
    """The line of one flow; `days` are the positions of midnights (UTC) and their times."""

    flow: str
    marks: tuple[Mark, ...]
    worst: Level


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLines:
    """All lines; `left_out` flows had no room."""

    lines: tuple[TimeLine, ...]
    days: tuple[tuple[int, float], ...]
    left_out: int
    width: int = WIDTH


def time_line(events: Sequence[HistoryEvent], now_s: float) -> TimeLines:
    """Returns the lines of the flows in *events*, those with the worst and newest events first."""
    by_flow: dict[str, list[HistoryEvent]] = {}
    for event in events:
        by_flow.setdefault(event.flow, []).append(event)
    lines = [_line(flow, own, now_s) for flow, own in by_flow.items()]
    lines.sort(key=lambda line: (line.worst, -line.marks[-1].x, line.flow))
    first_day = (int(now_s - KEPT_S) // DAY_S + 1) * DAY_S
    days = tuple((_x(day, now_s), float(day)) for day in range(first_day, int(now_s), DAY_S))
    return TimeLines(lines=tuple(lines[:LINES_MAX]), days=days, left_out=max(0, len(lines) - LINES_MAX))


def _line(flow: str, events: Sequence[HistoryEvent], now_s: float) -> TimeLine:
    places: list[list[HistoryEvent]] = []
    for event in sorted(events, key=lambda event: event.at_s):
        if places and _x(event.at_s, now_s) - _x(places[-1][0].at_s, now_s) < MARK_PIXELS:
            places[-1].append(event)
        else:
            places.append([event])
    marks = []
    for nearby in places:
        worst = min(nearby, key=lambda event: event.level)
        marks.append(
            Mark(x=_x(nearby[0].at_s, now_s), level=Level(worst.level), events=len(nearby), text=worst.text)
        )
    return TimeLine(flow=flow, marks=tuple(marks), worst=min(mark.level for mark in marks))


def _x(at_s: float, now_s: float) -> int:
    return round((at_s - (now_s - KEPT_S)) / KEPT_S * (WIDTH - 2 * MARK_PIXELS)) + MARK_PIXELS

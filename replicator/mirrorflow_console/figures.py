"""Writes figures for people: durations, rates and counts of a constant width. Pure."""

from typing import Final

from mirrorflow_replicator.http.progress_text import duration

UNKNOWN: Final = "\N{EN DASH}"
_UNITS: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def count(value: float | None) -> str:
    """Returns "1,234,567", or a dash."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Returns three significant digits: "987", "1.23 k", "45.6 M"."""
    if value is None:
        return UNKNOWN
    for size, unit in _UNITS:
        if value >= size * 0.9995:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f} {unit}"
    return f"{value:.0f}"


def lag_time(seconds: float | None) -> str:
    """Returns a lag as time: "0.4 s", "12 s", "3 min 5 s", or a dash."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.05:
        return "0 s"
    return f"{seconds:.1f} s" if seconds < 10 else duration(seconds)


def byte_count(value: float | None) -> str:
    """Returns bytes: "12.3 MB"."""
    if value is None:
        return UNKNOWN
    text = short(value)
    return f"{text}B" if " " in text else f"{text} B"


def byte_rate(value: float | None) -> str:
    """Returns bytes a second: "12.3 MB/s"."""
    return UNKNOWN if value is None else f"{byte_count(value)}/s"

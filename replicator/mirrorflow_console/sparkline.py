"""Draws short series as SVG paths. Pure."""

from collections.abc import Sequence
from typing import Final

WIDTH: Final = 96
HEIGHT: Final = 20


def sparkline(values: Sequence[float | None], *, width: int = WIDTH, height: int = HEIGHT) -> str:
    """Returns the path of *values*, oldest first, scaled to their maximum; a gap where a value is unknown.

    The scale begins at zero, so that a small change of a large lag looks small.
    """
    top = max((value for value in values if value is not None), default=0.0)
    step = (width - 2) / max(1, len(values) - 1)
    parts: list[str] = []
    is_drawing = False
    for index, value in enumerate(values):
        if value is None:
            is_drawing = False
            continue
        y = height - 1.5 - (0.0 if top <= 0 else value / top * (height - 3))
        parts.append(f"{'L' if is_drawing else 'M'}{1 + index * step:.1f},{y:.1f}")
        is_drawing = True
    return "".join(parts)

"""Reads numbers, counts, texts and objects from a pod's JSON without trusting it. Pure and total.

A pod is trusted only for its own flow. Python's JSON parser accepts NaN, Infinity and numbers of any length,
and a value may have any type; an invalid value counts as absent.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

# The versions of pods of this operator's release and of the previous one.
VERSIONS: Final = frozenset({1})
NUMBER_MAX: Final = 2.0**63  # what a 64-bit counter can hold


def object_at(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns the object at *key*; an empty one where there is none."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def matching(pattern: re.Pattern[str], value: Any) -> str:
    """Returns *value* if it is a text that matches *pattern* as a whole, else ""."""
    return value if isinstance(value, str) and pattern.fullmatch(value) else ""


def number(value: Any, most: float = NUMBER_MAX) -> float | None:
    """Returns a finite number, clamped to 0 and *most*; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(min(max(value, 0), most))


def count(value: Any, most: float = NUMBER_MAX) -> int:
    """Returns `number` as an integer; 0 where it is None."""
    return int(number(value, most) or 0)

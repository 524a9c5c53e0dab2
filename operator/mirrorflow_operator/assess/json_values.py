"""JSON that a pod has written -> numbers, counts, words and objects that can be relied on. Pure and total.

A pod is not trusted further than its own flow: JSON as Python reads it knows NaN, Infinity and numbers of any length, and a
value may be of any type. What is not what it should be is absent.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

# An operator reads what pods of its own release say, and of the release before.
VERSIONS: Final = frozenset({1})
NUMBER_MAX: Final = 2.0**63  # what a 64-bit counter can hold


def object_at(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object there; an empty one where there is none."""
    found = value.get(key)
    return found if isinstance(found, dict) else {}


def matching(pattern: re.Pattern[str], value: Any) -> str:
    """A text that is *pattern* as a whole; "" for any other."""
    return value if isinstance(value, str) and pattern.fullmatch(value) else ""


def number(value: Any, most: float = NUMBER_MAX) -> float | None:
    """A finite number from 0 on, and no more than *most*; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(min(max(value, 0), most))


def count(value: Any, most: float = NUMBER_MAX) -> int:
    """As `number`, a whole one; 0 where it is none."""
    return int(number(value, most) or 0)

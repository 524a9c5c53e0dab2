"""The types of the fields that connectors return, and what a page has room for. Pure."""

from collections.abc import Sequence
from typing import Any, Final

NAME_MAX: Final = 512  # Kafka's names have 249 characters, names in Kubernetes 253
TEXT_MAX: Final = 2_000  # of a sentence
NUMBER_MAX: Final = 1 << 63  # Kafka's offsets are signed 64-bit numbers

Kinds = tuple[type, ...]
TEXT: Final[Kinds] = (str,)
MAYBE_TEXT: Final[Kinds] = (str, type(None))
INT: Final[Kinds] = (int,)
MAYBE_INT: Final[Kinds] = (int, type(None))
NUMBER: Final[Kinds] = (int, float)
MAYBE_NUMBER: Final[Kinds] = (int, float, type(None))
FLAG: Final[Kinds] = (bool,)
MAYBE_FLAG: Final[Kinds] = (bool, type(None))


def is_valid(value: Any, kinds: Kinds) -> bool:
    """Whether *value* is of one of *kinds*, none: of any, and a text is not too long, a number not too large."""
    kind = type(value)
    if kind not in kinds:
        return not kinds
    if kind is str:
        return len(value) <= TEXT_MAX
    return kind not in NUMBER or -NUMBER_MAX <= value < NUMBER_MAX  # also false for NaN


def are_valid(values: Sequence[Any], kinds: Kinds) -> bool:
    """Whether all of *values* are valid, without a call for each."""
    types = {*map(type, values)}
    if not types.issubset(kinds):
        return not kinds
    if str in types:
        return max(map(len, filter(None, {*values})), default=0) <= TEXT_MAX
    numbers = [number for number in values if number is not None] if type(None) in types else values
    return not numbers or (min(numbers) >= -NUMBER_MAX and max(numbers) < NUMBER_MAX)

"""Reads properties as types, as Kafka's `ConfigDef` does: trimmed, lists split at commas.

Raises InvalidSettingError, naming the key and what to write, where Java would refuse. References are resolved
when read, except in client settings, which are not read here. Durations are `java.time.Duration`'s, `PT1H30M`.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Protocol

from mirrorflow_core.errors import InvalidSettingError

_DURATION = re.compile(
    r"([-+]?)P(?:([-+]?\d+)D)?(?:T(?=[-+\d])(?:([-+]?\d+)H)?(?:([-+]?\d+)M)?(?:([-+]?\d+)(?:[.,](\d{0,9}))?S)?)?",
    re.IGNORECASE,
)
_SECONDS = (86_400, 3_600, 60, 1)


def parse_duration_ms(text: str) -> int:
    """Return the milliseconds of `PnDTnHnMn.nS`. Raises ValueError for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or all(found.group(index) is None for index in range(2, 6)):
        raise ValueError(f"{text!r} is not a duration such as PT1H30M or P2D")
    total_ms = sum(
        int(found.group(index + 2) or 0) * seconds * 1000 for index, seconds in enumerate(_SECONDS)
    )
    fraction_ms = int((found.group(6) or "").ljust(3, "0")[:3])
    total_ms += -fraction_ms if (found.group(5) or "").startswith("-") else fraction_ms
    return -total_ms if found.group(1) == "-" else total_ms


def parse_instant_ms(text: str) -> int:
    """Return the epoch milliseconds of an ISO-8601 instant (UTC where no zone is given) or of a plain number.

    Raises ValueError for anything else.
    """
    stripped = text.strip()
    if re.fullmatch(r"\d+", stripped):
        return int(stripped)
    moment = datetime.fromisoformat(stripped)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


_SIZE = re.compile(r"(\d+)\s*(|k|M|G|Ki|Mi|Gi)B?")
_SIZE_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


def read_size_bytes(text: str) -> int | None:
    """Return the bytes of *text*, a number with k, M, G, Ki, Mi or Gi; None if it is not one, or 0."""
    found = _SIZE.fullmatch(text)
    return None if found is None else int(found.group(1)) * _SIZE_UNITS[found.group(2)] or None


def read_list(text: str) -> list[str]:
    """Return the items of *text*, separated by commas, trimmed, without empty ones."""
    return [part.strip() for part in text.split(",") if part.strip()]


class ReferenceResolver(Protocol):
    """Replaces references such as `${env:NAME}`."""

    def resolve_value(self, value: str) -> str:
        """Return *value* with its references replaced."""


class PropertyReader:
    """Typed access to *properties*; without *resolver*, references are read as they are written."""

    def __init__(self, properties: Mapping[str, str], resolver: ReferenceResolver | None = None) -> None:
        self._properties = properties
        self._resolver = resolver

    def __contains__(self, key: str) -> bool:
        return key in self._properties

    def text(self, key: str, default: str = "") -> str:
        """Return the trimmed, resolved value."""
        value = self._properties.get(key)
        if value is None:
            return default
        return (value if self._resolver is None else self._resolver.resolve_value(value)).strip()

    def required(self, key: str, *, action: str) -> str:
        """Return the value as `text` does; an absent or empty one is an error that asks for *action*."""
        value = self.text(key)
        if not value:
            raise InvalidSettingError(key=key, problem="it is missing", action=action)
        return value

    def names(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """Return a list, split at commas. An empty value is an empty list, which matches nothing."""
        if key not in self._properties:
            return default
        return tuple(read_list(self.text(key)))

    def flag(self, key: str, *, default: bool) -> bool:
        """Return the boolean of `true` or `false`, in any case."""
        value = self._choice(key, ("true", "false"))
        return default if value is None else value == "true"

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        """Return one of *choices*, as written there; the value may be in any case."""
        value = self._choice(key, choices)
        return default if value is None else value

    def whole(self, key: str, default: int, *, minimum: int, maximum: int = 2**63 - 1) -> int:
        """Return a whole number within the given bounds."""
        if key not in self._properties:
            return default
        written = self.text(key)
        if not re.fullmatch(r"[-+]?\d+", written):
            raise InvalidSettingError(
                key=key, problem=f"{written!r} is not a whole number", action="write digits only"
            )
        value = int(written)
        if not minimum <= value <= maximum:
            upper = "" if maximum == 2**63 - 1 else f" and at most {maximum}"
            raise InvalidSettingError(
                key=key, problem=f"{value} is out of bounds", action=f"write at least {minimum}{upper}"
            )
        return value

    def size_bytes(self, key: str) -> int | None:
        """Return a number of bytes, with k, M, G, Ki, Mi or Gi; None if absent or empty."""
        if not self.text(key):
            return None
        written = self.text(key)
        size = read_size_bytes(written)
        if size is None:
            raise InvalidSettingError(
                key=key,
                problem=f"{written!r} is not a number of bytes",
                action="write for example 50Mi, or leave it out",
            )
        return size

    def _choice(self, key: str, choices: tuple[str, ...]) -> str | None:
        if key not in self._properties:
            return None
        known = {choice.lower(): choice for choice in choices}
        written = self.text(key)
        if written.lower() not in known:
            raise InvalidSettingError(
                key=key, problem=f"{written!r} is not known", action="write " + " or ".join(choices)
            )
        return known[written.lower()]

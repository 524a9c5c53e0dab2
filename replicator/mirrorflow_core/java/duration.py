"""Parses Java's durations, `PT1H30M` (java.time.Duration.parse), and ISO-8601 instants."""

import re
from datetime import UTC, datetime

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

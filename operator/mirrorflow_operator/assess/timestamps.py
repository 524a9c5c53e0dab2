"""Converts seconds since 1970 to and from Kubernetes' timestamps (RFC 3339, UTC, whole seconds)."""

from datetime import UTC, datetime

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def moment(at_s: float) -> str:
    """Returns *at_s* as a timestamp."""
    return datetime.fromtimestamp(int(at_s), tz=UTC).strftime(_FORMAT)


def seconds(text: str) -> float | None:
    """Returns the seconds since 1970 of *text*; None where it is no timestamp or has no time zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.timestamp() if at.tzinfo is not None else None

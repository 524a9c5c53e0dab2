"""Seconds since 1970 <-> the text of a moment as Kubernetes writes it (RFC 3339, UTC, whole seconds)."""

from datetime import UTC, datetime

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def moment(at_s: float) -> str:
    """*at_s* as text."""
    return datetime.fromtimestamp(int(at_s), tz=UTC).strftime(_FORMAT)


def seconds(text: str) -> float | None:
    """The moment that *text* names; None where it names none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at.timestamp() if at.tzinfo is not None else None

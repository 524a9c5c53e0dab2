"""Writes and reads the timestamps of Kubernetes' objects (RFC 3339)."""

from datetime import UTC, datetime

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def timestamp(at_s: float) -> str:
    return datetime.fromtimestamp(int(at_s), tz=UTC).strftime(_FORMAT)


def parse_timestamp(text: str) -> float | None:
    """Returns the seconds since 1970 of *text*; None where it is no timestamp or has no time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None

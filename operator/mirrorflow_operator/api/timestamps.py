"""Writes and reads the timestamps of Kubernetes' objects (RFC 3339)."""

from datetime import UTC, datetime

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
# A day before the last one of year 9999: `timestamp` and the API server write no later one in any time zone.
_END_S = 253_402_214_400.0


def timestamp(at_s: float) -> str:
    return datetime.fromtimestamp(int(at_s), tz=UTC).strftime(_FORMAT)


def parse_timestamp(text: str) -> float | None:
    """Returns the seconds since 1970 of *text*; None where it is no timestamp, has no time zone, or is before 1970 or after 9999.

    Kafka takes a negative time as a position: -1 ms is the end of a partition.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    since_s = moment.timestamp()
    return since_s if 0 <= since_s < _END_S else None

"""Parses what pods of a flow have read last of their source, which may be lost now: `GET /progress/partitions`. Pure and total.

An unplanned switchover shows by it what is lost (mirrorflow_replicator/switchover/job_settings.py reads it). As of every pod, numbers
and names are bounded, and unknown fields are ignored. An end that is left out is unknown to the switchover, so that no loss is overstated.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.status.pod_reports import COUNT_MAX, count, matching, number, object_at

# A ConfigMap has at most 1 MiB, and a row at most 320 bytes. Pods list the partitions with the greatest lag first.
ROWS_MAX: Final = 2_000
# A source that is cut off is noticed when a fetch has had no response for as long (Java's request.timeout.ms).
NOTICED_WITHIN_S: Final = 30.0
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEnds:
    """The ends of partitions of the source, and how far each is copied (exclusive), by topic and partition."""

    ends: Mapping[tuple[str, int], tuple[int, int]]
    known_until_ms: int | None = None  # when the source was surely read for the last time; None: unknown

    def document(self) -> dict[str, Any]:
        """Returns the ends as JSON: each row is topic, partition, end and what is copied."""
        lagging = sorted(self.ends.items(), key=lambda item: (item[1][1] - item[1][0], item[0]))
        return {
            "knownUntilMs": self.known_until_ms,
            "partitions": [
                [topic, partition, end, copied] for (topic, partition), (end, copied) in lagging[:ROWS_MAX]
            ],
        }


def parse_source_ends(text: str | bytes, *, now_s: float) -> SourceEnds | None:
    """Parses a response that was read at *now_s* (seconds since 1970); None where it is none, or has no end."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    rows = [row for row in _list(value.get("partitions")) if isinstance(row, dict)]
    ends = {
        (topic, count(row.get("partition"), COUNT_MAX)): (
            count(row.get("sourceEndOffset"), COUNT_MAX),
            count(row.get("sourceOffset"), COUNT_MAX),
        )
        for row in rows[:ROWS_MAX]
        if (topic := matching(_TOPIC, row.get("topic"))) and number(row.get("sourceEndOffset")) is not None
    }
    if not ends:
        return None
    own = {str(row.get("connector")) for row in rows}
    sides = [
        object_at(row, "source")
        for row in _list(value.get("connectors"))
        if isinstance(row, dict) and str(row.get("connector")) in own
    ]
    read_ms = [known for side in sides if (known := _known_until_ms(side, now_s)) is not None]
    return SourceEnds(ends=ends, known_until_ms=max(read_ms, default=None))


def newest_ends(known: Iterable[SourceEnds]) -> SourceEnds | None:
    """Returns the highest ends of what the pods of a flow have read; None if none has read any."""
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    times = []
    for seen in known:
        times += [] if seen.known_until_ms is None else [seen.known_until_ms]
        for partition, (end, copied) in seen.ends.items():
            before = ends.get(partition, (0, 0))
            ends[partition] = max(end, before[0]), max(copied, before[1])
    return SourceEnds(ends=ends, known_until_ms=max(times, default=None)) if ends else None


def _known_until_ms(side: Mapping[str, Any], now_s: float) -> int | None:
    """Returns when a process has surely read the source; it cannot have read it while it is cut off, and notices that later."""
    reach = side.get("reach")
    if reach not in ("Reachable", "Unreachable"):  # a list has no hash for a set
        return None
    lost_s = number(side.get("sinceSeconds")) or 0.0 if reach == "Unreachable" else 0.0
    return max(0, int((now_s - lost_s - NOTICED_WITHIN_S) * 1_000))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

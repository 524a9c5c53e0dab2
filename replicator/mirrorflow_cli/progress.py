"""What the process of a flow says of its progress, read from its own HTTP server on the loopback address.

`/progress` and `/progress/partitions`, version 1 (`mirrorflow_replicator.connect.progress`). A process that does not
answer has no progress, which is no error here: `runner` decides what it means.
"""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

ANSWER_TIMEOUT_S = 2.0  # loopback; a process too busy to answer is asked again a moment later
ANSWER_MAX_BYTES = 64 * 1024 * 1024  # 100,000 partitions at about 600 bytes
PARTITIONS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A connector beside the one that copies, at one moment; `said` is the JSON value as it was sent."""

    said: Mapping[str, Any]

    @property
    def connector(self) -> str:
        """Its name."""
        return str(self.said.get("connector", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The source connector at one moment; `summary` and `partitions` are the JSON values as they were sent.

    `uncopied` holds sentences about topics of the flow that are not, or not wholly, copied: the first of `uncopied_total`.
    `companions` are the other connectors of the process.
    """

    connector: str
    summary: Mapping[str, Any] = field(default_factory=dict)
    partitions: tuple[Mapping[str, Any], ...] = ()
    uncopied: tuple[str, ...] = ()
    uncopied_total: int = 0
    companions: tuple[Companion, ...] = ()

    @property
    def caught_up(self) -> bool:
        """Whether every partition has reached the end offset that was seen at start."""
        return self.summary.get("caughtUp") is True

    @property
    def partitions_total(self) -> int:
        """How many partitions it copies."""
        return int(self.summary.get("partitions", {}).get("total", 0))

    @property
    def behind(self) -> int:
        """How many partitions have not reached the end offset that was seen at start."""
        return sum(not row.get("reachedStartEnd") for row in self.partitions)

    @property
    def uptime_s(self) -> float:
        """Seconds since the connector began."""
        return float(self.summary.get("uptimeSeconds", 0.0))

    @property
    def hopeless(self) -> tuple[Mapping[str, Any], ...]:
        """Stopped partitions, if nothing but stopped ones keeps it from having caught up."""
        behind = [row for row in self.partitions if not row.get("reachedStartEnd")]
        if not behind or any(row.get("phase") != "stopped" for row in behind):
            return ()
        return tuple(behind)


def read_progress(url: str) -> Progress | None:
    """The progress of the process at *url* (http://host:port); None if there is no answer now."""
    summary = _get(url, "/progress")
    rows = _get(url, f"/progress/partitions?limit={PARTITIONS_MAX}")
    if summary is None or rows is None:
        return None
    connector = str(summary.get("connector", ""))
    return Progress(
        connector=connector,
        summary=summary,
        partitions=tuple(rows.get("partitions", ())),
        uncopied=tuple(rows.get("uncopied", ())),
        uncopied_total=int(rows.get("uncopiedTotal", 0)),
        companions=tuple(
            Companion(said=one) for one in rows.get("connectors", ()) if one.get("connector") != connector
        ),
    )


def _get(url: str, path: str) -> dict[str, Any] | None:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        address.hostname or "127.0.0.1", address.port, timeout=ANSWER_TIMEOUT_S
    )
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(ANSWER_MAX_BYTES)
        if response.status != http.client.OK:
            return None
        value = json.loads(body)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return value if isinstance(value, dict) else None

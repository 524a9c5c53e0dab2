"""Reads the progress of a flow's process from its HTTP server on the loopback address.

Uses `/progress` and `/progress/partitions`, version 1 (`mirrorflow_replicator.http.progress`). A process that
does not answer has no progress, which is not an error here: `runner` decides what it means.
"""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

ANSWER_TIMEOUT_S = 2.0  # on the loopback address; a busy process is polled again shortly
ANSWER_MAX_BYTES = 64 * 1024 * 1024  # 100,000 partitions at about 600 bytes
PARTITIONS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """The state of a connector other than the source connector; `said` is its JSON value as received."""

    said: Mapping[str, Any]

    @property
    def connector(self) -> str:
        """The connector's name."""
        return str(self.said.get("connector", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The source connector's state at one moment; `summary` and `partitions` are the JSON values as received.

    `uncopied` holds sentences about topics that are not copied, or only in part: the first of
    `uncopied_total`. `nothing_selected` is a sentence if only heartbeats are selected. `companions` are the
    process's other connectors.
    """

    connector: str
    summary: Mapping[str, Any] = field(default_factory=dict)
    partitions: tuple[Mapping[str, Any], ...] = ()
    uncopied: tuple[str, ...] = ()
    uncopied_total: int = 0
    nothing_selected: str = ""
    problem: str = ""  # why the connector as a whole does not copy; "" while nothing is known to be wrong
    reason: str = ""  # the class of `problem`, such as FlowExists
    companions: tuple[Companion, ...] = ()

    @property
    def caught_up(self) -> bool:
        """Whether every partition has reached the end offset that was seen at start."""
        return self.summary.get("caughtUp") is True

    @property
    def partitions_total(self) -> int:
        """The number of partitions that the connector copies."""
        return int(self.summary.get("partitions", {}).get("total", 0))

    @property
    def behind(self) -> int:
        """The number of partitions that have not reached the end offset that was seen at start."""
        return sum(not row.get("reachedStartEnd") for row in self.partitions)

    @property
    def uptime_s(self) -> float:
        """Seconds since the connector started."""
        return float(self.summary.get("uptimeSeconds", 0.0))

    @property
    def hopeless(self) -> tuple[Mapping[str, Any], ...]:
        """The partitions that are behind, if all of them have stopped; otherwise empty."""
        behind = [row for row in self.partitions if not row.get("reachedStartEnd")]
        if not behind or any(row.get("phase") != "stopped" for row in behind):
            return ()
        return tuple(behind)


def read_progress(url: str) -> Progress | None:
    """Returns the progress of the process at *url* (http://host:port); None if it does not answer now."""
    summary = _get(url, "/progress")
    rows = _get(url, f"/progress/partitions?limit={PARTITIONS_MAX}")
    if summary is None or rows is None:
        return None
    connector = str(summary.get("connector", ""))
    own: Mapping[str, Any] = next(
        (one for one in rows.get("connectors", ()) if one.get("connector") == connector), {}
    )
    is_failed = own.get("state") == "FAILED"
    return Progress(
        connector=connector,
        summary=summary,
        partitions=tuple(rows.get("partitions", ())),
        uncopied=tuple(rows.get("uncopied", ())),
        uncopied_total=int(rows.get("uncopiedTotal", 0)),
        nothing_selected=str(rows.get("nothingSelected", "")),
        problem=" ".join(str(own.get("message", "")).split()) if is_failed else "",
        reason=str(own.get("reason", "")) if is_failed else "",
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

"""Reads the progress of a flow's process from its HTTP server on the loopback address, and formats it.

Uses `/progress` and `/progress/partitions`, version 1 (`mirrorflow_replicator.http.progress`). A process that
does not answer has no progress, which is not an error here: `flow_runner` decides what it means.

The process's own rates cover up to 30 seconds, as Kafka's metrics do: good for a graph, slow for a live
display. `RecentRates` covers the last 5 seconds, computed from successive responses and the process's own clock.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any
from urllib.parse import urlsplit

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_replicator.http.progress_text import counted, partitions_total, summary_line

RESPONSE_TIMEOUT_S = 2.0  # on the loopback address; a busy process is polled again shortly
RESPONSE_MAX_BYTES = 64 * 1024 * 1024  # 100,000 partitions at about 600 bytes
PARTITIONS_MAX = 100_000
WINDOW_S = 5.0  # ten reports of a task: short enough to show a stop, long enough not to flicker
SPAN_MIN_S = 0.5  # with a shorter span, the timing of the two responses would dominate the rate
# (topic, partition) -> (records, bytes), of partitions with any
Counts = Mapping[tuple[str, int], tuple[int, int]]
COLUMNS = ("topic", "target", "partitions", "lag", "records/s", "MB/s", "phase", "guarantee", "reason")
FIGURES = frozenset({"partitions", "lag", "records/s", "MB/s"})
# Left out in this order where they do not fit: first those that do not change while a flow runs.
DISPENSABLE = ("guarantee", "target", "partitions", "MB/s", "reason")
PHASES = ("stopped", "waiting", "starting", "copying")  # worst first


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """The state of a connector other than the source connector, as received from the replicator (JSON)."""

    received: Mapping[str, Any]

    @property
    def connector(self) -> str:
        return str(self.received.get("connector", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The source connector's state at one moment; `summary` and `partitions` are the JSON values as received.

    `uncopied` holds sentences about topics that are not copied, or only in part: the first of
    `uncopied_total`. `nothing_selected` is a sentence if only heartbeats are selected, else None. `companions` are the
    process's other connectors.
    """

    connector: str
    summary: Mapping[str, Any] = field(default_factory=dict)
    partitions: tuple[Mapping[str, Any], ...] = ()
    uncopied: tuple[str, ...] = ()
    uncopied_total: int = 0
    nothing_selected: str | None = None
    problem: str | None = (
        None  # why the connector as a whole does not copy; None while nothing is known to be wrong
    )
    reason: str | None = None  # the class of `problem`, such as FlowExists
    task_problems: tuple[tuple[str, str], ...] = ()  # reason and message of each task that has failed
    warnings: tuple[str, ...] = ()  # of the source connector
    is_standby: bool = False  # another process owns the flow, and copies
    sides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # `source` and `target`: as received
    companions: tuple[Companion, ...] = ()

    @property
    def caught_up(self) -> bool:
        """Whether every partition has reached the end offset that was seen at start."""
        return self.summary.get("caughtUp") is True

    @property
    def partitions_total(self) -> int:
        return partitions_total(self.summary)

    @property
    def behind(self) -> int:
        """The number of partitions that have not reached the end offset that was seen at start."""
        return sum(not row.get("reachedStartEnd") for row in self.partitions)

    @property
    def uptime_s(self) -> float:
        """Seconds since the connector started."""
        return float(self.summary.get("uptimeSeconds", 0.0))

    @property
    def all_stopped(self) -> tuple[Mapping[str, Any], ...]:
        """The partitions that are behind, if all of them have stopped; otherwise empty."""
        behind = [row for row in self.partitions if not row.get("reachedStartEnd")]
        if not behind or any(row.get("phase") != "stopped" for row in behind):
            return ()
        return tuple(behind)


def read_progress(url: str) -> Progress | None:
    """Returns the progress of the process at *url* (http://host:port); None if it does not answer now."""
    summary = _get(url, "/progress")
    rows = _get(url, f"/progress/partitions?limit={PARTITIONS_MAX}")
    return None if summary is None or rows is None else progress_of(summary, rows)


def progress_of(summary: Mapping[str, Any], rows: Mapping[str, Any]) -> Progress:
    """Returns the progress in the responses of `/progress` and `/progress/partitions`."""
    connector = str(summary.get("connector", ""))
    own: Mapping[str, Any] = next(
        (row for row in rows.get("connectors", ()) if row.get("connector") == connector), {}
    )
    is_failed = own.get("state") == "FAILED"
    return Progress(
        connector=connector,
        summary=summary,
        partitions=tuple(rows.get("partitions", ())),
        uncopied=tuple(rows.get("uncopied", ())),
        uncopied_total=int(rows.get("uncopiedTotal", 0)),
        nothing_selected=str(rows.get("nothingSelected") or "") or None,
        problem=(" ".join(str(own.get("message", "")).split()) or None) if is_failed else None,
        reason=(str(own.get("reason", "")) or None) if is_failed else None,
        task_problems=tuple(
            (str(task.get("reason", "")), str(task.get("message", ""))) for task in own.get("failedTasks", ())
        ),
        warnings=tuple(map(str, own.get("warnings", ()))),
        is_standby=own.get("standby") is True,
        sides={side: own[side] for side in ("source", "target") if side in own},
        companions=tuple(
            Companion(received=row) for row in rows.get("connectors", ()) if row.get("connector") != connector
        ),
    )


def _get(url: str, path: str) -> dict[str, Any] | None:
    import http.client  # noqa: PLC0415 with all of email; the first request comes after the start

    address = urlsplit(url)
    connection = http.client.HTTPConnection(
        address.hostname or "127.0.0.1", address.port, timeout=RESPONSE_TIMEOUT_S
    )
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(RESPONSE_MAX_BYTES)
        if response.status != http.client.OK:
            return None
        value = json.loads(body)
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return value if isinstance(value, dict) else None


class RecentRates:
    """Keeps the responses of the last 5 seconds for each connector."""

    def __init__(self) -> None:
        self._responses: dict[str, deque[tuple[float, Counts]]] = {}

    def of(self, progress: Progress) -> Progress:
        """Returns *progress* with its rates replaced. Call it with each response, in order."""
        now_s, counts = progress.uptime_s, _counts(progress)
        responses = self._responses.setdefault(progress.connector, deque())
        if responses and now_s < responses[-1][0]:
            responses.clear()  # A lower uptime means another process.
        if not responses:
            # Counts start at zero, so in a young process all of them fall into this window.
            responses.append((0.0, {}) if now_s <= WINDOW_S else (now_s, counts))
        while len(responses) > 1 and now_s - responses[0][0] > WINDOW_S:
            responses.popleft()
        since_s, before = responses[0]
        responses.append((now_s, counts))
        return _with_rates(progress, counts, before, max(SPAN_MIN_S, now_s - since_s))


def _counts(progress: Progress) -> Counts:
    return {
        (str(row["topic"]), int(row["partition"])): (int(row["records"]), int(row["bytes"]))
        for row in progress.partitions
        if row.get("records")
    }


def _with_rates(progress: Progress, counts: Counts, before: Counts, span_s: float) -> Progress:
    nothing = (0, 0)
    records = bytes_ = 0.0
    rows = []
    for row in progress.partitions:
        key = (str(row["topic"]), int(row.get("partition", 0)))
        now, then = counts.get(key, nothing), before.get(key, nothing)
        # A count that decreased belongs to a restarted task, which counts from zero.
        moved = now if now < then else (now[0] - then[0], now[1] - then[1])
        rates = {"recordsPerSecond": moved[0] / span_s, "bytesPerSecond": moved[1] / span_s}
        records += rates["recordsPerSecond"]
        bytes_ += rates["bytesPerSecond"]
        rows.append({**row, **rates})
    summary = {**progress.summary, "recordsPerSecond": records, "bytesPerSecond": bytes_}
    return replace(progress, summary=summary, partitions=tuple(rows))


def by_topic(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Groups *rows* by topic; rows come with the greatest lag first, so topics do too."""
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        topics.setdefault(str(row["topic"]), []).append(row)
    return topics


def cells(topic: str, partitions: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Returns the cells of `COLUMNS` for a topic, summed over its partitions."""
    lags = [row["lagRecords"] for row in partitions if row.get("lagRecords") is not None]
    phases = {str(row.get("phase")) for row in partitions}
    return (
        topic,
        str(partitions[0].get("targetTopic", "")),
        str(len(partitions)),
        f"{sum(lags):,}" if lags else "?",
        f"{sum(row.get('recordsPerSecond', 0) for row in partitions):,.0f}",
        f"{sum(row.get('bytesPerSecond', 0) for row in partitions) / 1e6:,.1f}",
        next((phase for phase in PHASES if phase in phases), ""),
        " ".join(sorted({str(row.get("guarantee", "")) for row in partitions})),
        " ".join(sorted({str(row["reason"]) for row in partitions if row.get("reason")})),
    )


def line_of(progress: Progress) -> str:
    """Returns the source connector's summary as text."""
    if progress.is_standby:
        return f"{progress.connector}: standing by; a warning names the reason"
    return summary_line({"connector": progress.connector, **progress.summary})


def companion_line(companion: Companion) -> str:
    """Returns one line for a connector other than the source; it does not change with time alone."""
    groups, beats = companion.received.get("groups"), companion.received.get("heartbeats", ())
    if companion.received.get("state") == "UNASSIGNED":
        return f"{companion.connector}: starting"
    parts = (
        []
        if companion.received.get("state") == "RUNNING"
        else [str(companion.received.get("reason") or "failed")]
    )
    if groups:
        parts += [
            counted(groups["selected"], "group"),
            counted(groups["checkpoints"], "checkpoint"),
            f"{counted(groups['moved'], 'offset')} committed to groups",
        ]
        parts += [f"followed by {groups['followedBy']}"] if groups.get("followedBy") else []
        parts += [f"{groups['failing']:,} groups fail"] if groups["failing"] else []
    if schemas := companion.received.get("schemas"):
        parts += [counted(schemas["subjects"], "subject"), counted(schemas["versions"], "schema version")]
        parts += [f"{schemas['missing']:,} not copied yet"] if schemas["missing"] else []
        parts += [counted(schemas["conflicts"], "conflict")] if schemas["conflicts"] else []
    if beats:
        parts.append("heartbeats to " + " and ".join(str(beat["cluster"]) for beat in beats))
    return f"{companion.connector}: {', '.join(parts)}"

"""Parses what pods report: a connector's `GET /progress`, and a Spark driver's progress or termination message.

Pure and total: any response gives a value, and every part of it is bounded. A pod is trusted only for its own
flow: numbers are finite and not negative, texts match a pattern, unknown fields are ignored. The version
rises only if a field changes its meaning or is removed; a new field is optional. The writer of drivers'
reports is mirrorflow_seed's `job_report`; a test compares the two.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from mirrorflow_operator.api.status import RunCost, SeedPartitions, WindowCounts
from mirrorflow_operator.api.timestamps import parse_timestamp
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_operator.plan.spark_run import COMMANDS, RunKind
from mirrorflow_operator.status.conditions import bounded

# The versions of pods of this operator's release and of the previous one.
VERSIONS: Final = frozenset({1})
NUMBER_MAX: Final = 2.0**63  # what a 64-bit counter can hold
MESSAGE_MAX: Final = 500  # characters of the job's own message
COUNT_MAX: Final = 2**53  # the largest integer that every JSON reader represents exactly
_GUARANTEE: Final = re.compile(r"[a-z-]{1,64}")
_KINDS: Final = {command: kind for kind, command in COMMANDS.items()}
# An error right after the start is mostly transient: another connector has yet to create a topic, or a broker
# answers at the second attempt. And a reported failure disappears only after a minute without it.
YOUNG_S: Final = 30.0
BODY_MAX_BYTES: Final = 4_096  # of `GET /progress`: with a thousand flows, at maximum 4 MiB per polling round
REASONS_MAX: Final = 8
WARNINGS_MAX: Final = 3
SENTENCE_MAX: Final = 200  # characters of an example or a warning
SIDE_MESSAGE_MAX: Final = 300  # characters of why a cluster cannot be used
_E = TypeVar("_E", bound=Enum)
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_NAME: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_OBJECT: Final = re.compile(r"[a-z0-9][-.a-z0-9]{0,252}")  # RFC 1123
_ID: Final = re.compile(r"[-._a-zA-Z0-9]{1,64}")


def object_at(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns the object at *key*; an empty one where there is none."""
    member = value.get(key)
    return member if isinstance(member, dict) else {}


def matching(pattern: re.Pattern[str], value: Any) -> str:
    """Returns *value* if it is a text that matches *pattern* as a whole, else ""."""
    return value if isinstance(value, str) and pattern.fullmatch(value) else ""


def number(value: Any, maximum: float = NUMBER_MAX) -> float | None:
    """Returns a finite number, clamped to 0 and *maximum*; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return float(min(max(value, 0), maximum))


def count(value: Any, maximum: float = NUMBER_MAX) -> int:
    """Returns `number` as an integer; 0 where it is None."""
    return int(number(value, maximum) or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The progress of a job at one moment; figures of another kind of job are zero."""

    kind: RunKind
    is_done: bool = False  # it ran to its end, whatever it found
    partitions: SeedPartitions
    records: int = 0
    bytes: int = 0
    remaining_records: int = 0
    wave: int | None = None
    gap_records: int = 0
    records_per_s: int = 0
    bytes_per_s: int = 0
    estimated_s: int | None = None
    guarantee: str | None = None
    windows: WindowCounts
    source_records: int = 0
    target_records: int = 0
    differences: int = 0
    commit: int = 0  # the number of the archive's last commit; 0 where the job has not read it
    archived_records: int = 0  # all those of the archive
    archived_s: float | None = None  # when all that was new was last found to be archived
    cost: RunCost
    message: str | None = None


def parse_report(text: str) -> Report | None:
    """Parses *text* into a report; None where it is none, such as the last log lines of a crashed driver."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return report_from_json(value) if isinstance(value, dict) else None


def report_from_json(value: Mapping[str, Any]) -> Report | None:
    """Parses decoded JSON into a report, as `parse_report` does."""
    kind = _KINDS.get(str(value.get("job")))
    if kind is None or number(value.get("version")) not in VERSIONS:
        return None
    partitions, windows, cost = (object_at(value, key) for key in ("partitions", "windows", "cost"))
    estimated, message = number(value.get("estimatedSeconds")), value.get("message")
    return Report(
        kind=kind,
        is_done=value.get("phase") == "Succeeded",
        partitions=SeedPartitions(
            total=_count(partitions.get("total")),
            done=_count(partitions.get("done")),
            lost=_count(partitions.get("lost")),
        ),
        records=_count(value.get("records")),
        bytes=_count(value.get("bytes")),
        remaining_records=_count(value.get("remainingRecords")),
        wave=_count(value.get("wave")) or None,
        gap_records=_count(value.get("gapRecords")),
        records_per_s=_count(value.get("recordsPerSecond")),
        bytes_per_s=_count(value.get("bytesPerSecond")),
        estimated_s=None if estimated is None else _count(estimated),
        guarantee=matching(_GUARANTEE, value.get("guarantee")) or None,
        windows=WindowCounts(**{name: _count(windows.get(name)) for name in WindowCounts.model_fields}),
        source_records=_count(value.get("sourceRecords")),
        target_records=_count(value.get("targetRecords")),
        differences=_count(value.get("differences")),
        commit=_count(value.get("commit")),
        archived_records=_count(value.get("archivedRecords")),
        archived_s=_time(value.get("archivedTime")),
        cost=RunCost(
            executor_seconds=_count(cost.get("executorSeconds")),
            bytes_read=_count(cost.get("bytesRead")),
            bytes_written=_count(cost.get("bytesWritten")),
        ),
        message=bounded(message, MESSAGE_MAX) if isinstance(message, str) else "",
    )


def _time(value: Any) -> float | None:
    """Returns the seconds since 1970 of a text such as 2026-11-22T13:00:00Z; None for any other value."""
    return parse_timestamp(value) if isinstance(value, str) else None


def _count(value: Any) -> int:
    return count(value, COUNT_MAX)


class Replicating(Enum):
    """Whether records advance, as the replicator reports it (its `http/replicating_state.py`)."""

    ADVANCING = "Advancing"
    IDLE = "Idle"
    THROTTLED = "Throttled"
    STUCK = "Stuck"
    SOURCE_DATA_LOST = "SourceDataLost"
    WAITING = "Waiting"
    PAUSED = "Paused"
    UNKNOWN = "Unknown"  # also for a value of a later replicator


class SideReachability(Enum):
    """Whether a connector reaches one of its clusters."""

    REACHABLE = "Reachable"
    UNREACHABLE = "Unreachable"
    UNKNOWN = "Unknown"  # not tried yet, or not reported by this replicator


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSummary:
    """One cluster as the connector sees it.

    `reason` is the replicator's error, None where the cluster is reachable; `message` is its sentence, None from a
    replicator that does not report it.
    """

    reach: SideReachability = SideReachability.UNKNOWN
    reason: str | None = None
    message: str | None = None
    since_s: float | None = None  # for how many seconds
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingReference:
    """A key of a mounted Secret or ConfigMap that the process did not find; holds names, never values."""

    name: str
    key: str
    is_secret: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """Progress of a checkpoint connector; `age_s`: since its last complete pass, None before the first.

    `read_again_records`: that all groups read again at most once they are moved; None: not known of one of them.
    """

    groups: int = 0
    failing: int = 0
    read_again_records: int | None = None
    age_s: float | None = None
    interval_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasProgress:
    """Progress of a schema connector; `age_s`: since its last pass without an error, None before the first."""

    missing: int = 0
    conflicts: int = 0
    age_s: float | None = None
    interval_s: float | None = None


class ReasonCount(NamedTuple):
    """A reason why partitions are not copied, how many, and one of them with its error as an example."""

    reason: str
    number: int
    example: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The progress that one pod reports for one connector. Counts are of this pod only."""

    state: str = ""
    uptime_s: float = 0.0
    tasks_failed: int = 0
    tasks_running: int = 0
    partitions: int = 0
    partitions_stopped: int = 0
    partitions_stalled: int = 0
    lag_records: int = 0  # of the partitions whose lag is known
    lags_unknown: int = 0  # partitions whose lag is not known
    lag_s: float | None = None
    records_per_s: float = 0.0
    replicating: Replicating = Replicating.UNKNOWN
    reasons: tuple[ReasonCount, ...] = ()
    warnings: int = 0
    first_warnings: tuple[str, ...] = ()
    source: SideSummary = field(default_factory=SideSummary)
    target: SideSummary = field(default_factory=SideSummary)
    missing: MissingReference | None = None
    checkpoints: Checkpoints | None = None
    schemas: SchemasProgress | None = None

    @property
    def is_young(self) -> bool:
        """Whether the connector started less than YOUNG_S ago, so its errors may be transient."""
        return self.uptime_s < YOUNG_S

    @property
    def stands_by(self) -> bool:
        """Whether the pod is one of several and has no task assigned."""
        return self.state == "UNASSIGNED" and self.replicating is Replicating.WAITING

    @property
    def is_paused(self) -> bool:
        """Whether the pod copies nothing: it is paused, or stands by."""
        return (self.state == "PAUSED" or self.stands_by) and not self.tasks_running


class PollFailure(Enum):
    """Why a poll gave no summary."""

    UNREACHABLE = "PodUnreachable"  # no response from its address
    REFUSED = "ProgressRefused"  # an HTTP status other than 200, or an untrusted certificate
    UNREADABLE = "ProgressUnreadable"  # the response is not a valid summary
    UNKNOWN_VERSION = "ProgressOfAnotherVersion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The result of one poll of one pod at `read_at_s` (wall clock).

    Either a connector's `summary`, a Spark driver's `report`, or `failure` with `problem`, the end of a
    sentence.
    """

    read_at_s: float
    summary: Summary | None = None
    report: Report | None = None
    failure: PollFailure | None = None
    problem: str | None = None


def parse_reading(body: bytes, *, read_at_s: float) -> Reading:
    """Parses *body* into a Reading; `failure` is set where it cannot be read."""
    if len(body) > BODY_MAX_BYTES:
        return failed_reading(read_at_s, PollFailure.UNREADABLE, f"it is longer than {BODY_MAX_BYTES} bytes")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return failed_reading(read_at_s, PollFailure.UNREADABLE, "it is not JSON")
    if not isinstance(value, dict):
        return failed_reading(read_at_s, PollFailure.UNREADABLE, "it is not a JSON object")
    version = value.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        return failed_reading(read_at_s, PollFailure.UNREADABLE, "it has no version")
    if version not in VERSIONS:
        return failed_reading(
            read_at_s, PollFailure.UNKNOWN_VERSION, "its version is not one that this operator reads"
        )
    if "job" in value:
        report = report_from_json(value)
        if report is None:
            return failed_reading(
                read_at_s, PollFailure.UNREADABLE, "it belongs to a job that this operator does not support"
            )
        return Reading(read_at_s=read_at_s, report=report)
    return Reading(read_at_s=read_at_s, summary=_summary(value))


def failed_reading(read_at_s: float, failure: PollFailure, problem: str) -> Reading:
    return Reading(read_at_s=read_at_s, failure=failure, problem=problem)


def _summary(value: Mapping[str, Any]) -> Summary:
    tasks, partitions = object_at(value, "tasks"), object_at(value, "partitions")
    return Summary(
        state=matching(_WORD, value.get("state")),
        uptime_s=number(value.get("uptimeSeconds")) or 0.0,
        tasks_failed=count(tasks.get("failed")),
        tasks_running=count(tasks.get("running")),
        partitions=count(partitions.get("total")),
        partitions_stopped=count(partitions.get("stopped")),
        partitions_stalled=count(partitions.get("stalled")),
        lag_records=count(value.get("lagRecords")),
        lags_unknown=count(partitions.get("lagUnknown")),
        lag_s=number(value.get("lagSeconds")),
        records_per_s=number(value.get("recordsPerSecond")) or 0.0,
        replicating=_enum(Replicating, value.get("replicating"), Replicating.UNKNOWN),
        reasons=_reasons(value.get("reasons")),
        warnings=count(value.get("warnings")),
        first_warnings=_warnings(value.get("firstWarnings")),
        source=_side(object_at(value, "source")),
        target=_side(object_at(value, "target")),
        missing=_missing(object_at(value, "missing")),
        checkpoints=_checkpoints(object_at(value, "checkpoints")),
        schemas=_schemas(object_at(value, "schemas")),
    )


def _side(value: Mapping[str, Any]) -> SideSummary:
    return SideSummary(
        reach=_enum(SideReachability, value.get("reach"), SideReachability.UNKNOWN),
        reason=matching(_WORD, value.get("reason")) or None,
        message=_sentence(value.get("message"), SIDE_MESSAGE_MAX) or None,
        since_s=number(value.get("sinceSeconds")),
        cluster_id=matching(_ID, value.get("clusterId")) or None,
    )


def _missing(value: Mapping[str, Any]) -> MissingReference | None:
    """Returns which Secret or ConfigMap is mounted at the reported path; None for any other path."""
    path, key = value.get("path"), matching(_NAME, value.get("key"))
    if not isinstance(path, str):
        return None
    folder, _, last = path.rpartition("/")
    name = matching(_OBJECT, last)
    if not name or folder not in {POD_LAYOUT.secrets, POD_LAYOUT.config_maps}:
        return None
    return MissingReference(name=name, key=key, is_secret=folder == POD_LAYOUT.secrets)


def _checkpoints(value: Mapping[str, Any]) -> Checkpoints | None:
    if not value:
        return None
    again = number(value.get("recordsReadAgain"), COUNT_MAX)
    return Checkpoints(
        groups=count(value.get("groups")),
        failing=count(value.get("failing")),
        read_again_records=None if again is None else int(again),
        age_s=number(value.get("ageSeconds")),
        interval_s=number(value.get("intervalSeconds")),
    )


def _schemas(value: Mapping[str, Any]) -> SchemasProgress | None:
    if not value:
        return None
    return SchemasProgress(
        missing=count(value.get("missing")),
        conflicts=count(value.get("conflicts")),
        age_s=number(value.get("ageSeconds")),
        interval_s=number(value.get("intervalSeconds")),
    )


def _reasons(value: Any) -> tuple[ReasonCount, ...]:
    rows = value[:REASONS_MAX] if isinstance(value, list) else []
    counts = [
        ReasonCount(
            matching(_WORD, row.get("reason")), count(row.get("count")), _sentence(row.get("example")) or None
        )
        for row in rows
        if isinstance(row, dict)
    ]
    return tuple(report for report in counts if report.reason)


def _warnings(value: Any) -> tuple[str, ...]:
    rows = value[:WARNINGS_MAX] if isinstance(value, list) else []
    return tuple(filter(None, map(_sentence, rows)))


def _sentence(value: Any, length_max: int = SENTENCE_MAX) -> str:
    return bounded(value, length_max) if isinstance(value, str) else ""


def _enum(kind: type[_E], value: Any, otherwise: _E) -> _E:
    return next((member for member in kind if member.value == value), otherwise)

"""The body of a connector's `GET /progress` -> a Summary; or the reason why it is none.

Pure and total: whatever a pod answers, a value comes out, bounded in every part. A pod is not trusted further than its own
flow: numbers are finite and not negative, words are words, what is unknown is passed over. A version rises only when
a field changes its meaning or goes, so new fields are read where they are and missed nowhere.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar

from mirrorflow_operator.assess.json_values import VERSIONS, count, matching, number, object_at
from mirrorflow_operator.assess.reports import Report, read_report
from mirrorflow_operator.plan.layout import POD_LAYOUT

BODY_MAX_BYTES: Final = 4_096  # DESIGN, section 6
REASONS_MAX: Final = 8
_E = TypeVar("_E", bound=Enum)
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_NAME: Final = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_OBJECT: Final = re.compile(r"[a-z0-9][-.a-z0-9]{0,252}")  # RFC 1123
_ID: Final = re.compile(r"[-._a-zA-Z0-9]{1,64}")


class Replicating(Enum):
    """The replicator's word for what it is seen to do; see its `connect/progress.py`."""

    ADVANCING = "Advancing"
    IDLE = "Idle"
    THROTTLED = "Throttled"
    STUCK = "Stuck"
    SOURCE_DATA_LOST = "SourceDataLost"
    WAITING = "Waiting"
    PAUSED = "Paused"
    UNKNOWN = "Unknown"  # a word of a later replicator


class Reach(Enum):
    """Whether a connector reaches one of its clusters."""

    REACHABLE = "Reachable"
    UNREACHABLE = "Unreachable"
    UNKNOWN = "Unknown"  # not tried yet, or a replicator that does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class SideSummary:
    """One cluster as the connector sees it; `reason` is a word of the replicator's errors, "" where it is reachable."""

    reach: Reach = Reach.UNKNOWN
    reason: str = ""
    since_s: float | None = None  # how long it has been so
    cluster_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingReference:
    """A key of a mounted Secret or ConfigMap that the process did not find; names, never values."""

    name: str
    key: str
    is_secret: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """What a checkpoint connector does; `age_s` is since its last whole pass, None before the first."""

    groups: int = 0
    failing: int = 0
    age_s: float | None = None
    interval_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What one pod says of its connector. Counts are of this pod."""

    version: int
    flow: str = ""
    state: str = ""
    uptime_s: float = 0.0
    tasks_total: int = 0
    tasks_failed: int = 0
    partitions: int = 0
    partitions_stopped: int = 0
    caught_up: bool = False
    lag_records: int = 0
    lag_s: float | None = None
    records_per_s: float = 0.0
    bytes_per_s: float = 0.0
    replicating: Replicating = Replicating.UNKNOWN
    reasons: tuple[tuple[str, int], ...] = ()
    source: SideSummary = field(default_factory=SideSummary)
    target: SideSummary = field(default_factory=SideSummary)
    missing: MissingReference | None = None
    checkpoints: Checkpoints | None = None


class Unread(Enum):
    """Why there is no summary."""

    UNREACHABLE = "PodUnreachable"  # nobody answers at its address
    REFUSED = "ProgressRefused"  # somebody answers, and not with a summary
    UNREADABLE = "ProgressUnreadable"  # the answer is no summary
    UNKNOWN_VERSION = "ProgressOfAnotherVersion"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One poll of one pod, at `read_at_s` (wall clock): a connector's summary, a Spark driver's report, or why there is neither
    in a word and a sentence's end.
    """

    read_at_s: float
    summary: Summary | None = None
    report: Report | None = None
    unread: Unread | None = None
    problem: str = ""


def read_summary(body: bytes, *, read_at_s: float) -> Reading:
    """What *body* says, or why it says nothing."""
    if len(body) > BODY_MAX_BYTES:
        return _unread(read_at_s, Unread.UNREADABLE, f"it is longer than {BODY_MAX_BYTES} bytes")
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _unread(read_at_s, Unread.UNREADABLE, "it is no JSON")
    if not isinstance(value, dict):
        return _unread(read_at_s, Unread.UNREADABLE, "it is no JSON object")
    version = value.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        return _unread(read_at_s, Unread.UNREADABLE, "it has no version")
    if version not in VERSIONS:
        return _unread(read_at_s, Unread.UNKNOWN_VERSION, "its version is not one that this operator reads")
    if "job" in value:
        report = read_report(value)
        if report is None:
            return _unread(read_at_s, Unread.UNREADABLE, "it is of a job that this operator does not know")
        return Reading(read_at_s=read_at_s, report=report)
    return Reading(read_at_s=read_at_s, summary=_summary(version, value))


def _unread(read_at_s: float, unread: Unread, problem: str) -> Reading:
    return Reading(read_at_s=read_at_s, unread=unread, problem=problem)


def _summary(version: int, value: Mapping[str, Any]) -> Summary:
    tasks, partitions = object_at(value, "tasks"), object_at(value, "partitions")
    return Summary(
        version=version,
        flow=matching(_NAME, value.get("flow")),
        state=matching(_WORD, value.get("state")),
        uptime_s=number(value.get("uptimeSeconds")) or 0.0,
        tasks_total=count(tasks.get("total")),
        tasks_failed=count(tasks.get("failed")),
        partitions=count(partitions.get("total")),
        partitions_stopped=count(partitions.get("stopped")),
        caught_up=value.get("caughtUp") is True,
        lag_records=count(value.get("lagRecords")),
        lag_s=number(value.get("lagSeconds")),
        records_per_s=number(value.get("recordsPerSecond")) or 0.0,
        bytes_per_s=number(value.get("bytesPerSecond")) or 0.0,
        replicating=_enum(Replicating, value.get("replicating"), Replicating.UNKNOWN),
        reasons=_reasons(value.get("reasons")),
        source=_side(object_at(value, "source")),
        target=_side(object_at(value, "target")),
        missing=_missing(object_at(value, "missing")),
        checkpoints=_checkpoints(object_at(value, "checkpoints")),
    )


def _side(value: Mapping[str, Any]) -> SideSummary:
    return SideSummary(
        reach=_enum(Reach, value.get("reach"), Reach.UNKNOWN),
        reason=matching(_WORD, value.get("reason")),
        since_s=number(value.get("sinceSeconds")),
        cluster_id=matching(_ID, value.get("clusterId")),
    )


def _missing(value: Mapping[str, Any]) -> MissingReference | None:
    """Which Secret or ConfigMap is mounted at that path; what is elsewhere belongs to the image, or to nobody."""
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
    return Checkpoints(
        groups=count(value.get("groups")),
        failing=count(value.get("failing")),
        age_s=number(value.get("ageSeconds")),
        interval_s=number(value.get("intervalSeconds")),
    )


def _reasons(value: Any) -> tuple[tuple[str, int], ...]:
    rows = value[:REASONS_MAX] if isinstance(value, list) else []
    found = [
        (matching(_WORD, row.get("reason")), count(row.get("count"))) for row in rows if isinstance(row, dict)
    ]
    return tuple((word, count) for word, count in found if word)


def _enum(kind: type[_E], value: Any, otherwise: _E) -> _E:
    return next((member for member in kind if member.value == value), otherwise)

"""Defines the reports of the Spark jobs: the JSON of `GET /progress` and of the termination message.

A report names no topic, group or record, because not everyone who may read a pod's status may see those.
"""

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Final

from mirrorflow_core.reports import Guarantee

VERSION: Final = 1
REPORT_BYTES_MAX: Final = 4_096  # of a termination message
MESSAGE_CHARACTERS_MAX: Final = 1_024  # of an ordinary text; it keeps the report below that
_CHARACTER_BYTES_MAX: Final = 12  # in JSON: the escapes of a surrogate pair


class JobPhase(Enum):
    """The phase of a job."""

    PREPARING = "Preparing"
    RUNNING = "Running"
    PAUSED = "Paused"  # ended gracefully by a signal
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The resources a job has used. Executor seconds are run times of tasks, even if they share a core."""

    executor_seconds: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "executorSeconds": round(self.executor_seconds, 1),
            "bytesRead": self.bytes_read,
            "bytesWritten": self.bytes_written,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobReport:
    """The fields that the reports of all jobs have."""

    run_id: str
    phase: JobPhase = JobPhase.PREPARING
    cost: Cost = field(default_factory=Cost)
    message: str = ""

    def _json(self, job: str, figures: dict[str, Any]) -> dict[str, Any]:
        return {
            "version": VERSION,
            "job": job,
            "runId": self.run_id,
            "phase": self.phase.value,
            **figures,
            "cost": self.cost.as_json(),
            "message": self.message[:MESSAGE_CHARACTERS_MAX],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedReport(_JobReport):
    """The current state of a seed.

    Records and bytes are of this run. `remaining_records` counts offsets, which may be more than records.
    """

    wave: int = 0  # the one that runs, or ran last, from 1: the first copies up to where the source ended when the seed began
    partitions: int = 0
    done: int = 0  # partitions that have reached the end offsets of the first wave
    lost: int = 0  # partitions that have lost records on the source, or stopped
    records: int = 0
    bytes: int = 0
    remaining_records: int = 0
    records_per_second: float = 0.0
    bytes_per_second: float = 0.0
    estimated_seconds: float | None = None
    gap_records: int = 0

    def as_json(self) -> dict[str, Any]:
        figures = {
            "wave": self.wave,
            "partitions": {"total": self.partitions, "done": self.done, "lost": self.lost},
            "records": self.records,
            "bytes": self.bytes,
            "remainingRecords": self.remaining_records,
            "recordsPerSecond": round(self.records_per_second, 1),
            "bytesPerSecond": round(self.bytes_per_second, 1),
            "estimatedSeconds": None if self.estimated_seconds is None else round(self.estimated_seconds),
            "gapRecords": self.gap_records,
            "guarantee": Guarantee.EXACTLY_ONCE.value,
        }
        return self._json("seed", figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCounts:
    """The number of windows of source offsets by outcome."""

    total: int = 0
    equal: int = 0
    reordered: int = 0
    different: int = 0
    undecided: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport(_JobReport):
    """The current state of a verification."""

    windows: OutcomeCounts = field(default_factory=OutcomeCounts)
    source_records: int = 0
    target_records: int = 0
    differences: int = 0

    def as_json(self) -> dict[str, Any]:
        figures = {
            "windows": asdict(self.windows),
            "sourceRecords": self.source_records,
            "targetRecords": self.target_records,
            "differences": self.differences,
        }
        return self._json("verify", figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport(_JobReport):
    """The current state of a repair. `plan`, once it is made, names topics, so it is not in the JSON."""

    windows: int = 0  # that are not equal
    differing: int = 0  # records to copy
    copied: int = 0  # of these, in the quarantine topics
    plan: Any = None

    def as_json(self) -> dict[str, Any]:
        figures = {"windows": self.windows, "differing": self.differing, "copied": self.copied}
        return self._json("repair", figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport(_JobReport):
    """The current state of an export or a restore. Records and bytes are of this run."""

    job: str  # export, restore
    partitions: int = 0
    done: int = 0
    records: int = 0
    bytes: int = 0
    gap_records: int = 0  # offsets that the source deleted while they were exported
    commit: int = 0  # of an export: the number of the archive's last commit; 0 before this job has one
    archived_records: int = 0  # of an export: all those of the archive
    archived_time: str = ""  # of an export: when all that was new was last found to be archived (RFC 3339)

    def as_json(self) -> dict[str, Any]:
        figures = {
            "partitions": {"total": self.partitions, "done": self.done},
            "records": self.records,
            "bytes": self.bytes,
            "gapRecords": self.gap_records,
            "commit": self.commit,
            "archivedRecords": self.archived_records,
            "archivedTime": self.archived_time,
        }
        return self._json(self.job, figures)


Report = SeedReport | VerifyReport | RepairReport | ArchiveReport


def encode(report: Report) -> bytes:
    """Returns *report* as JSON, as served over HTTP and written as termination message; its message is cut so that it fits into 4 KiB."""
    fields = report.as_json()
    while True:
        body = json.dumps(fields, separators=(",", ":")).encode()
        excess_bytes, message = len(body) - REPORT_BYTES_MAX, fields["message"]
        if excess_bytes <= 0 or not message:
            return body
        fields["message"] = message[: -max(1, excess_bytes // _CHARACTER_BYTES_MAX)]

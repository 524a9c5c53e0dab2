"""The reports of the Spark jobs: the JSON of `GET /progress` and of the termination message.

A report names no topic, group or record, because not everyone who may read a pod's status may see those.
"""

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from mirrorflow_core.reports import Guarantee

VERSION: Final = 1
MESSAGE_CHARACTERS_MAX: Final = 1_024  # keeps the report below the 4 KiB of a termination message


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
class SeedReport:
    """The current state of a seed.

    Records and bytes are of this run. `remaining_records` counts offsets, which may be more than records.
    """

    run_id: str
    phase: JobPhase = JobPhase.PREPARING
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
    cost: Cost = field(default_factory=Cost)
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "job": "seed",
            "runId": self.run_id,
            "phase": self.phase.value,
            "partitions": {"total": self.partitions, "done": self.done, "lost": self.lost},
            "records": self.records,
            "bytes": self.bytes,
            "remainingRecords": self.remaining_records,
            "recordsPerSecond": round(self.records_per_second, 1),
            "bytesPerSecond": round(self.bytes_per_second, 1),
            "estimatedSeconds": None if self.estimated_seconds is None else round(self.estimated_seconds),
            "gapRecords": self.gap_records,
            "guarantee": Guarantee.EXACTLY_ONCE.value,
            "cost": self.cost.as_json(),
            "message": self.message[:MESSAGE_CHARACTERS_MAX],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Number of windows of source offsets by outcome."""

    total: int = 0
    equal: int = 0
    reordered: int = 0
    different: int = 0
    undecided: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """The current state of a verification."""

    run_id: str
    phase: JobPhase = JobPhase.PREPARING
    windows: Windows = field(default_factory=Windows)
    source_records: int = 0
    target_records: int = 0
    differences: int = 0
    cost: Cost = field(default_factory=Cost)
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        windows = self.windows
        return {
            "version": VERSION,
            "job": "verify",
            "runId": self.run_id,
            "phase": self.phase.value,
            "windows": {
                "total": windows.total,
                "equal": windows.equal,
                "reordered": windows.reordered,
                "different": windows.different,
                "undecided": windows.undecided,
            },
            "sourceRecords": self.source_records,
            "targetRecords": self.target_records,
            "differences": self.differences,
            "cost": self.cost.as_json(),
            "message": self.message[:MESSAGE_CHARACTERS_MAX],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """The current state of an export or a restore. Records and bytes are of this run."""

    run_id: str
    job: str  # export, restore
    phase: JobPhase = JobPhase.PREPARING
    partitions: int = 0
    done: int = 0
    records: int = 0
    bytes: int = 0
    gap_records: int = 0  # offsets that the source deleted while they were exported
    cost: Cost = field(default_factory=Cost)
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "job": self.job,
            "runId": self.run_id,
            "phase": self.phase.value,
            "partitions": {"total": self.partitions, "done": self.done},
            "records": self.records,
            "bytes": self.bytes,
            "gapRecords": self.gap_records,
            "cost": self.cost.as_json(),
            "message": self.message[:MESSAGE_CHARACTERS_MAX],
        }


Report = SeedReport | VerifyReport | ArchiveReport


def encode(report: Report) -> bytes:
    """The JSON of *report*, as served over HTTP and written as termination message; at most 4 KiB."""
    return json.dumps(report.as_json(), ensure_ascii=True, separators=(",", ":")).encode()[:4096]

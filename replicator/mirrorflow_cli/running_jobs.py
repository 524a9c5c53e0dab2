"""Registers the Spark jobs that run on this machine for this user, each with its newest report, for `mirrorflow ui`.

As flows do (`running_processes`): a file that its process holds locked, and beside it the report. Neither has a topic's name.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mirrorflow_replicator.worker import running_processes

_REGISTERED: Final = "jobOfFlow"  # the field with the name of the flow; processes of flows have others


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job of the flow *flow*; *report* is its newest one, as JSON, and empty until there is one."""

    flow: str
    began_ms: int
    report: Mapping[str, Any]


class JobRegistration:
    """Writes reports beside the registration of this process; without a folder it does nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, report: Any) -> None:
        """Replaces the report that others read. A job does not fail because it cannot be written."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                running_processes.write_progress(self._path, report.as_json())


@contextlib.contextmanager
def registered_job(flow: str) -> Iterator[JobRegistration]:
    """Registers this process as a job of *flow* inside the block."""
    with running_processes.registered_if_possible({_REGISTERED: flow}) as path:
        yield JobRegistration(path)


def running_jobs() -> list[RunningJob]:
    """Returns the jobs that run now, oldest first; none of a version with other fields."""
    jobs = []
    for fields in running_processes.registered_processes():
        flow, began_ms, report = fields.get(_REGISTERED), fields.get("beganMs"), fields.get("progress", {})
        if isinstance(flow, str) and isinstance(began_ms, int) and isinstance(report, dict):
            jobs.append(RunningJob(flow=flow, began_ms=began_ms, report=report))
    return sorted(jobs, key=lambda job: job.began_ms)

"""Publishes the progress and the result of an export or a restore (`report`, `status_server`)."""

from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from mirrorflow_seed.job_status_server import Display, JobStatusServer, TaskRequestHandler
from mirrorflow_seed.report import ArchiveReport, JobPhase


class JobReporter:
    """Publishes the reports of *job*; a context manager that reports an exception as the final state."""

    def __init__(
        self, job: str, run_id: str, display: Display | None, *, handler: TaskRequestHandler | None = None
    ) -> None:
        self._report = ArchiveReport(job=job, run_id=run_id)
        self._status_server = JobStatusServer(self._report, display=display, handler=handler)

    @property
    def port(self) -> int | None:
        """The port that tasks send their messages to."""
        return self._status_server.port

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            phase = JobPhase.FAILED if isinstance(error, Exception) else JobPhase.PAUSED
            self._publish(phase=phase, message=str(error))
        self._status_server.close()

    def running(self, *, total: int | None = None, **changes: Any) -> None:
        """Updates the report fields that changed."""
        if total is not None:
            changes["partitions"] = total
        self._publish(phase=JobPhase.RUNNING, **changes)

    def ended(self, *, message: str, **changes: Any) -> None:
        """Reports success."""
        self._publish(phase=JobPhase.SUCCEEDED, done=self._report.partitions, message=message, **changes)

    def failed(self, message: str) -> None:
        """Reports that the job ended with a failure."""
        self._publish(phase=JobPhase.FAILED, message=message)

    def stopped(self, message: str) -> None:
        """Reports that a signal ended the job gracefully."""
        self._publish(phase=JobPhase.PAUSED, message=message)

    def _publish(self, **changes: Any) -> None:
        self._report = replace(self._report, **changes)
        self._status_server.publish(self._report)

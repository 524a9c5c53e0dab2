"""Computes the phase of a Spark job, and why its driver does not run. Pure."""

from collections.abc import Iterator
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import RunPhase
from mirrorflow_operator.assess.due_jobs import driver
from mirrorflow_operator.assess.findings import bounded
from mirrorflow_operator.assess.observation import JobSeen
from mirrorflow_operator.assess.reasons import Reason
from mirrorflow_operator.assess.reports import Report
from mirrorflow_operator.assess.workloads import QUOTE_MAX, WorkloadTrouble, pod_troubles

_FINAL: Final = {
    "Complete": RunPhase.SUCCEEDED,
    "Failed": RunPhase.FAILED,
}
_WORDS: Final = {
    "BackoffLimitExceeded": "its driver failed again and again",
    "DeadlineExceeded": "it took longer than it may",
    "PodFailurePolicy": "its driver gave up for good",
}


def phase_of(job: JobSeen) -> RunPhase:
    """Returns the job's phase for the status."""
    if job.outcome in _FINAL:
        return _FINAL[job.outcome]
    if job.suspended:
        return RunPhase.PAUSED
    pod = driver(job)
    return RunPhase.RUNNING if pod is not None and pod.phase == "Running" else RunPhase.PENDING


def trouble_of(job: JobSeen, *, flow: MirrorFlow | None, now_s: float) -> WorkloadTrouble | None:
    """Returns why an active job does not run; None where no cause is known or the job is not active."""
    if job.outcome or job.suspended:
        return None
    return next(_troubles(job, flow, now_s), None)


def _troubles(job: JobSeen, flow: MirrorFlow | None, now_s: float) -> Iterator[WorkloadTrouble]:
    pod = driver(job)
    if pod is not None:
        path = f"spec.{job.kind.value}.driver"
        yield from pod_troubles(pod, f"{job.kind.value} driver", path, flow, now_s)
    elif job.events:
        said = bounded(job.events[-1].message, QUOTE_MAX)
        yield WorkloadTrouble(
            reason=Reason.PODS_REFUSED,
            message=f"The API server refuses the {job.kind.value}'s driver: {said}",
        )


def _why_failed(job: JobSeen) -> str:
    """Returns, as part of a sentence, why Kubernetes gave up the job."""
    return _WORDS.get(job.reason, bounded(job.message, QUOTE_MAX) or "Kubernetes does not say why")


def failure(job: JobSeen, report: Report | None) -> str:
    """Returns a sentence without a final stop: why the job failed, and its own message."""
    said = "" if report is None or not report.message else f": {report.message}"
    return f"It failed, for {_why_failed(job)}{said}"


def see(job: str) -> str:
    """Returns a sentence with the command that shows the log of the Job of that name."""
    return f"See kubectl logs job/{job}."

"""Of one Spark job: its phase, and what keeps its driver from running. Pure."""

from collections.abc import Iterator
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import RunPhase
from mirrorflow_operator.assess.findings import bounded
from mirrorflow_operator.assess.observation import JobSeen
from mirrorflow_operator.assess.reasons import Reason
from mirrorflow_operator.assess.reports import Report
from mirrorflow_operator.assess.runs import driver
from mirrorflow_operator.assess.workloads import QUOTE_MAX, Trouble, pod_troubles

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
    """As the status calls it."""
    if job.outcome in _FINAL:
        return _FINAL[job.outcome]
    if job.suspended:
        return RunPhase.PAUSED
    pod = driver(job)
    return RunPhase.RUNNING if pod is not None and pod.phase == "Running" else RunPhase.PENDING


def trouble_of(job: JobSeen, *, flow: MirrorFlow | None, now_s: float) -> Trouble | None:
    """What keeps a job that should go on from it; None where nothing is known to."""
    if job.outcome or job.suspended:
        return None
    return next(_troubles(job, flow, now_s), None)


def _troubles(job: JobSeen, flow: MirrorFlow | None, now_s: float) -> Iterator[Trouble]:
    pod = driver(job)
    if pod is not None:
        path = f"spec.{job.kind.value}.driver"
        yield from pod_troubles(pod, f"{job.kind.value} driver", path, flow, now_s)
    elif job.events:
        said = bounded(job.events[-1].message, QUOTE_MAX)
        yield Trouble(
            reason=Reason.PODS_REFUSED,
            message=f"The API server refuses the {job.kind.value}'s driver: {said}",
        )


def _why_failed(job: JobSeen) -> str:
    """Within a sentence: why Kubernetes gave the job up."""
    return _WORDS.get(job.reason, bounded(job.message, QUOTE_MAX) or "Kubernetes does not say why")


def failure(job: JobSeen, report: Report | None) -> str:
    """A sentence of a job that has failed, without its stop: why, and what it said itself."""
    said = "" if report is None or not report.message else f": {report.message}"
    return f"It failed, for {_why_failed(job)}{said}"


def see(job: str) -> str:
    """A sentence that leads to the last words of the Job of that name."""
    return f"See kubectl logs job/{job}."

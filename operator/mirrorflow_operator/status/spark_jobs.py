"""Decides which Spark jobs should exist and whether the source connector waits for the seed; explains each job's phase.

Pure. A run is identified by its runId and ends once: its end is recorded in the status or by a Job that still
exists. Until then its Job should exist; a deleted one is re-created. The connector waits for a seed only to
avoid duplicate work. After HOLD_S without progress of the seed it continues beside it, which the target's
idempotence check keeps safe (docs/exactly-once.md).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import RunPhase, RunStatus, Status
from mirrorflow_operator.plan.jobs import ENDED_KEPT, RunKind, Runs
from mirrorflow_operator.status.conditions import Reason, bounded
from mirrorflow_operator.status.observation import JobSeen, PodSeen
from mirrorflow_operator.status.progress import Report, report_of
from mirrorflow_operator.status.workloads import QUOTE_MAX, WorkloadTrouble, pod_troubles

# Long enough to pull an image of half a gigabyte, schedule executors and plan ten thousand partitions.
HOLD_S: Final = 600.0
_ENDED: Final = frozenset({RunPhase.SUCCEEDED.value, RunPhase.FAILED.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A seed's last progress, and since when it has not changed; if it is lost, the time counts from now."""

    step: tuple[object, ...]
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJobs:
    """The decision; `again_after_s`: seconds until the next one if no event comes earlier."""

    runs: Runs
    holding: Holding | None = None
    again_after_s: float | None = None


def decide(
    flow: MirrorFlow | None, status: Status, jobs: Sequence[JobSeen], holding: Holding | None, now_s: float
) -> DueJobs:
    """Returns the runs that *flow* should have; *jobs*: the existing ones, *status*: records ended runs."""
    kept = frozenset(name for kind in RunKind for name in _kept(jobs, kind))
    if flow is None:
        return DueJobs(runs=Runs(kept=kept))
    seed, verify = flow.spec.seed, flow.spec.verify
    is_seeding = seed is not None and is_open(RunKind.SEED, seed.run_id, status, jobs)
    is_verifying = verify is not None and is_open(RunKind.VERIFY, verify.run_id, status, jobs)
    runs = Runs(
        seed=is_seeding,
        # A target that is still being filled differs from the source, so verifying it is useless.
        verify=is_verifying and not is_seeding,
        kept=kept,
    )
    if not is_seeding or flow.spec.state is not State.RUNNING or seed is None:
        return DueJobs(runs=runs)
    step = _step(newest(jobs, RunKind.SEED, seed.run_id), seed.run_id)
    if holding is None or holding.step != step or holding.since_s > now_s:
        holding = Holding(step=step, since_s=now_s)
    left_s = holding.since_s + HOLD_S - now_s
    if left_s <= 0:
        return DueJobs(runs=runs, holding=holding)
    return DueJobs(runs=replace(runs, holds_connector=True), holding=holding, again_after_s=left_s)


def is_open(kind: RunKind, run_id: str, status: Status, jobs: Iterable[JobSeen]) -> bool:
    """Whether a run with that id is requested and has not ended."""
    if kind is RunKind.VERIFY:
        is_recorded = status.verify is not None and status.verify.ended_run_id == run_id
    else:
        is_recorded = has_ended(status.seed, run_id)
    if not run_id or is_recorded:
        return False
    return not any(job.kind is kind and job.run_id == run_id and job.outcome for job in jobs)


def has_ended(status: RunStatus | None, run_id: str) -> bool:
    """Whether *status* belongs to that run and records its end."""
    return status is not None and status.run_id == run_id and status.phase in _ENDED


def newest(jobs: Iterable[JobSeen], kind: RunKind, run_id: str | None = None) -> JobSeen | None:
    """Returns the newest Job of *kind*; with *run_id*, of that run, preferring a Job that has ended."""
    found = [job for job in jobs if job.kind is kind and run_id in {None, job.run_id}]
    return max(
        found,
        key=lambda job: (bool(job.outcome) and run_id is not None, job.created_s, job.name),
        default=None,
    )


def reports(job: JobSeen) -> list[tuple[PodSeen, Report]]:
    """Returns the last report of each driver of *job* that has made one, newest driver first."""
    pods = sorted(job.pods, key=lambda pod: (-pod.created_s, pod.name))
    return [(pod, found) for pod in pods if (found := _report(pod, job.kind)) is not None]


def _report(pod: PodSeen, kind: RunKind) -> Report | None:
    found = report_of(pod.terminated_message) if pod.terminated_message else None
    if found is None and pod.reading is not None:
        found = pod.reading.report
    return found if found is not None and found.kind is kind else None


def last_report(job: JobSeen) -> Report | None:
    """Returns the last report of the newest driver that has made one."""
    return next((report for _, report in reports(job)), None)


def driver(job: JobSeen) -> PodSeen | None:
    """Returns the newest driver that runs or will run; None without one."""
    alive = [pod for pod in job.pods if pod.is_alive]
    return max(alive, key=lambda pod: pod.created_s, default=None)


def has_no_driver(job: JobSeen) -> bool:
    """Whether *job* is active but has no driver pod."""
    return not (job.outcome or job.suspended) and driver(job) is None


def _step(job: JobSeen | None, run_id: str) -> tuple[object, ...]:
    """Returns a fingerprint of the seed's progress: it changes whenever the seed has advanced."""
    if job is None:
        return (run_id,)
    pod, report = driver(job), last_report(job)
    done = (
        ()
        if report is None
        else (report.records, report.bytes, report.partitions.done, report.remaining_records)
    )
    return (run_id, job.name, "" if pod is None else pod.uid, *done)


def _kept(jobs: Sequence[JobSeen], kind: RunKind) -> list[str]:
    """Returns the newest ended Jobs, to keep; the CronJob's own limits apply to those of a schedule."""
    ended = [job for job in jobs if job.kind is kind and job.run_id and job.outcome]
    return [job.name for job in sorted(ended, key=lambda job: -(job.ended_s or job.created_s))[:ENDED_KEPT]]


_FINAL: Final = {
    "Complete": RunPhase.SUCCEEDED,
    "Failed": RunPhase.FAILED,
}
_GIVEN_UP: Final = {
    "BackoffLimitExceeded": "its driver failed repeatedly",
    "DeadlineExceeded": "it exceeded its deadline",
    "PodFailurePolicy": "its driver reported an error that a retry cannot fix",
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


def failure(job: JobSeen, report: Report | None) -> str:
    """Returns a sentence without a final stop: why the job failed, and its own message."""
    said = "" if report is None or not report.message else f": {report.message}"
    why = _GIVEN_UP.get(job.reason, bounded(job.message, QUOTE_MAX) or "Kubernetes reports no reason")
    return f"It failed: {why}{said}"


def see(job: str) -> str:
    """Returns a sentence with the command that shows the log of the Job of that name."""
    return f"See kubectl logs job/{job}."

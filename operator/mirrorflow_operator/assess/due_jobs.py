"""Decides which Spark jobs should exist, and whether the source connector waits for the seed. Pure.

The decision precedes the plan. A run is identified by its runId and ends once: its end is recorded in the
status or by a Job that still exists. Until then its Job should exist; a deleted one is re-created. The
connector waits for a seed only to avoid duplicate work. After HOLD_S without progress of the seed it
continues beside it, which the target's idempotence check keeps safe (docs/exactly-once.md).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import RunPhase, RunStatus, Status
from mirrorflow_operator.assess.observation import JobSeen, PodSeen
from mirrorflow_operator.assess.reports import Report, report_of
from mirrorflow_operator.plan.jobs import ENDED_KEPT
from mirrorflow_operator.plan.runs import RunKind, Runs

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
    if not run_id or recorded_end(kind, run_id, status):
        return False
    return not any(job.kind is kind and job.run_id == run_id and job.outcome for job in jobs)


def recorded_end(kind: RunKind, run_id: str, status: Status) -> bool:
    """Whether the status records that the run has ended."""
    if kind is RunKind.VERIFY:
        return status.verify is not None and status.verify.ended_run_id == run_id
    return has_ended(status.seed, run_id)


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

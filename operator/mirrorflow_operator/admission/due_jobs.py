"""Decides which Spark jobs should exist. Pure.

A run is identified by its runId and ends once: its end is recorded in the status or by a Job that still
exists. Until then its Job should exist; a deleted one is re-created. The source connector has no pods during a
seed or a restore, to save work. After HOLD_S without progress its pod starts and waits until the job releases
the flow (docs/exactly-once.md).

An export that follows the source has no end. If its Job has failed, it is deleted after ARCHIVE_AGAIN_S, and a new one
continues.

Kubernetes repeats a failed driver of a Job. `Runs.attempts` has the SparkApplication of each run that should exist.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.plan.spark_run import ARCHIVE_AGAIN_S, ENDED_KEPT, FOLLOWING, RunKind, Runs
from mirrorflow_operator.status.observation import ObservedJob
from mirrorflow_operator.status.spark_attempts import due_attempt
from mirrorflow_operator.status.spark_jobs import is_open, last_report, live_driver, newest_job

# Long enough to pull an image of half a gigabyte, schedule executors and plan ten thousand partitions.
HOLD_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedStall:
    """The last progress of a seed or a restore, and since when it has not changed; if it is lost, the time counts from now."""

    step: tuple[object, ...]
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJobs:
    """The decision; `again_after_s`: seconds until the next one if no event comes earlier."""

    runs: Runs
    seed_stall: SeedStall | None = None
    again_after_s: float | None = None


def due_jobs(
    flow: MirrorFlow | None,
    status: Status,
    jobs: Sequence[ObservedJob],
    seed_stall: SeedStall | None,
    now_s: float,
) -> DueJobs:
    """Returns the runs that *flow* should have; *jobs*: the existing ones, *status*: records ended runs."""
    ended = [job.run_name for job in jobs if _is_to_start_again(job, now_s)]
    kept = frozenset(name for kind in RunKind for name in _kept(jobs, kind) if name not in ended)
    if flow is None:
        return DueJobs(runs=Runs(kept=kept))
    seed, verify, archive, restore = flow.spec.seed, flow.spec.verify, flow.spec.archive, flow.spec.restore
    is_seeding = seed is not None and is_open(RunKind.SEED, seed.run_id, status, jobs)
    is_restoring = restore is not None and is_open(RunKind.RESTORE, restore.run_id, status, jobs)
    is_verifying = verify is not None and is_open(RunKind.VERIFY, verify.run_id, status, jobs)
    runs = Runs(
        seed=is_seeding,
        # A target that is still being filled differs from the source, so verifying it is useless.
        verify=is_verifying and not is_seeding and not is_restoring,
        # A failed Job is deleted before the next one of that name is created. Those of earlier specs have other names.
        archive=archive is not None and archive.follow and _newest_export(jobs) not in ended,
        # Only one job owns the flow.
        restore=is_restoring and not is_seeding,
        kept=kept,
        attempts={job.run_name: due_attempt(job, now_s) for job in jobs if job.attempts},
    )
    again_after_s = min(
        (
            wait_s
            for wait_s in (_archive_again_after_s(jobs, now_s), _retry_after_s(jobs, now_s))
            if wait_s is not None
        ),
        default=None,
    )
    if is_seeding and seed is not None and flow.spec.state is State.RUNNING:
        kind, run_id = RunKind.SEED, seed.run_id
    elif runs.restore and restore is not None and flow.spec.state is not State.STOPPED:
        kind, run_id = RunKind.RESTORE, restore.run_id
    else:
        return DueJobs(runs=runs, again_after_s=again_after_s)
    step = _step(newest_job(jobs, kind, run_id), run_id)
    if seed_stall is None or seed_stall.step != step or seed_stall.since_s > now_s:
        seed_stall = SeedStall(step=step, since_s=now_s)
    left_s = seed_stall.since_s + HOLD_S - now_s
    if left_s <= 0:
        return DueJobs(runs=runs, seed_stall=seed_stall, again_after_s=again_after_s)
    return DueJobs(
        runs=replace(runs, replaces_source=True),
        seed_stall=seed_stall,
        again_after_s=left_s if again_after_s is None else min(left_s, again_after_s),
    )


def _is_to_start_again(job: ObservedJob, now_s: float) -> bool:
    """Whether *job* is an export that follows the source, and failed long enough ago."""
    return _follows_no_more(job) and now_s - (job.ended_s or job.created_s) >= ARCHIVE_AGAIN_S


def _follows_no_more(job: ObservedJob) -> bool:
    return job.kind is RunKind.ARCHIVE and job.run_id == FOLLOWING and job.outcome is not None


def _newest_export(jobs: Sequence[ObservedJob]) -> str:
    """Returns the name of the newest Job of an export that follows the source; "" without one."""
    exports = [job for job in jobs if job.kind is RunKind.ARCHIVE and job.run_id == FOLLOWING]
    newest = max(exports, key=lambda job: (job.created_s, job.name), default=None)
    return "" if newest is None else newest.run_name


def _retry_after_s(jobs: Sequence[ObservedJob], now_s: float) -> float | None:
    """Returns the seconds until the next attempt of a SparkApplication is due; None where none is."""
    waits = [max(0.0, job.retry_at_s - now_s) for job in jobs if job.retry_at_s is not None]
    return min(waits, default=None)


def _archive_again_after_s(jobs: Sequence[ObservedJob], now_s: float) -> float | None:
    """Returns the seconds until a failed export starts again; None if none has failed."""
    waits = [
        max(0.0, (job.ended_s or job.created_s) + ARCHIVE_AGAIN_S - now_s)
        for job in jobs
        if _follows_no_more(job)
    ]
    return min(waits, default=None)


def _step(job: ObservedJob | None, run_id: str) -> tuple[object, ...]:
    """Returns a fingerprint of the seed's progress: it changes whenever the seed has advanced."""
    if job is None:
        return (run_id,)
    pod, report = live_driver(job), last_report(job)
    done = (
        ()
        if report is None
        else (report.records, report.bytes, report.partitions.done, report.remaining_records)
    )
    return (run_id, job.name, "" if pod is None else pod.uid, *done)


def _kept(jobs: Sequence[ObservedJob], kind: RunKind) -> list[str]:
    """Returns the newest ended Jobs, to keep; the CronJob's own limits apply to those of a schedule."""
    ended = [job for job in jobs if job.kind is kind and job.run_id and job.outcome is not None]
    return [
        job.run_name for job in sorted(ended, key=lambda job: -(job.ended_s or job.created_s))[:ENDED_KEPT]
    ]

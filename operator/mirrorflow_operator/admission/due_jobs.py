"""Decides which Spark jobs should exist. Pure.

A run is identified by its runId and ends once: its end is recorded in the status or by a Job that still
exists. Until then its Job should exist; a deleted one is re-created. The source connector has no pods during a
seed, to save work. After HOLD_S without progress of the seed its pod starts and waits until the seed releases
the flow (docs/exactly-once.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import Status
from mirrorflow_operator.plan.job_objects import ENDED_KEPT, RunKind, Runs
from mirrorflow_operator.status.observation import ObservedJob
from mirrorflow_operator.status.spark_jobs import is_open, last_report, live_driver, newest_job

# Long enough to pull an image of half a gigabyte, schedule executors and plan ten thousand partitions.
HOLD_S: Final = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedStall:
    """A seed's last progress, and since when it has not changed; if it is lost, the time counts from now."""

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
    step = _step(newest_job(jobs, RunKind.SEED, seed.run_id), seed.run_id)
    if seed_stall is None or seed_stall.step != step or seed_stall.since_s > now_s:
        seed_stall = SeedStall(step=step, since_s=now_s)
    left_s = seed_stall.since_s + HOLD_S - now_s
    if left_s <= 0:
        return DueJobs(runs=runs, seed_stall=seed_stall)
    return DueJobs(runs=replace(runs, replaces_source=True), seed_stall=seed_stall, again_after_s=left_s)


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
    ended = [job for job in jobs if job.kind is kind and job.run_id and job.outcome]
    return [job.name for job in sorted(ended, key=lambda job: -(job.ended_s or job.created_s))[:ENDED_KEPT]]

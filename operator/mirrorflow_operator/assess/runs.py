"""Which Spark jobs should be there, and whether the connector waits for the seed: decided before anything is planned. Pure.

A run is known by its runId and ends once: its end stands in the status, or in a Job that is still there. Until then its Job
should be there, whoever deletes it. The connector waits for a seed only to spare work, so it does not wait for one that
does nothing: after HOLD_S without a step it goes on beside it, which the target keeps safe (DESIGN, section 4.2).
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

# An image of half a gigabyte is pulled, executors are scheduled, and a plan of ten thousand partitions is made within this.
HOLD_S: Final = 600.0
_ENDED: Final = frozenset({RunPhase.SUCCEEDED.value, RunPhase.FAILED.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """The last step of a seed that was seen, and since when there was no other. May be lost: then it counts from now."""

    step: tuple[object, ...]
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """`again_after_s`: when to decide again though nothing may have happened."""

    runs: Runs
    holding: Holding | None = None
    again_after_s: float | None = None


def decide(
    flow: MirrorFlow | None, status: Status, jobs: Sequence[JobSeen], holding: Holding | None, now_s: float
) -> Decision:
    """What *flow* should have, where *jobs* are there and *status* tells of runs that have ended."""
    kept = frozenset(name for kind in RunKind for name in _kept(jobs, kind))
    if flow is None:
        return Decision(runs=Runs(kept=kept))
    seed, verify = flow.spec.seed, flow.spec.verify
    is_seeding = seed is not None and is_open(RunKind.SEED, seed.run_id, status, jobs)
    is_verifying = verify is not None and is_open(RunKind.VERIFY, verify.run_id, status, jobs)
    runs = Runs(
        seed=is_seeding,
        # A target that is being filled differs, and everybody knows it.
        verify=is_verifying and not is_seeding,
        kept=kept,
    )
    if not is_seeding or flow.spec.state is not State.RUNNING or seed is None:
        return Decision(runs=runs)
    step = _step(newest(jobs, RunKind.SEED, seed.run_id), seed.run_id)
    if holding is None or holding.step != step or holding.since_s > now_s:
        holding = Holding(step=step, since_s=now_s)
    left_s = holding.since_s + HOLD_S - now_s
    if left_s <= 0:
        return Decision(runs=runs, holding=holding)
    return Decision(runs=replace(runs, holds_connector=True), holding=holding, again_after_s=left_s)


def is_open(kind: RunKind, run_id: str, status: Status, jobs: Iterable[JobSeen]) -> bool:
    """Whether the run is asked for and has not ended."""
    if not run_id or recorded_end(kind, run_id, status):
        return False
    return not any(job.kind is kind and job.run_id == run_id and job.outcome for job in jobs)


def recorded_end(kind: RunKind, run_id: str, status: Status) -> bool:
    """Whether the status says that the run has ended."""
    if kind is RunKind.VERIFY:
        return status.verify is not None and status.verify.ended_run_id == run_id
    return has_ended(status.seed, run_id)


def has_ended(status: RunStatus | None, run_id: str) -> bool:
    """Whether *status* is of that run, and of its end."""
    return status is not None and status.run_id == run_id and status.phase in _ENDED


def newest(jobs: Iterable[JobSeen], kind: RunKind, run_id: str | None = None) -> JobSeen | None:
    """The youngest Job of *kind*, of that run where one is named; one that has ended before one that has not."""
    found = [job for job in jobs if job.kind is kind and run_id in {None, job.run_id}]
    return max(
        found,
        key=lambda job: (bool(job.outcome) and run_id is not None, job.created_s, job.name),
        default=None,
    )


def last_report(job: JobSeen) -> Report | None:
    """What the youngest of its drivers that has said anything has said last."""
    for pod in sorted(job.pods, key=lambda pod: (-pod.created_s, pod.name)):
        found = report_of(pod.terminated_message) if pod.terminated_message else None
        if found is None and pod.reading is not None:
            found = pod.reading.report
        if found is not None and found.kind is job.kind:
            return found
    return None


def driver(job: JobSeen) -> PodSeen | None:
    """The driver that is at work, or on its way."""
    alive = [pod for pod in job.pods if pod.is_alive]
    return max(alive, key=lambda pod: pod.created_s, default=None)


def has_no_driver(job: JobSeen) -> bool:
    """Whether its driver should be there, and is not."""
    return not (job.outcome or job.suspended) and driver(job) is None


def _step(job: JobSeen | None, run_id: str) -> tuple[object, ...]:
    """Another one where the seed has done anything."""
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
    """The youngest that have ended; those of a schedule are its CronJob's to keep."""
    ended = [job for job in jobs if job.kind is kind and job.run_id and job.outcome]
    return [job.name for job in sorted(ended, key=lambda job: -(job.ended_s or job.created_s))[:ENDED_KEPT]]
